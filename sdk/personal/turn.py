"""A device's personal model in one round: taken off the shelf, trained, put back, judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.errors import UsageError
from kellet.sdk.holdout import Judge
from kellet.sdk.local import FloatSession, Int8WeightSession, TrainingFailed, place
from kellet.sdk.outgoing import Announced
from kellet.sdk.personal.methods import from_wire
from kellet.sdk.personal.training import Steps, train_personal
from kellet.sdk.plan import Plan
from kellet.sdk.shelf import Shelf
from kellet.sdk.trainer import Data, Holdout

__all__ = ["Turn", "take_turn"]

F32 = NDArray[np.float32]

_INT8 = "its weights are held as int8 rows here, and a personal model takes float32"
_DONE = "it was trained for this announcement before"


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of the personal model. ``judged``: the one on the shelf, after it.

    ``ran``: the steps that were run and kept; None where none were, ``skipped`` says why.
    """

    ran: Steps | None = None
    skipped: str = ""
    judged: Holdout | None = None

    @property
    def facts(self) -> dict[str, object]:
        """What there is to tell about it."""
        if self.ran is None:
            return {"personal": self.skipped}
        stopped = {"personal_stopped": self.ran.stopped} if self.ran.stopped else {}
        return {"personal_steps": self.ran.steps, "personal_loss": self.ran.loss, **stopped}


def take_turn(
    announced: Announced,
    session: FloatSession | Int8WeightSession,
    x: F32 | None,
    data: Data,
    *,
    plan: Plan,
    shelf: Shelf,
    judge: Judge,
    kept: F32 | None,
    device: str,
    stop: Callable[[], str] = lambda: "",
    wanted: Callable[[], bool] = lambda: True,
) -> Turn | None:
    """Train this device's personal model as ``announced``; None where nothing is.

    ``x``: the received model, float32 [n_update], None where int8 rows held it. ``kept``: the
    device's own statistics, as of the round's start. The session's parameters are v afterwards,
    and no vector is made beside them. The model on the shelf is replaced in one transaction, once
    the training has ended: early, too, where ``stop`` said so, unless the round is not
    ``wanted`` any more. A training that has gone wrong leaves the old one.
    """
    round_ = announced.round
    if round_.personalising is None:
        return None
    if x is None or isinstance(session, Int8WeightSession):
        return Turn(skipped=_INT8)
    try:
        method = from_wire(round_.personalising)
        recipe = method.recipe(announced.algorithm)
        spans = method.trained(plan.manifest.tensors)
    except UsageError as error:
        return Turn(skipped=str(error))
    v = session.params[: plan.n_update]
    stored = shelf.find(plan.id)
    ran, skipped = None, ""
    if stored and stored.base == announced.base:
        skipped = _DONE
    else:
        if stored and method.lasting:
            stored.read_into(v)
        else:
            v[:] = x
            place(v, plan.local, kept)
        try:
            ran = train_personal(
                session,
                recipe,
                data,
                x=x,
                spans=spans,
                seed=round_.seed,
                device=device,
                round_=round_.round,
                stop=stop,
            )
            skipped = ran.stopped
        except TrainingFailed as error:
            skipped = str(error)
    if ran and ran.steps and wanted():
        shelf.save(plan.id, announced.base, round_.round, v)
        return Turn(ran, judged=judge.whole(session.params))
    if stored is None:
        return Turn(skipped=skipped)
    stored.read_into(v)
    return Turn(skipped=skipped, judged=judge.whole(session.params))
