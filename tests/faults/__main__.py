"""Fleets in bad weather, by the thousand: ``python -m tests.faults --seeds N [--first S]``.

A promise that does not hold is printed with its seed and the command that replays it; the exit
code is then 1. ``--json`` writes what was tried and what became of it.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import sys
import time
from collections import Counter
from pathlib import Path

_TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(_TESTS)]  # as pytest has it

from faults import storms  # noqa: E402


def main() -> int:
    """Run the seeds; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many fleets")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.add_argument("--trace", action="store_true", help="tell all that happens")
    options = parser.parse_args()
    began = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    tally: Counter[str] = Counter()
    broken: list[storms.Run] = []
    job = functools.partial(storms.run, trace=print) if options.trace else storms.run
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.jobs) if options.jobs > 1 else _Here() as pool:
        for done in pool.imap_unordered(job, seeds, 10):
            tally.update(done.tally)
            tally.update(
                events=done.events, checks=done.checks, rounds=done.rounds, counted=done.counted
            )
            if done.broken:
                broken.append(done)
                print(f"seed {done.seed}, event {done.at_event}: {done.text}", file=sys.stderr)
                print(f"  replay: {storms.command(done.seed)}", file=sys.stderr, flush=True)
    result = {
        "seeds": len(seeds),
        "first": options.first,
        "broken": [run.seed for run in broken],
        "seconds": round(time.monotonic() - began, 1),
        "tally": dict(sorted(tally.items())),
    }
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{len(seeds)} fleets in {result['seconds']} s, {len(broken)} broken")
        for what, times in sorted(tally.items()):
            print(f"  {times:>9,}  {what}")
    return 1 if broken else 0


class _Here:
    """A pool of this process alone."""

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    imap_unordered = staticmethod(lambda function, seeds, _chunk: map(function, seeds))


if __name__ == "__main__":
    sys.exit(main())
