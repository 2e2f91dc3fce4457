"""What runs every experiment: cells are worked once, kept, and taken up again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.evidence import experiment as shape
from bench.evidence.__main__ import main
from bench.evidence.experiment import EXPERIMENTS, Experiment, Results, load, marker
from bench.evidence.kept import read, write
from bench.evidence.running import run
from kellet.sdk.errors import UsageError


class Square(shape.Cell, frozen=True):
    n: int
    power: int = 2


def squares(full):
    return [Square(n=n) for n in range(4 if full else 2)]


def powered(cell):
    return {"value": cell.n**cell.power, "curve": (cell.n, 0.5)}


def page(results):
    return f"{results.command}: {[f['value'] for f in results.found.values()]}"


def figure(results, path):
    path.write_text("drawn")


def toy(cells=squares, work=powered, page_of=page):
    return Experiment("toy", "A toy", Square, cells, work, page_of, figure)


def never(cell):
    raise AssertionError(f"{cell} was kept")


def test_the_quick_form_prints_its_table_and_keeps_nothing(capsys):
    assert run(toy()) == 0
    out, err = capsys.readouterr()
    assert out == "python -m bench.evidence toy: [0, 1]\n"
    assert err.splitlines()[-1].startswith("2/2  n 1, power 2: value 1, 0.0 s")


def test_the_full_form_writes_its_page_and_goes_on_from_what_is_kept(tmp_path, capsys):
    path = tmp_path / "toy.json"
    assert run(toy(), full=True, path=path) == 0
    assert (
        tmp_path / "toy.md"
    ).read_text() == "python -m bench.evidence toy --full: [0, 1, 4, 9]\n"
    assert (tmp_path / "toy.svg").read_text() == "drawn"
    assert not list(tmp_path.glob("toy.json.*"))

    kept = read(path)
    assert [(f.cell["n"], f.found) for f in kept.finished[2:]] == [
        (2, {"value": 4, "curve": [2, 0.5]}), (3, {"value": 9, "curve": [3, 0.5]}),
    ]  # fmt: skip
    assert run(toy(work=never), full=True, path=path) == 0

    del kept.finished[1]
    write(kept, path)
    capsys.readouterr()
    assert run(toy(), full=True, path=path) == 0
    assert "1/1  n 1, power 2: value 1" in capsys.readouterr().err
    assert (tmp_path / "toy.md").read_text().endswith(": [0, 1, 4, 9]\n")  # in the cells' order


def test_a_cell_of_other_settings_is_worked_and_the_old_one_dropped(tmp_path):
    path = tmp_path / "toy.json"
    run(toy(), path=path)
    cubes = toy(cells=lambda full: [Square(n=1), Square(n=2, power=3)])
    assert run(cubes, path=path) == 0
    assert [f.found["value"] for f in read(path).finished] == [1, 8]
    assert run(toy(work=powered), path=path, fresh=True) == 0
    assert [f.found["value"] for f in read(path).finished] == [0, 1]


def test_a_mark_follows_settings_and_plan():
    cells = [Square(n=1), Square(n=2), Square(n=1, plan="wisdm"), Square(n=1, plan="har")]
    marks = dict(marker(cells))
    assert len(set(marks.values())) == 4
    assert dict(marker(cells[::-1])) == marks


def test_an_interrupt_keeps_what_is_finished(tmp_path, capsys):
    def interrupted(cell):
        if cell.n == 2:
            raise KeyboardInterrupt
        return powered(cell)

    path = tmp_path / "toy.json"
    assert run(toy(work=interrupted), full=True, path=path) == 130
    assert f"2 cells are kept in {path}; the same command goes on" in capsys.readouterr().err
    assert [f.cell["n"] for f in read(path).finished] == [0, 1]
    assert not (tmp_path / "toy.md").exists()
    assert run(toy(), full=True, path=path) == 0
    assert len(read(path).finished) == 4


def test_a_page_can_be_of_what_is_kept(tmp_path):
    path = tmp_path / "toy.json"
    told = toy(page_of=lambda results: f"{len(results.found)} of {results.missing} more")
    run(toy(), full=True, path=path)
    kept = read(path)
    del kept.finished[1:]
    write(kept, path)
    assert run(told, full=True, path=path, only_page=True) == 0
    assert (tmp_path / "toy.md").read_text() == "1 of 3 more\n"
    assert len(read(path).finished) == 1
    assert run(told, full=True, path=tmp_path / "none.json", only_page=True) == UsageError.exit_code
    assert not (tmp_path / "none.md").exists()


def test_processes_come_to_the_same(tmp_path):
    for processes in (1, 2):
        assert run(toy(), full=True, path=tmp_path / f"{processes}.json", processes=processes) == 0
    one, two = (sorted(read(tmp_path / f"{p}.json").finished, key=lambda f: f.mark) for p in (1, 2))
    timeless = [[msgspec.structs.replace(f, seconds=0.0) for f in run] for run in (one, two)]
    assert timeless[0] == timeless[1]


def test_another_runs_file_is_refused(tmp_path, capsys):
    path = tmp_path / "toy.json"
    run(toy(), path=path)
    assert run(toy(), full=True, path=path) == UsageError.exit_code
    assert "was written by python -m bench.evidence toy" in capsys.readouterr().err
    path.write_text("{}")
    assert run(toy(), path=path) == UsageError.exit_code


def test_cells_are_found_by_their_settings():
    found = {Square(n=n, power=p): {"value": n**p} for n in (1, 2) for p in (2, 3)}
    results = Results("", "", 0.0, found)
    assert results.one(n=2, power=3) == {"value": 8}
    assert results.one(n=3) is None
    assert [cell.power for cell in results.all(n=2)] == [2, 3]
    with pytest.raises(KeyError, match="2 cells"):
        results.one(n=2)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_there_under_its_name(name):
    experiment = load(name)
    assert experiment.name == name
    quick, full = experiment.cells(False), experiment.cells(True)
    assert 0 < len(quick) < len(full)
    for cells in (quick, full):
        assert len(set(cells)) == len(cells)
        assert all(type(cell) is experiment.cell for cell in cells)


def test_the_command_works_in_processes():
    """As a user runs it: the module that is run is not the one that processes find things in."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.evidence", "quadratics", "--processes", "2"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| SCAFFOLD, written out in float64 | 5.7e-16" in " ".join(done.stdout.split())
    assert "3/3" in done.stderr


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
