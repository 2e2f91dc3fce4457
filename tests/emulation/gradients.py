"""A plan's loss and gradients at some points, to be compared between processors.

``python -m emulation.gradients PLAN SCHEME POINTS OUT``: two .npz files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kellet.sdk import Plan

Arrays = Mapping[str, np.ndarray[Any, Any]]


def points(plan: Plan, sizes: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Make a parameter vector and a batch of each size."""
    numbers = np.random.default_rng(8)
    given = {}
    for i, size in enumerate(sizes):
        noise = numbers.standard_normal(plan.n_params).astype(np.float32)
        given[f"params{i}"] = plan.initial() + np.float32(0.05) * noise
        shape = (size, *plan.manifest.input.shape)
        given[f"x{i}"] = numbers.standard_normal(shape).astype(np.float32)
        given[f"y{i}"] = numbers.integers(0, plan.manifest.labels.classes, size)
    return given


def gradients(plan: Plan, scheme: str, given: Arrays) -> dict[str, np.ndarray[Any, Any]]:
    """Evaluate ``loss`` and ``grads`` of a scheme's session at each point."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    session = plan.session()
    for i in range(len(given) // 3):
        session.params[:] = given[f"params{i}"]
        found[f"loss{i}"] = np.float64(session.step(given[f"x{i}"], given[f"y{i}"]))
        found[f"grads{i}"] = session.grads.copy()
    return found


def main() -> None:
    name, scheme, source, target = sys.argv[1:]
    with np.load(source) as given:
        found = gradients(Plan.open(name), scheme, dict(given))
    with Path(target).open("wb") as out:
        np.savez(out, **found)


if __name__ == "__main__":
    main()
