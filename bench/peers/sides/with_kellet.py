"""Kellet's side."""

from __future__ import annotations

import sys

from job import Clock, Job, Problem, done

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.plan import Plan
from kellet.server.simulate import simulate


def main(path: str) -> None:
    job, clock = Job.read(path), Clock()
    problem, plan = Problem(job.data), Plan.open(job.plan)
    history = simulate(
        plan,
        {f"client-{number}": problem.client(number) for number in range(len(problem))},
        FedAvg(local_lr=job.lr, batch_size=job.batch, local_steps=job.steps, weighting="uniform"),
        rounds=job.rounds,
        cohort=job.cohort,
        seed=job.seed,
        engine="inline" if job.workers == 1 else "local",
        workers=None if job.workers == 1 else job.workers,
        on_round=lambda _: clock.round_ended(),
    )
    done(job, clock, dict(plan.views(history.model)))


if __name__ == "__main__":
    main(sys.argv[1])
