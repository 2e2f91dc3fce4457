"""Losses and gradients of plans at some points, to be compared between processors.

``python -m emulation.gradients FOLDER``: of its plans, at ``points.npz``, into ``found.npz``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.sdk import Plan
from kellet.sdk.plan import GradientSession

Arrays = dict[str, NDArray[Any]]
SIZES = (1, 8, 33)


def points(plans: Mapping[str, Plan]) -> Arrays:
    """Make a model and a batch of each size for each plan: ``wisdm 0 x``, and so on."""
    numbers = np.random.default_rng(8)
    given: Arrays = {}
    for name, plan in plans.items():
        for i, size in enumerate(SIZES):
            noise = numbers.standard_normal(plan.n_params).astype(np.float32)
            given[f"{name} {i} model"] = plan.initial() + np.float32(0.05) * noise
            shape = (size, *plan.manifest.input.shape)
            given[f"{name} {i} x"] = numbers.standard_normal(shape).astype(np.float32)
            given[f"{name} {i} y"] = numbers.integers(0, plan.manifest.labels.classes, size)
    return given


def gradients(plans: Mapping[str, Plan], given: Mapping[str, NDArray[Any]]) -> Arrays:
    """Evaluate each scheme of each plan: ``wisdm w8.row/1 0 loss`` and ``... grads``.

    ``... held``: the int8 values and scales at which they are, of a scheme that has them.
    """
    found: Arrays = {}
    for name, plan in plans.items():
        for scheme in plan.schemes:
            session = plan.session(scheme)
            for i in range(len(SIZES)):
                model, x, y = (given[f"{name} {i} {what}"] for what in ("model", "x", "y"))
                key = f"{name} {scheme} {i}"
                if isinstance(session, GradientSession):
                    session.params[:] = model
                else:
                    session.load(model, seed=i)
                    held = (session.weights.values, session.weights.scales)
                    found[f"{key} held"] = np.concatenate([part.view(np.uint8) for part in held])
                found[f"{key} loss"] = np.array(session.step(x, y))
                flat = np.zeros(plan.n_train, np.float32)
                for place, part in _parts(session):
                    flat[place] = part
                found[f"{key} grads"] = flat
    return found


def _parts(session: Any) -> Any:
    if isinstance(session, GradientSession):
        return [(slice(None), session.grads)]
    return session.gradients()


def main() -> None:
    folder = Path(sys.argv[1])
    plans = {path.stem: Plan.open(path) for path in sorted(folder.glob("*.kplan"))}
    with np.load(folder / "points.npz") as given:
        found = gradients(plans, dict(given))
    np.savez(folder / "found.npz", **found)


if __name__ == "__main__":
    main()
