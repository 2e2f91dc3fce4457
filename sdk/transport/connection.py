"""An MQTT connection that keeps coming back, on a thread of its own."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable

from kellet.sdk.errors import UsageError
from kellet.sdk.transport.base import Connected, Disconnected, Refused, TransportEvent
from kellet.sdk.transport.session import NARROWER, OTHER_VERSION, Session
from kellet.sdk.transport.settings import Failure, LinkSettings

__all__ = ["Connection"]

log = logging.getLogger("kellet.transport")

GIVE_UP_TURN = 0.2  # s between two looks at whether a wait has been given up
TURN = 1.0  # s, the longest wait of the network thread; whatever happens wakes it earlier
LINGER = 2.0  # s that close gives what is in flight
FAREWELL = 1.0  # s that close gives the DISCONNECT
STEADY = 1.0  # s after which a connection counts as good, and the backoff starts anew


class Connection:
    """Connects from ``start`` on, and again whenever the connection ends, until ``close``.

    ``emit`` is called from the network thread, with no lock held, and must not
    raise. Between two attempts it waits an exponential, jittered backoff.
    """

    def __init__(
        self, settings: LinkSettings, filters: Iterable[str], emit: Callable[[TransportEvent], None]
    ) -> None:
        self._settings = settings
        self._emit = emit
        self._filters = dict.fromkeys(filters)
        self._session: Session | None = None
        self._version = 0  # index into settings.versions
        self._untried = len(settings.versions) - 1
        self._proven = False  # a connection in this version has been up
        self._window = settings.max_inflight
        self._closing = threading.Event()
        self._state = threading.Condition()  # over what follows
        self._failures = 0  # attempts in a row that came to nothing; the pause grows with them
        self._hurried = False
        self._up = False
        self._lives = 0  # how often it has come up
        self._failure: Failure | None = None  # why it is not up; None while the first try lasts
        self._thread = threading.Thread(
            target=self._run, name=f"kellet-mqtt-{settings.client_id}", daemon=True
        )

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    @property
    def unacknowledged(self) -> int:
        """Bytes in flight on this connection."""
        session = self._session
        return 0 if session is None else session.unacknowledged

    def publish(self, topic: str, payload: bytes, *, retain: bool, bulk: bool) -> bool:
        """As ``Transport.publish``; ``topic`` is checked already."""
        session = self._session
        if session is None or self._closing.is_set():
            return False
        return session.publish(topic, payload, retain=retain, bulk=bulk)

    def subscribe(self, topic_filter: str) -> None:
        """Subscribe now, if up, and on each connection to come."""
        with self._state:
            self._filters[topic_filter] = None
        if (session := self._session) is not None:
            session.subscribe(topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """Subscribe no longer."""
        with self._state:
            self._filters.pop(topic_filter, None)
        if (session := self._session) is not None:
            session.unsubscribe(topic_filter)

    def wait(self, deadline: float, *, patient: bool, give_up: Callable[[], bool]) -> None:
        """Block until up. Raises ``LinkError``; unless ``patient``, at the first failure."""
        with self._state:
            while not self._up and not give_up():
                failure = self._failure
                if failure is not None and (failure.final or not patient):
                    raise failure.error(self._settings.url)
                if self._closing.is_set():
                    raise UsageError("the transport is closed", repair="open a new one")
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    failure = failure or Failure("no answer in time", "check address and network")
                    raise failure.error(self._settings.url)
                self._state.wait(min(remaining, GIVE_UP_TURN))

    def hurry(self) -> None:
        """Try again without delay: the broker is known to be there."""
        with self._state:
            self._failures = 0
            self._hurried = not self._up
            self._state.notify_all()

    @property
    def life(self) -> int:
        """Number of the life that it leads, or while it is down, of the next one."""
        with self._state:
            return self._lives + (not self._up)

    def renew(self, life: int) -> None:
        """End this life, politely, and begin the next, as if the connection had been lost.

        No effect where it is not the ``life``-th any more.
        """
        with self._state:
            current = self._up and self._lives == life
        session = self._session
        if current and session is not None:
            session.leave()

    def begin_close(self) -> None:
        """Stop for good, without waiting for it."""
        self._closing.set()
        with self._state:
            self._up = False
            self._state.notify_all()
        session = self._session
        if session is not None and not session.unacknowledged:
            session.leave()  # wakes the thread; otherwise the acknowledgements will

    def end_close(self) -> None:
        """Wait until what was in flight and the DISCONNECT are out, or their time is."""
        if threading.current_thread() is not self._thread:
            self._thread.join(TURN + LINGER + FAREWELL)

    # The network thread.

    def _run(self) -> None:
        while not self._closing.is_set():
            session = Session(self._settings, self._settings.versions[self._version], self._window)
            self._session = session
            self._live(session)
            self._session = None
            session.discard()
            if self._closing.is_set() or self._again_at_once(session):
                continue
            failure = session.ending
            assert failure is not None
            self._report(failure)
            if failure.final:
                return
            self._pause(
                session.up_since is not None and time.monotonic() - session.up_since > STEADY
            )

    def _pause(self, steady: bool) -> None:
        """Wait before the next attempt; ``steady``: the connection that ended was a good one."""
        with self._state:
            self._failures = 0 if steady else self._failures
            delay = self._delay(self._failures)
            self._failures += 1
            self._state.wait_for(lambda: self._hurried or self._closing.is_set(), delay)
            self._hurried = False

    def _live(self, session: Session) -> None:
        with self._state:
            filters = list(self._filters)
        session.open(filters)
        while session.ending is None and not self._closing.is_set():
            for event in session.turn(TURN):
                if isinstance(event, Connected):
                    self._connected(session)
                self._tell(event)
        if session.ending is NARROWER:
            session.ending = None  # leave politely, or the broker would publish the will
            self._finish(session, linger=0.0)
            session.ending = NARROWER
        elif session.ending is None:
            self._finish(session, linger=LINGER)

    def _connected(self, session: Session) -> None:
        self._proven = True
        self._untried = len(self._settings.versions) - 1
        with self._state:
            self._up = True
            self._lives += 1
            self._failure = None
            wanted = set(self._filters)
            self._state.notify_all()
        # What was asked for or given up while the subscriptions were on their way.
        for topic_filter in wanted - session.filters:
            session.subscribe(topic_filter)
        for topic_filter in session.filters - wanted:
            session.unsubscribe(topic_filter)

    def _finish(self, session: Session, *, linger: float) -> None:
        """Let what is in flight be acknowledged, then send DISCONNECT. Events are dropped."""
        deadline = time.monotonic() + linger
        while session.ending is None and session.unacknowledged and time.monotonic() < deadline:
            session.turn(0.05)
        session.leave()
        deadline = time.monotonic() + FAREWELL
        while session.ending is None and time.monotonic() < deadline:
            session.turn(0.05)

    def _again_at_once(self, session: Session) -> bool:
        """Whether another version, or a narrower window, is worth a try without delay."""
        if session.ending is NARROWER:
            self._window = session.window
            return True
        wrong_version = session.ending is OTHER_VERSION
        if not wrong_version and (not session.unanswered or self._proven):
            return False
        # Some brokers do not refuse a version that they do not speak, but hang up.
        self._version = (self._version + 1) % len(self._settings.versions)
        if self._untried:
            self._untried -= 1
            return True
        self._untried = len(self._settings.versions) - 1
        return False

    def _report(self, failure: Failure) -> None:
        """Tell of a connection that ended or could not be made: once, not at every attempt."""
        with self._state:
            first = self._failure is None
            self._up = False
            self._failure = failure
            self._state.notify_all()
        if failure.final:
            self._tell(Refused(failure.why))
        elif first:
            self._tell(Disconnected(failure.why))
        else:
            log.debug("%s: still no link: %s", self._settings.client_id, failure.why)

    def _tell(self, event: TransportEvent) -> None:
        if not self._closing.is_set():
            self._emit(event)

    def _delay(self, failures: int) -> float:
        """Seconds before the next attempt after ``failures`` that failed before this one.

        Half is fixed and half is left to chance, so that a fleet spreads out.
        """
        shortest, longest = self._settings.backoff
        whole = min(longest, shortest * 2.0 ** min(failures, 30))
        return whole * random.uniform(0.5, 1.0)
