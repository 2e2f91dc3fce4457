"""The comparison of schemes: its quick run within margins, and that it can be trusted to go on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from bench.quantised.grid import ALGORITHMS, NEAREST
from bench.quantised.report import verdicts
from bench.quantised.results import Results, difference, mean, read, write

ROOT = Path(__file__).parents[2]
PATIENCE = 500  # s; the machine may be shared. Alone it takes 30.
COMMAND = [sys.executable, "-m", "bench.quantised"]


@dataclass(frozen=True)
class Quick:
    """One quick run: its results, where they are kept, and what it printed."""

    results: Results
    path: Path
    printed: str


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Quick:
    path = tmp_path_factory.mktemp("evidence") / "quick.json"
    done = run("--json", path)
    assert done.returncode == 0, done.stderr
    return Quick(read(path), path, done.stdout)


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


@pytest.mark.timeout(PATIENCE)
def test_int8_is_within_a_margin_of_float32(quick):
    """Measured: 0.26 points at most. A test has one seed, so it allows a whole point."""
    for name in ALGORITHMS:
        floats = quick.results.of("wisdm", name, "f32")
        assert 0.73 < mean(floats) < 0.78
        for scheme in ("w8.row", "w8.block64"):
            (points,) = difference(quick.results.of("wisdm", name, scheme), floats)
            assert abs(points) <= 1.0, (name, scheme)


@pytest.mark.timeout(PATIENCE)
def test_nearest_rounding_falls_behind(quick):
    """Measured: 2.9 points under FedAvg and FedProx, 16.4 and 10.3 under SCAFFOLD."""
    for name, least in {"fedavg": 1.5, "fedprox": 1.5, "scaffold": 8, "damped": 5}.items():
        floats = quick.results.of("wisdm", name, "f32")
        (points,) = difference(quick.results.of("wisdm", name, NEAREST), floats)
        assert points < -least, name


@pytest.mark.timeout(PATIENCE)
def test_controls_add_up_and_goals_are_met(quick):
    assert {run.control_gap for run in quick.results.finished} == {0}
    assert [v.met for v in verdicts(quick.results)] == [True] * 3
    assert quick.printed.count("met") == 3


@pytest.mark.timeout(PATIENCE)
def test_a_run_goes_on_and_comes_to_the_same(quick, tmp_path):
    """One cell of sixteen is missing: it alone is worked, and has the same bits."""
    (left_out,) = quick.results.of("wisdm", "scaffold", "w8.row")
    begun = read(quick.path)
    begun.finished.remove(left_out)
    write(begun, tmp_path / "begun.json")
    done = run("--json", tmp_path / "begun.json", "--processes", 1)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^\d+/\d+", done.stderr, re.MULTILINE) == ["1/1"]
    again = read(tmp_path / "begun.json").finished[-1]
    assert msgspec.structs.replace(again, seconds=0) == msgspec.structs.replace(left_out, seconds=0)
    assert done.stdout == quick.printed


@pytest.mark.timeout(PATIENCE)
def test_a_changed_setting_is_not_taken_for_the_old_one(quick, tmp_path):
    begun = read(quick.path)
    stale = msgspec.structs.replace(begun.finished[0], fingerprint="0" * 16, accuracy=0.0)
    begun.finished[0] = stale
    write(begun, tmp_path / "begun.json")
    done = run("--json", tmp_path / "begun.json")
    assert re.findall(r"^\d+/\d+", done.stderr, re.MULTILINE) == ["1/1"]
    assert stale not in read(tmp_path / "begun.json").finished
    assert done.stdout == quick.printed


@pytest.mark.timeout(PATIENCE)
def test_an_interrupt_keeps_what_is_finished_and_leaves_no_process(tmp_path):
    path = tmp_path / "begun.json"
    with subprocess.Popen(
        [*COMMAND, "--json", str(path), "--processes", "2"],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        process_group=0,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert running.stderr.readline().startswith("1/16")
        asked = time.monotonic()
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()  # ends when the last process that could write there is gone
    assert running.returncode == 128 + signal.SIGINT, rest
    assert re.search(r"^interrupted; \d+ cells are kept in .*begun.json", rest, re.MULTILINE)
    assert "Traceback" not in rest
    assert 1 <= len(read(path).finished) < 16
    assert time.monotonic() - asked < 20  # a cell's time is not waited for


def test_a_killed_command_leaves_no_process(tmp_path):
    with subprocess.Popen(
        [*COMMAND, "--json", str(tmp_path / "begun.json"), "--processes", "2"],
        cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert running.stderr.readline().startswith("1/16")
        asked = time.monotonic()
        running.kill()
        running.stderr.read()  # ends when the last process that could write there is gone
    assert time.monotonic() - asked < 20


def test_only_wisdm_is_quick():
    done = run("--task", "har")
    assert done.returncode == 2
    assert done.stderr == "without --full there is wisdm alone\n"
