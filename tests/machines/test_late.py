"""Late updates under ``late="buffer"``: what they add, to the integer, and which are refused.

The plan is one weight whose gradient the tests never ask for: puppets say what they moved.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines.late import GRID, PLAN, SCAFFOLD, deliver, lab_of, one_round_late, sums
from machines.puppet import Lab, Puppet

from kellet.sdk.algorithms import FedAvg, FedProx
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import (
    Grant,
    Late,
    Round,
    Train,
    staleness,
)
from kellet.sdk.transport.base import Connected
from kellet.server import FleetConfig
from kellet.server.algorithms import staleness_weight
from kellet.server.selection import Uniform
from kellet.server.sums import ExactSum

# -- what is counted -------------------------------------------------------------------------


def test_two_devices_and_one_is_late() -> None:
    """Both move the model of round 2; each moves C by what its own announcement gives."""
    lab = lab_of()
    a, b, base = one_round_late(lab)
    # a: delta_c = -(0 + 1 / 0.5) = -2; then c = -2 / 2 = -1.
    assert sums(lab) == ([0], 0, [-2 * GRID])
    assert lab.machine.model[0] == 1.0
    receipt = deliver(b, 3.0, base, 1)
    assert (receipt.counted, receipt.round) == (True, 1)
    # b: delta_c = -(0 + 3 / 0.5) = -6, from c of round 1, and all of it; 724 of 1024 of delta_y.
    assert sums(lab) == ([724 * 3 * GRID], 1024, [-8 * GRID])
    assert a.send([2.0]).counted
    # a: delta_c = -(-1 + 2 / 0.5) = -3. The model: 1 + (724 * 3 + 1024 * 2) / 2048.
    assert lab.machine.round == 3
    assert lab.machine.control.integers() == [-11 * GRID]
    assert lab.machine.model[0] == 1 + 4220 / 2048
    rows = {(row.round, row.device): row for n in (1, 2) for row in lab.ledger.counted(n)}
    weights = {key: (row.weight, row.header["stale"]) for key, row in rows.items()}
    assert weights == {(1, "a"): (1024, 0), (1, "b"): (724, 1), (2, "a"): (1024, 0)}


def test_samples_are_weighed_as_well() -> None:
    lab = lab_of(FedAvg())
    a, b, base = one_round_late(lab)
    assert deliver(b, 4.0, base, 1, samples=3).counted
    assert sums(lab) == ([3 * 724 * 4 * GRID], 3 * 1024, [0])
    assert a.send([2.0], samples=1).counted
    assert lab.machine.model[0] == 1 + (3 * 724 * 4 + 1024 * 2) / 4096


def test_the_weights() -> None:
    # 1024 / sqrt(1 + s): 724.08, 591.21, 512, 457.95
    assert [staleness_weight(s) for s in range(5)] == [1024, 724, 591, 512, 458]
    assert staleness_weight(64) == 127


def test_a_device_may_be_counted_late_and_in_time_in_one_round() -> None:
    """Its late update takes a place of the buffer, but not its own in the round."""
    lab = lab_of()
    _, b, base = one_round_late(lab)
    assert deliver(b, 3.0, base, 1).counted
    assert isinstance(b.join(), Train)
    assert b.send([1.0]).counted
    assert lab.machine.round == 3
    summary = lab.ledger.rounds()[1].summary
    assert summary["counted"] == ["b", "b"]
    assert (summary["late"], summary["staleness"], summary["staleness_max"]) == (1, 0.5, 1)


def test_a_late_update_takes_no_place_in_the_cohort() -> None:
    """Else two devices that are both slower than their rounds would take turns for ever.

    One trains and the other, counted late, waits for the next round: never two in one.
    """
    lab = lab_of(quorum=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    first = lab.base
    a.join()
    lab.wait(60)
    assert isinstance(b.join(), Train)
    assert deliver(a, 1.0, first, 1).counted
    assert isinstance(a.join(), Train)
    assert lab.machine._round is not None
    assert lab.machine._round.cohort.updates == 1


def test_a_round_closes_at_late_updates_alone() -> None:
    lab = lab_of(target=1, buffer=1)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    base = lab.base
    b.join()
    assert a.send([1.0]).counted
    assert deliver(b, 1.0, base, 1).counted
    assert lab.machine.round == 3
    # The buffer was all late, and so moved the model by less: it is not divided by 724.
    assert lab.machine.model[0] == 1 + 724 / 1024


def test_nothing_late_comes_to_the_bits_of_dropping() -> None:
    """The scale of the weights is a power of two, and so is what the sum is divided by."""
    ends = []
    for late in ("drop", "buffer"):
        lab = lab_of(FedAvg(server_lr=0.7), late=late)
        a, b = Puppet(lab, "a"), Puppet(lab, "b")
        for step in (0.1, 1 / 3, -2.7):
            assert a.send([step], samples=3).counted
            assert b.send([step * 0.9], samples=7).counted
        ends.append(lab.machine.digest)
    assert ends[0] == ends[1]


def test_buffer_and_target() -> None:
    def announced(**config: Any) -> Round:
        lab = lab_of(min_members=1, **config)
        Puppet(lab)
        return lab.round

    assert announced(target=5, buffer=2).target == 2
    assert announced(target=5).target == 5
    assert announced(target=5).late == Late(buffer=5, max_stale=4)
    assert announced(target=5, buffer=2, selection=Uniform(3)).target == 1  # of one member
    assert announced(deadline=60.0, max_stale=2).valid == 180.0
    dropping = announced(late="drop")
    assert dropping.buffering is None
    assert b"late" not in wire.pack(dropping)
    assert dropping.valid == dropping.deadline


def test_training_may_last_as_long_as_its_update_is_valid() -> None:
    lab = lab_of(deadline=60.0, max_stale=2)
    a = Puppet(lab, "a")
    Puppet(lab, "b")
    lab.now += 10
    answer = a.join()
    assert answer.seconds == 50 + 2 * 60


# -- what is refused -------------------------------------------------------------------------


def test_too_late() -> None:
    lab = lab_of(max_stale=1)
    a, b, base = one_round_late(lab)
    assert a.send([1.0]).counted
    lab.wait(60)
    assert lab.machine.round == 3
    before = sums(lab)
    receipt = deliver(b, 3.0, base, 1)
    assert (receipt.counted, receipt.reason) == (False, "late")
    assert sums(lab) == before


def test_dropping_refuses_it() -> None:
    lab = lab_of(late="drop")
    _, b, base = one_round_late(lab)
    assert deliver(b, 3.0, base, 1).reason == "late"


def test_once_for_each_announcement() -> None:
    """Counted in round 1, and again for round 1 in round 2: by an installation of the same id."""
    lab = lab_of()
    a, _, base = one_round_late(lab)
    assert deliver(a, 1.0, base, 1).reason == "duplicate"
    anew = Puppet(lab, "a", nonce=b"another install!")
    assert deliver(anew, 1.0, base, 1).reason == "duplicate"


def test_a_new_epoch_ends_what_may_be_named() -> None:
    lab = lab_of()
    _, b, base = one_round_late(lab)
    lab.machine.new_epoch(lab.now)
    lab.step(Connected(None))
    assert deliver(b, 3.0, base, 1, epoch=1).reason == "late"
    assert lab.machine.control.integers() == [0]


def test_a_round_that_drops_counts_nothing_late() -> None:
    """The operator goes back to dropping; the round that is open ends as it was announced."""
    lab = lab_of()
    a, b, base = one_round_late(lab)
    lab.start(late="drop")
    assert [facts["changed"] for facts in lab.reports("settings_changed")] == [
        {"late": ["buffer", "drop"], "buffer": [2, None], "max_stale": [4, None]}
    ]
    for device in (a, b):
        device.hello(seq=device.seq, epoch=1)
    second = lab.base
    assert deliver(b, 3.0, base, 1).counted
    assert a.send([1.0]).counted
    assert lab.round.buffering is None
    assert deliver(b, 3.0, second, 2).reason == "late"


def test_a_weight_that_no_sum_holds() -> None:
    lab = lab_of(FedAvg())
    _, b, base = one_round_late(lab)
    assert deliver(b, 1.0, base, 1, samples=2**21).reason == "range"
    assert deliver(b, 1.0, base, 1, samples=2**21 - 1).counted


def test_late_updates_are_held_against_their_own_announcement() -> None:
    """Codecs, delta_c, algorithm: as announced then. The mean is the open round's."""
    lab = lab_of(SCAFFOLD)
    a, b, base = one_round_late(lab)
    assert a.send([1.0]).counted
    lab.wait(60)
    lab.start(algorithm=FedProx(server_lr=0.5), uplink=("q8",))
    for device in (a, b):
        device.hello(seq=device.seq, epoch=1)
    assert a.send([1.0]).counted
    lab.wait(60)
    assert lab.round.algorithm["name"] == "fedprox"
    control = lab.machine.control.integers()
    # float32 and derived, as of round 1, and refused as FedProx's.
    assert deliver(b, 3.0, base, 1, uplink="f32", codec="none").reason == "header"
    assert deliver(b, 3.0, base, 1, uplink="f32", codec="derived", samples=5).counted
    assert lab.machine.control.integers() == [control[0] - 6 * GRID]
    opened = lab.machine._round
    assert opened is not None
    assert opened.total.integers() == [5 * staleness_weight(3) * 3 * GRID]
    assert opened.weight == 5 * 1024


