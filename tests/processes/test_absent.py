"""Devices that are away: for a moment, for a round, or for good."""

from __future__ import annotations

from support.fault_proxy import FaultProxy
from support.fleet import KILLED, MakeFleet
from support.processes import wait_until

from kellet.sdk.transport.url import parse_url

DEADLINE = 3.0  # s


def test_a_round_announced_while_a_device_was_offline_is_there_when_it_returns(
    make_fleet: MakeFleet,
) -> None:
    """Rounds go on between a and b while c's link is down; then b dies, and c stands in."""
    fleet = make_fleet("a b c", rounds=12, target=2, quorum=2, min_members=3)
    with FaultProxy(parse_url(fleet.broker.url).port) as proxy:
        aggregator = fleet.aggregator()
        devices = {name: fleet.device(name) for name in "ab"}
        devices["c"] = fleet.device("c", broker=proxy.url)
        aggregator.wait_for("round", round=2)
        proxy.refuse = True
        proxy.cut()
        devices["c"].wait_for("link_lost")
        away = aggregator.reports("round")[-1]["round"]
        aggregator.wait_for("round", round=away + 3)
        devices["b"].kill()
        # A round that was announced long after the link was lost is open, and a waits in it.
        wait_until(lambda: fleet.ledger.open_and_counted()[1] == ["a"])
        open_round, _ = fleet.ledger.open_and_counted()
        assert open_round > away + 1
        assert fleet.ledger.counted_in(open_round) == ["a"]
        proxy.refuse = False
        closed = aggregator.wait_for("round", round=open_round)
        assert closed["counted"] == ["a", "c"]
        devices["b"] = fleet.device("b")
        assert aggregator.end() == 0
        assert [device.end() for device in devices.values()] == [0, 0, 0]
    assert fleet.ledger.rounds() == [(number, "closed") for number in range(1, 13)]
    assert fleet.gap() == 0


def test_after_a_cut_the_device_is_subscribed_again(make_fleet: MakeFleet) -> None:
    """TCP is cut between and within rounds: each time it hears of the round, and is counted."""
    fleet = make_fleet("a b", rounds=5)
    with FaultProxy(parse_url(fleet.broker.url).port) as proxy:
        aggregator = fleet.aggregator()
        devices = [fleet.device("a"), fleet.device("b", broker=proxy.url)]
        for round_ in range(1, 4):
            aggregator.wait_for("round", round=round_)
            proxy.cut()
            devices[1].wait_for("link_lost", count=round_)
        assert aggregator.end() == 0
        assert [device.end() for device in devices] == [0, 0]
    fleet.check_undisturbed()


def test_a_member_that_dies_does_not_hold_the_round(make_fleet: MakeFleet) -> None:
    """Closed at the deadline with the rest; abandoned below the quorum; then all goes on."""
    fleet = make_fleet("a b c", rounds=3, target=3, quorum=2, deadline=DEADLINE)
    aggregator = fleet.aggregator()
    in_training = {"at": "GradientSession.step", "when": "before", "count": 40}
    device_a = fleet.device("a")
    device_b = fleet.device("b", die={"at": "Store.save_pending", "when": "before", "count": 2})
    device_c = fleet.device("c", die=in_training | {"count": 3})
    assert device_c.end() == KILLED  # in round 1
    first = aggregator.wait_for("round", round=1)
    assert (first["state"], sorted(first["counted"])) == ("closed", ["a", "b"])
    assert device_b.end() == KILLED  # in round 2
    second = aggregator.wait_for("round", round=2)
    assert (second["state"], second["counted"]) == ("abandoned", ["a"])
    assert second["model"] == first["model"]
    for closed in (first, second):
        assert DEADLINE <= closed["seconds"] <= 1.05 * DEADLINE
    devices = [device_a, fleet.device("b"), fleet.device("c")]
    assert aggregator.end() == 0
    assert [device.end() for device in devices] == [0, 0, 0]
    assert fleet.ledger.rounds() == [
        (1, "closed"),
        (2, "abandoned"),
        (3, "closed"),
        (4, "closed"),
    ]
    # What a sent in the abandoned round moved no model; its change of c_a stands.
    assert fleet.ledger.counted_in(2) == ["a"]
    assert fleet.gap() == 0
