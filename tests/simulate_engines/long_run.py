"""A program that simulates for ever on two processes, and says when it has begun."""

from __future__ import annotations

from simulate_engines.fleets import LOCAL, run

from kellet.sdk.algorithms import FedAvg

if __name__ == "__main__":
    run(
        FedAvg(**LOCAL),
        engine="local",
        workers=2,
        rounds=1_000_000,
        on_round=lambda record: print(record.round, flush=True),
    )
