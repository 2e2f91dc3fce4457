"""Firmware profiles: what Kellet brings, that it can be built for, and what a wrong one is told."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from kellet import firmware_profiles
from kellet.kernels.targets import TARGETS

GOOD = {
    "name": "gate",
    "arch": "aarch64",
    "triple": "aarch64-unknown-linux-gnu",
    "cpu": "cortex-a72",
}


def written(folder: Path, **changes: object) -> Path:
    path = folder / "gate.toml"
    values = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    lines = [
        f"{key} = {value if isinstance(value, int) else repr(value)}\n"
        for key, value in values.items()
    ]
    path.write_text("".join(lines))
    return path


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
        loaded["pi_5"].cpu = "cortex-a53"


@pytest.mark.parametrize("name", firmware_profiles.names())
def test_every_profile_has_a_target(name: str) -> None:
    profile = firmware_profiles.load(name)
    target = TARGETS[name if profile.kernels_only else profile.arch]
    assert target.triple == profile.triple
    assert profile.cpu in (*target.tunings, *(build.cpu for build in target.builds))


def test_every_cpu_that_a_profile_may_name_can_be_built_for(tmp_path: Path) -> None:
    for cpu in TARGETS["aarch64"].tunings:
        assert firmware_profiles.read(written(tmp_path, cpu=cpu)).cpu == cpu


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no profile 'pi'; the profiles are cortex_m7, phone_arm"):
        firmware_profiles.load("pi")
    with pytest.raises(ValueError, match=r"no profile '\.\./pyproject'"):
        firmware_profiles.load("../pyproject")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 4}, "gate.toml: threads is unknown; the keys are name, arch, triple, cpu"),
        ({"cpu": None}, "gate.toml: cpu is missing; the keys are name, arch, triple, cpu"),
        ({"cpu": 72}, "gate.toml: cpu is 72; it must be a string"),
        (
            {"name": "door"},
            "gate.toml: name is 'door'; as a profile is found by its file, it may be gate",
        ),
        (
            {"arch": "riscv64"},
            "gate.toml: arch is 'riscv64'; as there are kernels for these alone, "
            "it may be aarch64 or thumbv7em or x86_64",
        ),
        (
            {"triple": "aarch64-linux-android"},
            "gate.toml: triple is 'aarch64-linux-android'; as arch is aarch64, "
            "it may be aarch64-unknown-linux-gnu",
        ),
        (
            {"cpu": "cortex-m7"},
            "gate.toml: cpu is 'cortex-m7'; as arch is aarch64, "
            "it may be cortex-a53 or cortex-a72 or cortex-a76 or generic",
        ),
    ],
)
def test_a_wrong_key_is_named_with_the_reason(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        firmware_profiles.read(written(tmp_path, **changes))
    assert str(caught.value) == message


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gate.toml"
    path.write_text("name = ")
    with pytest.raises(ValueError, match=r"gate\.toml is not TOML: "):
        firmware_profiles.read(path)
    with pytest.raises(FileNotFoundError):
        firmware_profiles.read(tmp_path / "absent.toml")
