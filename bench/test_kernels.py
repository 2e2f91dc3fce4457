"""Every kernel at every size: first shown to be right, then timed beside its peers."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from bench import limits
from bench.case import REFERENCE, Case, computing_with, validate
from bench.operands import Draw, copied
from bench.results import Measured, Timing
from bench.run import Run
from bench.steps import STEPS
from bench.timing import Contender, Turns, ratios, repeated, spread


@pytest.mark.filterwarnings("default")  # PyTorch's compiler warns of itself
def test_kernel(case: Case, n: int, run: Run, benchmark: Any) -> None:
    operands = case.operands(Draw(n))
    peers = run.peers_of(case)
    validate(case, operands, peers)
    if benchmark.disabled:
        return
    # All work on the same operands: whoever comes next finds in the caches what it would itself
    # have left there.
    others = {name: Contender(repeated(call)) for name, call in limits.limits(n).items()}
    others |= {name: Contender(repeated(peer(operands))) for name, peer in peers.items()}
    reference = partial(computing_with, REFERENCE)
    if REFERENCE not in peers:
        with reference():
            call = case.ours(operands)
        others[REFERENCE] = Contender(repeated(call), reference)
    if case.twin:
        others["float32 twin"] = Contender(repeated(case.twin(operands)))
    alone = limits.alone(case, copied(operands))
    if alone:
        others["without the call"] = Contender(alone)

    budget = run.budget * (2 if case in STEPS else 1)  # the targets are the steps'
    turns = Turns(Contender(repeated(case.ours(operands))), others, budget)
    benchmark.extra_info.update(case=case.name, n=n, calls=turns.ours.count)
    benchmark.pedantic(turns.batch, setup=turns.before, rounds=turns.rounds, iterations=1)
    turns.finish(benchmark.stats.stats.data)
    contenders = {"kellet": turns.ours, **turns.others}
    run.measured.append(
        Measured(
            case=case.name,
            kernel=case.kernel,
            n=n,
            bytes=case.size,
            contenders={
                name: Timing(
                    spread(list(each.seconds.values())).rounded(),
                    ratios(each, turns.ours).rounded(),
                    len(each.seconds),
                )
                for name, each in contenders.items()
            },
            left_out=turns.left_out,
        )
    )
