"""``kellet simulate`` and ``kellet report``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import Running, command

SUMMARY = {
    "algorithm",
    "server_optimizer",
    "scheme",
    "rounds",
    "accuracy",
    "loss",
    "clients",
    "updates_counted",
    "updates_refused",
    "control_gap",
    "uplink_bytes",
    "downlink_bytes",
    "seconds",
    "digest",
}


def test_a_plan_and_data_of_one_s_own(desk: Path, tmp_path: Path) -> None:
    options = ("--data", "mine:clients", "--test", "mine:test", "--rounds", 3, "--cohort", 2)
    done = command("simulate", "toy.kplan", *options, "--report", tmp_path, "--json", cwd=desk)
    assert done.code == 0, done.err
    *rounds, summary = done.lines
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert all(len(line["counted"]) == 2 for line in rounds)
    assert summary.keys() >= SUMMARY
    assert (summary["clients"], summary["updates_counted"], summary["control_gap"]) == (3, 6, 0)
    for way in ("uplink_bytes", "downlink_bytes"):
        assert sum(line[f"round_{way}"] for line in rounds) == summary[way] > 0
    assert summary["digest"] == rounds[-1]["model"]
    assert summary["accuracy"] == rounds[-1]["accuracy"]
    assert summary["report"] == str(tmp_path / "report.html")
    first = (tmp_path / "report.html").read_text()
    again = command("simulate", "toy.kplan", *options, "--json", cwd=desk).lines[-1]
    assert again["digest"] == summary["digest"]
    (tmp_path / "report.html").unlink()
    assert command("report", tmp_path).out == f"report: {tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").read_text() == first


def test_int8_weights_and_coded_vectors() -> None:
    options = ("--task", "wisdm", "--devices", 3, "--rounds", 1)
    coded = ("--scheme", "w8.row", "--uplink", "q8", "--downlink", "q8", "--control-damping", 0.1)
    done = command("simulate", *options, *coded, "--json")
    assert done.code == 0, done.err
    first, summary = done.lines
    assert (summary["scheme"], summary["control_gap"]) == ("w8.row", 0)
    assert (first["schemes"], first["codecs"]) == ({"w8.row/1": 3}, {"q8": 3})
    plain = command("simulate", *options, "--json").lines[-1]
    assert plain["scheme"] == "f32"
    for way in ("uplink_bytes", "downlink_bytes"):
        assert 3 < plain[way] / summary[way] < 4


def test_a_server_optimizer(desk: Path, tmp_path: Path) -> None:
    options = ("toy.kplan", "--data", "mine:clients", "--rounds", 2, "--json")
    adam = ("--algorithm", "fedavg", "--server-optimizer", "adam", "--server-lr", 0.05)
    done = command("simulate", *options, *adam, "--tau", 0.01, "--report", tmp_path, cwd=desk)
    assert done.code == 0, done.err
    *rounds, summary = done.lines
    assert (summary["algorithm"], summary["server_optimizer"]) == ("fedavg", "adam")
    assert all(0 < line["step_norm"] < 0.05 * 21**0.5 for line in rounds)
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    said = {"server_optimizer": "adam", "server_lr": 0.05, "tau": 0.01, "beta1": 0.9}
    assert settings.items() >= said.items()
    # Each option makes a difference.
    digests = {summary["digest"]}
    for more in ((), ("--tau", 0.01, "--beta1", 0.5), ("--tau", 0.01, "--beta2", 0.5)):
        digests.add(command("simulate", *options, *adam, *more, cwd=desk).lines[-1]["digest"])
    for other in ("yogi", "adagrad", "avgm"):
        given = ("--algorithm", "fedavg", "--server-optimizer", other)
        digests.add(command("simulate", *options, *given, cwd=desk).lines[-1]["digest"])
    assert len(digests) == 7


def test_a_task_brings_plan_data_and_test() -> None:
    options = ("--task", "wisdm", "--devices", 3, "--rounds", 1, "--algorithm", "fedprox")
    done = command("simulate", *options, "--mu", 0.5, "--seed", 3, "--json")
    assert done.code == 0, done.err
    summary = done.lines[-1]
    assert (summary["algorithm"], summary["clients"]) == ("fedprox", 3)
    assert 0.1 < summary["accuracy"] < 1
    other = command("simulate", *options, "--mu", 0.5, "--seed", 4, "--json").lines[-1]
    assert other["digest"] != summary["digest"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "neither --data nor --task"),
        (["wisdm", "--task", "wisdm", "--data", "mine:clients"], 2, "both are given"),
        (["--data", "mine:clients"], 2, "no plan is given"),
        (["toy.kplan", "--data", "mine:one"], 3, "mine:one"),
        (["toy.kplan", "--data", "mine:test"], 3, "a simulation needs each client's data"),
        (["wisdm", "--data", "mine:clients"], 3, "client 'a': x has the shape [40, 6]"),
        (["toy.kplan", "--data", "mine:clients", "--cohort", "4"], 2, "cohort = 4"),
        (["toy.kplan", "--data", "mine:clients", "--test", "mine:leaves"], 3, "SystemExit"),
        (["toy.kplan", "--data", "mine:leaves"], 3, "mine:leaves raised SystemExit"),
        (["toy.kplan", "--data", "mine:clients", "--rounds", "1.5"], 2, "'1.5' is not a whole"),
        (["toy.kplan", "--data", "mine:clients", "--rounds", "0"], 2, "--rounds = 0"),
        (["toy.kplan", "--data", "mine:nothing", "--report", "mine.py"], 2, "mine.py is not a dir"),
        (["toy.kplan", "--data", "mine:nothing", "--report", "mine.py/x"], 2, "mine.py is not a"),
        (["--task", "wisdm", "--devices", "31"], 2, "31 devices"),
        (["--task", "wisdm", "--scheme", "w4"], 2, "w8.block64"),
        (["--task", "wisdm", "--scheme", "w8.row+a8"], 4, "has no variant w8.row+a8/1"),
        (["--task", "wisdm", "--uplink", "q8", "--feedback"], 2, "c_i is the memory"),
        (["--task", "wisdm", "--uplink", "topk"], 2, "--uplink = 'topk': topk sends a share"),
        (["--task", "wisdm", "--uplink", "topk", "--share", ".1"], 2, "write topk:0.1"),
        (["--task", "wisdm", "--scheme", "w8.row", "--momentum", ".9"], 2, "no int8 step has"),
        (["--task", "har", "--data-dir", "."], 3, "--data-dir"),
        (["--task", "wisdm", "--tau", ".1"], 2, "adagrad or adam or yogi, or leave it out"),
        (["--task", "wisdm", "--server-optimizer", "adamw"], 2, "adagrad"),
    ],
)
def test_what_cannot_be_simulated(desk: Path, arguments: list[str], code: int, words: str) -> None:
    command("simulate", *arguments, cwd=desk).failed(code, words)


def test_a_directory_without_a_run(tmp_path: Path) -> None:
    command("report", tmp_path).failed(2, f"there is no run in {tmp_path}")
    (tmp_path / "run.json").write_text("{}")
    command("report", tmp_path).failed(7, "run.json cannot be read")


def test_ctrl_c_ends_a_simulation(desk: Path) -> None:
    options = ("--data", "mine:clients", "--rounds", 100_000)
    with Running("simulate", "toy.kplan", *options, cwd=desk) as running:
        running.wait_for("round", 3)
        running.press_ctrl_c()
        done = running.end()
    assert (done.code, done.said) == (130, "kellet: stopped by SIGINT\n")
