"""Codecs, exact sums and reductions, and their peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Call, Case, Prepare
from bench.operands import Draw, Operands
from kellet import kernels

__all__ = ["CODECS", "torch_codecs"]

ONE = 2.0**48  # on the grid
WEIGHT = 321
BLOCK = 64
SCALES = 4 / BLOCK  # bytes an element
SHARE = 100  # top-k takes one element of so many
RATE_SUM = 0.8
SHRINK = 1 - 1e-6  # clip_norm's limit sinks a little at every call, so that each one clips


def _call(function: Callable[..., Any], *names: str, **options: Any) -> Prepare:
    """Return what calls a public function on operands, by name."""

    def prepare(o: Operands) -> Call:
        arguments = [o[name] for name in names]
        return lambda: function(*arguments, **options)

    return prepare


def _no_result(function: Callable[..., Any], out: str, *names: str) -> Prepare:
    """As ``_call`` with ``out=``; what is returned is the operand itself."""

    def prepare(o: Operands) -> Call:
        arguments, result = [o[name] for name in names], o[out]

        def call() -> None:
            function(*arguments, out=result)

        return call

    return prepare


def _limbs(d: Draw) -> Operands:
    """Sums as they are after a round: of 62 bits, and one in ten thousand beyond 64."""
    low = d.integers(62)
    high = low >> 63
    high[::10_000] = 5
    return {"lo": low.view(np.uint64), "hi": high}


def _clip_norm(o: Operands) -> Call:
    g, limit = o["g"], o["limit"]

    def call() -> float:
        limit[0] *= SHRINK
        return kernels.clip_norm(g, limit[0])

    return call


def _numpy_clip(o: Operands) -> Call:
    g, limit = o["g"], o["limit"]

    def call() -> float:
        limit[0] *= SHRINK
        norm = float(np.linalg.norm(g))
        g[:] = g * np.float32(min(1.0, limit[0] / norm))
        return norm

    return call


def _clipped(d: Draw) -> Operands:
    g = d.normal()
    return {"g": g, "limit": np.array([0.9 * kernels.norm(g)])}


def _top_k(function: Callable[..., Any], *names: str) -> Prepare:
    def prepare(o: Operands) -> Call:
        arguments = [o[name] for name in names]
        k = max(1, o["v"].size // SHARE)
        return lambda: function(*arguments, k)

    return prepare


def _numpy_top_k(v: Any, k: int) -> Any:
    index = np.sort(np.argpartition(np.abs(v), v.size - k)[v.size - k :])
    return index.astype(np.uint32), v[index]


def _squares_out(o: Operands) -> Call:
    v, scratch = o["v"], np.empty(o["v"].size)

    def call() -> float:
        np.multiply(v, v, out=scratch, dtype=np.float64)
        return float(scratch.sum())

    return call


def _grid_out(o: Operands) -> Call:
    v, q, scratch = o["v"], o["q"], np.empty(o["v"].size)

    def call() -> None:
        np.multiply(v, ONE, out=scratch, dtype=np.float64)
        np.rint(scratch, out=scratch)
        np.copyto(q, scratch, casting="unsafe")

    return call


def _weighted_out(o: Operands) -> Call:
    total, v, scratch = o["total"], o["v"], np.empty(o["v"].size)

    def call() -> None:
        np.multiply(v, 0.25, out=scratch, dtype=np.float64)
        np.add(total, scratch, out=total)

    return call


def _f64(d: Draw) -> Any:
    return d.normal().astype(np.float64)


def _room(d: Draw, dtype: Any) -> Any:
    return kernels.aligned(d.n, dtype)


CODECS = [
    Case(
        "sum_of_squares", "sum_of_squares", 4, lambda d: {"v": d.normal()},
        _call(kernels.sum_of_squares, "v"),
        {
            "numpy": _call(lambda v: float(np.sum(v.astype(np.float64) ** 2)), "v"),
            "numpy out=": _squares_out,
        },
    ),
    Case(
        "norm", "norm", 4, lambda d: {"v": d.normal()}, _call(kernels.norm, "v"),
        {"numpy": _call(lambda v: float(np.linalg.norm(v.astype(np.float64))), "v")},
    ),
    Case(
        "distance", "distance", 8, lambda d: {"a": d.normal(), "b": d.normal()},
        _call(kernels.distance, "a", "b"),
        {"numpy": _call(lambda a, b: float(np.linalg.norm(a.astype(np.float64) - b)), "a", "b")},
    ),
    Case("clip_norm", "clip_norm", 12, _clipped, _clip_norm, {"numpy": _numpy_clip}),
    Case(
        "to_grid", "to_grid", 16, lambda d: {"v": d.normal(), "q": _room(d, np.int64)},
        _no_result(kernels.to_grid, "q", "v"), {"numpy out=": _grid_out},
    ),
    Case(
        "from_grid", "from_grid", 16, lambda d: {"q": d.integers(48)},
        _call(kernels.from_grid, "q"),
    ),
    Case(
        "add_scaled", "add_scaled", 40, lambda d: {**_limbs(d), "q": d.integers(48)},
        _call(lambda lo, hi, q: kernels.add_scaled(lo, hi, q, WEIGHT), "lo", "hi", "q"),
    ),
    Case(
        "accumulate, float32", "accumulate", 40, lambda d: {**_limbs(d), "v": d.normal()},
        _call(lambda lo, hi, v: kernels.accumulate(lo, hi, v, WEIGHT), "lo", "hi", "v"),
    ),
    Case(
        "accumulate, int8", "accumulate", 33 + SCALES,
        lambda d: {**_limbs(d), "v": d.rows(BLOCK)},
        _call(lambda lo, hi, v: kernels.accumulate(lo, hi, v, WEIGHT), "lo", "hi", "v"),
    ),
    Case(
        "limbs_to_float64", "limbs_to_float64", 24, _limbs,
        _call(kernels.limbs_to_float64, "lo", "hi"),
    ),
    Case(
        "derived_delta_c", "derived_delta_c", 16,
        lambda d: {"c_a": d.normal(), "delta_y": d.normal()},
        _call(kernels.derived_delta_c, "c_a", "delta_y", rate_sum=RATE_SUM),
    ),
    Case(
        "control_shift", "control_shift", 16,
        lambda d: {"c": d.normal(), "q_ci": d.integers(48), "d": d.normal()},
        _no_result(kernels.control_shift, "d", "c", "q_ci"),
    ),
    Case(
        "linear_digest", "linear_digest", 8, lambda d: {"q": d.integers(48)},
        _call(kernels.linear_digest, "q", seed=7),
    ),
    Case(
        "add_weighted, float32", "add_weighted", 20,
        lambda d: {"total": _f64(d), "v": d.normal()},
        _call(kernels.add_weighted, "total", "v", weight=0.25), {"numpy out=": _weighted_out},
    ),
    Case(
        "add_weighted, int8", "add_weighted", 17 + SCALES,
        lambda d: {"total": _f64(d), "v": d.rows(BLOCK)},
        _call(kernels.add_weighted, "total", "v", weight=0.25),
    ),
    Case(
        "add_modular", "add_modular", 24,
        lambda d: {"total": d.integers(62).view(np.uint64), "part": d.integers(62).view(np.uint64)},
        _call(kernels.add_modular, "total", "part"),
    ),
    Case(
        "subtract_modular", "subtract_modular", 24,
        lambda d: {"total": d.integers(62).view(np.uint64), "part": d.integers(62).view(np.uint64)},
        _call(kernels.subtract_modular, "total", "part"),
    ),
    Case(
        "quantise", "quantise", 5 + SCALES,
        lambda d: {"v": d.normal(), "layout": kernels.block_layout(d.n, BLOCK)},
        _call(kernels.quantise, "v", "layout"),
    ),
    Case(
        "quantise, stochastic", "quantise", 5 + SCALES,
        lambda d: {"v": d.normal(), "layout": kernels.block_layout(d.n, BLOCK)},
        _call(kernels.quantise, "v", "layout", seed=7),
    ),
    Case(
        "dequantise", "dequantise", 5 + SCALES,
        lambda d: {"rows": d.rows(BLOCK), "v": _room(d, np.float32)},
        _no_result(kernels.dequantise, "v", "rows"),
    ),
    Case(
        "top_k", "top_k", 4, lambda d: {"v": d.distinct()}, _top_k(kernels.top_k, "v"),
        {"numpy": _top_k(_numpy_top_k, "v")},
    ),
    Case(
        "top_k_feedback", "top_k_feedback", 12,
        lambda d: {"v": d.normal(), "residual": d.normal()},
        _top_k(kernels.top_k_feedback, "v", "residual"),
    ),
]  # fmt: skip


def torch_codecs() -> dict[str, dict[str, Prepare]]:
    """Return PyTorch's eager peers, of the kernels that have one."""
    import torch

    def on(work: Callable[..., Any], *names: str) -> dict[str, Prepare]:
        def prepare(o: Operands) -> Call:
            # PyTorch adds no uint64; modulo 2**64 an int64 has the same bits.
            tensors = [
                torch.from_numpy(o[n].view(np.int64) if o[n].dtype == np.uint64 else o[n])
                for n in names
            ]
            return lambda: work(*tensors)

        return {"torch": prepare}

    def norm(v: Any) -> float:
        return float(torch.linalg.vector_norm(v, dtype=torch.float64))

    def clip(g: Any, limit: Any) -> float:
        limit *= SHRINK
        total = torch.linalg.vector_norm(g, dtype=torch.float64)  # float32 is off at 1e7
        g.mul_((limit / total).clamp_(max=1.0).float())
        return float(total)

    def top_k(v: Any) -> Any:
        chosen = torch.topk(v.abs(), max(1, v.numel() // SHARE), sorted=False).indices
        index = chosen.sort().values
        return index.numpy().astype(np.uint32), v[index].numpy()

    def grid(v: Any, q: Any) -> None:
        q.copy_(v.double().mul_(ONE).round_())

    def delta(c_a: Any, delta_y: Any) -> Any:
        v = delta_y.double().div_(-RATE_SUM).sub_(c_a)
        return v.mul_(ONE).round_().long().numpy()

    def shift(c: Any, q: Any, d: Any) -> None:
        d.copy_(c.double().sub_(q.double(), alpha=1 / ONE))

    def weigh(total: Any, v: Any) -> None:
        total.add_(v, alpha=0.25)

    def add(total: Any, part: Any) -> None:
        total.add_(part)

    def subtract(total: Any, part: Any) -> None:
        total.sub_(part)

    return {
        "sum_of_squares": on(lambda v: float(v.double().square_().sum()), "v"),
        "norm": on(norm, "v"),
        "distance": on(lambda a, b: norm(a.double() - b), "a", "b"),
        "clip_norm": on(clip, "g", "limit"),
        "to_grid": on(grid, "v", "q"),
        "from_grid": on(lambda q: q.double().mul_(1 / ONE).numpy(), "q"),
        "derived_delta_c": on(delta, "c_a", "delta_y"),
        "control_shift": on(shift, "c", "q_ci", "d"),
        "add_weighted, float32": on(weigh, "total", "v"),
        "add_modular": on(add, "total", "part"),
        "subtract_modular": on(subtract, "total", "part"),
        "top_k": on(top_k, "v"),
    }
