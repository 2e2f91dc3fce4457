"""A device as a process: the machine, its link, its disk and its training thread."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from kellet.firmware_profiles import Participation, Profile
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import (
    Describe,
    DeviceEvent,
    DeviceMachine,
    Leave,
    StartTraining,
    TrainingStopped,
)
from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.health import peak_mb
from kellet.sdk.lock import StateLock
from kellet.sdk.participation import Consent, blind_spots
from kellet.sdk.plan import Plan
from kellet.sdk.plan.schemes import check_scheme
from kellet.sdk.planner import misfit
from kellet.sdk.profile import check_runs_python
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.messages import State
from kellet.sdk.protocol.topics import Topics, check_id
from kellet.sdk.readings import Readings, Sensors
from kellet.sdk.releases import Level, Sharing
from kellet.sdk.store import Store
from kellet.sdk.transport.base import Connected, Disconnected, Will
from kellet.sdk.transport.events import EventQueue
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.sdk.transport.outbox import Outbox
from kellet.sdk.transport.settings import check_link
from kellet.sdk.worker import Abilities, TrainingBroke, TrainingWorker

__all__ = ["Device"]

Data = tuple[ArrayLike, ArrayLike]


class Device:
    """One device of a fleet: it trains on its own data and syncs over MQTT.

    ::

        from kellet.sdk import Device
        device = Device("pi-1", broker="mqtt://192.168.1.10", data=load, state="/var/lib/kellet")
        device.run()

    ``data``: (x, y), or a function of the device's name that returns them: x float32
    [n, *input], y int64 [n]. ``state``: the directory with the device's control
    variate and outbox; it must outlive the process. ``profile``: what a device of this class
    can do and when it may train (``kellet.sdk.profile.open_profile``); without one there are
    no limits. ``readings``: what the conditions are held against, the board's sensors.
    ``holdout``: the share of the samples that is never trained on and judges each received
    model. ``personal``: whether to make a model of its own where the aggregator announces how
    (docs/personalisation.md); without, nothing is told of one. ``share_histogram``: what the
    aggregator may know of how many samples there are of which kind, if it asks: none, labels, or
    labels+features; ``histogram_epsilon`` that of the noise which is added to it first
    (docs/selection.md). ``on_report`` is told what happens.
    ``ca_file``, ``cert_file``, ``key_file``: for ``mqtts``. Raises ``UsageError`` and
    ``StorageError``; ``run`` also ``LinkError``, ``DataError``, ``PlanError``, ``FleetError``.
    """

    def __init__(
        self,
        device: str,
        *,
        broker: str,
        data: Data | Callable[[str], Data],
        state: Path | str,
        fleet: str = "kellet",
        profile: Profile | None = None,
        readings: Callable[[], Readings] | None = None,
        holdout: float = 0.0,
        personal: bool = True,
        share_histogram: Level = "none",
        histogram_epsilon: float | None = None,
        keepalive: int = 30,
        separate_bulk: bool = False,
        ca_file: Path | str | None = None,
        cert_file: Path | str | None = None,
        key_file: Path | str | None = None,
        connect_timeout: float = 30.0,
        on_report: Callable[[Report], None] = lambda _report: None,
    ) -> None:
        self._device = check_id("device", device)
        self._topics = Topics(fleet)
        self._link_options: dict[str, Any] = {
            "keepalive": keepalive,
            "ca_file": ca_file,
            "cert_file": cert_file,
            "key_file": key_file,
        }
        check_link(broker, connect_timeout=connect_timeout, **self._link_options)
        self._link_options["separate_bulk"] = separate_bulk
        if not 0 <= holdout < 1:
            raise UsageError(f"holdout = {holdout}", why="it must be at least 0 and below 1")
        sharing = Sharing(share_histogram, histogram_epsilon)
        if profile is not None:
            check_runs_python(profile)
        self._most = profile.max_message_bytes if profile else None
        self._policy = profile.participation if profile else Participation()
        self._readings = readings or Sensors().read
        self._consent = Consent(self._policy, self._readings)
        self._connect_timeout = connect_timeout
        self._on_report = on_report
        folder = Path(state).expanduser().absolute()
        self._lock = StateLock(folder)
        try:
            self._store = Store(device, folder / "device.db")
        except BaseException:
            self._lock.release()
            raise
        self._cache = BlobCache(folder / "plans")
        self._boot = os.urandom(8)
        self._data_bytes = 0
        abilities = abilities_of(profile, self._consent.unfit, lambda: self._data_bytes)
        self._machine = DeviceMachine(
            self._topics,
            self._store,
            self._cache,
            boot=self._boot,
            consent=self._consent.may_not,
            schemes=[check_scheme(name) for name in abilities.schemes],
            profile=profile.name if profile else "",
            sharing=sharing,
        )
        self._events = EventQueue()

        def load() -> Data:
            x, y = data(device) if callable(data) else data
            self._data_bytes = int(getattr(x, "nbytes", 0)) + int(getattr(y, "nbytes", 0))
            return x, y

        self._worker = TrainingWorker(
            device,
            self._store,
            self._cache,
            load=load,
            holdout=holdout,
            answer=self._events.put,
            abilities=abilities,
            personal=personal,
        )
        self._broker = broker
        self._stopping = False
        self._finished_at: float | None = None

    def stop(self) -> None:
        """Ask ``run`` to return, from any thread or a signal handler. Nothing is lost."""
        self._stopping = True
        self._worker.leave()
        self._events.put(None)

    def run(self, *, until_finished: bool = False, leave: bool = False) -> None:
        """Take part until ``stop``, or until the aggregator says that it has finished.

        An aggregator that has finished may go before it has answered for the last update;
        this waits ``connect_timeout`` for it, and the update stays in the outbox.
        ``leave``: settle what is pending, take this device out of the fleet, and return.
        """
        for condition in blind_spots(self._policy, self._readings()):
            self._on_report(Report("cannot_hold", {"condition": condition}))
        offline = wire.pack(State(online=False, boot=self._boot))
        state_topic = self._topics.state(self._device)
        try:
            link = MqttTransport(
                self._broker,
                self._device,
                self._events.put,
                subscriptions=self._topics.device_filters(self._device),
                will=Will(state_topic, offline),
                **self._link_options,
            )
            outbox = Outbox(link)
            with link:
                link.wait_connected(
                    self._connect_timeout, patient=True, give_up=lambda: self._stopping
                )
                if leave:
                    self._events.put(Leave())
                while not self._stopping and not self._machine.left:
                    self._turn(link, outbox)
                    if until_finished and self._is_over():
                        break
                # Taking leave politely publishes no will: say it ourselves.
                link.publish(state_topic, offline, retain=True)
        finally:
            self.close()

    def close(self) -> None:
        """Release the state directory, as the end of ``run`` does. Idempotent."""
        self._worker.stop()
        self._store.close()
        self._lock.release()

    def _is_over(self) -> bool:
        """The aggregator has finished, and has answered for what waits on the disk, or will not."""
        if self._finished_at is None:
            return False
        pending = self._store.pending_uid()
        if self._machine.doing == "nothing" and pending is None:
            return True
        if time.monotonic() < self._finished_at + self._connect_timeout:
            return False
        self._on_report(Report("unsettled", {"uid": pending.hex() if pending else None}))
        return True

    def _turn(self, link: MqttTransport, outbox: Outbox) -> None:
        """Take one event, and the tick that may be due."""
        event = self._events.next(self._machine.wake, hurry=outbox.waiting)
        now = time.monotonic()
        if isinstance(event, TrainingBroke):
            # Words about the data may quote a sample: they stay on the device.
            why = "cannot train; its own log says why"
            if isinstance(event.error, PlanError):
                why = str(event.error)
            self._step(TrainingStopped(event.base, why), link, outbox, now)
            raise event.error
        if isinstance(event, Disconnected):
            outbox.clear()
            self._on_report(Report("link_lost", {"reason": event.reason}))
        if isinstance(event, Connected) and self._most is not None:
            most = min(self._most, event.max_payload or self._most)
            event = dataclasses.replace(event, max_payload=most)
        if event is not None:
            self._step(event, link, outbox, now)
        outbox.flush()
        wake = self._machine.wake
        if wake is not None and now >= wake:
            self._step(Tick(outbox.room), link, outbox, now)
        self._worker.want(self._machine.training_base, hurried=self._machine.hurried)
        if self._machine.fatal:
            raise self._machine.fatal

    def _step(self, event: DeviceEvent, link: MqttTransport, outbox: Outbox, now: float) -> None:
        for effect in self._machine.step(event, now):
            self._carry_out(effect, link, outbox)

    def _carry_out(self, effect: object, link: MqttTransport, outbox: Outbox) -> None:
        match effect:
            case Publish():
                outbox.send(effect.topic, effect.payload, retain=effect.retain, bulk=effect.bulk)
            case Subscribe():
                link.subscribe(effect.topic_filter)
            case Unsubscribe():
                link.unsubscribe(effect.topic_filter)
            case StartTraining():
                self._worker.start(effect)
            case Describe():
                self._worker.count(effect)
            case Report(kind="idle"):
                finished = effect.data["reason"] == "finished"
                self._finished_at = time.monotonic() if finished else None
                self._on_report(effect)
            case Report():
                if effect.kind == "settled":
                    effect.data["peak_mb"] = round(peak_mb(), 1)
                self._on_report(effect)


def abilities_of(
    profile: Profile | None, unfit: Callable[[], str], data_bytes: Callable[[], int]
) -> Abilities:
    """What training may do under ``profile``; all that this version can, without one.

    ``data_bytes``: of the samples, once they are loaded.
    """
    if profile is None:
        return Abilities(unfit=unfit)

    def misfit_of(plan: Plan, algorithm: FedAvg, scheme: str, batch: int) -> str:
        return misfit(
            plan,
            profile,
            scheme=scheme,
            algorithm=algorithm,
            batch=batch,
            data_bytes=data_bytes(),
        )

    return Abilities(
        schemes=profile.schemes,
        shift=profile.shift,
        codec=profile.uplink_codec,
        threads=profile.threads,
        misfit=misfit_of,
        unfit=unfit,
    )
