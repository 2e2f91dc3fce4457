"""The aggregator as a process: the machine, its link, its disk and its test set."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from kellet.sdk.durable import write_file
from kellet.sdk.errors import LinkError
from kellet.sdk.heap import return_large_blocks
from kellet.sdk.lock import StateLock
from kellet.sdk.plan import Plan, export_model
from kellet.sdk.protocol.effects import Publish, Report, Tick
from kellet.sdk.protocol.limits import PART_HEADER
from kellet.sdk.transport.base import Connected, Disconnected
from kellet.sdk.transport.events import EventQueue
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.sdk.transport.outbox import Outbox
from kellet.sdk.transport.settings import check_link
from kellet.server.aggregator import AggregatorMachine, Evaluate, Evaluated, RoundClosed
from kellet.server.blobs import Blobs
from kellet.server.config import FleetConfig
from kellet.server.ledger import Ledger
from kellet.server.uploads import Spool

__all__ = ["Aggregator"]


class Aggregator:
    """Runs a fleet's rounds beside a broker.

    ``state``: the directory with ledger, spool and models; started again over it, a
    round that was open goes on with the same bits. ``test``: (x, y) on which each new
    model is evaluated. ``model.onnx`` in the state directory is the newest model, a
    standalone ONNX file for inference. ``on_report`` is told what happens. Raises
    ``UsageError``, ``StorageError``, ``FleetError``; ``run`` also ``LinkError``. ``new_epoch``
    begins a control epoch: all controls start again at zero (after a restored backup, or when
    members that were counted will never return).
    """

    def __init__(
        self,
        plan: Plan,
        *,
        broker: str,
        state: Path | str,
        config: FleetConfig,
        test: tuple[ArrayLike, ArrayLike] | None = None,
        separate_bulk: bool = False,
        keepalive: int = 30,
        ca_file: Path | str | None = None,
        cert_file: Path | str | None = None,
        key_file: Path | str | None = None,
        connect_timeout: float = 30.0,
        linger: float = 2.0,
        new_epoch: bool = False,
        on_report: Callable[[Report], None] = lambda _report: None,
    ) -> None:
        self._link_options: dict[str, Any] = {
            "keepalive": keepalive,
            "ca_file": ca_file,
            "cert_file": cert_file,
            "key_file": key_file,
        }
        check_link(broker, connect_timeout=connect_timeout, **self._link_options)
        self._link_options["separate_bulk"] = separate_bulk
        return_large_blocks()
        self._plan = plan
        self._broker = broker
        self._config = config
        self._on_report = on_report
        self._connect_timeout = connect_timeout
        self._linger = linger
        self._folder = Path(state).expanduser().absolute()
        self._test = None if test is None else plan.check_data(*test)
        self._evaluator = None if test is None else plan.evaluator()
        with ExitStack() as opening:
            self._lock = StateLock(self._folder)
            opening.callback(self._lock.release)
            self._ledger = Ledger(self._folder / "ledger.db")
            opening.callback(self._ledger.close)
            self._machine = AggregatorMachine(
                config,
                plan,
                ledger=self._ledger,
                blobs=Blobs(self._folder / "blobs"),
                spool=Spool(self._folder / "spool"),
                clock=time.time,
            )
            opening.pop_all()  # what is open stays open until close
        if new_epoch:
            self._machine.new_epoch(time.monotonic())  # announced when the link is up
        self._events = EventQueue()
        self._stopping = False
        self._busy_at = 0.0
        self._evaluations = 0
        self._evaluator_thread = ThreadPoolExecutor(1, "evaluation")

    @property
    def machine(self) -> AggregatorMachine:
        """The state machine, to be read while ``run`` is not running."""
        return self._machine

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def stop(self) -> None:
        """Ask ``run`` to return, from any thread or a signal handler. Nothing is lost."""
        self._stopping = True
        self._events.put(None)

    def run(self, *, until_finished: bool = True) -> None:
        """Run rounds until they are done (and a little longer, to answer), or ``stop``."""
        link = MqttTransport(
            self._broker,
            f"aggregator-{self._config.fleet}-{self._config.worker}",
            self._events.put,
            subscriptions=self._machine.topics.server_filters(self._config.worker),
            **self._link_options,
        )
        outbox = Outbox(link)
        try:
            with link:
                self._catch_up()
                link.wait_connected(
                    self._connect_timeout, patient=True, give_up=lambda: self._stopping
                )
                while not self._stopping and not (until_finished and self._over()):
                    self._turn(outbox)
        finally:
            self._evaluator_thread.shutdown()

    def close(self) -> None:
        """Release the state directory."""
        self._ledger.close()
        self._lock.release()

    def _turn(self, outbox: Outbox) -> None:
        """Take one event, and the tick that may be due."""
        event = self._events.next(self._machine.wake, hurry=outbox.waiting)
        now = time.monotonic()
        if isinstance(event, Future):
            self._evaluations -= 1
            event = event.result()  # raises what the evaluation raised
        if isinstance(event, Connected):
            self._check_link(event)
        elif isinstance(event, Disconnected):
            outbox.clear()
        if event is not None:
            self._busy_at = now
            self._step(event, outbox, now)
        outbox.flush()
        wake = self._machine.wake
        if wake is not None and now >= wake:
            self._step(Tick(outbox.room), outbox, now)

    def _over(self) -> bool:
        """The rounds are done, evaluated, and nobody has asked for anything for a while."""
        quiet = time.monotonic() - self._busy_at >= self._linger
        return self._machine.finished and not self._evaluations and quiet

    def _check_link(self, event: Connected) -> None:
        largest = self._config.part_size + PART_HEADER
        if event.max_payload is not None and event.max_payload < largest:
            raise LinkError(
                f"the broker carries payloads of {event.max_payload} bytes",
                why=f"parts need {largest}",
                repair=f"use --part-size {event.max_payload - PART_HEADER} or less",
            )

    def _step(self, event: Any, outbox: Outbox, now: float) -> None:
        for effect in self._machine.step(event, now):
            match effect:
                case Publish():
                    outbox.send(
                        effect.topic, effect.payload, retain=effect.retain, bulk=effect.bulk
                    )
                case Evaluate():
                    self._evaluate(effect)
                case RoundClosed():
                    self._on_report(Report("round", {"round": effect.round, **effect.summary}))
                case Report():
                    self._on_report(effect)

    def _evaluate(self, effect: Evaluate) -> None:
        """On a thread of its own: the link is never kept waiting."""
        self._evaluations += 1
        self._evaluator_thread.submit(self._evaluated, effect).add_done_callback(self._events.put)

    def _catch_up(self) -> None:
        """Evaluate the newest model if the process before died between the two."""
        closed = [row for row in self._ledger.rounds() if row.state == "closed"]
        if closed and "loss" not in closed[-1].summary:
            self._evaluate(Evaluate(closed[-1].round, self._machine.model))

    def _evaluated(self, effect: Evaluate) -> Evaluated | None:
        write_file(self._folder / "model.onnx", export_model(self._plan, effect.model))
        if self._evaluator is None or self._test is None:
            return None
        metrics = self._evaluator.evaluate(effect.model, *self._test)
        return Evaluated(effect.round, metrics.loss, metrics.accuracy)
