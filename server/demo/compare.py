"""The algorithms on the same data and the same participation, in simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kellet.sdk.plan import Plan
from kellet.server.demo.recipe import COMPARED, Settings
from kellet.server.report.record import Curve, Round
from kellet.server.report.sources import curve_of
from kellet.server.simulate import Clients, simulate

__all__ = ["compare", "is_replay"]


def compare(
    plan: Plan,
    clients: Clients,
    test: Any,
    settings: Settings,
    *,
    live: Sequence[Round],
    on_round: Callable[[str, int], None],
) -> list[Curve]:
    """Each algorithm over the devices that the live rounds counted, round by round.

    So the curves differ by the algorithm alone, and the live algorithm's is a replay.
    """
    counted = {number: r.counted for number, r in enumerate((r for r in live if r.closed), 1)}
    curves = []
    for name in COMPARED:
        algorithm = settings.recipe.algorithm(name)
        history = simulate(
            plan,
            clients,
            algorithm,
            rounds=len(counted),
            cohort=lambda round_, _ids: counted[round_],
            seed=settings.seed,
            test=test,
            on_round=lambda record, name=name: on_round(name, record.round),  # type: ignore[misc]
        )
        curves.append(curve_of(history, algorithm))
    return curves


def is_replay(live: Curve, simulated: Curve) -> bool | None:
    """Whether the simulation ended at the live fleet's model, to the bit.

    None where it could not: a round was abandoned, whose updates moved controls alone.
    """
    if not all(r.closed for r in live.rounds):
        return None
    return live.digest == simulated.digest
