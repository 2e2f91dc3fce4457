"""The benchmarks' own code: it refuses what is wrong, counts right, and leaves a sound file."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pytest

from bench import report
from bench.case import computing_with, validate
from bench.codecs import CODECS
from bench.limits import limits
from bench.operands import Draw, close, copied, same_bits
from bench.results import FORMAT, Measured, Results, Spread, Timing, read, write
from bench.steps import STEPS
from bench.targets import share, verdicts
from bench.timing import Contender, Turns, ratios, repeated, spread
from kellet import kernels

ROOT = Path(__file__).parents[2]
# What computes nothing on vectors: choices, layouts, scalars, and bind, which every step is.
NO_KERNELS = {
    "Int8Rows",
    "StepName",
    "advance_rate_sum",
    "aligned",
    "backend",
    "bind",
    "block_layout",
    "row_layout",
    "set_threads",
    "threads",
    "use_backend",
}


def case_named(name):
    return next(case for case in STEPS + CODECS if case.name == name)


def timing(seconds, ratio=1.0):
    return Timing(Spread(*[seconds] * 3), Spread(*[ratio] * 3), 5)


def results(*measured, cache=32 << 20):
    return Results(
        format=FORMAT, label="made up", note="", date="2026-01-01", threads=1, backend="compiled",
        memory="kept", limits_by="numba",
        machine={"processor": "P", "architecture": "x86_64", "cores": 2, "last_cache_bytes": cache,
                 "system": "S"},
        versions={"python": "3.11"}, left_out={}, measured=list(measured),
    )  # fmt: skip


def test_every_public_kernel_has_a_case():
    assert {case.kernel for case in STEPS + CODECS} == set(kernels.__all__) - NO_KERNELS


def test_the_names_of_cases_are_apart():
    names = [case.name for case in STEPS + CODECS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", STEPS + CODECS, ids=lambda case: case.name)
def test_every_case_is_right_at_a_length_that_fits_nothing(case):
    validate(case, case.operands(Draw(1003)), case.peers)


def test_one_bit_is_enough_to_be_refused():
    case = case_named("sgd_step")

    def off_by_an_ulp(o):
        step = case.ours(o)

        def call():
            step()
            if kernels.backend() != "numpy":
                o["y"][3] = np.nextafter(o["y"][3], np.float32(9))

        return call

    with pytest.raises(AssertionError, match="not the reference's"):
        validate(replace(case, ours=off_by_an_ulp), case.operands(Draw(100)), {})


def test_a_peer_that_forgets_the_proximal_term_is_refused():
    case = case_named("prox_step")
    with pytest.raises(AssertionError, match="torch computes something else"):
        validate(case, case.operands(Draw(100)), {"torch": case_named("sgd_step").ours})


def test_the_largest_are_told_apart_at_any_length():
    v = Draw(2_000_000).distinct()
    assert v.dtype == np.float32
    assert np.unique(np.abs(v)).size == v.size  # so that every way to choose chooses the same


def test_validation_changes_no_operand():
    case = case_named("accumulate, int8")
    operands = case.operands(Draw(200))
    before = copied(operands)
    validate(case, operands, {})
    assert same_bits(operands, before)


def test_bits_tell_zeros_and_types_apart():
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    assert not same_bits(np.zeros(2, np.float32), np.zeros(2, np.int32))
    assert close(np.array([0.0, 100.0]), np.array([1e-4, 100.0]))
    assert not close(np.array([0.0, 100.0]), np.array([1e-2, 100.0]))


def test_the_reference_computes_for_a_while_only():
    before, threads = kernels.backend(), kernels.threads()
    with computing_with("numpy"):
        assert kernels.backend() == "numpy"
    assert (kernels.backend(), kernels.threads()) == (before, threads)


def test_spread_is_least_median_greatest():
    assert spread([4.0, 1.0, 2.0]) == Spread(1.0, 2.0, 4.0)
    assert spread([4.0, 1.0]) == Spread(1.0, 2.5, 4.0)
    assert Spread(1.23456, 2.0, 3.0).rounded() == Spread(1.235, 2.0, 3.0)


@pytest.mark.parametrize("values", [(2.0, 1.0, 3.0), (0.0, 1.0, 2.0), (1.0, 2.0, float("inf"))])
def test_what_is_no_spread_is_refused(values):
    with pytest.raises(ValueError):
        Spread(*values)


def test_a_ratio_pairs_the_rounds_that_both_were_in():
    ours, other = Contender(repeated(int)), Contender(repeated(int))
    ours.seconds = {0: 1.0, 1: 10.0, 2: 2.0}
    other.seconds = {1: 30.0, 2: 8.0}  # a machine that is slow in round 1 slows both
    assert ratios(other, ours) == Spread(3.0, 3.5, 4.0)


def test_contenders_take_turns_and_start_one_place_later():
    ticks = count()
    order: list[tuple[str, int]] = []
    mine = Contender(lambda n: order.append(("ours", next(ticks))))
    others = {
        name: Contender(lambda n, name=name: order.append((name, next(ticks)))) for name in "ab"
    }
    turns = Turns(mine, others, 0.01)
    for contender in (mine, *others.values()):
        contender.count, contender.rounds, contender.warms = 1, 2, False
    turns.rounds = 2
    order.clear()
    for _ in range(2):
        turns.before()
        turns.batch()
    assert [name for name, _ in order] == ["a", "b", "ours", "b", "a", "ours"]
    assert all(set(c.seconds) == {0, 1} for c in others.values())


def test_fewer_rounds_lie_evenly_among_all():
    other = Contender(repeated(int))
    turns = Turns(Contender(repeated(int)), {"slow": other}, 0.01)
    turns.rounds, other.rounds = 10, 2
    for _ in range(10):
        turns.before()
    assert sorted(other.seconds) == [4, 9]


def test_ours_is_divided_by_the_calls_of_a_batch():
    turns = Turns(Contender(repeated(int)), {}, 0.01)
    turns.ours.count = 4
    turns.finish([8.0, 4.0])
    assert turns.ours.seconds == {0: 2.0, 1: 1.0}


def test_the_limits_are_what_they_say():
    assert set(limits(1000)) == {"copy", "triad"}  # and are checked where they are made


def test_a_share_counts_the_bytes_of_both():
    # 16 bytes an element, and the triad, 12, takes 0.8 times as long: 16/12 * 0.8.
    measured = Measured("prox_step", "prox_step", 100, 16, {
        "kellet": timing(1e-6), "triad": timing(0.8e-6, 0.8)}, {})  # fmt: skip
    assert share(measured, "triad", 12).median == pytest.approx(1.0667, abs=1e-4)
    assert share(measured, "copy", 8) is None
    assert measured.per_second() == pytest.approx(1.6e9)


def test_verdicts_say_met_and_by_how_much_not():
    large = Measured("prox_step", "prox_step", 10**6, 16, {
        "kellet": timing(1e-3), "triad": timing(6e-4, 0.6),
        "numpy": timing(4e-3, 4.0)}, {})  # fmt: skip
    small = Measured("sgd_step", "sgd_step", 10**4, 12, {
        "kellet": timing(4e-6), "without the call": timing(1e-6, 0.25)}, {})  # fmt: skip
    int8 = Measured("sgd_step_int8, rows of 64", "sgd_step_int8", 10**7, 6.125, {
        "kellet": timing(1e-3), "float32 twin": timing(1.3e-3, 1.3)}, {})  # fmt: skip
    found = {(v.target, v.case, v.n): v for v in verdicts(results(large, small, int8))}
    triad = found["triad's bytes/s", "prox_step", 10**6]
    assert (triad.met, triad.says()) == (False, "missed by 0.10x (11 %)")
    assert found["over numpy", "prox_step", 10**6].says() == "met"
    assert found["over torch", "prox_step", 10**6].says() == "not measured"
    call = found["a bound step's call", "sgd_step", 10**4]
    assert (call.met, call.says()) == (False, "missed by 1.00 us (50 %)")
    twin = "over its float32 twin", "sgd_step_int8, rows of 64", 10**7
    assert found[twin].met is True
    in_cache = {(v.target, v.case, v.n): v for v in verdicts(results(int8, cache=64 << 20))}
    assert in_cache[twin].met is None


def test_results_come_back_from_their_file(tmp_path):
    small = Measured("sgd_step", "sgd_step", 10, 12, {"kellet": timing(1e-6)}, {"numpy": "slow"})
    path = tmp_path / "r.json"
    write(results(small), path)
    assert read(path) == results(small)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format":1', '"format":2'),
        ('"threads":1', '"threads":"one"'),
        ('"rounds":5', '"rounds":5,"more":1'),
        ('"kellet":', '"keel":'),
        ("[1e-6,1e-6,1e-6]", "[1e-6,2e-6,1e-6]"),
        ('"note":"",', ""),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, old, new):
    path = tmp_path / "r.json"
    write(results(Measured("sgd_step", "sgd_step", 10, 12, {"kellet": timing(1e-6)}, {})), path)
    sound = path.read_text()
    assert old in sound
    path.write_text(sound.replace(old, new, 1))
    with pytest.raises(msgspec.ValidationError):
        read(path)


def test_a_fast_run_writes_prints_and_draws(tmp_path):
    """As anybody runs it: the command, its table, its file, its figure."""
    path = ROOT / "bench" / "results" / "test-run.json"
    command = [sys.executable, "-m", "pytest", "bench", "--sizes", "1e3", "--budget", "0.001"]
    command += ["--without-compile", "--name", path.stem, "-k", "prox_step-1e+03", "-p", "no:xdist"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found = read(path)
    finally:
        path.unlink(missing_ok=True)
    assert "| 1e3 | prox_step" in done.stdout
    assert "not asked for (--without-compile)" in found.left_out["torch.compile"]
    (measured,) = found.measured
    assert (measured.case, measured.n, measured.bytes) == ("prox_step", 1000, 16)
    assert {"kellet", "copy", "triad", "numpy", "numpy out="} <= set(measured.contenders)
    for each in measured.contenders.values():
        assert each.rounds >= 5
        assert each.seconds.least > 0
    assert measured.contenders["kellet"].ratio == Spread(1.0, 1.0, 1.0)
    from bench.figure import draw

    draw(found, tmp_path / "f.svg")
    assert "prox_step" in (tmp_path / "f.svg").read_text()


def test_the_page_shows_the_file_that_it_names():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    source = page.partition(report.BEGIN)[2].partition("[")[2].partition("]")[0]
    assert report.documented(page, report.section(read(ROOT / source), source)) == page


def test_a_page_without_a_generated_part_is_refused():
    with pytest.raises(ValueError):
        report.documented("# Benchmarks\n", "x")


def test_check_exits_with_1_where_a_target_is_missed(tmp_path):
    path = tmp_path / "r.json"
    missed = Measured("sgd_step", "sgd_step", 10**6, 12, {
        "kellet": timing(1e-3), "torch": timing(1e-4, 0.1)}, {})  # fmt: skip
    write(results(missed), path)
    assert report.main([str(path)]) == 0
    assert report.main([str(path), "--check"]) == 1
