"""Whether a device may train: its conditions against its readings."""

from __future__ import annotations

import pytest

from kellet.firmware_profiles import Participation
from kellet.sdk.participation import Consent, blind_spots, why_not
from kellet.sdk.readings import Readings

PHONE = Participation(charging=True, unmetered=True, min_battery=50, max_celsius=65)
GOOD = Readings(charging=True, battery=80, celsius=40, metered=False, minute=720)


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        (GOOD, ""),
        (Readings(charging=True, battery=50, celsius=65), ""),  # the limits themselves are good
        (Readings(charging=False, battery=80), "it is not on external power"),
        (Readings(charging=True, battery=49.4), "its battery is at 49 %, below 50"),
        (Readings(charging=True, battery=80, metered=True), "its way out is a mobile link"),
        (Readings(charging=True, celsius=65.6), "it is at 66 degrees, above 65"),
        # Nothing there to read: mains power, and a network without a way out.
        (Readings(), ""),
        (Readings(celsius=90), "it is at 90 degrees, above 65"),
    ],
)
def test_the_first_reason_counts(readings: Readings, reason: str) -> None:
    assert why_not(PHONE, readings) == reason


def test_without_conditions_nothing_stands_in_the_way() -> None:
    worst = Readings(charging=False, battery=1, celsius=120, metered=True)
    assert why_not(Participation(), worst) == ""


@pytest.mark.parametrize(
    ("hours", "quiet", "loud"),
    [
        ("22:00-07:00", ["22:00", "23:59", "00:00", "06:59"], ["07:00", "12:00", "21:59"]),
        ("08:30-17:00", ["08:30", "12:00", "16:59"], ["08:29", "17:00", "00:00"]),
        ("23:59-00:00", ["23:59"], ["00:00", "23:58"]),
        ("00:00-06:00", ["00:00", "05:59"], ["06:00", "23:59"]),
    ],
)
def test_quiet_hours_over_midnight_too(hours: str, quiet: list[str], loud: list[str]) -> None:
    policy = Participation(quiet_hours=hours)
    for clock in (*quiet, *loud):
        minute = 60 * int(clock[:2]) + int(clock[3:])
        reason = f"these are its quiet hours, {hours}" if clock in quiet else ""
        assert why_not(policy, Readings(minute=minute)) == reason, clock


def test_what_cannot_be_held_is_told() -> None:
    assert blind_spots(PHONE, GOOD) == []
    assert blind_spots(PHONE, Readings()) == ["the ceiling of 65 degrees: there is no thermometer"]
    assert blind_spots(PHONE, Readings(charging=True, celsius=40)) == [
        "the battery's least, 50 %: it does not say its level"
    ]
    assert blind_spots(Participation(), Readings()) == []


class Scripted:
    """Temperatures, one a look."""

    def __init__(self, *degrees: float) -> None:
        self._degrees = iter(degrees)

    def __call__(self) -> Readings:
        return Readings(celsius=next(self._degrees))


def test_a_device_that_got_too_hot_cools_down_by_five_degrees_first() -> None:
    consent = Consent(PHONE, Scripted(64, 66, 64, 61, 60, 64, 65))
    assert [consent.may_not() for _ in range(7)] == [
        "",
        "it is at 66 degrees, above 65",
        "it cools down: 64 degrees, until 60",
        "it cools down: 61 degrees, until 60",
        "",
        "",
        "",
    ]


def test_what_stopped_the_training_keeps_from_the_next() -> None:
    consent = Consent(PHONE, Scripted(64, 66, 64, 60))
    assert consent.may_not() == ""
    assert consent.unfit() == "it is at 66 degrees, above 65"
    assert consent.may_not() == "it cools down: 64 degrees, until 60"
    assert consent.may_not() == ""


def test_work_that_was_begun_needs_no_network() -> None:
    readings = [GOOD]
    consent = Consent(PHONE, lambda: readings[0])
    readings[0] = Readings(charging=True, battery=80, metered=True)
    assert consent.may_not() == "its way out is a mobile link"
    assert consent.unfit() == ""
    readings[0] = Readings(charging=False, battery=80)
    assert consent.unfit() == "it is not on external power"
