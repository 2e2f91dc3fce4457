"""Training on a thread of its own, so that the link is never kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import StartTraining, Trained, TrainingStopped
from kellet.sdk.errors import DataError, KelletError, PlanError
from kellet.sdk.holdout import split_holdout
from kellet.sdk.outgoing import Announced
from kellet.sdk.plan import Evaluator, GradientSession, Plan
from kellet.sdk.store import Store, unpack_control
from kellet.sdk.trainer import Data, Holdout, TrainingFailed, train

__all__ = ["LoadData", "TrainingBroke", "TrainingWorker"]

LoadData = Callable[[], tuple[object, object]]

# Of the time a round leaves, this share is for training; the rest is for the upload.
_SHARE = 0.8

# Seconds that a data function has to return once the device stops.
_PATIENCE = 2.0


class TrainingBroke:
    """Event for the driver: this device cannot train at all; ``error`` says why."""

    def __init__(self, base: bytes, error: KelletError) -> None:
        self.base = base
        self.error = error


@dataclass(frozen=True)
class _Given:
    """What a training starts from, as bytes.

    ``model`` and ``c``: blobs of the announcement; ``c_i`` and ``kept``: of the store.
    """

    model: bytes
    c: bytes | None
    c_i: bytes | None
    kept: bytes | None


@dataclass(frozen=True)
class _Opened:
    """A plan, ready to train on this device's data."""

    plan: Plan
    session: GradientSession
    data: Data
    held: Data | None
    evaluator: Evaluator | None

    def judge(self, model: NDArray[np.float32]) -> Holdout | None:
        """The received model on the device's own hold-out."""
        if self.held is None or self.evaluator is None:
            return None
        metrics = self.evaluator.evaluate(model, self.held.x, self.held.y)
        return Holdout(metrics.n, metrics.loss, metrics.accuracy)


class TrainingWorker:
    """Runs one training at a time; ``answer`` is called from the worker's thread.

    The plan is opened, verified and self-tested once, the data loaded once and held
    against the plan's schema.
    """

    def __init__(
        self,
        device: str,
        store: Store,
        cache: BlobCache,
        *,
        load: LoadData,
        holdout: float,
        answer: Callable[[Trained | TrainingStopped | TrainingBroke], None],
    ) -> None:
        self._device = device
        self._store = store
        self._cache = cache
        self._load = load
        self._holdout = holdout
        self._answer = answer
        self._opened: _Opened | None = None
        self._thread: threading.Thread | None = None
        self._wanted: bytes | None = None
        self._loading = self._leaving = False
        self._patience = _PATIENCE
        self.progress = (0, 0)

    def start(self, effect: StartTraining) -> None:
        """Begin, once the training before has seen that it is not wanted any more."""
        if self._thread is not None:
            self._wanted = None
            if not self._ended(self._thread):
                return
        announced = effect.announced
        self._wanted = announced.base
        round_ = announced.round
        # Read here: the store is the driver's, and its thread's alone; and the cache lets go
        # of a round's blobs as soon as the next is announced.
        given = _Given(
            model=self._cache[round_.model.sha256],
            c=self._cache[round_.control.sha256] if round_.control else None,
            c_i=self._store.packed_control(),
            kept=self._store.kept(round_.plan.sha256),
        )
        self._thread = threading.Thread(
            target=self._run,
            args=(announced, given, time.monotonic() + _SHARE * effect.seconds),
            name="training",
            daemon=True,
        )
        self._thread.start()

    def want(self, base: bytes | None) -> None:
        """Stop unless this is what is being trained for."""
        self._wanted = base

    def leave(self) -> None:
        """Announce ``stop``, from any thread or a signal handler: a wait is cut short."""
        self._leaving = True

    def stop(self) -> None:
        """End the training. A data function that does not return soon is left behind.

        Its thread holds up no process, and touches nothing that lasts.
        """
        self._wanted = None
        self._leaving = True
        if self._thread is not None:
            self._ended(self._thread)
            self._thread = None

    def _ended(self, thread: threading.Thread) -> bool:
        """Wait for ``thread``: for ever while it computes, not long for a data function."""
        while thread.is_alive():
            thread.join(0.1)
            if self._leaving and self._loading:
                self._patience -= 0.1
                if self._patience <= 0:
                    return False
        return True

    def _run(self, announced: Announced, given: _Given, until: float) -> None:
        base = announced.base
        try:
            event = self._train(announced, given, until)
        except TrainingFailed as error:
            self._answer(TrainingStopped(base, str(error)))
        except KelletError as error:
            self._answer(TrainingBroke(base, error))
        except Exception as error:  # the thread must not die unheard: the driver raises it
            broke = KelletError(
                "training failed", why=f"{type(error).__name__}: {error}", repair="see the cause"
            )
            broke.__cause__ = error
            self._answer(TrainingBroke(base, broke))
        else:
            if self._wanted == base:  # else it was stopped half-way, for another or for good
                self._answer(event)

    def _train(self, announced: Announced, given: _Given, until: float) -> Trained:
        round_ = announced.round
        opened = self._open(round_.plan.sha256)
        plan = opened.plan
        model = np.frombuffer(given.model, "<f4")
        if len(model) != plan.n_params:
            raise PlanError("the announced model does not fit the announced plan")
        c = c_i = None
        if given.c is not None:
            c = np.frombuffer(given.c, "<f4")
            c_i = unpack_control(given.c_i, plan.n_train)

        def note(step: int, planned: int) -> None:
            self.progress = (step, planned)

        outcome = train(
            opened.session,
            announced.algorithm,
            opened.data,
            x=model,
            n_train=plan.n_train,
            n_update=plan.n_update,
            c=c,
            c_i=c_i,
            seed=round_.seed,
            device=self._device,
            round_=round_.round,
            local=plan.local,
            kept=None if given.kept is None else np.frombuffer(given.kept, "<f4"),
            stop=lambda: self._wanted != announced.base or time.monotonic() > until,
            progress=note,
        )
        return Trained(announced.base, outcome, opened.judge(model))

    def _load_data(self) -> tuple[object, object]:
        self._loading = True
        try:
            return self._load()
        except Exception:
            raise
        except BaseException as error:  # sys.exit() ends this thread alone: the driver would wait
            name = type(error).__name__
            raise DataError(
                f"the data function left by {name}", why=str(error), repair="let it return (x, y)"
            ) from error
        finally:
            self._loading = False

    def _open(self, plan_id: bytes) -> _Opened:
        if self._opened is None or self._opened.plan.id != plan_id:
            plan = Plan.open(self._cache[plan_id], digest=plan_id)
            plan.self_test()
            x, y = self._load_data()
            checked = Data(*plan.check_data(x, y))  # type: ignore[arg-type]
            data, held = split_holdout(checked, self._holdout, self._device)
            evaluator = plan.evaluator() if held else None
            self._opened = _Opened(plan, plan.session(), data, held, evaluator)
        return self._opened
