"""A real device under a profile, its sensors in the test's hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fleet import Fleet
from support.toy_plans import softmax_regression

from kellet.firmware_profiles import Participation, Profile, load
from kellet.sdk import Device
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.effects import Report
from kellet.sdk.readings import Readings
from kellet.server.brokers import open_broker

PI = replace(load("pi_4b"), participation=Participation(max_celsius=70))


class Reports:
    """What a device has said so far."""

    def __init__(self) -> None:
        self._said: list[Report] = []
        self._news = threading.Condition()

    def __call__(self, report: Report) -> None:
        with self._news:
            self._said.append(report)
            self._news.notify_all()

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        def found() -> list[Report]:
            return [each for each in self._said if each.kind == kind]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, 60), (kind, self._said)
            return found()[count - 1].data


@contextmanager
def running(device: Device) -> Iterator[None]:
    thread = threading.Thread(target=device.run, kwargs={"until_finished": True})
    thread.start()
    try:
        yield
    finally:
        device.stop()
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Two rounds for whoever comes, of 200 steps each."""
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((40, 6)).astype(np.float32)
    data = (x, x[:, :3].argmax(axis=1))
    with (
        open_broker("embedded", state_dir=tmp_path) as broker,
        Fleet(
            tmp_path,
            softmax_regression(6, 3),
            {"a": data},
            broker=broker,
            algorithm={"name": "fedprox", "local_steps": 200, "batch_size": 8},
            rounds=2,
        ) as made,
    ):
        yield made


def device_of(fleet: Fleet, profile: Profile, reports: Reports, **options: Any) -> Device:
    return Device(
        "a",
        broker=fleet.broker.url,
        data=fleet.clients["a"],
        state=fleet.folder / "a",
        profile=profile,
        separate_bulk=fleet.broker.separate_bulk,
        on_report=reports,
        **options,
    )


def test_a_device_that_gets_hot_returns_what_it_has_and_declines(fleet: Fleet) -> None:
    """Cool at the announcement; 80 degrees at the first look of the training; then 68, which is
    below the ceiling, but not by five."""
    looks = iter([40.0, 40.0, 80.0])
    reports = Reports()
    device = device_of(fleet, PI, reports, readings=lambda: Readings(celsius=next(looks, 68.0)))
    fleet.aggregator()
    with running(device):
        trained = reports.wait_for("trained")
        assert trained["steps"] == 1
        assert trained["stopped"] == "it is at 80 degrees, above 70"
        assert reports.wait_for("settled")["counted"] is True
        declined = reports.wait_for("declined")
        assert declined["round"] == 2
        assert declined["reason"] == "it cools down: 68 degrees, until 65"


def test_a_cool_device_does_all_its_steps(fleet: Fleet) -> None:
    reports = Reports()
    device = device_of(fleet, PI, reports, readings=lambda: Readings(celsius=40))
    aggregator = fleet.aggregator()
    with running(device):
        assert reports.wait_for("trained", 2)["steps"] == 200
        reports.wait_for("settled", 2)
    assert aggregator.end() == 0


def test_what_cannot_be_held_is_told_once(fleet: Fleet) -> None:
    reports = Reports()
    device = device_of(fleet, PI, reports, readings=Readings)
    aggregator = fleet.aggregator()
    with running(device):
        told = reports.wait_for("cannot_hold")
        assert told == {"condition": "the ceiling of 70 degrees: there is no thermometer"}
        reports.wait_for("settled", 2)
    assert aggregator.end() == 0


def test_a_plan_that_does_not_fit_is_given_up_with_the_numbers(fleet: Fleet) -> None:
    reports = Reports()
    device = device_of(fleet, replace(PI, memory_budget_mb=64), reports, readings=Readings)
    fleet.aggregator()
    with running(device):
        reason = reports.wait_for("abort")["reason"]
        assert reason.startswith("no scheme on offer can be trained here; f32/1: needs 8")
        assert reason.endswith("MB of memory, of 64")


def test_no_device_is_made_with_the_kernels_alone(tmp_path: Path) -> None:
    data = np.zeros((1, 6), np.float32), np.zeros(1, np.int64)
    with pytest.raises(UsageError, match="cortex_m7"):
        Device(
            "a",
            broker="mqtt://127.0.0.1",
            data=data,
            state=tmp_path / "s",
            profile=load("cortex_m7"),
        )
    assert not (tmp_path / "s").exists()
