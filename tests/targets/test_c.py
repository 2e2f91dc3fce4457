"""The C header, and the example in C: the commands of its page, and the notes' numbers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.foreign import objects

from kellet.kernels.header import c_header
from kellet.kernels.table import KERNELS
from kellet.kernels.targets import TARGETS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "c"
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror")


def compiler(*names: str) -> list[str]:
    """Return the system's compiler, or the one that tests of other processors use anyway."""
    found = next((name for name in names if shutil.which(name)), None)
    return [found] if found else [sys.executable, "-m", "ziglang", names[0]]


@pytest.mark.parametrize("target", TARGETS)
def test_header_is_strict_c99_and_cpp(target: str, tmp_path: Path) -> None:
    header = tmp_path / "kellet_kernels.h"
    header.write_text(c_header(target))
    source = tmp_path / "use.c"
    source.write_text(f'#include "{header.name}"\n#include "{header.name}"\nint used;\n')
    for command in (
        [*compiler("cc"), "-std=c99", source],
        [*compiler("c++"), "-std=c++11", "-x", "c++", source],
    ):
        subprocess.run([*command, *STRICT, "-c", "-o", tmp_path / "use.o"], check=True)


def test_header_documents_every_function() -> None:
    text = c_header("x86_64")
    for kernel, signature in KERNELS.items():
        found = re.search(rf"/\* ((?:(?!\*/)[\s\S])+)\n \*/\n\w+ kellet_{kernel}\(([^;]*)\);", text)
        assert found, kernel
        assert "Writes" in found[1]
        assert found[1].index("Writes") > 10, f"{kernel} has no docstring"
        # Arrays, scalars, and the length.
        count = len(signature.arrays) + len(signature.scalars) + 1
        assert found[2].count(",") == count - 1
        assert found[2].count("const ") == len(signature.arrays) - signature.writes
    assert "kellet_level" in text
    assert "kellet_level" not in c_header("aarch64")


def test_header_says_what_is_left_out() -> None:
    held = objects("cortex_m4", "generic").kernels
    assert {"sgd_step", "prox_step", "scaffold_step", "add_scaled", "linear_digest"} <= {*held}
    assert not {"to_grid_f32", "sum_of_squares_f32", "control_shift"} & {*held}
    text = " ".join(c_header("cortex_m4", held).replace("\n *", " ").split())
    left_out = [f"kellet_{kernel}" for kernel in KERNELS if kernel not in held]
    assert f"compute in double precision, which it has not: {', '.join(left_out)}." in text
    for kernel in KERNELS:
        assert (f" kellet_{kernel}(" in text) == (kernel in held)


def test_example_is_built_as_its_page_says_and_prints_the_notes_numbers(tmp_path: Path) -> None:
    page = (EXAMPLE / "README.md").read_text()
    (command,) = re.findall(r"^    (python -m .*)$", page, re.MULTILINE)
    wanted = page.split("numbers:\n\n", 1)[1].split("\n\n", 1)[0]
    shutil.copy(EXAMPLE / "steps.c", tmp_path)
    command = command.replace("python ", f"{sys.executable} ", 1)
    command = command.replace("cc ", f"{' '.join(compiler('cc'))} {' '.join(STRICT)} ", 1)
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == wanted.split()
    assert done.stdout.split()[1::2] == ["9.4", "8.8", "9.1", "8.38"]
