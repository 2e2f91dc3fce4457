"""What a plan takes on a class of device, and what is best there.

``predict`` says of one way to train what it takes: memory, bytes, disk, time on a link.
``advise`` tries them all against a profile. docs/profiles.md explains the terms; the
constants were measured on whole device processes (``tests/profiles/test_peaks.py``
holds them to within 15 %).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kellet.firmware_profiles import PROCESS_MB, Profile
from kellet.sdk.algorithms import FedAvg, make
from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.peak import peak_of
from kellet.sdk.plan import Plan
from kellet.sdk.plan.schemes import FLOAT32, check_scheme
from kellet.sdk.protocol.limits import PART_HEADER
from kellet.sdk.protocol.vectors import Codec, Shapes, vector_limit

__all__ = ["Advice", "Candidate", "Link", "advise", "misfit", "predict"]

MB = 10**6
_BATCHES = (32, 16, 8, 4, 2, 1)
_FEW = 8  # samples in a batch below which gradients are too noisy to give up anything else for
_SHORT = 50  # steps of a round in which the noise of int8 rounding outweighs what c_i learns
_DAMPING = 0.1
_HEADER = 400  # bytes of an update's header, at most so many in practice
_FRAME = 120  # bytes of an MQTT publication around a part: its topic, ids, the acknowledgement
_TCP = 1.04  # of a full segment, 52 bytes of 1,500 are TCP's and IP's
_ENVELOPE = 2600  # bytes of one round's messages beside the vectors, both ways
_LOG = 4_200_000  # bytes that SQLite's log grows to before it is copied back
_SHARE = 0.01  # of the elements that `topk` sends where a fleet does not say


@dataclass(frozen=True, kw_only=True)
class Link:
    """What a device's link carries, in bits a second, up and down."""

    up: float
    down: float

    def seconds(self, up: int, down: int) -> float:
        """To send and to receive so many bytes; a round does one after the other."""
        return _TCP * 8 * (up / self.up + down / self.down)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train a plan, and what it takes.

    ``peak_mb``: of the whole device process; ``storage_mb``: of the state directory.
    ``up``, ``down``: bytes of a round (the plan itself, once, is not among them). ``seconds``:
    that these take on the link, None without one. ``short_of``: why it does not fit.
    """

    scheme: str
    algorithm: str
    batch: int
    peak_mb: float
    storage_mb: float
    up: int
    down: int
    seconds: float | None
    short_of: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.short_of


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What fits, and what to take.

    ``candidates``: the largest batch of each scheme and algorithm that fits, or the smallest
    where none does. ``reasons``: why ``chosen`` and no other. ``control_damping``: to announce.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    reasons: tuple[str, ...]
    control_damping: float

    def refusal(self, plan: Plan, profile: Profile) -> PlanError:
        """The error, with the numbers, for whoever needs what does not fit."""
        least = min(self.candidates, key=lambda each: (len(each.short_of), each.peak_mb))
        return PlanError(
            f"{plan.manifest.name} does not fit {profile.name}",
            why=f"the smallest way ({least.scheme}, {least.algorithm}, batch {least.batch}) "
            + " and ".join(least.short_of)
            + f"; {PROCESS_MB} MB of the memory are the process before it has a plan",
            repair="train fewer tensors (kellet plan derive --last), take a smaller model, or "
            "raise memory_budget_mb and storage_budget_mb below [overrides] in kellet.toml",
        )


def predict(
    plan: Plan,
    profile: Profile,
    *,
    scheme: str,
    algorithm: FedAvg | str,
    batch: int,
    samples: int = 0,
    link: Link | None = None,
    uplink: Codec = "f32",
    share: float = _SHARE,
    downlink: Codec = "f32",
) -> Candidate:
    """What one way to train takes on a device of this profile.

    ``scheme``: of the plan's; ``algorithm``: a value, or a name with its defaults;
    ``samples``: that the device holds. ``uplink``, ``downlink``: the codecs, ``share``:
    topk's; a delta_c that is derived costs no bytes.
    """
    scheme = check_scheme(scheme)
    runs = make(algorithm) if isinstance(algorithm, str) else algorithm
    shapes = Shapes.of(plan.manifest.tensors)
    up = vector_limit(uplink, shapes.n_update, shapes.update, share) + _HEADER
    model = vector_limit(downlink, shapes.n_update, shapes.update, _SHARE)
    control = 0
    if runs.announces_control:
        control = vector_limit(downlink, shapes.n_train, shapes.train, _SHARE)
    if runs.control_codec not in ("none", "derived"):
        up += vector_limit(cast("Codec", runs.control_codec), shapes.n_train, shapes.train, share)
    most = max(1, profile.max_message_bytes)
    up_bytes = up + _parts(up, most) + _ENVELOPE // 2
    down_bytes = model + control + _parts(model, most) + _parts(control, most) + _ENVELOPE // 2
    peak = (
        peak_of(
            plan,
            scheme=scheme,
            controls=runs.controls,
            vectors=bool(runs.momentum) + bool(runs.memory) + bool(runs.lookahead),
            int8_shift=profile.shift == "int8",
            batch=batch,
            data_bytes=samples * sample_bytes(plan),
            sent=up,
            received=model,
            control=control,
        ).total
        / MB
    )
    storage = _storage(plan, up, runs) / MB
    short_of = []
    if peak > profile.memory_budget_mb:
        short_of.append(f"needs {math.ceil(peak)} MB of memory, of {profile.memory_budget_mb}")
    if storage > profile.storage_budget_mb:
        short_of.append(f"needs {math.ceil(storage)} MB of storage, of {profile.storage_budget_mb}")
    return Candidate(
        scheme=scheme,
        algorithm=runs.name,
        batch=batch,
        peak_mb=peak,
        storage_mb=storage,
        up=up_bytes,
        down=down_bytes,
        seconds=link.seconds(up_bytes, down_bytes) if link else None,
        short_of=tuple(short_of),
    )


def advise(
    plan: Plan,
    profile: Profile,
    *,
    batch: int | None = None,
    samples: int = 0,
    local_steps: int = 0,
    link: Link | None = None,
    uplink: Codec | None = None,
    share: float = _SHARE,
    downlink: Codec = "f32",
) -> Advice:
    """What to announce for devices of this profile.

    SCAFFOLD, where the profile prefers it, in any scheme that fits, before another algorithm;
    then the profile's order of schemes; then the largest batch. ``batch``: the only one to
    try. ``local_steps``: of a round, 0 where not known. Raises ``UsageError`` where
    profile and plan have no scheme in common.
    """
    if batch is not None and batch < 1:
        raise UsageError(f"batch = {batch}", why="it must be at least 1")
    schemes = [name for name in map(check_scheme, profile.schemes) if name in plan.schemes]
    if not schemes:
        raise UsageError(
            f"{plan.manifest.name} has no scheme that {profile.name} takes",
            why=f"it has {', '.join(plan.schemes)}; the profile {', '.join(profile.schemes)}",
            repair="derive them: kellet plan derive PLAN -o OUT",
        )
    algorithms = [profile.algorithm, *({"scaffold", "fedprox"} - {profile.algorithm})]
    tried = [
        predict(
            plan,
            profile,
            scheme=scheme,
            algorithm=algorithm,
            batch=size,
            samples=samples,
            link=link,
            uplink=uplink or profile.uplink_codec,
            share=share,
            downlink=downlink,
        )
        for algorithm in sorted(algorithms, key=algorithms.index)
        for scheme in schemes
        for size in ((batch,) if batch else _BATCHES)
    ]
    fitting = [each for each in tried if each.fits]
    chosen = min(fitting, key=lambda each: _rank(each, algorithms, schemes), default=None)
    damping = _damping(chosen, profile, local_steps)
    return Advice(
        candidates=tuple(_best_of_each(tried)),
        chosen=chosen,
        reasons=tuple(_reasons(chosen, tried, algorithms, schemes, damping)) if chosen else (),
        control_damping=damping,
    )


def misfit(
    plan: Plan,
    profile: Profile,
    *,
    scheme: str,
    algorithm: FedAvg,
    batch: int,
    data_bytes: int = 0,
) -> str:
    """Why a device of this profile cannot train so, with the numbers; empty where it can."""
    samples = data_bytes // max(1, sample_bytes(plan))
    found = predict(plan, profile, scheme=scheme, algorithm=algorithm, batch=batch, samples=samples)
    return " and ".join(found.short_of)


def sample_bytes(plan: Plan) -> int:
    """Bytes of one sample, with its label, as a device holds it."""
    size = 0
    spec: Any
    for spec in (plan.manifest.input, plan.manifest.labels):
        size += math.prod(spec.shape) * (8 if spec.dtype == "int64" else 4)
    return size


def _rank(each: Candidate, algorithms: Sequence[str], schemes: Sequence[str]) -> tuple[Any, ...]:
    few = each.batch < _FEW
    return (
        few,
        algorithms.index(each.algorithm),
        schemes.index(each.scheme),
        -each.batch,
    )


def _best_of_each(tried: Sequence[Candidate]) -> Iterator[Candidate]:
    """Of each scheme and algorithm the largest batch that fits, or the smallest of all."""
    ways = dict.fromkeys((each.algorithm, each.scheme) for each in tried)
    for way in ways:
        same = [each for each in tried if (each.algorithm, each.scheme) == way]
        yield next((each for each in same if each.fits), same[-1])


def _damping(chosen: Candidate | None, profile: Profile, local_steps: int) -> float:
    if chosen is None or chosen.algorithm != "scaffold":
        return 1.0
    rounds = chosen.scheme != FLOAT32
    return _DAMPING if rounds and local_steps < _SHORT else 1.0


def _reasons(
    chosen: Candidate,
    tried: Sequence[Candidate],
    algorithms: Sequence[str],
    schemes: Sequence[str],
    damping: float,
) -> Iterator[str]:
    wanted = algorithms[0]
    if chosen.algorithm != wanted:
        least = min(
            (t for t in tried if t.algorithm == wanted), key=lambda each: (each.peak_mb, each.batch)
        )
        yield (
            f"{chosen.algorithm}, for {wanted} {' and '.join(least.short_of)} "
            f"even with {least.scheme} and batches of {least.batch}"
        )
    elif wanted == "scaffold":
        yield "scaffold: its control variates fit, and keep the devices from drifting apart"
    else:
        yield f"{wanted}: the profile prefers it"
    for scheme in schemes[: schemes.index(chosen.scheme)]:
        passed = [t for t in tried if (t.scheme, t.algorithm) == (scheme, chosen.algorithm)]
        over = min(passed, key=lambda each: each.peak_mb)
        yield f"not {scheme}: it {' and '.join(over.short_of) or 'fits only batches below 8'}"
    if chosen.scheme == schemes[0] and len(schemes) > 1:
        yield f"{chosen.scheme}: the profile prefers it"
    largest = max(each.batch for each in tried)
    if chosen.batch < largest:
        over = next(
            t
            for t in tried
            if (t.scheme, t.algorithm, t.batch) == (chosen.scheme, chosen.algorithm, largest)
        )
        yield f"batches of {chosen.batch}: with {largest} it {' and '.join(over.short_of)}"
    if damping != 1:
        yield (
            f"control_damping {damping:g}: in short rounds the noise of int8 rounding would "
            "outweigh what c_i learns"
        )


def _parts(size: int, most: int) -> int:
    """Bytes that cutting ``size`` into parts adds."""
    return -(-size // most) * (PART_HEADER + _FRAME)


def _storage(plan: Plan, body: int, algorithm: FedAvg) -> int:
    """The state directory at its largest: the plan, the database, and the database's log.

    Update, control and memory lie in the database once, and in its log again; beside them the
    c_i and the memory that they follow.
    """
    kept = (8 if algorithm.controls else 0) + (4 if algorithm.memory else 0)
    return plan.size + 2 * body + 3 * kept * plan.n_train + _LOG
