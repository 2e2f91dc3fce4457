"""The parts of the comparison: data, cells, the control, bytes, tables."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from bench.evidence.data import judging, pool, trained_on
from bench.quantised import report
from bench.quantised.accuracy import Finished
from bench.quantised.device import TORCH, Device, measure, peak, relative, state_of
from bench.quantised.figure import draw
from bench.quantised.grid import FULL, NEAREST, SEEDS, Cell, algorithm, cells_of, fingerprint
from bench.quantised.nearest import nearest_steps
from bench.quantised.results import Results, begun, difference, read, write
from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Int8Work, Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.plan import Plan
from kellet.server.research.parallel import work

WISDM = Plan.open("wisdm")


def finished(algorithm, scheme, seed, accuracy, task="wisdm"):
    return Finished(
        cell=Cell(task, algorithm, scheme, seed), fingerprint="f", accuracy=accuracy, last=accuracy,
        loss=1.0, curve=[(1, accuracy)], digest="", control_gap=0, seconds=1.0,
    )  # fmt: skip


def device(plan, scheme, peak, *took):
    state = None if scheme == TORCH else state_of(WISDM, scheme)
    return Device(plan=plan, plan_id="", scheme=scheme, batch=32, peak_mb=peak,
                  microseconds=list(took), state=state)  # fmt: skip


def results(*runs, devices=()):
    made = begun(None, full=True, settings=FULL)
    made.finished, made.devices = list(runs), list(devices)
    return made


# -- data ---------------------------------------------------------------------------


def test_windows_that_overlap_are_on_one_side():
    """HAR's windows overlap their neighbours by half."""
    for windows in (9, 50, 51, 347):
        test = judging("har", windows)
        train = trained_on("har", test)
        assert not (train & test).any()
        assert not (train[1:] & test[:-1]).any()
        assert not (train[:-1] & test[1:]).any()
    assert judging("har", 52).nonzero()[0].tolist() == [*range(40, 50)]
    assert trained_on("har", judging("har", 52)).nonzero()[0].tolist() == [*range(39), 51]
    assert judging("wisdm", 11).nonzero()[0].tolist() == [4, 9]


@pytest.mark.parametrize(
    ("name", "train", "test", "shape"),
    [("wisdm", 4350, 1068, (43,)), ("mnist", 60000, 10000, (1, 14, 14))],
)
def test_pools(name, train, test, shape):
    data = pool(name)
    assert (len(data.x), len(data.y), len(data.test[0]), len(data.test[1])) == (
        *(train, train), *(test, test),
    )  # fmt: skip
    for x, y in [(data.x, data.y), data.test]:
        assert x.shape[1:] == shape
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
    if name == "mnist":
        assert (data.x.min(), data.x.max()) == (0, 1)


# -- cells --------------------------------------------------------------------------


def test_a_task_has_the_cells_that_its_plan_can_run():
    cells = cells_of("wisdm", WISDM, SEEDS)
    assert len(cells) == len(set(cells)) == 4 * 4 * 3
    assert {cell.scheme for cell in cells} == {"f32", "w8.row", "w8.block64", NEAREST}
    assert [cell.seed for cell in cells] == [0] * 16 + [1] * 16 + [2] * 16


def test_algorithms_weigh_clients_alike():
    for name in ("fedavg", "fedprox", "scaffold", "damped"):
        made = algorithm(name, FULL["wisdm"])
        assert (made.weighting, made.local_steps, made.batch_size) == ("uniform", 20, 32)
    made = algorithm("damped", FULL["wisdm"])
    assert isinstance(made, Scaffold)
    assert made.control_damping == np.float32(0.1)


def test_a_fingerprint_follows_setting_and_plan():
    one = fingerprint(FULL["wisdm"], WISDM)
    assert one == fingerprint(FULL["wisdm"], WISDM)
    assert one != fingerprint(FULL["wisdm"], Plan.open("har"))
    assert one != fingerprint(msgspec.structs.replace(FULL["wisdm"], tail=19), WISDM)


def test_work_is_done_in_processes_and_an_error_ends_it():
    found: dict[int, float] = {}
    work(math.sqrt, [1, 4, 9], 2, found.__setitem__)
    assert found == {1: 1.0, 4: 2.0, 9: 3.0}
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        work(math.sqrt, [1, -4, 9], 2, found.__setitem__)


