"""What a device says before it works: hello, join, decline; and when it says so again."""

from __future__ import annotations

from collections.abc import Sequence

from kellet.sdk.outgoing import Announced
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish, Report, Subscribe, Unsubscribe
from kellet.sdk.protocol.messages import Abort, Decline, Hello, Join, Reject, State
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Store
from kellet.sdk.telling import Telling
from kellet.sdk.transport.base import Connected

__all__ = ["Conversation"]

_REPEAT = 2.0
_LONGEST_REPEAT = 30.0
_LISTEN = 60.0
_RECONSIDER = 60.0


class Conversation:
    """One device's side of it. Everything that may be lost is repeated, more and more slowly.

    ``at``: when something is to be said again: hello until ``welcome``, then whatever the
    device is up to. ``joining``: it has said that it is willing to train, ``declining``: that
    it may not, and has not been answered or changed its mind.
    """

    def __init__(
        self,
        topics: Topics,
        store: Store,
        *,
        boot: bytes,
        schemes: Sequence[str],
        profile: str,
        telling: Telling,
    ) -> None:
        self._topics = topics
        self._store = store
        self._schemes = tuple(schemes)
        self._profile = profile
        self._telling = telling
        self._repeat = _REPEAT
        self._declined = (b"", "")  # the announcement and the reason that were reported last
        self.boot = boot
        self.nonce = store.identity.nonce
        self.device = store.identity.device
        self.link = self.welcome = self.joining = self.declining = False
        self.max_payload: int | None = None
        self.at: float | None = None
        self.listen_at = 0.0  # when to ask the broker for the announcement again

    @property
    def who(self) -> tuple[bytes, bytes]:
        """(nonce, boot), as requests carry them."""
        return self.nonce, self.boot

    @property
    def ready(self) -> bool:
        """Whether the aggregator is there, and knows this device."""
        return self.link and self.welcome

    def connected(self, event: Connected, now: float) -> list[Effect]:
        self.link, self.welcome = True, False
        self.max_payload = event.max_payload
        self._repeat = _REPEAT
        online = wire.pack(State(online=True, boot=self.boot))
        state = Publish(self._topics.state(self.device), online, retain=True)
        return [state, *self.hello(now)]

    def lost(self) -> None:
        self.link = self.welcome = self.joining = self.declining = False
        self.at = None

    def hello(self, now: float) -> list[Effect]:
        # Who does not know us has not heard our join either.
        self.welcome = self.joining = self.declining = False
        self._later(now, 2)
        identity = self._store.identity
        self.nonce = identity.nonce
        hello = Hello(
            nonce=identity.nonce,
            boot=self.boot,
            incarnation=identity.incarnation,
            seq=self._store.seq,
            pending=self._store.pending_uid(),
            epoch=self._store.epoch,
            audit=self._store.audit(),
            schemes=self._schemes,
            profile=self._profile,
            histogram=self._telling.said,
        )
        return [self.say(hello)]

    def welcomed(self, now: float) -> None:
        self.welcome = True
        self.at = None
        self._repeat = _REPEAT
        self.heard(now)

    def heard(self, now: float) -> None:
        """An announcement came; the next one is waited for as long again."""
        self.listen_at = now + _LISTEN

    def listen(self, now: float) -> list[Effect]:
        """Ask for an announcement that may have been lost; the broker has kept the last one."""
        self.heard(now)
        # Some brokers answer a subscription that they have already with nothing.
        return [Unsubscribe(self._topics.round), Subscribe(self._topics.round)]

    def join(self, announced: Announced, now: float) -> list[Effect]:
        """Willing to train in this round."""
        self.joining = True
        self._later(now, 1.5)
        join = Join(
            nonce=self.nonce, boot=self.boot, round=announced.round.round, base=announced.base
        )
        return [self.say(join)]

    def decline(self, announced: Announced, reason: str, now: float) -> list[Effect]:
        """May not train now; it is thought over again in a minute."""
        self.declining = True
        self.at = now + _RECONSIDER
        number, reason = announced.round.round, reason[:300]
        decline = Decline(
            nonce=self.nonce, boot=self.boot, round=number, base=announced.base, reason=reason
        )
        news = self._declined != (announced.base, reason)
        self._declined = (announced.base, reason)
        report = [Report("declined", {"round": number, "reason": reason})] if news else []
        return [*report, self.say(decline)]

    def abort(self, announced: Announced, reason: str) -> list[Effect]:
        """Told to train, but cannot."""
        number, reason = announced.round.round, reason[:300]
        abort = Abort(nonce=self.nonce, boot=self.boot, round=number, reason=reason)
        return [Report("abort", {"round": number, "reason": reason}), self.say(abort)]

    def due(self) -> None:
        """What was said last is over: there may be something else to say."""
        self.at = None
        self.joining = self.declining = False

    def let_go(self) -> None:
        """The round that this was about is over."""
        if self.joining or self.declining:
            self.due()

    def asked(self) -> None:
        """The answer to a join is: train."""
        self.joining, self.at = False, None
        self._repeat = _REPEAT

    def refused_to_leave(self, now: float) -> None:
        """Try again, but not at once."""
        self._later(now, 2)

    def is_meant(self, message: Reject) -> bool:
        """Whether this device, as it is now, is rejected."""
        return message.boot in (None, self.boot) and message.nonce in (None, self.nonce)

    def farewell(self, message: Reject) -> tuple[str, str]:
        """What a rejection means that is for good, and what repairs it."""
        if message.code == "version":
            low, high = message.speaks
            return (
                f"the aggregator speaks protocol {low} to {high}, this device 1",
                "update the older side",
            )
        return (
            f"another process uses the device id {self.device!r}",
            "stop one of them, or give each an id and a --state directory of its own",
        )

    def say(self, message: Hello | Join | Decline | Abort) -> Publish:
        return Publish(self._topics.req(self.device), wire.pack(message))

    def _later(self, now: float, factor: float) -> None:
        self.at = now + self._repeat
        self._repeat = min(self._repeat * factor, _LONGEST_REPEAT)
