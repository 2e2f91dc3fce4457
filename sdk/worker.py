"""Training on a thread of its own, so that the link is never kept waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import Describe, Described, StartTraining, Trained, TrainingStopped
from kellet.sdk.errors import DataError, KelletError, PlanError
from kellet.sdk.given import Given
from kellet.sdk.heap import return_large_blocks
from kellet.sdk.holdout import Judge, split_holdout
from kellet.sdk.outgoing import Announced
from kellet.sdk.personal.turn import take_turn
from kellet.sdk.plan import GradientSession, Int8Session, Plan
from kellet.sdk.plan.schemes import FLOAT32, SCHEMES, check_scheme
from kellet.sdk.protocol.vectors import Codec, Shapes
from kellet.sdk.store import Store
from kellet.sdk.telling import describe
from kellet.sdk.trainer import Data, TrainingFailed, begin, train_from
from kellet.sdk.uplink import Uplink

__all__ = ["Abilities", "LoadData", "TrainingBroke", "TrainingWorker"]

LoadData = Callable[[], tuple[object, object]]

# Of the time a round leaves, this share is for training; the rest is for the upload.
_SHARE = 0.8

# Seconds between two looks at whether this device should go on.
_LOOK = 1.0

# Seconds that a data function has to return once the device stops.
_PATIENCE = 2.0


class TrainingBroke:
    """Event for the driver: this device cannot train at all; ``error`` says why."""

    def __init__(self, base: bytes, error: KelletError) -> None:
        self.base = base
        self.error = error


def _broke(base: bytes, what: str, error: Exception) -> TrainingBroke:
    broke = KelletError(what, why=f"{type(error).__name__}: {error}", repair="see the cause")
    broke.__cause__ = error
    return TrainingBroke(base, broke)


def _fits(_plan: Plan, _algorithm: FedAvg, _scheme: str, _batch: int) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Abilities:
    """What this device can do, as its profile says.

    ``schemes``: names or families of quantisation schemes. ``shift``: how SCAFFOLD's shift
    is held where weights are float32. ``codec``: of delta_y, where the fleet accepts it.
    ``misfit``: why a plan does not fit under (algorithm, scheme, batch size), empty where it
    does. ``unfit``: why this device should train no longer, asked at most once a second.
    """

    schemes: Sequence[str] = SCHEMES
    shift: Literal["f32", "int8"] = "f32"
    codec: Codec = "f32"
    threads: int = 1
    misfit: Callable[[Plan, FedAvg, str, int], str] = _fits
    unfit: Callable[[], str] = lambda: ""


class _Opened:
    """A plan, its data, and the sessions that this device has tried and found good."""

    def __init__(self, plan: Plan, data: Data, held: Data | None, threads: int) -> None:
        self.plan = plan
        self.shapes = Shapes.of(plan.manifest.tensors)
        self.data = data
        self.judge = Judge(plan, held)
        self._threads = threads
        self._scheme = ""
        self._session: GradientSession | Int8Session | None = None
        self._faults: dict[str, str] = {}

    def session(self, scheme: str) -> GradientSession | Int8Session | str:
        """A session that has passed the plan's self-test, or why there is none."""
        if scheme in self._faults:
            return self._faults[scheme]
        if self._session is None or self._scheme != scheme:
            self._session = None  # one at a time: each holds the parameters
            try:
                self.plan.self_test(scheme)
                self._session = self.plan.session(scheme, threads=self._threads)
            except PlanError as error:
                self._faults[scheme] = str(error)
                return self._faults[scheme]
            finally:
                self.plan.release()
            self._scheme = scheme
        return self._session


