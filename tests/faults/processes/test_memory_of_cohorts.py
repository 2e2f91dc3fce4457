"""What an aggregator takes does not depend on how many devices it hears."""

from __future__ import annotations

import pytest
from faults.processes.crowds import MB, Crowd, Watch, linear_clients, peak
from faults.rows import record
from support.fleet import MakeFleet, needs_mosquitto
from support.toy_plans import linear_loss

from kellet.server.brokers import BrokerHandle

ONE_STEP = {"name": "scaffold", "local_lr": 0.1, "local_steps": 1, "batch_size": 0}
PARAMETERS = 1_000_000
ROUNDS = 2
# Bytes a parameter: what was aimed at, and is kept with 59. At rest there are 40 while a round is
# open (C 16, its sum 16, the model 4, the announced control 4); an update has 12 more while it
# is counted, and 4 are the exported model.
MOST = 64
LINGER = 3.0  # s in which the finished aggregator can be looked at


def _peak(make_fleet: MakeFleet, broker: BrokerHandle, parameters: int, cohort: int) -> int:
    """Bytes, at most, of an aggregator that has counted ``cohort`` updates in each round."""
    fleet = make_fleet(
        linear_clients(cohort, parameters),
        plan=linear_loss(parameters),
        algorithm=ONE_STEP,
        rounds=ROUNDS,
    )
    aggregator = fleet.aggregator(state=f"server-{parameters}-{cohort}", options={"linger": LINGER})
    fleet.ledger = type(fleet.ledger)(fleet.folder / f"server-{parameters}-{cohort}")
    crowd = Crowd(fleet, links=min(cohort, 4))
    aggregator.wait_for("finished", timeout=100)
    crowd.end()
    most = peak(aggregator.pid)
    assert aggregator.end() == 0
    broker.restart()  # the next fleet is not to hear that this one has finished
    crowd.check_once(ROUNDS)
    return most


@pytest.mark.timeout(300)
def test_memory_does_not_depend_on_the_cohort(make_fleet: MakeFleet, broker: BrokerHandle) -> None:
    base = _peak(make_fleet, broker, 1000, 2)
    two, twelve = (
        (_peak(make_fleet, broker, PARAMETERS, cohort) - base) / PARAMETERS for cohort in (2, 12)
    )
    print(f"base {base / MB:.0f} MB; bytes a parameter: {two:.1f} with 2, {twelve:.1f} with 12")
    assert abs(twelve - two) <= 8
    assert max(two, twelve) <= MOST
    record(
        "cohorts of 2 and of 12 devices: the aggregator's largest memory",
        2,
        f"the same, within {MOST} bytes a parameter",
        f"{PARAMETERS:,} parameters: base {base / MB:.0f} MB, and {two:.0f} and {twelve:.0f} bytes "
        "a parameter",
    )


@pytest.mark.parametrize(
    ("broker", "devices", "links"),
    [
        ("embedded", 60, 6),
        pytest.param("mosquitto", 60, 60, marks=needs_mosquitto),
        pytest.param(
            "mosquitto",
            1000,
            250,
            marks=[pytest.mark.slow, pytest.mark.timeout(500), needs_mosquitto],
        ),
    ],
    indirect=["broker"],
)
def test_all_upload_at_once(
    make_fleet: MakeFleet, broker: BrokerHandle, devices: int, links: int
) -> None:
    """Their updates have many times the bytes that are let in: the others are told to wait."""
    parameters, admitted = 15_000, 12  # updates at once
    admission = admitted * 4 * parameters + 10_000
    fleet = make_fleet(
        linear_clients(devices, parameters),
        plan=linear_loss(parameters),
        algorithm=ONE_STEP,
        rounds=1,
        part_size=16 << 10,
        admission=admission,
    )
    aggregator = fleet.aggregator(options={"linger": LINGER})
    assert broker.pid is not None
    with Watch(aggregator=aggregator.pid, broker=broker.pid) as watch:
        aggregator.wait_for("waiting")
        crowd = Crowd(fleet, links=links)
        crowd.child.wait_for("settled", timeout=200)  # the first: all others wait, or upload
        early = {name: max(values) for name, values in watch.resident.items()}
        told = crowd.end(400)
        late = {name: max(values) for name, values in watch.resident.items()}
    assert aggregator.end() == 0
    crowd.check()
    assert told["settled"] == devices
    assert told["busy"] > 0
    grown = {name: (late[name] - early[name]) / MB for name in late}
    uploaded = 4 * parameters * devices / MB
    print(f"grown by {grown} MB while {uploaded:.1f} MB came")
    # A machine that kept what it counted would grow by all that came.
    assert grown["aggregator"] < 3 + 0.1 * uploaded
    if broker.kind == "mosquitto":
        assert grown["broker"] < 2 + admission / MB
    record(
        f"{devices} devices upload at once, {broker.kind} broker, {links} connections",
        devices,
        "each counted once, C = sum of c_i",
        f"{uploaded:.0f} MB, {admission / MB:.1f} MB let in at once, {told['busy']:,} answers to "
        f"wait; grown meanwhile: aggregator {grown['aggregator']:.1f} MB, "
        f"broker {grown['broker']:.1f} MB",
    )
