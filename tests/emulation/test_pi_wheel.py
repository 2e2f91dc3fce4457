"""The wheel of ``pi_4b`` on an emulated Raspberry Pi 4: it imports, computes, gives the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from emulation.pi import Pi, device_wheel, install
from support.foreign import Program, calls
from support.processes import wait_until

from kellet import firmware_profiles
from kellet.kernels.table import KERNELS

pytestmark = pytest.mark.timeout(400)

# What a device does not install, and who asks for it.
ABSENT = {"llvmlite", "numba", "onnx", "onnx_ir", "onnxscript", "torch"}
OTHERS = ("cortex_m7", "x86_64")  # profiles whose programs a Pi does not run
WORKSTATION = ("kellet.kernels.", "kellet.sdk.authoring", "kellet.sdk.variants")


def imports(pi: Pi) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pi.run("-m", "emulation.imports"))
    return found


def test_every_module_of_a_device_is_imported_with_compiled_kernels(pi: Pi) -> None:
    found = imports(pi)
    assert found["machine"] == "aarch64"
    assert found["backend"] == "compiled"
    assert found["library"] == str(pi.site / "kellet/kernels/lib/kellet_kernels-aarch64.so")
    assert found["tuned"] == ["cortex-a72"]  # and made of these very sources
    assert found["compilers"] == []
    assert found["unmet"] == []
    assert {"kellet.sdk.runner", "kellet.sdk.plan.session", "kellet.sdk.tasks._wisdm"} < {
        *found["imported"]
    }
    assert {*found["missing"].values()} <= ABSENT
    assert all(module.startswith(WORKSTATION) for module in found["missing"]), found["missing"]


def test_the_wheels_library_gives_the_reference_bits(pi: Pi) -> None:
    names = tuple(KERNELS)
    program = Program((*pi.python, "-m", "emulation.run_kernels", json.dumps(names)), names)
    program.check(calls(KERNELS, (0, 1, 3, 8, 17, 33, 65, 1031), range(2)))


def test_the_command_checks_a_plan(pi: Pi) -> None:
    said = json.loads(pi.run(pi.site / "bin/kellet", "plan", "check", "wisdm", "--json"))
    assert said["good"]
    assert said["kernels"] == "compiled"
    errors = [said[f"{what}_error"] for what in ("loss", "gradient", "score")]
    assert max(errors) < 1e-5
    assert {"w8.row/1", "w8.block64/1"} <= {*said["variants"]}
    assert said["fit"]["profile"] == "pi_4b"
    assert said["fit"]["fits"]


def test_the_command_finds_the_board(pi: Pi, tmp_path: Path) -> None:
    said = json.loads(
        pi.run(pi.site / "bin/kellet", "init", "--json", "--output", tmp_path / "kellet.toml")
    )
    board = said["board"]
    assert said["profile"] == "pi_4b"
    assert board["model"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert (board["arch"], board["memory_mb"]) == ("aarch64", 3977)
    assert board["cpus"] == ["cortex-a72"]
    assert board["thermometer"]
    assert not board["battery"]
    assert 'profile = "pi_4b"' in (tmp_path / "kellet.toml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile", [name for name in firmware_profiles.names() if name not in (*OTHERS, "pi_4b")]
)
def test_the_wheels_of_other_boards_are_imported(profile: str, pi: Pi, tmp_path: Path) -> None:
    install(device_wheel(profile, tmp_path), tmp_path / "site")
    found = imports(Pi(tmp_path / "site"))
    assert found["backend"] == "compiled"
    assert found["library"].startswith(str(tmp_path))
    assert found["tuned"] == [firmware_profiles.load(profile).cpu]


def test_no_pi_outlives_what_started_it(pi: Pi, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    start = f"import subprocess; subprocess.run({[*pi.python, '-c', code]!r})"
    parent = subprocess.Popen([sys.executable, "-c", start])
    try:
        wait_until(lambda: mark.exists() and mark.read_text() != "")
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not psutil.pid_exists(int(mark.read_text())))