@pytest.mark.parametrize("how", [{"rate_sum": 0.0}, {"steps": 0}, {"epoch": 2}, {"device": "c"}])
def test_late_updates_are_checked_like_others(how: dict[str, Any]) -> None:
    lab = lab_of()
    _, b, base = one_round_late(lab)
    receipt = deliver(b, 3.0, base, 1, **how)
    assert not receipt.counted
    assert receipt.reason in ("header", "epoch", "identity")
    assert deliver(b, 3.0, base, 1).counted


def test_a_late_offer_that_was_damaged_is_not_answered() -> None:
    lab = lab_of()
    _, b, base = one_round_late(lab)
    header, body = b.body([3.0], base=base, round=1)
    assert b.offer(header, body, round=2) is None
    assert b.offer(header, body, size=1 << 20) is None
    assert isinstance(b.offer(header, body), Grant)


# -- the policy ------------------------------------------------------------------------------


def test_how_stale() -> None:
    """Both announcements must allow for it, and be of one epoch."""

    def announced(number: int, most: int | None = 2, epoch: int = 1) -> Round:
        late = {"late": Late(buffer=2, max_stale=most)} if most else {"late": plain.late}
        return Round(**{**fields, "round": number, "epoch": epoch, **late})

    lab = Lab(PLAN)
    Puppet(lab)
    plain = lab.round
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__ if name != "v"}
    assert staleness(announced(5), announced(5)) == 0
    assert staleness(announced(3), announced(5)) == 2
    assert staleness(announced(2), announced(5)) is None
    assert staleness(announced(6), announced(5)) is None
    assert staleness(announced(3, 1), announced(5, 9)) is None
    assert staleness(announced(3, 9), announced(5, 1)) is None
    assert staleness(announced(4, None), announced(5)) is None
    assert staleness(announced(4), announced(5, None)) is None
    assert staleness(announced(4, epoch=1), announced(5, epoch=2)) is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"late": "keep"}, "drop or buffer"),
        ({"buffer": 1, "quorum": 2}, "at least the quorum, 2"),
        ({"buffer": -1}, "buffer = -1"),
        ({"max_stale": 0}, "1 to 64"),
        ({"max_stale": 65}, "1 to 64"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        FleetConfig(**settings)


def test_sums_are_those_of_integers() -> None:
    """724 times a value that is no power of two, in both limbs."""
    total = ExactSum(1)
    total.add(np.array([-16383.75 + 2.0**-9]), 724 * (2**21 - 1))
    assert total.integers() == [int((-16383.75 + 2.0**-9) * GRID) * 724 * (2**21 - 1)]
