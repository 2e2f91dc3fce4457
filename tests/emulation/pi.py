"""An emulated Raspberry Pi 4 with the wheel that is built for it (``scripts/emulated_pi``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.builds import ROOT, copy_tree, pip, run, wheel

__all__ = ["HERE", "Pi", "device_wheel", "install"]

SCRIPT = ROOT / "scripts" / "emulated_pi"
HERE = ROOT / "tests"
_ENV = {**os.environ, "PYTHON": sys.executable}


class Pi:
    """The Pi's Python, with ``site`` and these tests on its path.

    ``python``: the command that runs it, which dies with the process that started it.
    Emulated, a program takes 10 to 30 times as long.
    """

    def __init__(self, site: Path) -> None:
        self.site = site
        path = f"PYTHONPATH={site}:{HERE}"
        parent = ("setpriv", "--pdeathsig", "KILL", "env", f"PYTHON={sys.executable}", path)
        self.python = (*parent, str(SCRIPT))

    def run(self, *arguments: object, timeout: float = 200.0) -> str:
        """Run its Python and return the output; a failure shows all that it printed."""
        command = [*self.python, *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout, cwd=self.site
        )
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        return done.stdout


def need_pi() -> None:
    """Skip the test where no emulated Pi is laid out. Tests use no network: scripts do that."""
    laid_out = subprocess.run([SCRIPT, "--check"], env=_ENV, check=False, timeout=60)
    if laid_out.returncode:
        pytest.skip("no emulated Pi, or not with the present dependencies: run scripts/emulated_pi")


def device_wheel(profile: str, folder: Path) -> Path:
    """Build a profile's wheel from the tree as it is, with the tools at hand."""
    source = copy_tree(folder / "source", with_library=True)
    return wheel(source, folder / "wheel", "--no-build-isolation", KELLET_PROFILE=profile, PATH="")


def install(built: Path, site: Path) -> None:
    """Install a wheel as the Pi's pip would: its tag must be one that the Pi takes."""
    version = run("env", f"PYTHON={sys.executable}", SCRIPT, "-V").split()[-1]
    for_pi = ("--platform", "manylinux_2_17_aarch64", "--python-version", version)
    only = ("--no-deps", "--no-index", "--only-binary", ":all:", "--no-compile")
    pip(sys.executable, "install", "--target", site, *for_pi, *only, built)
