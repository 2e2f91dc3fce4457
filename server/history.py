"""Where a simulation starts, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet import kernels
from kellet.sdk.errors import UsageError
from kellet.sdk.plan import Plan

__all__ = [
    "ClientMetrics",
    "History",
    "RoundRecord",
    "State",
    "initial_controls",
    "initial_model",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class State:
    """Where a simulation starts, where a test needs one.

    ``x``: the model, float [n_params]. ``c_i``: each client's control, float [n_train]
    (absent: zero). ``C``: their sum, float [n_train]; a state in which it is not is
    refused.
    """

    x: ArrayLike
    c_i: Mapping[str, ArrayLike] = field(default_factory=dict)
    C: ArrayLike | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One round. Losses are means over the devices counted; bytes are totals so far.

    ``loss`` and ``accuracy`` are of the new model on the test set; ``train_loss`` is the
    data's loss during local steps, ``objective`` adds the proximal term; ``drift`` is
    ||y - x||. The ``holdout`` figures are of the *received* model on the counted devices'
    own held-out samples, weighted by their number, the ``personal`` ones of the devices' own
    models on the same; ``worst``: the mean over the worst tenth of the devices. ``schemes``
    and ``codecs`` (of delta_y) count the devices by how they trained and sent. ``step_norm``:
    the norm of the step that the server took with the trained parameters. ``missed``: chosen, and
    did not come. ``asked_entropy`` and ``counted_entropy``: how evenly the clients were asked and
    counted up to now, 1 where all were as often (``kellet.server.selection.entropy``).
    """

    round: int
    state: str
    counted: list[str]
    asked: list[str]
    members: int
    model: str
    train_loss: float | None
    objective: float | None
    drift: float | None
    drift_max: float | None
    steps: int
    seconds: float
    uplink_bytes: int
    downlink_bytes: int
    loss: float | None = None
    accuracy: float | None = None
    holdout_loss: float | None = None
    holdout_accuracy: float | None = None
    holdout_accuracy_worst: float | None = None
    personal_loss: float | None = None
    personal_accuracy: float | None = None
    personal_accuracy_worst: float | None = None
    schemes: dict[str, int] = field(default_factory=dict)
    codecs: dict[str, int] = field(default_factory=dict)
    step_norm: float | None = None
    missed: list[str] = field(default_factory=list)
    asked_entropy: float | None = None
    counted_entropy: float | None = None


@dataclass(frozen=True)
class ClientMetrics:
    """A client at the end, on the ``samples`` that it held out.

    ``global``: the fleet's last model; ``personal``: its own as it stands, None without one.
    Accuracies are None where the labels are no classes.
    """

    samples: int
    global_loss: float
    global_accuracy: float | None
    personal_loss: float | None
    personal_accuracy: float | None


@dataclass(frozen=True)
class History:
    """What a simulation came to.

    ``model``: float32 [n_params]; ``c``: the server control variate, float32 [n_train];
    ``c_i``: each client's, float64 [n_train]. ``control_gap``: max |C - sum c_i| over the
    whole run, in steps of the grid. ``models``: after each round, where asked for,
    and ``personal`` the clients' own at the end, float32 [n_update]. ``clients``: each one's
    metrics at the end, where they hold samples out.
    """

    rounds: list[RoundRecord]
    model: F32
    c: F32
    c_i: dict[str, F64]
    digest: str
    control_gap: int
    updates_counted: int
    updates_refused: int
    models: list[F32]
    controls: list[F32]
    clients: dict[str, ClientMetrics] = field(default_factory=dict)
    personal: dict[str, F32] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        return self.rounds[-1].accuracy if self.rounds else None

    @property
    def loss(self) -> float | None:
        return self.rounds[-1].loss if self.rounds else None


def initial_model(initial: State, plan: Plan) -> F32:
    """The initial model, float32 [n_params]; ``UsageError`` where it does not fit."""
    n = plan.n_params
    out = np.asarray(initial.x, np.float32).reshape(-1)
    if len(out) != n or not np.isfinite(out).all():
        raise UsageError(
            f"the initial model has {len(out)} entries or is not finite",
            why=f"the plan has {n}",
            repair="give a finite flat vector in the plan's order",
        )
    vector: F32 = kernels.aligned(n, np.float32)
    vector[:] = out
    return vector


def initial_controls(initial: State, clients: Iterable[str], plan: Plan) -> dict[str, I64]:
    """The initial c_i on the grid; ``UsageError`` where C is not their sum."""
    strangers = sorted(set(initial.c_i) - set(clients))
    if strangers:
        raise UsageError(f"controls of unknown clients: {', '.join(strangers)}")
    n = plan.n_train
    grid: dict[str, I64] = {}
    for device in clients:
        value = np.zeros(n) if device not in initial.c_i else np.asarray(initial.c_i[device], float)
        if value.reshape(-1).shape != (n,):
            raise UsageError(
                f"c_i of {device} has {value.size} entries", why=f"the plan trains {n}"
            )
        grid[device] = kernels.to_grid(np.ascontiguousarray(value.reshape(-1)))
    if initial.C is not None:
        total = sum((kernels.from_grid(q) for q in grid.values()), np.zeros(n))
        given = np.asarray(initial.C, float).reshape(-1)
        if given.shape != (n,) or not np.allclose(given, total, rtol=1e-12, atol=1e-12):
            raise UsageError(
                "the initial state is inconsistent",
                why="C is not the sum of the c_i",
                repair="give C = sum(c_i), or leave it out",
            )
    return grid
