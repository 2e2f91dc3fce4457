"""What is offered and what devices can do: codecs, schemes, and what is refused on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines.alone import Alone
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, softmax_regression, stateful

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.messages import Busy, Codecs, Train
from kellet.sdk.protocol.vectors import encode_vector
from kellet.sdk.variants import add_variants
from kellet.server import FleetConfig

PLAN = linear_loss(4)
ROWS = add_variants(softmax_regression(2, 3), ["w8.row/1"])
N = 9
LAYOUT = kernels.row_layout([(3, 2), (3,)])


def q8(v: Any) -> bytes:
    return encode_vector("q8", np.asarray(v, np.float32), LAYOUT)


def rows_lab(algorithm: Any = None, **config: Any) -> Lab:
    return Lab(ROWS, algorithm or Scaffold(), **({"target": 1} | config))


# -- codecs ---------------------------------------------------------------------


def test_what_is_decoded_is_what_counts() -> None:
    """delta_y of (254, 1, ...) comes as rows of scale 2: 1 is rounded to 0, and so is delta_c."""
    lab = rows_lab(uplink=("q8",), schemes=("w8.row/1", "f32/1"))
    puppet = Puppet(lab)
    puppet.hello(schemes=("w8.row/1",), profile="pi_5")
    sent = np.array([254, 1, 0, 0, 0, 0, 0, 0, 0], np.float32)
    receipt = puppet.send(q8(sent), rate_sum=0.5, scheme="w8.row/1")
    assert receipt.counted, receipt
    # C = -(c_a + D(delta_y)/A) = (-508, 0, ...) on the grid
    assert lab.machine.control.integers() == [-508 * 2**48, *[0] * 8]
    assert lab.machine.model.tolist() == [254, *[0] * 8]
    (row,) = lab.ledger.rounds()[:1]
    assert row.summary["schemes"] == {"w8.row/1": 1}
    assert row.summary["codecs"] == {"q8": 1}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"uplink": "f32"}, "header"),
        ({"uplink": "topk"}, "header"),
        ({"codec": "f32"}, "header"),
        ({"scheme": "w8.block64/1"}, "header"),
        ({"scheme": "w8.row/2"}, "header"),
    ],
)
def test_what_was_not_offered_is_refused(header: dict[str, str], reason: str) -> None:
    lab = rows_lab(uplink=("q8",), schemes=("w8.row/1", "f32/1"), share=0.5)
    puppet = Puppet(lab)
    puppet.hello(schemes=("w8.row/1",))
    vector = np.zeros(N, np.float32)
    delta_y = encode_vector(header.get("uplink", "q8"), vector, LAYOUT, share=0.5)  # type: ignore[arg-type]
    delta_c = vector if "codec" in header else None
    receipt = puppet.send(delta_y, delta_c=delta_c, **header)
    assert (receipt.counted, receipt.reason) == (False, reason)
    assert lab.machine.control.integers() == [0] * N


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0.0, -1.0])
def test_scales_made_to_hurt_are_refused(scale: float) -> None:
    lab = rows_lab(uplink=("q8",))
    raw = bytearray(q8(np.ones(N)))
    raw[:4] = np.float32(scale).tobytes()
    receipt = Puppet(lab).send(bytes(raw))
    assert (receipt.counted, receipt.reason) == (False, "header")


def test_values_beyond_the_grid_are_refused_once_they_are_decoded() -> None:
    lab = rows_lab(uplink=("q8", "topk"), share=0.2)
    big = np.zeros(N, np.float32)
    big[3] = 2.0**14
    for codec in ("q8", "topk"):
        raw = encode_vector(codec, big, LAYOUT, share=0.2)  # type: ignore[arg-type]
        receipt = Puppet(lab, codec).send(raw, uplink=codec)
        assert (receipt.counted, receipt.reason) == (False, "range")
    pair = np.array([0, 1], "<u4").tobytes() + np.array([np.nan, 0], "<f4").tobytes()
    receipt = Puppet(lab, "pair").send(pair, uplink="topk")
    assert (receipt.counted, receipt.reason) == (False, "not_finite")


EXPLICIT = Scaffold(delta_c="q8")


@pytest.mark.parametrize("codec", ["f32", "q8", "topk"])
@pytest.mark.parametrize(("off", "counted"), [(0.0, True), (0.4, True), (2.0, False)])
def test_a_delta_c_that_travels_is_held_against_delta_y(
    codec: str, off: float, counted: bool
) -> None:
    """Within the codec's rounding: a unit of a row of q8, here 1 of 127; nothing of float32."""
    lab = rows_lab(Scaffold(delta_c=codec), share=0.2)  # type: ignore[arg-type]
    delta_y = np.zeros(N, np.float32)
    delta_y[:2] = [63.5, 10]  # delta_c = -2 delta_y = -127, -20
    delta_c = -2 * delta_y
    delta_c[1] += off
    raw = encode_vector(codec, delta_c, LAYOUT, share=0.2)  # type: ignore[arg-type]
    if off == 0.4:
        counted = codec == "q8"  # rounded to -20
    receipt = Puppet(lab).send(delta_y, delta_c=raw, rate_sum=0.5)
    assert (receipt.counted, receipt.reason) == (
        (True, "counted") if counted else (False, "inconsistent")
    )


