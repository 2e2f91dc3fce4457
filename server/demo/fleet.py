"""A fleet on this machine: a broker, an aggregator and devices, each a process of its own."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kellet.sdk import tasks
from kellet.sdk.errors import FleetError, LinkError
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.server.brokers import BrokerHandle, open_broker
from kellet.server.demo.children import ENDED, Child, Inbox
from kellet.server.demo.recipe import Settings, as_options

__all__ = ["SERVER", "Fleet"]

SERVER = "server"
OVER_SELECT = 1.2
PATIENCE = 8.0  # s that a child has to end in order; then it is killed
_ENDED = 5.0  # s between the end of a child's output and its own


class Fleet:
    """Starts the processes, passes on what they report, and ends them, whatever happens.

    Use it as a context manager, in the thread that lives longest.
    """

    def __init__(self, settings: Settings, people: tasks.Split) -> None:
        self._settings = settings
        self._people = people
        self._inbox: Inbox = queue.SimpleQueue()
        self._children: dict[str, Child] = {}
        self._broker: BrokerHandle | None = None
        self._fleet = "demo"

    @property
    def broker(self) -> BrokerHandle:
        assert self._broker is not None
        return self._broker

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._people.devices)

    def state(self, name: str) -> Path:
        """The state directory of a device, or of the server."""
        return self._settings.state / name

    def start(self) -> None:
        """Start everything. Returns when the broker listens; the rest is still coming up."""
        settings = self._settings
        broker = open_broker(settings.broker, state_dir=settings.state)
        if broker.kind == "external":
            broker.ping()  # one clear error, instead of nine processes' later
            self._fleet = f"demo-{secrets.token_hex(4)}"  # others may be on that broker
        self._broker = broker
        self._start_server()
        for device in self.devices:
            self.start_device(device)

    def start_device(self, device: str) -> None:
        """Start a device, for the first time or again over the same state."""
        self._spawn(
            device,
            [
                *("run", device),
                *("--data", f"kellet.sdk.tasks:{self._settings.task}"),
                *("--state", str(self.state(device))),
                "--until-finished",
            ],
            users=self._people.devices[device],
        )

    def kill(self, device: str) -> bool:
        """As a power cut would; False where it has ended already."""
        child = self._children[device]
        if not child.running:
            return False
        child.kill()
        return True

    def next(self, until: float) -> tuple[str, dict[str, Any]] | None:
        """The next report, as (who, facts); None at ``until`` (monotonic).

        Raises ``FleetError`` where a child has failed.
        """
        while True:
            try:
                child, facts = self._inbox.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if not (child.killed and facts["event"] == ENDED):
                break  # the end of one that was killed is no news; there may be a successor
        if facts["event"] == "error":
            raise FleetError(
                f"{child.name} ended: {facts['what']}", why=facts["why"], repair=facts["repair"]
            )
        if facts["event"] == ENDED and not child.expected:
            code = child.wait(time.monotonic() + _ENDED)
            if code != 0:
                raise FleetError(
                    f"{child.name} ended with code {code}",
                    why=child.last_words(),
                    repair=f"see {child.log}",
                )
        return child.name, facts

    def stop(self, names: Iterable[str]) -> list[str]:
        """End these children in order; those that had to be killed."""
        ending = [self._children[name] for name in names if name in self._children]
        for child in ending:
            child.ask_to_stop()
        until = time.monotonic() + PATIENCE
        stubborn = [child for child in ending if child.wait(until) is None]
        for child in stubborn:
            child.kill()
        return [child.name for child in stubborn]

    def close(self) -> None:
        """End everything that runs: devices, the aggregator, the broker."""
        self.stop(self.devices)
        self.stop([SERVER])
        if self._broker is not None:
            if self._broker.kind == "external":
                self._clear_broker()
            self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start_server(self) -> None:
        settings = self._settings
        self._spawn(
            SERVER,
            [
                *("server", tasks.task(settings.task, settings.data_dir).plan_name),
                *("--state", str(self.state(SERVER))),
                *("--test", f"kellet.server.demo.people:{settings.task}"),
                *("--rounds", str(settings.n_rounds)),
                *("--target", str(settings.target)),
                *("--quorum", str(settings.quorum)),
                *("--over-select", str(OVER_SELECT)),
                *("--deadline", str(settings.recipe.deadline)),
                *("--min-devices", str(settings.devices)),
                *("--seed", str(settings.seed)),
                *("--part-size", str(self.broker.part_size)),
                *("--admission", str(self.broker.admission_bytes)),
                *as_options(settings.recipe.algorithm(settings.algorithm)),
                "--stay",
            ],
            users=self._people.test_users,
        )

    def _spawn(self, name: str, arguments: list[str], users: tuple[int, ...]) -> None:
        settings, broker = self._settings, self.broker
        environment = {
            # Not among the arguments: the address may hold a password, and processes are listed.
            "KELLET_BROKER": settings.broker if broker.kind == "external" else broker.url,
            "KELLET_DATA_USERS": ",".join(map(str, users)),
        }
        if settings.data_dir is not None:
            environment["KELLET_DATA_DIR"] = str(settings.data_dir.absolute())
        arguments += ["--fleet", self._fleet]
        if broker.separate_bulk:
            arguments.append("--separate-bulk")
        self._children[name] = Child(
            name,
            arguments,
            self._inbox,
            log=self.state(name) / "log.txt",
            environment=environment,
        )

    def _clear_broker(self) -> None:
        """Leave no retained message behind on somebody's broker."""
        topics = Topics(self._fleet)
        with MqttTransport(
            self._settings.broker, f"{self._fleet}-end", lambda _event: None
        ) as link:
            try:
                link.wait_connected()
            except LinkError:
                return  # it is gone, and what it held with it
            for topic in (topics.round, *map(topics.state, self.devices)):
                link.publish(topic, b"", retain=True)
