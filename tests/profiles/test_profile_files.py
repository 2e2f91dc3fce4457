"""Firmware profiles: what Kellet brings, that it can be built for, and what a wrong one is told."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path
from typing import Any

import pytest

from kellet import firmware_profiles
from kellet.firmware_profiles import Participation, WrongKey
from kellet.firmware_profiles import profile as module
from kellet.kernels.targets import TARGETS

GOOD: dict[str, Any] = {
    "name": "gate",
    "arch": "aarch64",
    "triple": "aarch64-unknown-linux-gnu",
    "cpu": "cortex-a72",
    "memory_mb": 1000,
    "memory_budget_mb": 300,
    "storage_budget_mb": 200,
    "threads": 2,
    "schemes": ["f32", "w8.row"],
    "shift": "f32",
    "max_message_bytes": 65536,
    "uplink_codec": "f32",
    "algorithm": "scaffold",
}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "gate.toml"
    values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    policy = values.pop("participation", None)
    lines = [f"{key} = {toml(value)}\n" for key, value in values.items()]
    if isinstance(policy, dict):
        lines += ["[participation]\n", *(f"{key} = {toml(v)}\n" for key, v in policy.items())]
    elif policy is not None:
        lines.append(f"participation = {toml(policy)}\n")
    path.write_text("".join(lines))
    return path


def toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def refusal(folder: Path, **changes: object) -> WrongKey:
    with pytest.raises(WrongKey) as caught:
        firmware_profiles.read(written(folder, **changes))
    return caught.value


def test_the_profiles() -> None:
    loaded = {name: firmware_profiles.load(name) for name in firmware_profiles.names()}
    assert {name: profile.cpu for name, profile in loaded.items()} == {
        "cortex_m7": "cortex-m7",
        "phone_arm64": "cortex-a76",
        "phone_arm64_low": "cortex-a53",
        "pi_3b": "cortex-a53",
        "pi_4b": "cortex-a72",
        "pi_5": "cortex-a76",
        "pi_zero_2w": "cortex-a53",
        "x86_64": "generic",
    }
    assert [name for name, profile in loaded.items() if profile.kernels_only] == ["cortex_m7"]
    with pytest.raises(FrozenInstanceError):
        loaded["pi_5"].cpu = "cortex-a53"  # type: ignore[misc]


@pytest.mark.parametrize("name", firmware_profiles.names())
def test_every_profile_has_a_target(name: str) -> None:
    profile = firmware_profiles.load(name)
    target = TARGETS[name if profile.kernels_only else profile.arch]
    assert target.triple == profile.triple
    assert profile.cpu in (*target.tunings, *(build.cpu for build in target.builds))


@pytest.mark.parametrize("name", firmware_profiles.names())
def test_each_value_has_its_reason_beside_it(name: str) -> None:
    """Comments say why; every profile of a class that trains says how hot it may get."""
    path = Path(firmware_profiles.__file__).parent / f"{name}.toml"
    assert path.read_text().count("\n#") >= (1 if name == "cortex_m7" else 5)
    profile = firmware_profiles.load(name)
    if not profile.kernels_only:
        assert profile.participation.max_celsius is not None
        assert 0.1 <= profile.memory_budget_mb / profile.memory_mb <= 0.5


def test_a_dot_product_is_where_an_int8_forward_is() -> None:
    """Cortex-A53 and A72 have none (they are of Arm v8.0)."""
    for name in firmware_profiles.names():
        profile = firmware_profiles.load(name)
        has_dot = profile.cpu in ("cortex-a76", "generic")
        assert ("w8.row+a8" in profile.schemes) is has_dot, name


def test_every_cpu_that_a_profile_may_name_can_be_built_for(tmp_path: Path) -> None:
    for cpu in TARGETS["aarch64"].tunings:
        assert firmware_profiles.read(written(tmp_path, cpu=cpu)).cpu == cpu


def test_all_that_is_written_is_read(tmp_path: Path) -> None:
    policy = {
        "charging": True,
        "unmetered": True,
        "min_battery": 40,
        "max_celsius": 71.5,
        "quiet_hours": "22:00-07:30",
    }
    profile = firmware_profiles.read(written(tmp_path, participation=policy))
    assert asdict(profile) == {**GOOD, "schemes": ("f32", "w8.row"), "participation": policy}
    assert profile.participation.quiet_minutes == (22 * 60, 7 * 60 + 30)
    assert firmware_profiles.read(written(tmp_path)).participation == Participation()
    assert Participation().quiet_minutes is None


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no profile 'pi'; the profiles are cortex_m7, phone_arm"):
        firmware_profiles.load("pi")
    with pytest.raises(ValueError, match=r"no profile '\.\./pyproject'"):
        firmware_profiles.load("../pyproject")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"thread": 4}, "thread is unknown: no key is so called - did you mean threads?"),
        (
            {"colour": 4},
            "colour is unknown: no key is so called - the keys are name, arch, triple, cpu, "
            "memory_mb, memory_budget_mb, storage_budget_mb, threads, schemes, shift, "
            "max_message_bytes, uplink_codec, algorithm, participation",
        ),
        ({"cpu": None}, "cpu is missing: nothing stands for it - it may be a text"),
        ({"cpu": 72}, "cpu is 72: it is a name of LLVM's - it may be a text"),
        ({"name": "door"}, "name is 'door': a profile is found by its file - it may be gate"),
        (
            {"arch": "riscv64"},
            "arch is 'riscv64': there are kernels for these alone - "
            "it may be aarch64 or thumbv7em or x86_64",
        ),
        (
            {"triple": "aarch64-linux-android"},
            "triple is 'aarch64-linux-android': arch is aarch64 - "
            "it may be aarch64-unknown-linux-gnu",
        ),
        (
            {"cpu": "cortex-m7"},
            "cpu is 'cortex-m7': arch is aarch64 - "
            "it may be cortex-a53 or cortex-a72 or cortex-a76 or generic",
        ),
        (
            {"memory_budget_mb": 1001},
            "memory_budget_mb is 1001: the device has memory_mb = 1000 - "
            "it may be as much as the system can spare",
        ),
        (
            {"memory_budget_mb": 84},
            "memory_budget_mb is 84: Python and onnxruntime take 85 before anything is trained - "
            "it may be a whole number from 85 to 4000000 MB",
        ),
        (
            {"uplink_codec": "topk:0.05"},
            "uplink_codec is 'topk:0.05': delta_y travels in one of these, and the share of topk "
            "is the fleet's - it may be f32 or q8 or topk",
        ),
        (
            {"storage_budget_mb": 4},
            "storage_budget_mb is 4: the log of the device's database takes 5 - "
            "it may be a whole number from 5 to 4000000 MB",
        ),
        (
            {"threads": 1.5},
            "threads is 1.5: one training runs in as many threads - "
            "it may be a whole number from 1 to 64",
        ),
        (
            {"threads": True},
            "threads is True: one training runs in as many threads - "
            "it may be a whole number from 1 to 64",
        ),
        (
            {"max_message_bytes": 1 << 21},
            "max_message_bytes is 2097152: parts of an update are of these sizes - "
            "it may be a whole number from 1024 to 1048576 bytes",
        ),
        (
            {"schemes": ["f32", "w4"]},
            "schemes is ['f32', 'w4']: a device trains in one of these - "
            "it may be a list of f32, w8.row, w8.block64, w8.row+a8, each once, the best first",
        ),
        (
            {"quantization": "int8"},
            "quantization is no key here: schemes says which quantized variants a device takes, "
            "as a list - write schemes",
        ),
        (
            {"ram_mb": 512},
            "ram_mb is no key here: it is called memory_mb; what training may take of it is "
            "memory_budget_mb - write memory_mb",
        ),
        (
            {"participation": {"charge": True}},
            "participation.charge is unknown: no key is so called - did you mean charging?",
        ),
        (
            {"participation": {"wifi_only": True}},
            "participation.wifi_only is no key here: it is called unmetered; a mobile link shared "
            "over Wi-Fi looks like Wi-Fi - write unmetered",
        ),
        (
            {"participation": {"quiet_hours": "22-7"}},
            "participation.quiet_hours is '22-7': it is a span of the day that begins and ends at "
            "two times - it may be HH:MM-HH:MM in local time, such as 22:00-07:00, or empty",
        ),
        (
            {"participation": {"max_celsius": 20}},
            "participation.max_celsius is 20: a processor at work is within these - "
            "it may be a number from 30 to 150 degrees",
        ),
        (
            {"participation": 3},
            "participation is 3: it holds the conditions - it may be a table",
        ),
    ],
)
def test_a_wrong_key_is_named_with_the_reason(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    assert str(refusal(tmp_path, **changes)) == f"gate.toml: {message}"


@pytest.mark.parametrize("key", [key for key in GOOD if key != "name"])
def test_every_key_is_wanted(key: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, **{key: None}).what == "is missing"


@pytest.mark.parametrize("hours", ["24:00-07:00", "22:60-07:00", "07:00-07:00", "7:00-8:00", " "])
def test_hours_that_are_none_are_refused(hours: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, participation={"quiet_hours": hours}).key == (
        "participation.quiet_hours"
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_ceiling_is_a_number(value: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text() + f"[participation]\nmax_celsius = {value}\n")
    with pytest.raises(WrongKey, match="from 30 to 150 degrees"):
        firmware_profiles.read(path)


def test_kernels_alone_have_no_process_to_speak_of(tmp_path: Path) -> None:
    chip = {
        **dict.fromkeys(GOOD),
        "name": "gate",
        "arch": "thumbv7em",
        "triple": "thumbv7em-unknown-none-eabihf",
        "cpu": "cortex-m7",
        "memory_mb": 2,
    }
    assert firmware_profiles.read(written(tmp_path, **chip)).kernels_only
    error = refusal(tmp_path, **{**chip, "threads": 1})
    assert (error.key, error.what) == ("threads", "says nothing")
    assert error.why == "arch is thumbv7em, which runs no Python: the kernels alone"


def test_a_profile_is_changed_in_part(tmp_path: Path) -> None:
    phone = firmware_profiles.load("phone_arm64")
    changes = {"threads": 4, "participation": {"charging": False, "quiet_hours": "08:00-22:00"}}
    changed = phone.changed(changes, where="kellet.toml")
    assert changed.threads == 4
    assert changed.schemes == phone.schemes
    assert changed.participation == Participation(
        unmetered=True, min_battery=50, max_celsius=65, quiet_hours="08:00-22:00"
    )
    assert phone.changed({}, where="") == phone
    for wrong, key in (
        ({"threads": 0}, "threads"),
        ({"cpu": "cortex-a72"}, "cpu"),
        ({"participation": {"max_celsius": "hot"}}, "participation.max_celsius"),
        ({"participation": 5}, "participation"),
        ({"memory_budget_mb": 4000}, "memory_budget_mb"),
    ):
        with pytest.raises(WrongKey) as caught:
            phone.changed(wrong, where="kellet.toml")
        assert (caught.value.where, caught.value.key) == ("kellet.toml", key)
    chip = firmware_profiles.load("cortex_m7")
    with pytest.raises(WrongKey, match="runs no Python"):
        chip.changed({"threads": 1}, where="kellet.toml")


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    path.write_text("name = ")
    with pytest.raises(ValueError, match=r"gate\.toml is not TOML: "):
        firmware_profiles.read(path)
    with pytest.raises(FileNotFoundError):
        firmware_profiles.read(tmp_path / "absent.toml")


def test_the_reader_needs_the_standard_library_alone() -> None:
    """setup.py loads it where nothing is installed."""
    source = Path(module.__file__).read_text()
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names
    code = (
        "import importlib.util, sys; "
        f"spec = importlib.util.spec_from_file_location('alone', {module.__file__!r}); "
        "alone = importlib.util.module_from_spec(spec); sys.modules['alone'] = alone; "
        "spec.loader.exec_module(alone); print(alone.load('pi_4b').cpu)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "cortex-a72\n"