def test_with_feedback_they_may_differ() -> None:
    """delta_y then carries what earlier ones left out, delta_c does not."""
    lab = rows_lab(Scaffold(delta_c="f32"), uplink=("q8",), feedback=True)
    puppet = Puppet(lab)
    assert lab.round.codecs == Codecs(delta_y=("q8",), delta_c="f32", feedback=True)
    receipt = puppet.send(q8(np.ones(N)), delta_c=np.full(N, -7), rate_sum=0.5)
    assert receipt.counted


def test_damping_is_announced_and_applied() -> None:
    lab = Lab(PLAN, Scaffold(control_damping=0.25), target=1)
    puppet = Puppet(lab)
    assert lab.round.algorithm["control_damping"] == 0.25
    puppet.send(np.ones(4), rate_sum=0.5)
    assert lab.machine.control.integers() == [-(2**47)] * 4  # -1/4 * (0 + 1/0.5)


def test_an_offer_is_limited_by_the_codecs() -> None:
    """What q8 cannot need is not taken: float32's body is four times as long."""
    plan = linear_loss(4000)
    lab = Lab(plan, FedAvg(), target=1, uplink=("q8",))
    puppet = Puppet(lab)
    puppet.join()
    header, body = puppet.body(np.zeros(4000), uplink="f32")
    assert puppet.offer(header, body) is None
    (report,) = lab.reports("refused")
    assert f"an offer of {len(body)} bytes" in report["error"]


# -- the model on the wire --------------------------------------------------------


@pytest.mark.parametrize("downlink", ["f32", "q8"])
def test_frozen_tensors_do_not_travel(downlink: Any) -> None:
    plan = stateful(w=1.5, m=0.5, f=8.0)
    lab = Lab(plan, FedAvg(), target=1, downlink=downlink)
    puppet = Puppet(lab)
    model = lab.round.model
    assert (model.codec, model.size) == (downlink, 8 if downlink == "f32" else 2 * 4 + 2)
    puppet.send([1.0, 0.25])
    assert lab.machine.model.tolist() == [2.5, 0.75, 8.0]


def test_a_restart_serves_what_was_announced(folder: Path) -> None:
    """Kept over a restart in the middle of a round: model, control, and what they left out."""
    lab = Lab(ROWS, Scaffold(), state=folder, target=1, downlink="q8", uplink=("q8",))
    Puppet(lab).send(q8(np.linspace(-1, 1, N)), rate_sum=0.5)
    assert lab.round.control is not None
    assert lab.round.control.codec == "q8"
    before = lab.round
    residual = lab.ledger.residual()
    lab.start()
    assert lab.round == before
    assert lab.ledger.residual() == residual
    again = Puppet(lab, boot=b"again...", incarnation=2, seq=1)
    for blob in (before.model, before.control):
        assert blob is not None
        assert b"".join(part for _, part in sorted(again.fetch(blob).items()))
    # Back to float32: nothing is left out any more.
    lab.start(downlink="f32")
    again.hello(boot=b"again...", seq=1)
    again.send(q8(np.zeros(N)), rate_sum=0.5)
    assert lab.round.model.codec == "f32"
    assert lab.ledger.residual() is None


