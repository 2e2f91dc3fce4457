"""flwr's side: its simulation on Ray, as many actors as CPUs."""

from __future__ import annotations

import sys
from pathlib import Path

import flwr_client
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Clock, Job, Problem, done
from nets import from_arrays, to_arrays


class Watched(FedAvg):
    """Says when a round has ended."""

    def __init__(self, clock: Clock, **options: float) -> None:
        super().__init__(**options)
        self._clock = clock

    def aggregate_train(self, server_round, replies):
        found = super().aggregate_train(server_round, replies)
        self._clock.round_ended()
        return found


def main(path: str) -> None:
    job, clock = Job.read(path), Clock()
    problem = Problem(job.data)
    server = ServerApp()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        strategy = Watched(
            clock,
            fraction_train=job.cohort / len(problem),
            fraction_evaluate=0.0,
            min_train_nodes=job.cohort,
            min_available_nodes=len(problem),
        )
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(from_arrays(problem.initial)),
            num_rounds=job.rounds,
            train_config=ConfigRecord({"job": str(Path(path).resolve())}),
        )
        done(job, clock, to_arrays(result.arrays.to_torch_state_dict()))

    run_simulation(
        server_app=server,
        client_app=flwr_client.app,
        num_supernodes=len(problem),
        backend_config={
            "init_args": {"num_cpus": job.workers, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1])
