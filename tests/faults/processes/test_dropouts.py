"""Most of a cohort dies in the middle of a round, which closes at its deadline with the rest."""

from __future__ import annotations

from faults.rows import record
from support.fleet import MakeFleet

from kellet.sdk import algorithms
from kellet.server import simulate

TEN = "a b c d e f g h i j"
# The slow ones train for so long that they can be killed in each round before they are done.
PAUSE = 1.5
DEADLINE = 5.0
GONE = {1: 3, 2: 5, 3: 7, 4: 9}  # round: how many of the ten have died by its end


def test_dropouts_of_30_50_70_and_90_per_cent(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(TEN, rounds=4, target=10, quorum=1, deadline=DEADLINE)
    aggregator = fleet.aggregator()
    names = list(fleet.clients)
    devices = {
        name: fleet.device(name, pause=PAUSE if name in names[: GONE[4]] else 0.0) for name in names
    }
    figures = []
    dead = 0
    for round_, gone in GONE.items():
        dying = names[dead:gone]
        for name in dying:
            devices[name].wait_for("fetched", count=round_)
            devices[name].kill()
        dead = gone
        closed = aggregator.wait_for("round", round=round_)
        assert closed["state"] == "closed"
        assert sorted(closed["counted"]) == names[gone:]
        assert set(dying) <= set(closed["asked"])  # they were at work
        assert DEADLINE <= closed["seconds"] <= 1.05 * DEADLINE
        figures.append(f"{10 * gone} %: {closed['seconds'] / DEADLINE - 1:+.1%}")
    assert aggregator.end() == 0
    assert devices[names[-1]].end() == 0
    cohorts = {round_: names[gone:] for round_, gone in GONE.items()}
    replay = simulate(
        fleet.plan,
        fleet.clients,
        algorithms.make(**fleet.algorithm),
        rounds=4,
        seed=fleet.config["seed"],
        cohort=lambda round_, _names: cohorts[round_],
    )
    assert fleet.ledger.models() == [each.model for each in replay.rounds]
    assert fleet.gap() == 0
    record(
        "30, 50, 70 and 90 % of a cohort of 10 processes killed in a round",
        len(GONE),
        "closed at the deadline with the rest, the model of the plain replay",
        f"after the deadline by {', '.join(figures)}",
    )
