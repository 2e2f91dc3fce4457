"""What the kernels cost a device: bytes on its disk, and memory beside a compiler's."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.foreign import objects

from kellet.kernels import _library
from kellet.kernels._link import link
from kellet.kernels.targets import TARGETS

# What a device's worker loads, and one step.
DEVICE = """
import sys
import numpy as np
import onnxruntime
import kellet.sdk.plan, kellet.sdk.worker
from kellet import kernels
from kellet.sdk.health import peak_mb
kernels.use_backend(sys.argv[1])
y, g = np.full(1000, 10, np.float32), np.full(1000, 9, np.float32)
kernels.sgd_step(y, g, 1.0)
assert (y == 1).all()
assert ("numba" in sys.modules) == (sys.argv[1] == "numba")
print(peak_mb())
"""


def peak_mb(backend: str) -> float:
    command = [sys.executable, "-c", DEVICE, backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_installed_library_is_under_200_kb() -> None:
    assert _library.library_path().stat().st_size < 200_000


@pytest.mark.parametrize("target", ["aarch64", "armv7", "android_arm64", "wasm32"])
def test_a_device_s_file_is_under_100_kb(target: str, tmp_path: Path) -> None:
    out = tmp_path / f"kernels{TARGETS[target].suffixes()[0]}"
    link(objects(target, "generic").contents, target, out)
    assert out.stat().st_size < 100_000


def test_compiled_kernels_save_100_mb_of_memory() -> None:
    assert peak_mb("compiled") < peak_mb("numba") - 100
