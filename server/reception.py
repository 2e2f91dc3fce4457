"""What devices say before they work: hello, join, decline, abort, and their last wills."""

from __future__ import annotations

from collections.abc import Iterable

from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish, Report
from kellet.sdk.protocol.messages import (
    Abort,
    Busy,
    Decline,
    FromDevice,
    FromServer,
    Hello,
    Join,
    Reject,
    State,
    Train,
    Welcome,
)
from kellet.sdk.protocol.topics import Topics
from kellet.server.opened import OpenRound
from kellet.server.patience import spread
from kellet.server.roster import Roster

__all__ = ["Reception"]

JOINS = 100  # a second, of those for whom the cohort has no place

_DRAWN = 1.0  # s after a draw, when a device that heard nothing of it asks again


class Reception:
    """Welcomes devices, and says who trains in the open round.

    ``opened`` in the methods is that round, or None. ``deadline``: seconds of a round.
    """

    def __init__(self, topics: Topics, roster: Roster, deadline: float) -> None:
        self._topics = topics
        self._roster = roster
        self._deadline = deadline
        self._full: tuple[int, dict[str, int]] = (0, {})  # a round; how often it was full to whom

    def hello(self, device: str, message: Hello, epoch: int) -> tuple[bool, list[Effect]]:
        """Whether the device is welcome, and the answer."""
        greeting = self._roster.hello(device, message, epoch)
        facts = {"device": device, "why": greeting.detail}
        if message.profile:
            facts["profile"] = message.profile
        answer = self.say(device, greeting.answer)
        return isinstance(greeting.answer, Welcome), [answer, Report(greeting.news, facts)]

    def stranger(self, device: str, message: FromDevice) -> list[Effect]:
        """The answer to who is not enrolled, or no longer speaks for the device; empty else."""
        if self._roster.speaks_for(device, message.nonce, message.boot):
            self._roster.heard(device)
            return []
        fenced = self._roster.is_fenced(device, message.boot)
        reject = Reject(
            code="fenced" if fenced else "unknown",
            reason="a newer process uses this id" if fenced else "say hello first",
            boot=message.boot,
            nonce=message.nonce,
        )
        return [self.say(device, reject)]

    def join(
        self, device: str, message: Join, opened: OpenRound | None, now: float
    ) -> list[Effect]:
        """Willing to train: asked to, or told to wait."""
        if not opened or message.base != opened.base:
            return []  # it will see the retained announcement
        member = self._roster.member(device)
        assert member is not None  # it speaks for the device
        offered = opened.message.schemes
        if not set(offered) & set(member.schemes):
            # Nor will it have one before the next announcement.
            opened.cohort.decline(device)
            reason = f"this round trains {', '.join(offered)}; no scheme that the device has"
            return [self._busy(device, opened, self._deadline, reason)]
        if opened.cohort.join(device):
            return [self._train(device, opened, now)]
        if opened.cohort.gathering:
            # Those who are drawn are told then; this is for when that gets lost.
            after = max(0.0, opened.draws - now) + _DRAWN
            return [self._busy(device, opened, after, "the devices of this round are being drawn")]
        after = self._deadline  # where devices were chosen the round is closed to it
        if opened.cohort.chosen is None:
            after = self._again(device, opened)
        return [self._busy(device, opened, after, "the cohort is full")]

    def _again(self, device: str, opened: OpenRound) -> float:
        """Seconds after which a willing device asks for a place that may be free by then."""
        if self._full[0] != opened.number:
            self._full = (opened.number, {})
        told = self._full[1]
        told[device] = tries = told.get(device, -1) + 1
        return spread(min(self._deadline / 4, max(1.0, len(told) / JOINS)), device, tries)

    def draw(self, devices: Iterable[str], opened: OpenRound, now: float) -> list[Effect]:
        """Ask these of the devices that wait for the round."""
        return [self._train(device, opened, now) for device in opened.cohort.draw(devices)]

    def decline(self, device: str, message: Decline, opened: OpenRound | None) -> list[Effect]:
        """May not train now: the round does not wait for it."""
        if not opened or message.base != opened.base:
            return []
        news = device not in opened.cohort.declined
        opened.cohort.decline(device)
        facts = {"device": device, "round": opened.number, "reason": message.reason}
        return [Report("declined", facts)] if news else []

    @staticmethod
    def abort(device: str, message: Abort, opened: OpenRound | None) -> list[Effect]:
        """Was asked to train, and cannot: it will not try again in this round."""
        if opened and opened.number == message.round:
            opened.cohort.decline(device)
        return [Report("abort", {"device": device, "reason": message.reason})]

    def hint(self, device: str, state: State, opened: OpenRound | None) -> None:
        """A last will: whoever is gone need not be waited for."""
        known = self._roster.hint(device, online=state.online, boot=state.boot)
        if known and opened and not state.online:
            opened.cohort.lost(device)

    def say(self, device: str, message: FromServer) -> Publish:
        return Publish(self._topics.ctl(device), wire.pack(message))

    def _train(self, device: str, opened: OpenRound, now: float) -> Publish:
        # Where late updates count, an announcement is valid for longer than its round.
        longer = opened.message.valid - opened.message.deadline
        left = max(0.0, opened.closes - now) + longer
        return self.say(device, Train(round=opened.number, base=opened.base, seconds=left))

    def _busy(self, device: str, opened: OpenRound, after: float, reason: str) -> Publish:
        return self.say(device, Busy(after=after, round=opened.number, reason=reason[:300]))