class TrainingWorker:
    """Runs one training at a time; ``answer`` is called from the worker's thread.

    The plan is opened, verified and self-tested once, the data loaded once and held
    against the plan's schema. ``personal``: whether to make a model of the device's own where
    one is announced.
    """

    def __init__(
        self,
        device: str,
        store: Store,
        cache: BlobCache,
        *,
        load: LoadData,
        holdout: float,
        answer: Callable[[Described | Trained | TrainingStopped | TrainingBroke], None],
        abilities: Abilities | None = None,
        personal: bool = True,
    ) -> None:
        return_large_blocks()
        self._device = device
        self._store = store
        self._cache = cache
        self._load = load
        self._holdout = holdout
        self._personal = personal
        self._answer = answer
        self._abilities = abilities or Abilities()
        self._schemes = frozenset(map(check_scheme, self._abilities.schemes))
        self._opened: _Opened | None = None
        self._loaded: tuple[object, object] | None = None  # by counting, for the training to come
        self._thread: threading.Thread | None = None
        self._wanted: bytes | None = None
        self._loading = self._leaving = self._hurried = False
        self._patience = _PATIENCE
        self.progress = (0, 0)

    def start(self, effect: StartTraining) -> None:
        """Begin, once the training before has seen that it is not wanted any more."""
        if self._thread is not None:
            self._wanted = None
            if not self._ended(self._thread):
                return
        announced = effect.announced
        self.want(announced.base)
        given = Given.take(announced.round, self._cache, self._store)
        self._thread = threading.Thread(
            target=self._run,
            args=(announced, given, time.monotonic() + _SHARE * effect.seconds),
            name="training",
            daemon=True,
        )
        self._thread.start()

    def count(self, effect: Describe) -> None:
        """Count the samples; they are loaded for it. ``answer`` is told, as for a training."""
        if self._thread is not None and not self._ended(self._thread):
            return
        self._thread = threading.Thread(
            target=self._count, args=(effect,), name="counting", daemon=True
        )
        self._thread.start()

    def want(self, base: bytes | None, *, hurried: bool = False) -> None:
        """Stop unless this is what is being trained for; ``hurried``: end with what there is."""
        self._wanted = base
        self._hurried = hurried

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

    def _run(self, announced: Announced, given: Given, until: float) -> None:
        base = announced.base
        event: Trained | TrainingStopped | TrainingBroke
        try:
            event = self._train(announced, given, until)
        except TrainingFailed as error:
            event = TrainingStopped(base, str(error))
        except KelletError as error:
            event = TrainingBroke(base, error)
        except Exception as error:  # the thread must not die unheard: the driver raises it
            event = _broke(base, "training failed", error)
        if self._wanted == base:  # else it was stopped half-way, for another or for good
            self._answer(event)

    def _train(self, announced: Announced, given: Given, until: float) -> Trained:
        round_, algorithm = announced.round, announced.algorithm
        opened = self._open(round_.plan.sha256)
        if self._wanted != announced.base:  # and the store may be closed
            raise TrainingFailed("it is not wanted any more")
        plan, shapes = opened.plan, opened.shapes
        session = self._session(announced, opened)
        x, controls = given.decode(algorithm, shapes, self._store.stored_control)
        judged = opened.judge.received(x)
        model = begin(
            session,
            algorithm,
            x,
            shapes=shapes,
            controls=controls,
            local=plan.local,
            kept=given.kept,
            memory=given.memory,
            int8_shift=self._abilities.shift == "int8",
            seed=round_.seed,
            device=self._device,
            round_=round_.round,
        )
        del x

        def note(step: int, planned: int) -> None:
            self.progress = (step, planned)

        stop = self._stop_reason(announced.base, until)
        outcome = train_from(
            model,
            algorithm,
            opened.data,
            shapes=shapes,
            controls=controls,
            uplink=Uplink.of(round_.codecs, self._abilities.codec, given.residual),
            stop=stop,
            progress=note,
            seed=round_.seed,
            device=self._device,
            round_=round_.round,
        )
        start = model.start
        del model
        turn = None
        if self._personal:
            turn = take_turn(
                announced,
                session,
                start,
                opened.data,
                plan=plan,
                shelf=self._store.personal,
                judge=opened.judge,
                kept=given.kept,
                device=self._device,
                stop=stop,
                wanted=lambda: self._wanted == announced.base,
            )
        return Trained(announced.base, outcome, judged, turn)

    def _stop_reason(self, base: bytes, until: float) -> Callable[[], str]:
        """What a training asks after each step: why it should end, or empty."""
        next_look = 0.0

        def reason() -> str:
            nonlocal next_look
            now = time.monotonic()
            if self._wanted != base:
                return "it is not wanted any more"
            if now > until:
                return "the round's time is up"
            if self._hurried:
                return "the rounds have gone on"
            if now < next_look:
                return ""
            next_look = now + _LOOK
            return self._abilities.unfit()

        return reason

    def _session(self, announced: Announced, opened: _Opened) -> GradientSession | Int8Session:
        """A session of the first scheme on offer that this device can train in.

        Raises ``TrainingFailed`` that says of each why not.
        """
        reasons = []
        for scheme in announced.round.schemes:
            found = self._refusal(scheme, announced.algorithm, opened) or opened.session(scheme)
            if not isinstance(found, str):
                return found
            reasons.append(f"{scheme}: {found}")
        raise TrainingFailed("no scheme on offer can be trained here; " + "; ".join(reasons))

    def _refusal(self, scheme: str, algorithm: FedAvg, opened: _Opened) -> str:
        """Why this device does not even try a scheme; empty where it does."""
        if scheme not in self._schemes:
            return "this device's profile leaves it out"
        if scheme not in opened.plan.schemes:
            return "the plan has no such variant"
        rows = scheme != FLOAT32 or (algorithm.controls and self._abilities.shift == "int8")
        if rows and algorithm.int8_refusal:
            return algorithm.int8_refusal
        batch = algorithm.batch(len(opened.data))
        return self._abilities.misfit(opened.plan, algorithm, scheme, batch)

    def _count(self, effect: Describe) -> None:
        event: Described | TrainingBroke
        try:
            x, y = self._load_data()
            event = describe(effect, x, y)  # type: ignore[arg-type]
            if self._opened is None:
                self._loaded = x, y
        except KelletError as error:
            event = TrainingBroke(b"", error)
        except Exception as error:  # as in a training
            event = _broke(b"", "the samples cannot be counted", error)
        self._answer(event)

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
            self._opened = None
            where = self._cache.file(plan_id)
            plan = Plan.open(where or self._cache[plan_id], digest=plan_id)
            x, y = self._loaded or self._load_data()
            self._loaded = None
            checked = Data(*plan.check_data(x, y))  # type: ignore[arg-type]
            data, held = split_holdout(checked, self._holdout, self._device)
            self._opened = _Opened(plan, data, held, self._abilities.threads)
        return self._opened