# -- schemes --------------------------------------------------------------------------


def test_a_device_without_a_common_scheme_is_told_why_and_not_waited_for() -> None:
    lab = rows_lab(uplink=("q8",), schemes=("w8.row/1",), target=2)
    able, unable = Puppet(lab, "able", hello=False), Puppet(lab, "unable", hello=False)
    able.hello(schemes=("w8.block64/1", "w8.row/1"), profile="pi_5")
    unable.hello()
    answer = unable.join()
    assert isinstance(answer, Busy)
    assert answer.after == lab.config.deadline
    assert "w8.row/1" in answer.reason
    assert isinstance(able.join(), Train)
    able.send(q8(np.ones(N)), scheme="w8.row/1")
    # The other of two members cannot take part: with a quorum of 1 the round is over.
    assert lab.ledger.rounds()[0].state == "closed"


def test_what_members_can_do_is_remembered(folder: Path) -> None:
    lab = Lab(ROWS, state=folder)
    Puppet(lab, "old")
    Puppet(lab, "new", hello=False).hello(schemes=("w8.row/1", "f32/1"), profile="pi_zero_2w")
    lab.start()
    stated = {m.device: (m.schemes, m.profile) for m in lab.ledger.members()}
    assert stated == {
        "old": (("f32/1",), ""),
        "new": (("w8.row/1", "f32/1"), "pi_zero_2w"),
    }


def test_a_scheme_that_the_plan_has_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"w8\.block64.*only f32/1, w8\.row/1"):
        rows_lab(schemes=("w8.block64", "f32"))


# -- settings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"uplink": ()}, "uplink"),
        ({"uplink": ("q8", "q8")}, "uplink"),
        ({"uplink": ("q4",)}, "uplink"),
        ({"downlink": "topk"}, "downlink"),
        ({"share": 1.5}, "share"),
        ({"uplink": ("topk",)}, "topk without a share"),
        ({"algorithm": Scaffold(delta_c="topk")}, "topk without a share"),
        ({"schemes": ()}, "schemes"),
        ({"schemes": ("f32", "f32/1")}, "schemes"),
        ({"schemes": ("w4.row",)}, "no scheme 'w4.row'"),
        ({"uplink": ("q8",), "feedback": True}, "derived"),
        ({"algorithm": FedAvg(), "feedback": True}, "nothing is left out"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        FleetConfig(**settings)


def test_a_device_refuses_what_would_diverge() -> None:
    """An aggregator that announces feedback with a derived delta_c is not followed."""
    alone = Alone()
    alone.connect()
    alone.welcome()
    alone.announce(codecs=Codecs(delta_y=("q8",), delta_c="derived", feedback=True))
    assert alone.machine.doing == "nothing"
    (report,) = alone.reports("refused")
    assert "diverge" in report["error"]
    alone.announce(2, codecs=Codecs(delta_y=("q8",), delta_c="q8", feedback=True))
    assert alone.machine.doing == "joining"


@pytest.mark.parametrize(
    "changes",
    [
        {"control": None},
        {"codecs": Codecs()},
        {"algorithm": FedAvg().wire()},
    ],
)
def test_a_device_refuses_controls_that_are_and_are_not(changes: dict[str, Any]) -> None:
    alone = Alone()
    alone.connect()
    alone.welcome()
    alone.announce(**changes)
    assert alone.machine.doing == "nothing"
    assert "controls" in alone.reports("refused")[0]["error"]


def test_settings_that_changed_over_a_restart_are_named(folder: Path) -> None:
    lab = Lab(ROWS, FedAvg(), state=folder, target=1)
    Puppet(lab)
    lab.start(
        uplink=("q8", "topk"),
        share=0.25,
        feedback=True,
        downlink="q8",
        schemes=("w8.row", "f32"),
    )
    assert lab.reports("settings_changed") == [
        {
            "changed": {
                "uplink": [["f32"], ["q8", "topk"]],
                "share": [0.0, 0.25],
                "feedback": [False, True],
                "downlink": ["f32", "q8"],
                "schemes": [["f32/1"], ["w8.row/1", "f32/1"]],
            }
        }
    ]
    lab.start()
    assert len(lab.reports("settings_changed")) == 2  # the round before is still the one announced
