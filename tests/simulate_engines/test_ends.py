"""However a simulation on several processes ends, none of them is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_command(number: signal.Signals) -> None:
    """Ctrl-C, which the whole group is sent, and a kill that the command cannot answer."""
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "simulate_engines.long_run"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "1\n", program.communicate()[1]
    family = psutil.Process(program.pid).children(recursive=True)
    assert sum("spawn_main" in " ".join(one.cmdline()) for one in family) == 2
    if number == signal.SIGINT:
        os.killpg(program.pid, number)
    else:
        program.kill()
    _, said = program.communicate(timeout=60)
    assert psutil.wait_procs(family, timeout=60)[1] == []
    if number == signal.SIGINT:
        assert said.count("Traceback") == 1  # the program's own, and no worker's
        assert said.endswith("KeyboardInterrupt\n")
