"""The options of ``pytest bench``, its run, and what is printed and written at the end."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.codecs import CODECS, torch_codecs
from bench.memory import keep_freed_memory
from bench.results import write
from bench.run import Run
from bench.steps import STEPS
from bench.torch_steps import torch_steps
from kellet import kernels

FULL = (1_000_000, 10_000_000, 10_000, 1_000, 100_000)  # what the targets ask for comes first
QUICK = (10_000, 1_000_000)


RUN = pytest.StashKey[Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernel benchmarks")
    group.addoption("--full", action="store_true", help="sizes from 1e3 to 1e7, not 1e4 and 1e6")
    group.addoption("--sizes", help="these sizes instead, as 1e3,1e5")
    group.addoption("--threads", type=int, default=1, help="for all contenders (default 1)")
    group.addoption("--budget", type=float, help="seconds a contender and case (0.1; quick: 0.03)")
    group.addoption("--minutes", type=float, default=5.5, help="begin no case after so long (5.5)")
    group.addoption("--name", help="bench/results/NAME.json is written (full or quick)")
    group.addoption("--note", default="", help="a sentence to put into the results")
    group.addoption("--default-malloc", action="store_true", help="do not keep freed memory")
    group.addoption("--without-compile", action="store_true", help="leave torch.compile out")


def pytest_configure(config: pytest.Config) -> None:
    config.option.benchmark_quiet = True  # our table says more
    config.option.benchmark_disable_gc = True
    full = config.getoption("--full")
    threads = config.getoption("--threads")
    kept = not config.getoption("--default-malloc") and keep_freed_memory()
    run = Run(
        label=config.getoption("--name") or ("full" if full else "quick"),
        note=config.getoption("--note"),
        budget=config.getoption("--budget") or (0.1 if full else 0.03),
        deadline=time.monotonic() + 60 * config.getoption("--minutes"),
        threads=threads,
        memory="kept" if kept else "default",
    )
    kernels.set_threads(threads)
    _find_torch(run, without_compile=config.getoption("--without-compile"))
    config.stash[RUN] = run


def _find_torch(run: Run, *, without_compile: bool) -> None:
    """Take PyTorch's peers in, or say why not."""
    try:
        import torch
    except ImportError as error:
        reason = str(error)
        run.left_out |= dict.fromkeys(("torch", "torch._foreach", "torch.compile"), reason)
        return
    torch.set_num_threads(run.threads)
    run.peers = {**torch_steps(), **torch_codecs()}
    if without_compile:
        run.left_out["torch.compile"] = "not asked for (--without-compile)"
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # its imports warn of themselves
            torch.compile(lambda v: v + 1)(torch.zeros(8))
    except (RuntimeError, ImportError, OSError) as error:  # no C++ compiler, or one that fails
        run.left_out["torch.compile"] = f"no working compiler: {str(error).splitlines()[0]}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" not in metafunc.fixturenames:
        return
    config = metafunc.config
    sizes: tuple[int, ...] = FULL if config.getoption("--full") else QUICK
    if config.getoption("--sizes"):
        sizes = tuple(int(float(size)) for size in config.getoption("--sizes").split(","))
    metafunc.parametrize(
        ("case", "n"),
        [pytest.param(c, n, id=f"{c.name}-{n:.0e}") for n in sizes for c in STEPS + CODECS],
    )


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    settings = request.config.stash[RUN]
    if time.monotonic() > settings.deadline:
        pytest.skip("the run's minutes are over (--minutes)")
    return settings


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run = config.stash[RUN]
    if not run.measured:
        return
    results = run.results()
    path = Path(__file__).parent / "results" / f"{run.label}.json"
    write(results, path)
    terminalreporter.write_line("")
    terminalreporter.write(report.text(results))
    terminalreporter.write_line(f"written: {path}")
