"""What the kernels were to reach, and how far a run has come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.limits import BYTES
from bench.results import Measured, Results, Spread, Timing

__all__ = ["FUSED", "Verdict", "share", "verdicts"]

LARGE = (1_000_000, 10_000_000)
FUSED = (
    "sgd_step",
    "prox_step",
    "prox_step_implicit",
    "scaffold_step",
    "scaffold_step_shift",
    "sgd_momentum_step",
    "prox_momentum_step",
    "scaffold_momentum_step",
)
CORRECTED = ("prox_step", "prox_step_implicit", "scaffold_step", "scaffold_step_shift")
SHORT = 10_000
BOUND = ("sgd_step", *CORRECTED)
RESIDENT = ("sgd_step_int8", "prox_step_int8", "scaffold_step_int8")


@dataclass(frozen=True)
class Verdict:
    """One target for one case: ``low``, ``median``, ``high`` were measured, None were not."""

    target: str
    case: str
    n: int
    wanted: float
    unit: str
    found: tuple[float, float, float] | None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the median reaches it; None where it was not measured."""
        if self.found is None:
            return None
        median = self.found[1]
        return median <= self.wanted if self.at_most else median >= self.wanted

    def says(self) -> str:
        """Return "met", or by how much it is missed."""
        if self.found is None:
            return "not measured"
        if self.met:
            return "met"
        away = abs(self.found[1] - self.wanted)
        return f"missed by {away:.2f}{self.unit} ({100 * away / self.wanted:.0f} %)"


def share(measured: Measured, limit: str, bytes_counted: float) -> Spread | None:
    """Return the bytes a second as a share of a limit's, from the rounds in which both were timed.

    The limit's ratio is how many times longer it takes for as many elements.
    """
    timing = measured.contenders.get(limit)
    if timing is None:
        return None
    scale = measured.bytes / bytes_counted
    ratio = timing.ratio
    return Spread(ratio.least * scale, ratio.median * scale, ratio.greatest * scale)


def verdicts(results: Results) -> list[Verdict]:
    """Return every target's verdict, by target, case and size."""
    return [
        *_of_the_triad(results),
        *_over(results, CORRECTED, "torch", 3.0),
        *_over(results, CORRECTED, "numpy", 3.0),
        *_over(results, CORRECTED, "torch._foreach", 1.5),
        *_over(results, ("sgd_step",), "torch", 0.9),
        *_calls(results),
        *_resident(results),
    ]


def _of(measured: Measured | None, contender: str) -> Timing | None:
    return measured.contenders.get(contender) if measured else None


def _found(spread: Spread | None) -> tuple[float, float, float] | None:
    return (spread.least, spread.median, spread.greatest) if spread else None


def _of_the_triad(results: Results) -> Iterator[Verdict]:
    for case in FUSED:
        for n in LARGE:
            measured = results.of(case, n)
            of_triad = share(measured, "triad", BYTES["triad"]) if measured else None
            yield Verdict("triad's bytes/s", case, n, 0.9, "x", _found(of_triad))


def _over(results: Results, cases: tuple[str, ...], peer: str, wanted: float) -> Iterator[Verdict]:
    for case in cases:
        for n in LARGE:
            measured = results.of(case, n)
            timing = _of(measured, peer)
            ratio = _found(timing.ratio if timing else None)
            yield Verdict(f"over {peer}", case, n, wanted, "x", ratio)


def _calls(results: Results) -> Iterator[Verdict]:
    """A bound step's cost above its arithmetic's median, in microseconds."""
    for case in BOUND:
        measured = results.of(case, SHORT)
        bare = _of(measured, "without the call")
        found = None
        if measured and bare:
            ours, arithmetic = measured.contenders["kellet"].seconds, bare.seconds.median
            found = (
                1e6 * (ours.least - arithmetic),
                1e6 * (ours.median - arithmetic),
                1e6 * (ours.greatest - arithmetic),
            )
        yield Verdict("a bound step's call", case, SHORT, 2.0, " us", found, at_most=True)


def _resident(results: Results) -> Iterator[Verdict]:
    """Parameters a second over the float32 twin's, where g alone fills the last cache."""
    cache = results.machine["last_cache_bytes"]
    n = LARGE[-1]
    for kernel in RESIDENT:
        for length in (1024, 64):
            case = f"{kernel}, rows of {length}"
            measured = results.of(case, n) if 4 * n > int(cache) else None
            twin = _of(measured, "float32 twin")
            ratio = _found(twin.ratio if twin else None)
            yield Verdict("over its float32 twin", case, n, 1.3, "x", ratio)
