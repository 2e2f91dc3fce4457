"""Wheels for other devices: the right processor's library and tag, or a refusal that helps."""

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support.builds import copy_tree, fresh_venv, names_in, wheel

from kellet import firmware_profiles
from kellet.kernels import _library, _symbols

pytestmark = pytest.mark.packaging

# Build isolation is test_wheel's business; here the compiler and a linker are at hand.
HERE = "--no-build-isolation"
AARCH64 = 183  # ELF's number


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("tree") / "source", with_library=True)


def libraries(built: Path) -> list[str]:
    return [Path(name).name for name in names_in(built) if name.endswith(".so")]


def test_profile_makes_its_device_s_wheel(source: Path, tmp_path: Path) -> None:
    built = wheel(source, tmp_path / "out", HERE, KELLET_PROFILE="pi_4b", PATH="")
    assert built.name.endswith("-py3-none-manylinux_2_17_aarch64.whl")
    assert libraries(built) == ["kellet_kernels-aarch64.so"]
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path)
    library = tmp_path / "kellet" / "kernels" / "lib" / "kellet_kernels-aarch64.so"
    assert _library.is_fresh(library, "cortex-a72")
    content = library.read_bytes()
    assert int.from_bytes(content[18:20], "little") == AARCH64
    assert _symbols.undefined_symbols(content) == []

    # The same tree then makes the next profile's wheel, and this machine's, as ever.
    built = wheel(source, tmp_path / "next", HERE, KELLET_PROFILE="pi_3b", PATH="")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path)
    assert _library.is_fresh(library, "cortex-a53")
    built = wheel(source, tmp_path / "own", HERE)
    assert built.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.whl")
    assert libraries(built) == [_library.library_path().name]


def refusal(source: Path, *command: str, profile: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *command],
        cwd=source,
        env={**os.environ, "KELLET_PROFILE": profile},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


def test_unknown_profile_is_an_error_that_lists_the_known_ones(source: Path) -> None:
    said = refusal(source, "wheel", "--no-deps", HERE, ".", profile="pi_4")
    known = ", ".join(firmware_profiles.names())
    assert f"KELLET_PROFILE: there is no profile 'pi_4'; the profiles are {known}" in said


def test_profile_without_python_is_told_how_to_get_its_kernels(
    source: Path, tmp_path: Path
) -> None:
    said = refusal(source, "wheel", "--no-deps", HERE, ".", profile="cortex_m7")
    assert "cortex_m7 runs no Python, so it has no wheel" in said
    command = said.split("Its kernels: python ", 1)[1].split()[:8]
    subprocess.run([sys.executable, *command], cwd=tmp_path, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels.h", "kernels.o"]


def test_editable_installation_for_another_processor_is_refused(
    source: Path, tmp_path: Path
) -> None:
    other = "pi_4b" if platform.machine() == "x86_64" else "x86_64"
    python = fresh_venv(tmp_path / "venv", with_our_packages=True)
    command = ("--python", str(python), "install", "--no-deps", HERE, "-e", ".")
    said = refusal(source, *command, profile=other)
    assert f"build a wheel instead: KELLET_PROFILE={other} pip wheel ." in said
    assert not (source / ".editable").exists()
