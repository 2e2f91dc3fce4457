"""Rounds as people read them, and JSON as programs do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kellet.sdk.console import Console
from kellet.server.commands.rounds import RoundLog, megabytes, who


@pytest.mark.parametrize(
    ("counted", "asked", "shown"),
    [
        (["device-3", "device-1"], ["device-1", "device-2", "device-3"], "1 3 (2)"),
        (["device-10", "device-2"], [], "2 10"),
        (["pi-1"], ["pi-1"], "1"),
        (["kitchen", "attic"], ["attic", "cellar"], "attic kitchen (cellar)"),
        (["sensor", "sensor-2"], [], "sensor -2"),
        ([], ["device-1"], "(1)"),
        ([], [], ""),
        ([f"u{i}" for i in range(20)], ["v"], "20 (1)"),
    ],
)
def test_who_took_part(counted: list[str], asked: list[str], shown: str) -> None:
    assert who(counted, asked) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 kB"), (400, "0 kB"), (21_200, "21 kB"), (999_499, "999 kB"), (1_234_567, "1.23 MB")],
)
def test_bytes_for_people(count: int, shown: str) -> None:
    assert megabytes(count) == shown


def closed(number: int, **facts: Any) -> dict[str, Any]:
    """Facts of a round, as an aggregator reports them; bytes are totals."""
    return {
        "round": number,
        "state": "closed",
        "counted": ["d-1"],
        "asked": ["d-1", "d-2"],
        "train_loss": 0.5,
        "drift": 1.25,
        "uplink_bytes": 20_000 * number,
        "downlink_bytes": 40_000 * number,
        **facts,
    }


def test_lines_have_each_round_s_own_bytes_and_wait_for_the_evaluation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = RoundLog(Console(), evaluated=True)
    log.closed(closed(1))
    assert capsys.readouterr().out == ""
    log.annotate({"round": 1, "loss": 0.75, "accuracy": 0.5})
    log.closed(closed(2, state="abandoned", train_loss=None, drift=None))
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "round"
    assert " ".join(first.split()) == "1 1 (2) 0.7500 50.0% 0.5000 1.250 20 kB 40 kB"
    assert " ".join(second.split()) == "2 1 (2) abandoned 20 kB 40 kB"
    assert log.last["round"] == 2


def test_a_line_fits_a_terminal_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    log = RoundLog(Console(), evaluated=False)
    devices = [f"device-{i}" for i in range(8)]
    log.closed(closed(999, counted=devices[:6], asked=devices, loss=1.5, accuracy=1.0))
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_json_lines_say_what_numpy_and_paths_say(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"n": np.int64(3), "x": np.float32(0.5), "file": Path("a/b"), "id": b"\x01\xff"}
    with Console(json=True) as console:
        console.say("not for programs")
        console.event("tested", facts)
        console.result({"done": True}, "not for programs")
    event, result = map(json.loads, capsys.readouterr().out.splitlines())
    time = event.pop("time")
    assert time > 1.6e9
    assert event == {"event": "tested", "n": 3, "x": 0.5, "file": "a/b", "id": "01ff"}
    assert result == {"done": True}
