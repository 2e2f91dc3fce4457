"""Sweeps in Python: the same runs as by hand, kept, gone on with, and refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from support.json_lines import rows
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedProx, Scaffold
from kellet.sdk.errors import StorageError, UsageError
from kellet.server import simulate
from kellet.server.report import write_sweep_report
from kellet.server.research import (
    Line,
    Measures,
    Pool,
    RoundRow,
    RunRow,
    Spread,
    Sweep,
    partitioned,
    read_results,
    summarised,
    sweep,
)
from kellet.server.research.settings import cell_of
from kellet.server.research.table import run_row

PLAN = softmax_regression(3, 3)
RNG = np.random.default_rng(2)
X = RNG.standard_normal((200, 3)).astype(np.float32)
POOL = Pool(X[:150], X[:150].argmax(axis=1), test=(X[150:], X[150:].argmax(axis=1)))
BASE = {"partition": "dirichlet", "clients": 4, "local_steps": 3, "local_lr": 0.5}
AXES = {"alpha": [0.2, 5.0], "algorithm": ["fedprox", "scaffold"], "mu": [0.1]}


def swept(out: Path | None = None, **changed: object) -> Sweep:
    given = {"axes": AXES, "seeds": [0, 1], "settings": BASE, "rounds": 3, **changed}
    return sweep(PLAN, POOL, out=out, **given)


def timeless(came: Sweep) -> list[RunRow]:
    return [msgspec_replace(row, wall_seconds=0.0) for row in came.runs]


def msgspec_replace(row: RunRow, **changed: object) -> RunRow:
    facts = {name: getattr(row, name) for name in row.__struct_fields__}
    return RunRow(**facts | changed)


def test_a_run_is_that_of_simulate_to_the_bit():
    came = swept(measures=Measures(target=0.6))
    assert len(came.runs) == 8
    for row in came.runs:
        alpha, seed = row.settings["alpha"], row.settings["seed"]
        kind = {"fedprox": FedProx(mu=0.1, local_steps=3, local_lr=0.5)}
        algorithm = kind.get(row.settings["algorithm"], Scaffold(local_steps=3, local_lr=0.5))
        clients = partitioned(POOL, f"dirichlet:{alpha}", 4, seed=seed)
        history = simulate(PLAN, clients, algorithm, rounds=3, seed=seed, test=POOL.test)
        assert row.model == history.digest
        assert (row.accuracy, row.loss) == (history.accuracy, history.loss)
        assert (row.updates_counted, row.control_gap, row.clients) == (12, 0, 4)
        mine = [r for r in came.rounds if r.cell == row.cell]
        for record, r in zip(history.rounds, mine, strict=True):
            assert (record.round, record.accuracy, record.model) == (r.round, r.accuracy, r.model)
            assert (record.drift, record.drift_max) == (r.drift_mean, r.drift_max)
            assert record.uplink_bytes == round(1e6 * r.up_mb)
            assert record.downlink_bytes == round(1e6 * r.down_mb)
            assert (r.drift_bound is None) == (row.settings["algorithm"] == "scaffold")


def test_processes_make_no_difference(tmp_path: Path):
    told: list[str] = []
    one = swept(tmp_path / "one")
    two = swept(
        tmp_path / "two",
        processes=2,
        on_round=lambda row: told.append(row.cell),
        on_run=lambda row: told.append(row.cell + "."),
    )
    assert timeless(one) == timeless(two)
    for run in two.runs:  # all rounds of a run are told before its end
        assert [t for t in told if t.startswith(run.cell)] == [run.cell] * 3 + [run.cell + "."]
    key = lambda row: (row["cell"], row.get("round"))  # noqa: E731
    for name in ("rounds.jsonl", "runs.jsonl"):
        assert sorted(rows(tmp_path / "one" / name), key=key) == sorted(
            rows(tmp_path / "two" / name), key=key
        )


def test_what_is_kept_is_not_run_again_and_the_rest_is(tmp_path: Path):
    whole = swept(tmp_path)
    runs, rounds = tmp_path / "runs.jsonl", tmp_path / "rounds.jsonl"
    before = runs.read_text(), rounds.read_text()
    worked: list[str] = []
    swept(tmp_path, on_run=lambda row: worked.append(row.cell))
    assert not worked
    assert (runs.read_text(), rounds.read_text()) == before

    # As a kill leaves it: two runs finished, a third in its rounds, its last line cut off.
    lines = before[0].splitlines(keepends=True)
    runs.write_text("".join(lines[:2]) + lines[2][:40])
    rounds.write_text("".join(before[1].splitlines(keepends=True)[:8]) + '{"cell": "al')
    again = swept(tmp_path, on_run=lambda row: worked.append(row.cell))
    assert worked == [row.cell for row in whole.runs[2:]]
    assert timeless(again) == timeless(whole)
    assert len(rows(rounds)) == 24
    assert len({(row["cell"], row["round"]) for row in rows(rounds)}) == 24
    _, kept, of_them = read_results(tmp_path)
    assert [row.model for row in kept] == [row.model for row in whole.runs]
    assert [row.model for row in of_them] == [row.model for row in whole.rounds]


def test_another_sweep_is_refused_with_the_difference(tmp_path: Path):
    swept(tmp_path, seeds=[0])
    other = dataclasses.replace(POOL, x=POOL.x + 1)
    for changed, words in (
        ({"rounds": 4}, "rounds is 4, and there it was 3"),
        ({"seeds": [0, 1]}, "seeds is 0,1, and there it was 0"),
        ({"axes": AXES | {"mu": [0.1, 1]}}, "mu is 0.1,1, and there it was 0.1"),
        ({"settings": BASE | {"local_lr": 0.25}}, "local_lr is 0.25, and there it was 0.5"),
        ({"settings": BASE | {"cohort": 2}}, "cohort is 2, and there it was not given"),
        ({"holdout": 0.2}, "holdout is 0.2, and there it was 0.0"),
        ({"measures": Measures(target=0.5)}, "target_accuracy is 0.5, and there it was not given"),
    ):
        with pytest.raises(UsageError, match=f"holds another sweep: {words} - "):
            swept(tmp_path, **{"seeds": [0], **changed})
    with pytest.raises(UsageError, match="holds another sweep: data is "):
        sweep(PLAN, other, axes=AXES, seeds=[0], settings=BASE, rounds=3, out=tmp_path)
    with pytest.raises(UsageError, match="holds another sweep: plan is softmax_3_3"):
        sweep(softmax_regression(3, 3, initial=1.0), POOL, axes=AXES, seeds=[0], settings=BASE,
              rounds=3, out=tmp_path)  # fmt: skip


def test_a_directory_that_is_not_ours(tmp_path: Path):
    (tmp_path / "runs.jsonl").write_text("")
    with pytest.raises(StorageError, match=r"has results and no sweep\.json"):
        swept(tmp_path)
    with pytest.raises(UsageError, match="there is no sweep"):
        read_results(tmp_path)
    (tmp_path / "runs.jsonl").unlink()
    swept(tmp_path, seeds=[0], axes={"alpha": [1]})
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"cell": 5}\n')
    with pytest.raises(StorageError, match=r"runs\.jsonl cannot be read in line 2"):
        swept(tmp_path, seeds=[0], axes={"alpha": [1]})
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(StorageError, match=r"sweep\.json cannot be read"):
        swept(tmp_path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"settings": BASE | {"cohort": 5}}, "cohort = 5: it must be from 1 to 4, the clients"),
        ({"settings": BASE | {"clients": 40}}, "150 samples for 40 clients"),
        ({"settings": BASE | {"uplink": "q8", "feedback": True}}, "c_i is the memory"),
        ({"rounds": 0}, "rounds = 0"),
        ({"processes": 0}, "processes = 0"),
    ],
)
def test_what_cannot_run_is_refused_before_the_first_run(tmp_path: Path, changed, words):
    def never(_row: object) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=words):
        swept(tmp_path, **changed, on_round=never)
    assert not list(tmp_path.glob("r*.jsonl"))


def test_a_run_that_runs_away_is_kept_as_failed(tmp_path: Path):
    axes = {"local_lr": [0.5, 1e30]}
    came = swept(tmp_path, axes=axes, seeds=[0], settings={"partition": "similarity:50"})
    good, bad = came.runs
    assert (good.state, good.why, good.rounds) == ("finished", "", 3)
    assert (bad.state, bad.rounds, bad.accuracy, bad.model) == ("failed", 0, None, "")
    assert "lower local_lr" in bad.why
    lines = came.table()
    assert [(line.runs, line.failed) for line in lines] == [(1, 0), (1, 1)]
    assert lines[1].numbers["accuracy"] is None
    page = write_sweep_report(tmp_path, came).read_text()
    assert "runs whose models became infinite" in page
    worked: list[str] = []
    swept(tmp_path, axes=axes, seeds=[0], settings={"partition": "similarity:50"},
          on_run=lambda row: worked.append(row.cell))  # fmt: skip
    assert not worked


def round_row(number: int, accuracy: float | None, **more: object) -> RoundRow:
    facts: dict[str, object] = dict.fromkeys(RoundRow.__struct_fields__)
    facts |= {"cell": "c", "settings": {}, "round": number, "accuracy": accuracy}
    facts |= {"client_worst": accuracy and accuracy / 2, "up_mb": number * 1.0}
    facts |= {"down_mb": number * 2.0, "wall_seconds": 0.5, "model": f"m{number}"}
    return RoundRow(**facts | more)


def test_a_run_s_row_by_hand():
    cell = cell_of(Scaffold(), None, {}, 0)
    rounds = [
        round_row(1, 0.25, drift_mean=1.0, drift_max=2.0, drift_bound=4.0),
        round_row(2, None, drift_mean=2.0, drift_max=3.0),
        round_row(3, 0.75, drift_mean=3.0, drift_max=2.5, drift_bound=2.0),
        round_row(4, 0.75),
        round_row(5, 0.5),
    ]
    row = run_row(cell, rounds, 9, 0.6, "", {"control_gap": 0})
    assert (row.accuracy, row.best_accuracy, row.best_round) == (0.5, 0.75, 3)
    assert (row.client_worst, row.best_client_worst) == (0.25, 0.375)
    assert (row.rounds_to_target, row.mb_to_target) == (3, 9.0)
    assert (row.drift_mean, row.drift_max, row.of_bound) == (2.0, 3.0, 1.25)
    assert (row.up_mb, row.down_mb, row.wall_seconds, row.model) == (5.0, 10.0, 2.5, "m5")
    assert (row.state, row.rounds, row.clients, row.control_gap) == ("finished", 5, 9, 0)
    never = run_row(cell, rounds, 9, 0.8, "", {})
    assert (never.rounds_to_target, never.mb_to_target) == (None, None)
    reached = run_row(cell, rounds, 9, 0.75, "", {})
    assert reached.rounds_to_target == 3


def test_a_table_s_line_by_hand():
    made = []
    for seed, (accuracy, reached) in enumerate(((0.5, None), (0.75, 4), (1.0, 6))):
        cell = cell_of(Scaffold(), None, {}, seed)
        row = run_row(cell, [round_row(1, accuracy)], 2, None, "", {})
        made.append(msgspec_replace(row, rounds_to_target=reached))
    failed = run_row(cell_of(Scaffold(), None, {}, 3), [], 2, None, "too far", {})
    (line,) = summarised([*made, failed])
    assert isinstance(line, Line)
    assert (line.settings, line.runs, line.failed) == ({"algorithm": "scaffold"}, 4, 1)
    assert line.numbers["accuracy"] == Spread(0.75, 0.5, 1.0, 3)
    assert line.numbers["rounds_to_target"] == Spread(5.0, 4, 6, 2)
    assert line.numbers["roc_auc"] is None


def test_the_rows_as_parquet(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet")
    from kellet.server.research import write_parquet

    axes = {"uplink": ["f32", "q8"], "algorithm": ["fedprox", "scaffold"], "mu": [0.1, 1],
            "cohort": ["all", 2]}  # fmt: skip
    came = swept(tmp_path, axes=axes, settings=BASE | {"partition": "dirichlet:1"}, seeds=[0])
    write_parquet(tmp_path, came.runs, came.rounds)
    for name in ("runs", "rounds"):
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        written = [json.loads(line) for line in lines]
        flat = [
            {k: v for k, v in row.items() if k != "settings"}
            | {f"settings.{k}": v for k, v in row["settings"].items()}
            for row in written
        ]
        found = parquet.read_table(tmp_path / f"{name}.parquet").to_pylist()
        assert len(found) == len(flat) > 0
        for row, same in zip(found, flat, strict=True):
            assert set(row) >= set(same)
            for column, value in row.items():
                expected = same.get(column)
                if column == "settings.cohort" and expected is not None:
                    expected = str(expected)  # texts beside numbers
                assert value == expected, column
    types = parquet.read_schema(tmp_path / "rounds.parquet")
    assert str(types.field("accuracy").type) == "double"
    assert str(types.field("round").type) == "int64"
    assert str(types.field("settings.mu").type) == "double"


def test_the_report_has_all_lines(tmp_path: Path):
    came = swept(axes=AXES | {"mu": [0.1, 1.0]}, measures=Measures(target=0.6))
    page = write_sweep_report(tmp_path, came).read_text()
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    for words in ("alpha 0.2", "alpha 5", "FedProx, mu 0.1", "FedProx, mu 1", "SCAFFOLD"):
        assert words in page
    line = came.table()[0]
    accuracy = line.numbers["accuracy"]
    assert accuracy is not None
    assert f"{accuracy.mean:.3f}<br><small>{accuracy.least:.3f}" in page
    assert page.count("<svg") == 2 * 5
