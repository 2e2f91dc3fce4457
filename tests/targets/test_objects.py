"""What each target's file holds: every kernel, no fused arithmetic, nothing from elsewhere."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.foreign import objects

from kellet.kernels import _symbols, compile
from kellet.kernels._link import link
from kellet.kernels.table import KERNELS
from kellet.kernels.targets import TARGETS

OTHERS = [name for name, target in TARGETS.items() if len(target.builds) == 1]
# 32-bit ARM, whose vmla rounds twice; WebAssembly.
FUSED = re.compile(r"\bvfn?m[as]\b|\brelaxed_n?madd\b")
NEON = re.compile(r"\bq1?[0-9]\b|\bd(?:1[6-9]|2[0-9]|3[01])\b")


@pytest.mark.parametrize("target", OTHERS)
def test_objects_need_nothing_and_hold_what_they_say(target: str) -> None:
    contents, kernels = objects(target, "generic")
    (content,) = contents
    assert _symbols.undefined_symbols(content) == []
    if content.startswith(b"\0asm"):
        return  # an object's own functions are not exports; the linked module's are
    defined = _symbols.defined_symbols(content)
    assert {name for name in defined if name.startswith("kellet_")} == {
        *(f"kellet_{kernel}" for kernel in kernels),
        "kellet_kernels_identity",
    }


@pytest.mark.parametrize("target", OTHERS)
def test_all_but_single_precision_processors_have_every_kernel(target: str) -> None:
    kernels = objects(target, "generic").kernels
    assert (kernels == tuple(KERNELS)) == (target != "cortex_m4")


@pytest.mark.parametrize("name", ["armv7", "cortex_m7", "wasm32"])
def test_no_arithmetic_is_fused_and_32_bit_arm_is_scalar(name: str) -> None:
    target = TARGETS[name]
    module, machine, _ = compile.kernel_module(target, target.builds[0])
    assembly = machine.emit_assembly(module)
    instructions = "\n".join(re.findall(r"^\t[^.].*", assembly, re.MULTILINE))
    assert not FUSED.search(instructions)
    if name == "wasm32":
        assert "f32x4.mul" in instructions
    else:
        assert "vmul.f32\ts" in instructions
        assert not NEON.search(instructions)


def test_a_call_of_the_run_time_library_would_be_seen() -> None:
    target = TARGETS["armv7"]._replace(own_conversions=False)
    module, machine, _ = compile.kernel_module(target, target.builds[0])
    undefined = _symbols.undefined_symbols(machine.emit_object(module))
    assert undefined == ["__aeabi_d2lz", "__aeabi_l2d", "__aeabi_ul2d"]


@pytest.mark.parametrize("name", ["aarch64", "android_arm64", "armv7", "wasm32"])
def test_files_need_nothing_and_give_the_kernels(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    out = tmp_path / f"kernels{target.suffixes()[0]}"
    link(objects(name, "generic").contents, name, out)
    content = out.read_bytes()
    assert _symbols.undefined_symbols(content) == []
    names = set(_symbols.defined_symbols(content)) - {"kellet_kernels_identity"}
    assert names == {f"kellet_{kernel}" for kernel in KERNELS}
    assert [*tmp_path.iterdir()] == [out]
    assert (out.name.encode() in content) == (name == "android_arm64")


def test_tuning_makes_another_object_that_says_so() -> None:
    contents = [objects("aarch64", cpu).contents[0] for cpu in TARGETS["aarch64"].tunings]
    assert len(set(contents)) == len(contents)
    for cpu, content in zip(TARGETS["aarch64"].tunings, contents, strict=True):
        assert content.count(f"tuned-for:{cpu}\0".encode()) == 1


def test_a_wrong_request_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cortex-a53, cortex-a72, cortex-a76, not cortex-a9"):
        compile.compile_objects("aarch64", "cortex-a9")
    for arguments, reason in (
        (["--target", "vax"], "invalid choice: 'vax'"),
        (["--target", "wasm32", "--out", "k.so"], "must end in .wasm or .o: k.so"),
        (["--target", "x86_64", "--out", "k.o"], "must end in .so: k.o"),
        (["--target", "cortex_m4"], "--out is needed for cortex_m4"),
        (["--target", "armv7", "--out", "k.so", "--cpu", "cortex-a9"], "must be one of generic"),
    ):
        command = [sys.executable, "-m", "kellet.kernels.compile", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 2
        assert reason in done.stderr


def test_x86_is_compiled_on_x86_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(ValueError, match="x86_64 is compiled on x86_64 alone, and this is aarch64"):
        compile.compile_objects("x86_64")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(sys, "argv", ["compile"])
    with pytest.raises(SystemExit):
        compile.main()


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="ELF"):
        _symbols.undefined_symbols(b"MZ" + bytes(100))


def test_the_page_of_targets_tells_the_truth() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "targets.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(TARGETS)
    for name, files in rows:
        assert re.findall(r"`(\.\w+)`", files) == list(TARGETS[name].suffixes())
    listed = page.split("its header says so: ", 1)[1].split(". ", 1)[0]
    held = objects("cortex_m4", "generic").kernels
    assert re.findall(r"`(\w+)`", listed) == [kernel for kernel in KERNELS if kernel not in held]
