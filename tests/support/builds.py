"""Wheels, archives and environments, built from a copy of the tree so that it stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["FOLDERS", "ROOT", "copy_tree", "fresh_venv", "names_in", "pip", "run", "wheel"]

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("firmware_profiles", "kernels", "sdk", "server")
_FILES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")


def copy_tree(to: Path, *, with_library: bool) -> Path:
    """Copy what a build reads, with or without the compiled library, and return the copy."""
    made = ["__pycache__", *([] if with_library else ["*.so"])]
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns(*made))
    for name in _FILES:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, to / name)
    return to


def run(*command: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; a failure shows all that it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def wheel(
    source: Path, to: Path, *options: str, python: object = sys.executable, **env: str
) -> Path:
    """Build one wheel and return it."""
    pip(python, "wheel", "--no-deps", "-w", to, *options, source, **env)
    (built,) = to.glob("*.whl")
    return built


def pip(python: object, *arguments: object, **env: str) -> None:
    """Run this environment's pip for the environment of ``python``."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KELLET", "PYTHONPATH"))}
    command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*command, "-q", *arguments, env={**inherited, **env})


def names_in(built: Path) -> list[str]:
    """Return the paths inside a wheel."""
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def fresh_venv(to: Path, *, with_our_packages: bool) -> Path:
    """Make a virtual environment without pip and return its Python.

    ``with_our_packages`` lets it see what is installed beside these tests,
    except Kellet: a path file inside a path that a path file names is not read.
    """
    venv.create(to)
    python = to / "bin" / "python"
    if with_our_packages:
        print_path = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = Path(run(python, "-c", print_path).strip())
        (site / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
