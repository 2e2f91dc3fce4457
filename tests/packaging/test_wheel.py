"""What a wheel and a source archive hold, and what it takes to build them."""

import platform
import shutil
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from support.builds import FOLDERS, copy_tree, fresh_venv, names_in, pip, run, wheel

from kellet.kernels import _library

pytestmark = pytest.mark.packaging

LIBRARY = f"kellet/kernels/lib/{_library.library_path().name}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel from a clean copy, without a compiler or a linker on the PATH."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_tree(folder / "source", with_library=False)
    (folder / "empty").mkdir()
    return wheel(source, folder / "out", PATH=str(folder / "empty"))


def text(built: Path, name: str) -> str:
    with zipfile.ZipFile(built) as archive:
        (path,) = (path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


def test_wheel_without_a_compiler_holds_a_fresh_library(built: Path, tmp_path: Path) -> None:
    assert built.name.endswith(f"-py3-none-manylinux_2_17_{platform.machine()}.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path)
    assert _library.is_fresh(tmp_path / LIBRARY)


def test_wheel_has_one_top_level_name(built: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(built)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kellet"}
    assert not any(name.endswith((".pyc", ".o")) for name in names_in(built))


def test_wheel_is_typed_and_carries_its_licence(built: Path) -> None:
    names = names_in(built)
    for folder in FOLDERS:
        assert f"kellet/{folder}/__init__.py" in names
        assert f"kellet/{folder}/py.typed" in names
    assert "Apache License" in text(built, "licenses/LICENSE")


def test_every_data_file_of_the_tree_ships(built: Path) -> None:
    names = names_in(built)
    source = built.parents[1] / "source"
    for folder in FOLDERS:
        for path in (source / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert f"kellet/{path.relative_to(source)}" in names


def test_dependencies_of_a_device_are_light(built: Path) -> None:
    requirements = message_from_string(text(built, "METADATA")).get_all("Requires-Dist") or []
    plain = {line.split(">")[0].split("=")[0] for line in requirements if "extra ==" not in line}
    assert plain == {
        *("cyclopts", "msgpack", "msgspec", "numpy"),
        *("onnxruntime", "paho-mqtt", "psutil", "rich"),
    }
    assert 'torch>=2.6; extra == "authoring"' in requirements
    assert 'torch==2.13.0; extra == "dev"' in requirements


def test_installed_kernels_are_compiled_and_need_no_numba(built: Path, tmp_path: Path) -> None:
    python = fresh_venv(tmp_path / "venv", with_our_packages=False)
    pip(python, "install", "--no-deps", built, "numpy>=2")
    code = "import kellet.kernels as k; print(k.backend(), k.__file__)"
    name, path = run(python, "-W", "error", "-c", code, cwd=tmp_path).split()
    assert name == "compiled"
    assert Path(path).is_relative_to(tmp_path / "venv")


def test_a_deleted_module_is_absent_from_the_next_wheel(tmp_path: Path) -> None:
    source = copy_tree(tmp_path / "source", with_library=True)
    (source / "sdk" / "gone_tomorrow.py").write_text('"""Here today."""\n')
    (source / "sdk" / "gone_too").mkdir()
    (source / "sdk" / "gone_too" / "__init__.py").write_text('"""Here today."""\n')
    first = wheel(source, tmp_path / "first")
    assert {"kellet/sdk/gone_tomorrow.py", "kellet/sdk/gone_too/__init__.py"} <= {*names_in(first)}

    (source / "sdk" / "gone_tomorrow.py").unlink()
    shutil.rmtree(source / "sdk" / "gone_too")
    second = wheel(source, tmp_path / "second")
    assert {*names_in(first)} - {*names_in(second)} == {
        "kellet/sdk/gone_tomorrow.py",
        "kellet/sdk/gone_too/__init__.py",
    }


def test_source_archive_builds_without_numba(tmp_path: Path) -> None:
    source = copy_tree(tmp_path / "source", with_library=True)
    stale = _library.library_path("aarch64" if platform.machine() == "x86_64" else "x86_64")
    stale = source / "kernels" / "lib" / stale.name
    stale.write_bytes(b"of other sources")
    run(sys.executable, "-m", "build", "-q", "--sdist", "-o", tmp_path, source)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        inside = [name.split("/", 1)[1] for name in tar.getnames() if "/" in name]
    assert f"kernels/lib/{_library.library_path().name}" in inside
    assert f"kernels/lib/{stale.name}" not in inside
    assert not any(name.startswith((".editable", "build")) for name in inside)

    python = fresh_venv(tmp_path / "venv", with_our_packages=False)
    pip(python, "install", "setuptools>=77")
    out = wheel(archive, tmp_path / "out", "--no-build-isolation", python=python, PATH="")
    with zipfile.ZipFile(out) as built_archive:
        built_archive.extractall(tmp_path / "unpacked")
    assert _library.is_fresh(tmp_path / "unpacked" / LIBRARY)


def test_a_wheel_without_the_library_serves_every_processor(tmp_path: Path) -> None:
    source = copy_tree(tmp_path / "source", with_library=True)
    out = wheel(source, tmp_path / "out", KELLET_KERNELS="numpy")
    assert out.name.endswith("-py3-none-any.whl")
    assert not any(name.endswith(".so") for name in names_in(out))
