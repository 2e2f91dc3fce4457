"""Which backend computes, and what is said where it is not the compiled one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kellet import kernels
from kellet.kernels import _library

FOLDER = Path(kernels.__file__).parent


def python(code: str, *, tree: Path | None = None, **environment: str) -> tuple[str, str]:
    """Run code in a fresh process, where ``tree`` holds other kernels; return its output."""
    env = {k: v for k, v in os.environ.items() if k != "KELLET_KERNELS"} | environment
    if tree is not None:
        env["PYTHONPATH"] = str(tree)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    return done.stdout.strip(), done.stderr


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The kernels in a tree of their own, the library with them."""
    shutil.copytree(FOLDER, tmp_path / "kellet" / "kernels")
    return tmp_path


def library_in(tree: Path) -> Path:
    return _library.library_path(folder=tree / "kellet" / "kernels")


CHOICE = """
import kellet.kernels as k
name = k.backend(), k.backend()
import sys
print(name[0], sorted({"numba", "llvmlite"} & set(sys.modules)))
"""


def test_the_compiled_library_serves_and_numba_is_not_loaded() -> None:
    out, err = python(CHOICE)
    assert (out, err) == ("compiled []", "")


@pytest.mark.parametrize("name", ["numpy", "compiled"])
def test_the_environment_chooses(name: str) -> None:
    assert python(CHOICE, KELLET_KERNELS=name) == (f"{name} []", "")


def test_numba_serves_when_asked() -> None:
    assert python(CHOICE, KELLET_KERNELS="numba") == ("numba ['llvmlite', 'numba']", "")


def test_the_environment_may_name_backends_only() -> None:
    out, err = python(CHOICE, KELLET_KERNELS="fortran")
    assert not out
    assert "KELLET_KERNELS must be one of compiled, numba, numpy, not 'fortran'" in err


def test_a_copy_loads_its_own_library(copied: Path) -> None:
    code = CHOICE + "print(k.__file__)"
    assert python(code, tree=copied)[0] == f"compiled []\n{copied}/kellet/kernels/__init__.py"


def test_without_a_library_numpy_serves_and_says_so_once(copied: Path) -> None:
    library_in(copied).unlink()
    out, err = python(CHOICE, tree=copied)
    assert out == "numpy []"
    assert err.count("computes with NumPy") == 1
    assert f"{library_in(copied).name} is not built" in err


def test_a_library_of_other_sources_counts_as_absent(copied: Path) -> None:
    with open(copied / "kellet" / "kernels" / "step.py", "a") as file:
        file.write("# changed\n")
    out, err = python(CHOICE, tree=copied)
    assert out == "numpy []"
    assert "is older than its sources" in err


def test_a_library_that_does_not_load_counts_as_absent(copied: Path) -> None:
    library_in(copied).write_bytes(f"not ELF {_library.identity('generic')}\0".encode())
    out, err = python(CHOICE, tree=copied)
    assert out == "numpy []"
    assert "does not load" in err


def test_asking_for_a_library_that_is_absent_is_an_error(copied: Path) -> None:
    library_in(copied).unlink()
    out, err = python(CHOICE, tree=copied, KELLET_KERNELS="compiled")
    assert not out
    assert "ImportError" in err


def test_every_source_of_the_library_is_digested(copied: Path) -> None:
    folder = copied / "kellet" / "kernels"
    digests = {_library.source_digest(folder)}
    for name in _library.SOURCES:
        with open(folder / name, "a") as file:
            file.write("#\n")
        digests.add(_library.source_digest(folder))
    assert len(digests) == len(_library.SOURCES) + 1


def test_the_sources_are_what_the_compiler_loads() -> None:
    code = """
import sys, kellet.kernels.compile
print(*sorted(m.split(".")[-1] + ".py" for m in sys.modules if m.startswith("kellet.kernels.")))
"""
    serving = {"_backend.py", "_checks.py", "_options.py", "_threads.py"}
    serving |= {"exact.py", "local.py", "local_rows.py", "rows.py", "sparse.py"}
    serving |= {"reference.py", "reference_rows.py", "reference_steps.py"}
    inspecting = {"_library.py", "_symbols.py", "header.py"}
    loaded = set(python(code)[0].split())
    assert loaded - serving - inspecting == set(_library.SOURCES)


def test_use_backend_and_steps_that_are_bound_already() -> None:
    before = kernels.backend()
    y, g = np.zeros(1, np.float32), np.ones(1, np.float32)
    try:
        kernels.use_backend("numpy")
        step = kernels.bind("sgd_step", y, g)
        kernels.use_backend("compiled")
        assert kernels.backend() == "compiled"
        step(1.0)
        assert y == -1
        with pytest.raises(ValueError, match="must be one of"):
            kernels.use_backend("fortran")
        assert kernels.backend() == "compiled"
    finally:
        kernels.use_backend(before)
