"""The kernels of every target that can be run here give the reference's bits.

Random bit patterns, denormals, huge values, signed zeros, infinities and NaN,
at lengths that are no multiple of any vector's.
"""

import platform
from pathlib import Path

import numpy as np
import pytest
from support.foreign import (
    Call,
    answer,
    build_runner,
    calls,
    check,
    in_node,
    level_of,
    objects,
    pack,
    tool,
)

from kellet.kernels._link import link
from kellet.kernels.table import KERNELS
from kellet.kernels.targets import TARGETS

ARM64 = ("-target", "aarch64-freestanding")
ARM32 = ("-target", "arm-freestanding-eabihf", "-mcpu=cortex_a9")


@pytest.fixture(scope="module")
def batch() -> list[Call]:
    few = calls(KERNELS, (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65), range(3))
    return few + calls(KERNELS, (1031, 4097), range(1))


@pytest.mark.parametrize(
    ("target", "cpu", "emulator"),
    [
        *(("aarch64", cpu, "cortex-a53") for cpu in TARGETS["aarch64"].tunings),
        ("android_arm64", "generic", "cortex-a53"),
        ("armv7", "generic", "cortex-a9"),
        # Emulators want a whole board for a microcontroller. A processor for applications knows
        # the same instructions, and its program's 32-bit code calls the 16-bit one.
        ("cortex_m4", "generic", "max"),
        ("cortex_m7", "generic", "max"),
    ],
)
def test_emulated_arm(
    target: str, cpu: str, emulator: str, batch: list[Call], tmp_path: Path
) -> None:
    wide = target.endswith(("arm64", "aarch64"))
    command = [tool("qemu-aarch64-static" if wide else "qemu-arm-static"), "-cpu", emulator]
    program, kernels = build_runner(target, tmp_path, *(ARM64 if wide else ARM32), cpu=cpu)
    held = [call for call in batch if call.kernel in kernels]
    assert held
    check(held, answer([*command, program], pack(held, kernels)))


@pytest.fixture(scope="module")
def x86_runner(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    return build_runner("x86_64", tmp_path_factory.mktemp("x86"), "-target", "x86_64-freestanding")


@pytest.mark.parametrize(("processor", "level"), [("Nehalem", 2), ("Haswell", 3)])
def test_emulated_x86_chooses_its_level(
    processor: str, level: int, x86_runner: tuple[Path, tuple[str, ...]], batch: list[Call]
) -> None:
    program, kernels = x86_runner
    given = answer([tool("qemu-x86_64-static"), "-cpu", processor, program], pack(batch, kernels))
    assert level_of(given) == level
    check(batch, given)


def test_this_x86_runs_the_same_program(
    x86_runner: tuple[Path, tuple[str, ...]], batch: list[Call]
) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("this is no x86-64 processor")
    program, kernels = x86_runner
    given = answer([program], pack(batch, kernels))
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n")[0].split())
    wide = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    assert level_of(given) == 2 + ("avx2" in flags) + (wide <= flags)
    check(batch, given)


def test_webassembly(batch: list[Call], tmp_path: Path) -> None:
    tool("node")
    module = tmp_path / "kernels.wasm"
    link(objects("wasm32", "generic").contents, "wasm32", module)
    check(batch, in_node(module, pack(batch, tuple(KERNELS))))


def test_a_wrong_bit_would_be_seen(batch: list[Call]) -> None:
    call = next(call for call in batch if call.kernel == "sgd_step" and call.arrays[0].size == 9)
    right = pack([call._replace(arrays=call.after)], ("sgd_step",))
    check([call], right)
    finite = int(np.flatnonzero(np.isfinite(call.after[0]))[0])
    place = right.index(call.after[0].tobytes()) + 4 * finite
    with pytest.raises(AssertionError, match="sgd_step: array 0 of 9"):
        check([call], right[:place] + bytes([right[place] ^ 1]) + right[place + 1 :])