# -- the control --------------------------------------------------------------------


def rows(values, scales):
    layout = kernels.row_layout([(len(scales), len(values) // len(scales))])
    return kernels.Int8Rows(np.array(values, np.int8), np.array(scales, np.float32), layout)


def stepped(kind, g, d=None):
    y = rows((100, 10, -100, -10), (0.5, 0.25))
    given = Int8Work(y, np.array(g, np.float32), y.copy(), d, 0)
    assert nearest_steps(kind, given)(1.0, 0) == 0
    return y.values.tolist(), y.scales.tolist()


def test_a_step_below_half_a_unit_is_lost():
    # Units are .5 and .25: the steps are .4, 1, -.4 and -.6 of them.
    assert stepped(FedAvg(), [0.2, 0.5, -0.1, -0.15]) == ([100, 9, -100, -9], [0.5, 0.25])
    assert stepped(FedAvg(), [0.2, 0.2, -0.1, -0.1]) == ([100, 10, -100, -10], [0.5, 0.25])


def test_a_row_that_outgrows_its_range_is_refitted_as_the_kernels_do():
    # 100 + 54 = 154 units: the scale grows by 1.08*154/127, and 10 is 7.6 units of it.
    values, scales = stepped(FedAvg(), [-27, 0, 0, 0])
    assert values == [118, 8, -100, -10]
    assert scales == [np.float32(0.5) * np.float32(np.float32(1.08 / 127) * np.float32(154)), 0.25]


def test_corrections_are_those_of_the_algorithms():
    shift = rows((40, 0, 0, 80), (0.0125, 0.0125))  # .5 and 1
    # .25 and .5 of gradient and shift in units: (.25 + .5)/.5 and 1/.25.
    found = stepped(Scaffold(), [0.25, 0, 0, 0], d=shift)
    assert found == ([98, 10, -100, -14], [0.5, 0.25])
    y, x = rows((100, 10), (0.5,)), rows((90, 10), (0.5,))
    nearest_steps(FedProx(mu=0.5), Int8Work(y, np.zeros(2, np.float32), x, None, 0))(0.8, 0)
    assert y.values.tolist() == [96, 10]  # .8 * .5 * 5 / .5 = 4 units


def test_whole_units_agree_with_the_kernel():
    """A step of whole units leaves nothing to round: both must come to the same."""
    rng = np.random.default_rng(0)
    values = rng.integers(-60, 60, 64)
    values[::16] = 100
    y = rows(values, [0.5] * 4)
    g = (0.5 * rng.integers(-20, 20, 64)).astype(np.float32)
    mine, theirs = y.copy(), y.copy()
    nearest_steps(FedAvg(), Int8Work(mine, g, y, None, 0))(1.0, 0)
    FedAvg().int8_stepper(Int8Work(theirs, g, y, None, 0))(1.0, 0)
    assert mine.values.tolist() == theirs.values.tolist()
    assert mine.scales.tolist() == theirs.scales.tolist()


# -- bytes, tables, files -----------------------------------------------------------


def test_bytes_of_wisdms_state_by_hand():
    # 43*64 + 64*32 + 32*6 = 4992 weights in 64 + 32 + 6 = 102 rows; 102 biases.
    state = state_of(WISDM, "w8.row")
    assert state.parameters == 5094
    assert state.weights == (4992 + 4 * 102) / 4992
    assert state.y == state.start == state.shift == 4992 + 4 * 102 + 4 * 102
    assert (state.gradient, state.control) == (4 * 5094, 8 * 5094)
    blocks = state_of(WISDM, "w8.block64")  # 43, 32 and 3 blocks
    assert blocks.weights == (4992 + 4 * 78) / 4992
    floats = state_of(WISDM, "f32")
    assert (floats.weights, floats.y, floats.start, floats.shift) == (4.0, *[4 * 5094] * 3)


def test_differences_are_of_the_same_seed():
    floats = [finished("fedavg", "f32", seed, 0.8 + seed / 100) for seed in range(3)]
    others = [finished("fedavg", "w8.row", seed, 0.79 + seed / 100) for seed in (2, 0)]
    assert difference(others, floats) == pytest.approx([-1, -1])


def test_verdicts_take_the_worst_algorithm_either_way():
    made = results(
        finished("fedavg", "f32", 0, 0.800), finished("fedavg", "w8.row", 0, 0.801),
        finished("scaffold", "f32", 0, 0.900), finished("scaffold", "w8.row", 0, 0.906),
        finished("fedavg", NEAREST, 0, 0.795), finished("scaffold", NEAREST, 0, 0.95),
        devices=[
            device("five_million", "f32", 100.0, 1), device("five_million", "w8.row", 50.1, 1),
        ],
    )  # fmt: skip
    found = report.verdicts(made)
    assert [(v.what, v.met) for v in found] == [
        ("wisdm, w8.row", False),
        ("wisdm, w8.row, nearest", False),  # half a point is not clearly behind
        ("five_million, w8.row", True),  # 1.08 bytes
        ("five_million, w8.row", False),
    ]
    assert found[0].found == "+0.60 points (SCAFFOLD)"
    assert found[3].found == "50 of 100 MB, 0.50"


def test_ratios_pair_turns():
    assert relative(device("p", "w8.row", 1.0, 10, 40, 30), device("p", "f32", 1.0, 5, 40, 10)) == 2


def test_tables_show_means_and_differences():
    made = results(
        *(finished("fedavg", "f32", s, a) for s, a in enumerate((0.8, 0.81, 0.82))),
        *(finished("fedavg", "w8.row", s, a) for s, a in enumerate((0.8, 0.808, 0.821))),
    )
    lines = report.accuracies(made, "wisdm").splitlines()
    assert lines[2].split("|")[1:4] == [
        " FedAvg                ", " 81.00 ± 1.00 ", " 80.97 (-0.03; -0.20 to +0.10) ",
    ]  # fmt: skip


def test_a_file_of_results_is_checked_and_is_the_same_when_read_again(tmp_path):
    made = results(finished("fedavg", "f32", 0, 0.5), devices=[device("wisdm", "w8.row", 60.0, 1)])
    path = tmp_path / "folder" / "results.json"
    write(made, path)
    assert read(path) == made
    assert [p.name for p in path.parent.iterdir()] == ["results.json"]
    path.write_text(path.read_text().replace('"format":1', '"format":2'))
    with pytest.raises(msgspec.ValidationError, match="format 2"):
        read(path)


def test_a_run_does_not_go_on_from_a_file_of_another(tmp_path):
    path = tmp_path / "results.json"
    write(results(finished("fedavg", "f32", 0, 0.5)), path)
    assert len(begun(path, full=True, settings=FULL).finished) == 1
    with pytest.raises(UsageError, match="was written by python"):
        begun(path, full=False, settings=FULL)
    path.write_text("{}")
    with pytest.raises(UsageError, match="holds no results"):
        begun(path, full=True, settings=FULL)


def test_page_and_figure_are_made_of_partial_results_too(tmp_path):
    made: Results = results(
        finished("fedavg", "f32", 0, 0.8), finished("fedavg", "w8.row", 0, 0.8),
        devices=[device("wisdm", "f32", 80.0, 45), device("wisdm", TORCH, 330.0, 270)],
    )  # fmt: skip
    page = report.page(made)
    assert "python -m bench.quantised --full" in page
    assert "wisdm | torch eager | 330.0" in " ".join(page.split())
    assert report.text(made)
    draw(made, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
    draw(results(finished("fedavg", "f32", 0, 0.8)), tmp_path / "figure.png")


# -- devices ------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_a_device_process_tells_its_peak():
    """Python with numpy takes 25 MB, onnxruntime some 40 more; torch would be 300."""
    assert 40 < peak(WISDM, "w8.row") < 130


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plan_is_measured_under_each_scheme_and_in_torch():
    found = measure("wisdm")
    assert [d.scheme for d in found] == ["f32", "w8.row", "w8.block64", TORCH]
    assert all(len(d.microseconds) == 3 and min(d.microseconds) > 1 for d in found)
    assert found[-1].peak_mb > 1.5 * max(d.peak_mb for d in found[:-1])
    assert relative(found[0], found[-1]) < 1  # a step of ours is faster than eager PyTorch's
