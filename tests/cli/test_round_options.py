"""Codecs and schemes as ``kellet server`` takes them."""

from __future__ import annotations

from typing import Any

import pytest

from kellet.sdk.algorithms import FedProx
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.messages import Late
from kellet.server import FleetConfig
from kellet.server.algorithms import FedAdam, FedAvgM
from kellet.server.brokers import BrokerHandle
from kellet.server.commands.algorithm import AlgorithmOptions
from kellet.server.commands.round_options import RoundOptions
from kellet.server.commands.server import _words

HANDLE = BrokerHandle(
    kind="external",
    url="mqtt://127.0.0.1:1883",
    public_url="mqtt://127.0.0.1:1883",
    part_size=65536,
    url_v311="mqtt://127.0.0.1:1883",
    admission_bytes=8 << 20,
)


def config(algorithm: dict[str, Any] | None = None, **rounds: Any) -> FleetConfig:
    return RoundOptions(**rounds).config("f", AlgorithmOptions(**(algorithm or {})), HANDLE)


def test_what_travels_is_float32_unless_more_is_said() -> None:
    made = config()
    assert (made.uplink, made.downlink, made.schemes) == (("f32",), "f32", ("f32/1",))
    assert made.codecs.delta_c == "derived"


def test_several_codecs_and_schemes_the_best_first() -> None:
    made = config(
        {"delta_c": "q8"},
        uplink="topk:0.05, q8,f32",
        feedback=True,
        downlink="q8",
        scheme="w8.row+a8,w8.row,f32",
    )
    assert made.uplink == ("topk", "q8", "f32")
    assert made.share == 0.05
    assert made.feedback
    assert made.downlink == "q8"
    assert made.schemes == ("w8.row+a8/1", "w8.row/1", "f32/1")


def test_late_updates_are_dropped_unless_they_are_buffered() -> None:
    assert config().buffering is None
    made = config(late="buffer", target=5, buffer=3, max_stale=8)
    assert made.buffering == Late(buffer=3, max_stale=8)
    assert config(late="buffer", target=5).buffering == Late(buffer=5, max_stale=4)


def test_the_share_of_delta_c_alone() -> None:
    made = config({"delta_c": "topk:0.1"})
    assert (made.codecs.delta_c, made.codecs.delta_y, made.codecs.share) == ("topk", ("f32",), 0.1)
    assert config({"delta_c": "topk:0.1"}, uplink="q8,topk:0.1").codecs.share == 0.1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"uplink": "q4"}, "--uplink = 'q4'"),
        ({"uplink": "q8,q8"}, "each once"),
        ({"uplink": ""}, "--uplink = ''"),
        ({"uplink": "q8,"}, "--uplink = ''"),
        ({"uplink": "q8:0.1"}, "--uplink = 'q8:0.1'"),
        ({"uplink": "topk:much"}, "--uplink = 'topk:much'.*say it as in topk:0.05"),
        ({"uplink": "topk:2"}, "above 0 and at most 1"),
        ({"uplink": "topk:nan"}, "--uplink = 'topk:nan'"),
        ({"uplink": "topk"}, "--uplink = 'topk'.*say it as in topk:0.05"),
        ({"uplink": "q8,q8"}, "--uplink"),
        ({"uplink": "topk", "share": 0.2}, "--share = 0.2.*write topk:0.2 where topk is named"),
        ({"uplink": "topk:0.1,topk:0.2"}, "topk:0.1 is given as well"),
        ({"scheme": "w4"}, "no scheme 'w4'"),
        ({"max_stale": 0}, "--max-stale = 0"),
        ({"target": 3, "quorum": 3, "buffer": 2}, "--buffer = 2"),
        ({"buffer": 2**31}, "--buffer = 2147483648"),
        ({"scheme": "f32,f32/1"}, "--scheme"),
        ({"uplink": "q8", "feedback": True}, "derived"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){text}"):
        config(**options)


@pytest.mark.parametrize(
    ("delta_c", "text"),
    [
        ("topk", "--delta-c = 'topk'.*say it as in topk:0.05"),
        ("q4", "must be derived, f32, q8 or topk:SHARE"),
        ("derived:0.1", "--delta-c = 'derived:0.1'"),
        ("topk:0.2", "--uplink = 'topk:0.1'.*topk:0.2 is given as well"),
    ],
)
def test_a_delta_c_that_cannot_be(delta_c: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){text}"):
        config({"delta_c": delta_c}, uplink="topk:0.1")


def test_momentum_wants_a_float32_scheme() -> None:
    """With int8 schemes alone every device would refuse every round."""
    assert config({"momentum": 0.5}, scheme="w8.row,f32").algorithm.momentum == 0.5
    with pytest.raises(UsageError, match=r"no device could train.*momentum = 0\.5"):
        config({"momentum": 0.5}, scheme="w8.row,w8.block64")


def test_the_server_s_rate_goes_to_what_makes_the_step() -> None:
    made = config({"algorithm": "fedprox", "server_lr": 0.5})
    assert (made.algorithm, made.server_optimizer) == (FedProx(server_lr=0.5), None)
    adam = {"server_optimizer": "adam", "server_lr": 0.5, "beta1": 0.8, "beta2": 0.9, "tau": 0.1}
    made = config({"algorithm": "fedprox", **adam})
    assert made.algorithm == FedProx()
    assert made.server_optimizer == FedAdam(server_lr=0.5, beta1=0.8, beta2=0.9, tau=0.1)
    made = config({"server_optimizer": "avgm", "server_momentum": 0.5, "momentum": 0.25})
    assert made.server_optimizer == FedAvgM(server_momentum=0.5)
    assert made.algorithm.momentum == 0.25


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"beta1": 0.9}, r"--beta1 = 0.9: no server optimizer is given.*adagrad or adam or yogi"),
        ({"server_momentum": 0.9}, r"--server-momentum = 0.9.*add --server-optimizer avgm"),
        ({"server_optimizer": "adam", "server_momentum": 0.9}, "adam has no 'server_momentum'"),
        ({"server_optimizer": "avgm", "tau": 0.9}, "it has server_lr, server_momentum"),
        ({"server_optimizer": "yogi", "tau": 0.0}, "--tau = 0.0"),
        ({"server_optimizer": "yogi", "server_lr": -1.0}, "--server-lr = -1.0"),
        ({"server_optimizer": "avgm", "server_momentum": 1.0}, "--server-momentum = 1.0"),
    ],
)
def test_server_optimizers_that_cannot_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){text}"):
        config(options)


def test_another_server_optimizer_in_words() -> None:
    changed: dict[str, Any] = {"server_lr": [0.1, 0.03]}
    words = "training goes on with other settings: server_lr 0.1 -> 0.03"
    assert _words("settings_changed", {"changed": changed}) == words
    changed["server_optimizer"] = ["adam", "yogi"]
    assert _words("settings_changed", {"changed": changed}) == (
        f"{words}, server_optimizer adam -> yogi; the server optimizer begins anew"
    )


def test_changed_settings_in_words() -> None:
    changed = {"uplink": [["f32"], ["q8", "topk"]], "downlink": ["f32", "q8"]}
    assert _words("settings_changed", {"changed": changed}) == (
        "training goes on with other settings: uplink f32 -> q8,topk, downlink f32 -> q8"
    )


def test_a_device_that_declines_in_words() -> None:
    facts = {"device": "pi-1", "round": 3, "reason": "not charging"}
    assert _words("declined", facts) == "pi-1 does not train in round 3: not charging"
