"""Ways to share a pool of samples out among clients that differ.

Each function returns one int64 array of positions a client, ascending: together they
are every sample once. They depend on their arguments alone. What is random comes from
NumPy's generator over Philox, keyed by the way's name and the seed; ``tests/evidence``
holds the bits.

>>> [part.tolist() for part in similarity([1, 0, 1, 0], 2, percent=0)]
[[1, 3], [0, 2]]
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet.sdk.errors import DataError, UsageError, require

__all__ = [
    "by_label",
    "clients_of",
    "dirichlet",
    "feature_skew",
    "natural",
    "quantity",
    "similarity",
]

I64 = NDArray[np.int64]
Parts = list[I64]
Clients = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def dirichlet(
    labels: ArrayLike, clients: int, alpha: float, *, seed: int = 0, least: int = 1
) -> Parts:
    """Label skew: each label is shared out by a draw from Dir(alpha) over the clients.

    Hsu, Qi and Brown, arXiv 1909.06335, use the Dirichlet law for this; per label, as
    here, it is that of Yurochkin et al., ICML 2019, and of Li et al.'s NIID-Bench, ICDE
    2022. For the labels in ascending order: p ~ Dir(alpha, ..., alpha); the n_k samples
    of the label, shuffled, are cut at rint(n_k * (p_1 + ... + p_j)). A large ``alpha``
    gives every client the pool's own mixture (``inf``: shares that differ by one), a
    small one gives each label to a single client.

    Those papers draw again until every client has ten samples, which changes the law,
    and for a small alpha never ends. Here clients below ``least``, in order, are filled
    up from the client that has the most samples, by its commonest label (the first of
    equals in both), as long as it takes; only they and the largest differ from the draw.

    labels: integers [n]. Raises ``UsageError`` where n < clients * least, or alpha is not
    above 0.
    """
    y = _labels(labels)
    _check_clients(len(y), clients, least)
    require(alpha > 0, "alpha", alpha, "above 0")
    rng = _generator("dirichlet", seed)
    owner = np.empty(len(y), np.int64)
    order = []
    for label in np.unique(y):
        mine = rng.permutation(np.flatnonzero(y == label))
        owner[mine] = np.repeat(np.arange(clients), _shares(rng, len(mine), clients, alpha))
        order.append(mine)
    _fill(owner, y, np.concatenate(order), clients, least)
    return _parts(owner, clients)


def feature_skew(
    values: ArrayLike,
    clients: int,
    alpha: float,
    *,
    seed: int = 0,
    least: int = 1,
    bins: int = 10,
) -> Parts:
    """Feature skew: `dirichlet` over ``bins`` equally filled ranges of one feature.

    values: the feature, float [n]. Samples of equal value lie in one range, so that there
    may be fewer ranges.
    """
    v = np.asarray(values)
    require(v.ndim == 1 and v.dtype.kind in "fiu", "values", v.shape, "numbers in one row")
    require(bool(np.isfinite(v).all()), "values", "not finite", "finite")
    require(bins >= 1, "bins", bins, "at least 1")
    lower = np.searchsorted(np.sort(v), v, side="left")  # how many are below
    return dirichlet(lower * bins // max(1, len(v)), clients, alpha, seed=seed, least=least)


def similarity(labels: ArrayLike, clients: int, percent: float, *, seed: int = 0) -> Parts:
    """``percent`` % of each client's samples drawn from the whole pool, the rest sorted by label.

    Hsu, Qi and Brown, arXiv 1909.06335, as SCAFFOLD's experiments use it (Karimireddy et al.,
    arXiv 1910.06378, section 7.1). The samples are shuffled; the first rint(n * percent /
    100) are dealt out as evenly as they go, the others are sorted by label (stably) and
    cut into ``clients`` runs, whose sizes differ by one at most.
    """
    y = _labels(labels)
    _check_clients(len(y), clients, 1)
    require(0 <= percent <= 100, "percent", percent, "from 0 to 100")
    # At 0 % only the order within a label is left to chance, and that decides nothing.
    shuffled = _generator("similarity", seed).permutation(len(y))
    alike = round(len(y) * percent / 100)
    rest = np.sort(shuffled[alike:])
    rest = rest[np.argsort(y[rest], kind="stable")]
    # The longer runs of the one are the shorter of the other, so that all have their share.
    mixed = np.array_split(shuffled[:alike], clients)[::-1]
    pairs = zip(mixed, np.array_split(rest, clients), strict=True)
    return [np.sort(np.concatenate(pair)) for pair in pairs]


def by_label(labels: ArrayLike, clients: int, each: int = 1, *, seed: int = 0) -> Parts:
    """Every client has exactly ``each`` labels, and no more.

    The labels are put in a random order; client i takes ``each`` of them, going round,
    from place i * each. A label's samples, shuffled, are shared evenly among its holders.
    Raises ``UsageError`` where a label would be left over or a client go empty.
    """
    y = _labels(labels)
    known = np.unique(y)
    _check_clients(len(y), clients, 1)
    require(
        len(known) <= clients * each and each <= len(known),
        "each",
        each,
        f"from {math.ceil(len(known) / clients)} to {len(known)} for {len(known)} labels",
    )
    rng = _generator("by_label", seed)
    places = rng.permutation(len(known))
    owner = np.empty(len(y), np.int64)
    for place, label in enumerate(known[places]):
        holders = sorted({j // each for j in range(place, clients * each, len(known))})
        mine = rng.permutation(np.flatnonzero(y == label))
        require(len(mine) >= len(holders), "clients", clients, f"fewer: label {label} is rare")
        for holder, part in zip(holders, np.array_split(mine, len(holders)), strict=True):
            owner[part] = holder
    return _parts(owner, clients)


def quantity(samples: int, clients: int, alpha: float, *, seed: int = 0, least: int = 1) -> Parts:
    """Quantity skew: the clients' numbers of samples are one draw from Dir(alpha).

    Which samples they are is random, so that the labels are alike. Li et al., NIID-Bench,
    ICDE 2022. ``least`` as in `dirichlet`.
    """
    return dirichlet(np.zeros(samples, np.int64), clients, alpha, seed=seed, least=least)


def natural(owners: ArrayLike) -> Parts:
    """One client for each value in ``owners`` [n], in ascending order of these."""
    who = np.asarray(owners)
    if who.ndim != 1 or len(who) == 0:
        raise DataError(f"owners have the shape {who.shape}", repair="give one owner a sample")
    kinds, index = np.unique(who, return_inverse=True)
    return _parts(index.astype(np.int64), len(kinds))


def clients_of(parts: Sequence[I64], x: NDArray[Any], y: NDArray[Any]) -> Clients:
    """Name the parts client-0, client-1, ... and cut their data, for ``simulate``.

    The numbers have equal length, so that the names sort as the parts do.
    """
    digits = len(str(len(parts) - 1))
    return {f"client-{i:0{digits}}": (x[part], y[part]) for i, part in enumerate(parts)}


def _generator(way: str, seed: int) -> np.random.Generator:
    key = hashlib.sha256(f"{way}/{seed}".encode()).digest()[:16]
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _shares(rng: np.random.Generator, n: int, clients: int, alpha: float) -> I64:
    """How many of ``n`` samples each client gets, int64 [clients]."""
    equal = np.full(clients, 1 / clients)
    p = equal if math.isinf(alpha) else rng.dirichlet(np.full(clients, alpha))
    cuts = np.rint(n * np.cumsum(p)).astype(np.int64)
    cuts[-1] = n  # the sum may miss 1 by a rounding
    shares: I64 = np.diff(np.minimum(cuts, n), prepend=0)
    return shares


def _fill(owner: I64, y: I64, order: I64, clients: int, least: int) -> None:
    """Give clients below ``least`` what they lack, in place; see `dirichlet`."""
    sizes = np.bincount(owner, minlength=clients)
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            kinds, counts = np.unique(y[owner == rich], return_counts=True)
            of_kind = order[(owner[order] == rich) & (y[order] == kinds[counts.argmax()])]
            moved = min(least - sizes[poor], len(of_kind), sizes[rich] - least)
            owner[of_kind[len(of_kind) - moved :]] = poor
            sizes[rich] -= moved
            sizes[poor] += moved


def _parts(owner: I64, clients: int) -> Parts:
    by_owner = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(by_owner, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def _labels(labels: ArrayLike) -> I64:
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) == 0:
        raise DataError(
            f"labels are {y.dtype} {list(y.shape)}",
            why="they are integers, one a sample",
            repair="give an integer array of one axis",
        )
    return y.astype(np.int64)


def _check_clients(samples: int, clients: int, least: int) -> None:
    require(clients >= 1, "clients", clients, "at least 1")
    require(least >= 1, "least", least, "at least 1: a client without samples cannot train")
    if samples < clients * least:
        raise UsageError(
            f"{samples} samples for {clients} clients",
            why=f"each gets {least} at least",
            repair=f"ask for {samples // least} clients at most",
        )
