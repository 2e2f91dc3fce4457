"""The float32 steps as a user of PyTorch would write them."""

from __future__ import annotations

from functools import cache
from typing import Any

from bench.case import Call, Prepare
from bench.operands import Operands
from bench.steps import BETA, MU

__all__ = ["torch_steps"]

TENSORS = 16  # torch._foreach works on a list: the vector, cut as a model of so many tensors


def torch_steps() -> dict[str, dict[str, Prepare]]:
    """Return PyTorch's peers of the float32 steps: eager, ``_foreach`` and the compiled source."""
    import torch

    mu, beta = float(MU), float(BETA)

    def sgd(lr: float, y: Any, g: Any) -> None:
        y.add_(g, alpha=-lr)

    def prox(lr: float, y: Any, g: Any, x: Any) -> None:
        y.add_(torch.add(g, y - x, alpha=mu), alpha=-lr)

    def implicit(lr: float, y: Any, g: Any, x: Any) -> None:
        y.add_(g, alpha=-lr).add_(x, alpha=lr * mu).div_(1 + lr * mu)

    def scaffold(lr: float, y: Any, g: Any, c_i: Any, c: Any) -> None:
        y.add_(g - c_i + c, alpha=-lr)

    def shift(lr: float, y: Any, g: Any, d: Any) -> None:
        y.add_(g + d, alpha=-lr)

    def sgd_momentum(lr: float, y: Any, m: Any, g: Any) -> None:
        m.mul_(beta).add_(g)
        y.add_(m, alpha=-lr)

    def prox_momentum(lr: float, y: Any, m: Any, g: Any, x: Any) -> None:
        m.mul_(beta).add_(torch.add(g, y - x, alpha=mu))
        y.add_(m, alpha=-lr)

    def scaffold_momentum(lr: float, y: Any, m: Any, g: Any, d: Any) -> None:
        m.mul_(beta).add_(g + d)
        y.add_(m, alpha=-lr)

    each: Any = torch  # its _foreach functions have no public types

    def sgd_each(lr: float, y: Any, g: Any) -> None:
        each._foreach_add_(y, g, alpha=-lr)

    def prox_each(lr: float, y: Any, g: Any, x: Any) -> None:
        away = each._foreach_sub(y, x)
        each._foreach_add_(y, each._foreach_add(g, away, alpha=mu), alpha=-lr)

    def implicit_each(lr: float, y: Any, g: Any, x: Any) -> None:
        each._foreach_add_(y, g, alpha=-lr)
        each._foreach_add_(y, x, alpha=lr * mu)
        each._foreach_div_(y, 1 + lr * mu)

    def scaffold_each(lr: float, y: Any, g: Any, c_i: Any, c: Any) -> None:
        corrected = each._foreach_sub(g, c_i)
        each._foreach_add_(corrected, c)
        each._foreach_add_(y, corrected, alpha=-lr)

    def shift_each(lr: float, y: Any, g: Any, d: Any) -> None:
        each._foreach_add_(y, each._foreach_add(g, d), alpha=-lr)

    def sgd_momentum_each(lr: float, y: Any, m: Any, g: Any) -> None:
        each._foreach_mul_(m, beta)
        each._foreach_add_(m, g)
        each._foreach_add_(y, m, alpha=-lr)

    def prox_momentum_each(lr: float, y: Any, m: Any, g: Any, x: Any) -> None:
        away = each._foreach_sub(y, x)
        sgd_momentum_each(lr, y, m, each._foreach_add(g, away, alpha=mu))

    def scaffold_momentum_each(lr: float, y: Any, m: Any, g: Any, d: Any) -> None:
        sgd_momentum_each(lr, y, m, each._foreach_add(g, d))

    def one(work: Any, names: tuple[str, ...]) -> Prepare:
        def prepare(o: Operands) -> Call:
            tensors = [torch.from_numpy(o[name]) for name in names]
            return lambda: work(o["lr"], *tensors)

        return prepare

    def many(work: Any, names: tuple[str, ...]) -> Prepare:
        def prepare(o: Operands) -> Call:
            lists = [list(torch.from_numpy(o[name]).tensor_split(TENSORS)) for name in names]
            return lambda: work(o["lr"], *lists)

        return prepare

    @cache
    def build(work: Any) -> Any:
        return torch.compile(work, dynamic=True)  # one build serves every length

    def compiled(work: Any, names: tuple[str, ...]) -> Prepare:
        def prepare(o: Operands) -> Call:  # the compiler starts where it is asked for
            return one(build(work), names)(o)

        return prepare

    def three(eager: Any, listed: Any, *names: str) -> dict[str, Prepare]:
        return {
            "torch": one(eager, names),
            "torch._foreach": many(listed, names),
            "torch.compile": compiled(eager, names),
        }

    return {
        "sgd_step": three(sgd, sgd_each, "y", "g"),
        "prox_step": three(prox, prox_each, "y", "g", "x"),
        "prox_step_implicit": three(implicit, implicit_each, "y", "g", "x"),
        "scaffold_step": three(scaffold, scaffold_each, "y", "g", "c_i", "c"),
        "scaffold_step_shift": three(shift, shift_each, "y", "g", "d"),
        "sgd_momentum_step": three(sgd_momentum, sgd_momentum_each, "y", "m", "g"),
        "prox_momentum_step": three(prox_momentum, prox_momentum_each, "y", "m", "g", "x"),
        "scaffold_momentum_step": three(
            scaffold_momentum, scaffold_momentum_each, "y", "m", "g", "d"
        ),
    }
