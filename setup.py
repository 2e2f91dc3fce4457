"""Build ``kellet.*`` from the top-level folders, with the kernels compiled.

The metadata is in pyproject.toml. Here is what metadata cannot say: the folders'
names in the namespace, the link tree of an editable installation, and the
compiled library, which is built where it is absent or older than its sources.
``KELLET_PROFILE=pi_4b pip wheel .`` builds for another device, whose profile is
of that name; ``KELLET_KERNELS=numpy pip install .`` builds without the library.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
FOLDERS = ("firmware_profiles", "kernels", "sdk", "server")
DATA = ["py.typed", "*.html", "*.kplan", "*.npz", "*.toml", "*.txt", "builtin/*"]
LINK_TREE = ".editable"
EDITABLE = "editable_wheel" in sys.argv
HOST = platform.machine()


def load_alone(name: str, path: Path) -> ModuleType:
    """Load a module that needs the standard library alone, without its package."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks for its module there
    spec.loader.exec_module(module)
    return module


LIBRARY = load_alone("kellet_build_library", ROOT / "kernels" / "_library.py")
PROFILES = load_alone("kellet_build_profiles", ROOT / "firmware_profiles" / "profile.py")


def chosen_target() -> tuple[str, str]:
    """Return the processor to build for and its tuning, as the compiler calls them.

    They are the profile's that KELLET_PROFILE names, else this machine's.
    """
    name = os.environ.get("KELLET_PROFILE")
    if not name:
        return HOST, "generic"
    try:
        profile = PROFILES.load(name)
    except ValueError as error:
        sys.exit(f"KELLET_PROFILE: {error}")
    if profile.kernels_only:
        sys.exit(
            f"KELLET_PROFILE: {name} runs no Python, so it has no wheel. Its kernels: "
            f"python -m kellet.kernels.compile --target {name} --out kernels.o --header kernels.h"
        )
    if EDITABLE and profile.arch != HOST:
        sys.exit(
            f"KELLET_PROFILE: {name} is for {profile.arch}, and an editable installation runs "
            f"here, on {HOST}; build a wheel instead: KELLET_PROFILE={name} pip wheel ."
        )
    return profile.arch, profile.cpu


MACHINE, CPU = chosen_target()
IS_64_BIT = sys.maxsize > 2**32 or MACHINE != HOST
WANTED = IS_64_BIT and MACHINE in LIBRARY.MACHINES and os.environ.get("KELLET_KERNELS") != "numpy"


def lay_links(tree: Path) -> None:
    """Make ``tree/kellet/*`` links to the folders, so that they import by their real names."""
    (tree / "kellet").mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        link = tree / "kellet" / folder
        if not link.exists():
            link.unlink(missing_ok=True)  # it pointed to where the checkout was
            link.symlink_to(os.path.relpath(ROOT / folder, link.parent), target_is_directory=True)


def build_library(machine: str, cpu: str) -> None:
    """Compile the kernels in a process of their own, unless the library is fresh."""
    if LIBRARY.is_fresh(LIBRARY.library_path(machine), cpu):
        return
    with tempfile.TemporaryDirectory() as folder:
        lay_links(Path(folder))
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, "-m", "kellet.kernels.compile", "--target", machine, "--cpu", cpu],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            check=False,
        )
    if done.returncode != 0:
        sys.exit(
            f"the kernels could not be compiled for {machine}: see above. Without build isolation, "
            "pip install numba first; KELLET_KERNELS=numpy leaves the library out"
        )


def build_requirements() -> list[str]:
    """Return what compiling needs here: nothing where the library is there already."""
    if not WANTED or LIBRARY.is_fresh(LIBRARY.library_path(MACHINE), CPU):
        return []
    linker = [] if LIBRARY.system_linker(MACHINE) else ["ziglang>=0.13"]
    return ["numba>=0.62", *linker]


def can_build(machine: str) -> bool:
    """Whether this machine can compile a library, with what is installed in this environment."""
    found = importlib.util.find_spec
    linker = LIBRARY.system_linker(machine) or found("ziglang")
    return bool(LIBRARY.compiles_here(machine) and found("numba") and linker)


class WithLibrary(Distribution):
    """What setuptools calls a distribution with extension modules: it goes by processor."""

    def has_ext_modules(self) -> bool:
        return WANTED


class BuildPython(build_py):
    """Start from an empty folder, or modules deleted since the last build would ship."""

    def run(self) -> None:
        if WANTED:
            build_library(MACHINE, CPU)
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "kellet", ignore_errors=True)
        super().run()


class BuildWheel(bdist_wheel):
    """One wheel for every Python 3 on the library's kind of processor."""

    def get_tag(self) -> tuple[str, str, str]:
        plat: str = super().get_tag()[2]
        # The library needs no libc, and the rest is Python: any glibc of these systems will do.
        is_here = plat == f"linux_{MACHINE}" and platform.libc_ver()[0] == "glibc"
        if is_here or (WANTED and MACHINE != HOST):
            plat = f"manylinux_2_17_{MACHINE}"
        return "py3", "none", plat


class SourceArchive(sdist):
    """Carry the library for this processor, and for others that can be built for here."""

    def run(self) -> None:
        for machine in LIBRARY.MACHINES if WANTED else ():
            library = LIBRARY.library_path(machine)
            if machine == MACHINE or can_build(machine):
                build_library(machine, "generic")
            elif not LIBRARY.is_fresh(library, "generic"):
                library.unlink(missing_ok=True)
        super().run()


packages = [
    ".".join(("kellet", *init.parent.relative_to(ROOT).parts))
    for folder in FOLDERS
    for init in sorted((ROOT / folder).rglob("__init__.py"))
]
package_dir = {f"kellet.{folder}": folder for folder in FOLDERS}
if EDITABLE:
    # Links serve mypy, pyright and editors as they serve Python, and show new files at once.
    lay_links(ROOT / LINK_TREE)
    packages.append("kellet")  # the namespace itself, so that one plain path entry is enough
    package_dir = {"": LINK_TREE}

arguments: dict[str, Any] = {
    "packages": packages,
    "package_dir": package_dir,
    "package_data": {
        "": DATA,
        "kellet.kernels": [f"lib/{LIBRARY.library_path(MACHINE).name}"] * WANTED,
    },
    "include_package_data": False,
    "setup_requires": build_requirements(),
    "distclass": WithLibrary,
    "cmdclass": {"bdist_wheel": BuildWheel, "build_py": BuildPython, "sdist": SourceArchive},
}
setup(**arguments)
