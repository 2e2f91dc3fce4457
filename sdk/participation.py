"""May this device train now? Its policy, held against what its sensors say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kellet.firmware_profiles import Participation
from kellet.sdk.readings import Readings, Sensors

__all__ = ["COOLER_BY", "Consent", "blind_spots", "why_not"]

# Degrees below the ceiling at which a device that got too hot goes on, so that it does
# not stop and start with every breath of air.
COOLER_BY = 5.0


def why_not(policy: Participation, readings: Readings) -> str:
    """The first reason why a device may not train now; empty where it may.

    What is not there does not stand in the way: no battery is mains power, and where no
    thermometer is, no ceiling can be held (``blind_spots`` names that). No default route is
    a network without a way out, which nobody charges for.
    """
    if policy.charging and readings.charging is False:
        return "it is not on external power"
    if readings.battery is not None and readings.battery < policy.min_battery:
        return f"its battery is at {readings.battery:.0f} %, below {policy.min_battery}"
    if policy.unmetered and readings.metered:
        return "its way out is a mobile link"
    ceiling, celsius = policy.max_celsius, readings.celsius
    if ceiling is not None and celsius is not None and celsius > ceiling:
        return f"it is at {celsius:.0f} degrees, above {ceiling:g}"
    if _within(policy.quiet_minutes, readings.minute):
        return f"these are its quiet hours, {policy.quiet_hours}"
    return ""


def blind_spots(policy: Participation, readings: Readings) -> list[str]:
    """Conditions that cannot be held here, for want of a sensor."""
    missing = []
    if policy.max_celsius is not None and readings.celsius is None:
        missing.append(f"the ceiling of {policy.max_celsius:g} degrees: there is no thermometer")
    if policy.min_battery and readings.charging is not None and readings.battery is None:
        missing.append(f"the battery's least, {policy.min_battery} %: it does not say its level")
    return missing


class Consent:
    """A policy over sensors, with a memory for heat.

    Both questions may be asked from any thread: ``may_not`` before a round, ``unfit`` while
    one trains. Each answers with a reason, or with an empty text.
    """

    def __init__(self, policy: Participation, read: Callable[[], Readings]) -> None:
        self._policy = policy
        self._read = read
        self._hot = False

    @classmethod
    def here(cls, policy: Participation) -> Consent:
        """Over this machine's own sensors."""
        return cls(policy, Sensors().read)

    def may_not(self) -> str:
        """Why this device may not begin to train now."""
        return self._judge(self._read())

    def unfit(self) -> str:
        """Why it must stop. Training needs no network: what was begun may be finished."""
        return self._judge(dataclasses.replace(self._read(), metered=None))

    def _judge(self, readings: Readings) -> str:
        ceiling = self._policy.max_celsius
        if ceiling is not None and readings.celsius is not None:
            if readings.celsius > ceiling:
                self._hot = True
            elif readings.celsius <= ceiling - COOLER_BY:
                self._hot = False
            elif self._hot:
                return (
                    f"it cools down: {readings.celsius:.0f} degrees, until {ceiling - COOLER_BY:g}"
                )
        return why_not(self._policy, readings)


def _within(span: tuple[int, int] | None, minute: int) -> bool:
    if span is None:
        return False
    first, end = span
    if first < end:
        return first <= minute < end
    return minute >= first or minute < end  # over midnight
