"""``kellet simulate`` with pools and sweeps, as a process: rows, a kill, Ctrl-C, words."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import msgspec
import pytest
from support.command import Running, command, nothing_left
from support.json_lines import rows

from kellet.server.research import RoundRow, RunRow

POOL = ("toy.kplan", "--pool", "mine:pool", "--test", "mine:test", "--clients", 4)
SWEEP = ("--partition", "dirichlet", "--local-steps", 3,
         "--sweep", "alpha=.3,3", "algorithm=fedavg,fedprox,scaffold", "mu=.1")  # fmt: skip
RUNS = 6


def test_one_run_over_a_pool(desk: Path) -> None:
    options = ("--partition", "dirichlet:.5", "--rounds", 3, "--algorithm", "fedprox", "--mu", 0.5)
    done = command("simulate", *POOL, *options, "--target-accuracy", 0.4, "--json", cwd=desk)
    assert done.code == 0, done.err
    *rounds, summary = done.lines
    assert (summary["clients"], summary["partition"]) == (4, "dirichlet:0.5")
    last = rounds[-1]
    for name in ("accuracy", "loss", "pr_auc", "roc_auc", "client_accuracy", "client_worst"):
        assert summary[name] == last[name] > 0
    assert last["drift_bound"] == pytest.approx(last["gradient"] / 0.5)
    assert 0 < summary["of_bound"] <= 1
    assert summary["up_mb"] == summary["uplink_bytes"] / 1e6
    reached = [line["round"] for line in rounds if line["accuracy"] >= 0.4]
    assert summary["rounds_to_target"] == (reached[0] if reached else None)
    plain = command("simulate", *POOL, *options, cwd=desk)
    assert "over the worst tenth" in plain.out
    assert "of FedProx's bound G/mu" in plain.out
    natural = command(
        *("simulate", "toy.kplan", "--pool", "mine:owned", "--partition", "natural"),
        *("--holdout", 0.25, "--rounds", 1, "--json"),
        cwd=desk,
    )
    assert natural.lines[-1]["clients"] == 3
    assert natural.lines[-1]["accuracy"] is not None  # of what the clients hold out


def test_rows_events_and_files(desk: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    options = (*POOL, *SWEEP, "--rounds", 2, "--out", tmp_path, "--parquet", "--json")
    done = command("simulate", *options, "--report", tmp_path, cwd=desk)
    assert done.code == 0, done.err
    begun, *events, summary = done.lines
    assert (begun["event"], begun["runs"], begun["kept"], begun["rounds"]) == ("sweep", RUNS, 0, 2)
    assert [line["event"] for line in events] == (["round"] * 2 + ["run"]) * RUNS
    for line, kind in ((events[0], RoundRow), (events[2], RunRow)):
        del line["event"], line["time"]
        row = msgspec.convert(line, kind)  # each field is there, and no other
        assert row.cell == "alpha=0.3 algorithm=fedavg seed=0"
    assert (summary["event"], summary["runs"], summary["failed"]) == ("summary", RUNS, 0)
    assert len(summary["table"]) == RUNS
    assert summary["table"][0]["numbers"]["accuracy"]["of"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock", "report.html", "rounds.jsonl", "rounds.parquet", "runs.jsonl", "runs.parquet",
        "sweep.json",
    ]  # fmt: skip
    kept = rows(tmp_path / "runs.jsonl")
    told = [line for line in events if "state" in line]
    assert [row["model"] for row in kept] == [line["model"] for line in told]
    # A run's own command gives its model.
    one = command(
        *("simulate", *POOL, "--partition", "dirichlet:3", "--local-steps", 3, "--rounds", 2),
        *("--algorithm", "fedprox", "--mu", 0.1, "--json"),
        cwd=desk,
    )
    assert one.lines[-1]["digest"] == kept[4]["model"]
    first = (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    assert command("report", tmp_path).out == f"report: {tmp_path / 'report.html'}\n"
    # The time of making is in it.
    assert abs(len((tmp_path / "report.html").read_text()) - len(first)) < 100


def test_a_sweep_that_is_killed_goes_on(desk: Path, tmp_path: Path) -> None:
    options = (*POOL, *SWEEP, "--rounds", 15)
    whole = command("simulate", *options, "--out", tmp_path / "whole", cwd=desk)
    assert whole.code == 0, whole.err
    there = tmp_path / "killed"
    for processes, kill in ((1, 2), (2, 1)):
        options_ = (*options, "--out", there, "--processes", processes)
        with Running("simulate", *options_, cwd=desk) as running:
            running.wait_for("run", kill)
            running.wait_for("round", 2)
            running.signal(signal.SIGKILL)
            running.end()
        assert nothing_left(f"--out {there}")
        assert len((there / "runs.jsonl").read_text().splitlines()) < RUNS
    done = command("simulate", *options, "--out", there, "--json", cwd=desk)
    assert done.code == 0, done.err
    assert 3 <= done.lines[0]["kept"] < RUNS
    by_cell = {row["cell"]: row for row in rows(there / "runs.jsonl")}
    assert by_cell == {row["cell"]: row for row in rows(tmp_path / "whole" / "runs.jsonl")}

    def rounds(folder: Path) -> list[str]:
        return sorted(json.dumps(row) for row in rows(folder / "rounds.jsonl"))

    assert rounds(there) == rounds(tmp_path / "whole")


def test_ctrl_c_leaves_the_directory_whole(desk: Path, tmp_path: Path) -> None:
    options = (*POOL, *SWEEP, "--rounds", 25, "--out", tmp_path)
    for processes in (1, 2):
        with Running("simulate", *options, "--processes", processes, cwd=desk) as running:
            running.wait_for("run")
            running.wait_for("round")
            running.press_ctrl_c()
            done = running.end()
        assert done.code == 130, done.err
        kept = len(rows(tmp_path / "runs.jsonl"))
        assert done.said == (
            f"kellet: {kept} of {RUNS} runs are kept in {tmp_path}; "
            "the same command goes on from there\nkellet: stopped by SIGINT\n"
        )
    assert command("simulate", *options, cwd=desk).code == 0
    assert len(rows(tmp_path / "runs.jsonl")) == RUNS


def test_words_for_people(desk: Path) -> None:
    done = command("simulate", *POOL, *SWEEP, "seeds=2", "--rounds", 1, cwd=desk)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "12 runs of 1 rounds"
    assert lines[1].startswith("1/12  alpha=0.3 algorithm=fedavg seed=0: 1 rounds, accuracy 0.")
    head = lines.index("") + 1
    assert lines[head].split()[:4] == ["algorithm", "alpha", "mu", "runs"]
    assert len(lines[head + 1 : lines.index("", head)]) == RUNS


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["toy.kplan", "--pool", "mine:pool"], 2, "no partition is given"),
        (["toy.kplan", "--pool", "mine:four", "--partition", "natural"], 3, "a tuple of 4"),
        (
            ["toy.kplan", "--pool", "mine:pool", "--partition", "quantity:0"],
            2,
            "--partition = quantity:0",
        ),
        (["toy.kplan", "--data", "mine:clients", "--devices", "2"], 2, "--devices = 2"),
        (["--pool", "mine:pool", "--partition", "natural"], 2, "kellet simulate PLAN --pool"),
        (["--task", "wisdm", "--clients", "2"], 2, "say --devices"),
        (["--task", "wisdm", "--partition", "natural", "--devices", "2"], 2, "say --clients"),
        (["--task", "wisdm", "--sweep", "seeds"], 2, "--sweep seeds: it must name a setting"),
        (["--task", "wisdm", "--sweep", "mv=1"], 2, "there is no setting mv=1 here"),
        (["--task", "wisdm", "--parquet"], 2, "add --out DIR"),
        (["--task", "wisdm", "--target-accuracy", "80"], 2, "--target-accuracy = 80"),
        (["--task", "wisdm", "--sweep", "local_lr=1e30", "--rounds", "1"], 8, "no run could be"),
    ],
)
def test_what_is_refused(desk: Path, arguments: list[str], code: int, words: str) -> None:
    command("simulate", *arguments, cwd=desk).failed(code, words)


def test_a_missing_extra_says_what_to_install(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'pyarrow' else find(name, *more)\n"
    )
    done = command(
        *("simulate", *POOL, *SWEEP, "--parquet", "--out", tmp_path / "out"),
        cwd=desk,
        env={"PYTHONPATH": str(tmp_path)},
    )
    done.failed(2, "this needs the package 'pyarrow'", 'pip install "kellet[research]"')
    assert not (tmp_path / "out").exists()
