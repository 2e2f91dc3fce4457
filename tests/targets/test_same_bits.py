"""The kernels of every target that can be run here give the reference's bits.

Random bit patterns, denormals, huge values, signed zeros, infinities and NaN,
at lengths that are no multiple of any vector's.
"""

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.foreign import (
    Call,
    Program,
    build_module,
    build_runner,
    calls,
    check,
    level_of,
    pack,
    tool,
)

from kellet.kernels.table import KERNELS
from kellet.kernels.targets import TARGETS

ARM64 = ("qemu-aarch64-static", "-cpu", "cortex-a53")
ARM32 = ("qemu-arm-static", "-cpu", "cortex-a9")
# Emulators want a whole board for a microcontroller. A processor for applications knows the same
# instructions, and its program's 32-bit code calls the 16-bit one.
THUMB = ("qemu-arm-static", "-cpu", "max")
RUN_BY = {
    "aarch64": ARM64,
    "android_arm64": ARM64,
    "armv7": ARM32,
    "cortex_m4": THUMB,
    "cortex_m7": THUMB,
    "wasm32": (),
    "x86_64": (),
}
OPTIONS = {
    ARM64: ("-target", "aarch64-freestanding"),
    ARM32: ("-target", "arm-freestanding-eabihf", "-mcpu=cortex_a9"),
    THUMB: ("-target", "arm-freestanding-eabihf", "-mcpu=cortex_a9"),
    (): ("-target", "x86_64-freestanding"),
}
Build = Callable[..., Program]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build a target's program once, or skip where it cannot be run."""

    @cache
    def built(target: str, cpu: str = "generic") -> Program:
        emulator = RUN_BY[target]
        command = [tool(name) for name in emulator[:1]]
        folder = tmp_path_factory.mktemp(f"{target}-{cpu}")
        if target == "wasm32":
            return build_module(folder)
        program = build_runner(target, folder, *OPTIONS[emulator], cpu=cpu)
        return program.under(*command, *emulator[1:])

    return built


@pytest.fixture(scope="module")
def batch() -> list[Call]:
    few = calls(KERNELS, (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65), range(3))
    return few + calls(KERNELS, (1031, 4097), range(1))


@pytest.mark.parametrize("target", [target for target in RUN_BY if target != "x86_64"])
def test_target_gives_the_reference_bits(target: str, build: Build, batch: list[Call]) -> None:
    program = build(target)
    assert len(program.held(batch)) > len(batch) / 3
    program.check(batch)


@pytest.mark.parametrize("cpu", [cpu for cpu in TARGETS["aarch64"].tunings if cpu != "generic"])
def test_tuning_changes_no_bit(cpu: str, build: Build, batch: list[Call]) -> None:
    build("aarch64", cpu).check(batch)


@pytest.mark.parametrize(("processor", "level"), [("Nehalem", 2), ("Haswell", 3)])
def test_emulated_x86_chooses_its_level(
    processor: str, level: int, build: Build, batch: list[Call]
) -> None:
    program = build("x86_64").under(tool("qemu-x86_64-static"), "-cpu", processor)
    assert level_of(program.answer([])) == level
    program.check(batch)


def test_this_x86_chooses_its_level(build: Build, batch: list[Call]) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("this is no x86-64 processor")
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n")[0].split())
    wide = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    program = build("x86_64")
    assert level_of(program.answer([])) == 2 + ("avx2" in flags) + (wide <= flags)
    program.check(batch)


@pytest.mark.parametrize("target", ["aarch64", "armv7", "wasm32"])
@settings(deadline=None, max_examples=10)
@given(n=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_target_gives_the_reference_bits_on_anything(
    target: str, build: Build, n: int, seed: int
) -> None:
    build(target).check(calls(KERNELS, [n], [seed]))


def test_a_wrong_bit_would_be_seen(batch: list[Call]) -> None:
    call = next(call for call in batch if call.kernel == "sgd_step" and call.arrays[0].size == 9)
    right = pack([call._replace(arrays=call.after)], ("sgd_step",))
    check([call], right)
    finite = int(np.flatnonzero(np.isfinite(call.after[0]))[0])
    place = right.index(call.after[0].tobytes()) + 4 * finite
    with pytest.raises(AssertionError, match="sgd_step: array 0 of 9"):
        check([call], right[:place] + bytes([right[place] ^ 1]) + right[place + 1 :])
