"""Boards as Linux describes them, and the profile that each is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.boards import BOARDS, lay_out, supply

from kellet.firmware_profiles import PROCESS_MB
from kellet.sdk import board
from kellet.sdk.board import Board, detect, device_id, profile_name
from kellet.sdk.errors import UsageError
from kellet.sdk.profile import fitted, open_profile, profile_here

X86 = ("pc", "container")


def found(folder: Path, name: str, arch: str = "") -> Board:
    arch = arch or ("x86_64" if name in X86 else "aarch64")
    return detect(lay_out(folder, BOARDS[name]), arch=arch)


@pytest.mark.parametrize(
    ("name", "profile", "memory_mb", "budget_mb", "cpus", "cores"),
    [
        ("pi_zero_2w", "pi_zero_2w", 435, 200, ("cortex-a53",), 4),
        ("pi_3a", "pi_zero_2w", 435, 200, ("cortex-a53",), 4),
        ("pi_3b", "pi_3b", 948, 450, ("cortex-a53",), 4),
        ("pi_4b", "pi_4b", 3977, 900, ("cortex-a72",), 4),
        ("pi_4b_1gb", "pi_4b", 948, 474, ("cortex-a72",), 4),
        ("pi_5", "pi_5", 8443, 2000, ("cortex-a76",), 4),
        ("phone", "phone_arm64", 5888, 400, ("cortex-a55", "cortex-a76"), 8),
        ("phone_low", "phone_arm64_low", 1913, 180, ("cortex-a53",), 4),
        ("pc", "x86_64", 16635, 4000, (), 8),
        ("container", "x86_64", 536, 268, (), 3),
    ],
)
def test_each_board_gets_its_profile(
    *,
    name: str,
    profile: str,
    memory_mb: int,
    budget_mb: int,
    cpus: tuple[str, ...],
    cores: int,
    tmp_path: Path,
) -> None:
    """MB are 10^6 bytes: 425,652 kB are 435. At most half of them may be the budget."""
    here = found(tmp_path, name)
    assert profile_name(here)[0] == profile
    assert (here.memory_mb, here.cpus, here.cores) == (memory_mb, cpus, cores)
    assert fitted(open_profile(profile), here).memory_budget_mb == budget_mb


def test_what_is_told_of_a_pi(tmp_path: Path) -> None:
    assert found(tmp_path, "pi_5") == Board(
        model="Raspberry Pi 5 Model B Rev 1.0",
        arch="aarch64",
        memory_mb=8443,
        limited=False,
        cores=4,
        cpus=("cortex-a76",),
        features=("asimd", "asimddp"),
        thermometer=True,
        battery=False,
    )


def test_what_is_told_of_a_container(tmp_path: Path) -> None:
    assert found(tmp_path, "container") == Board(
        model="",
        arch="x86_64",
        memory_mb=536,
        limited=True,
        cores=3,
        cpus=(),
        features=("sse4_2", "avx2", "avx512f", "avx512_vnni"),
        thermometer=False,
        battery=False,
    )


def test_a_container_on_a_pi_finds_the_model_in_cpuinfo(tmp_path: Path) -> None:
    files = {k: v for k, v in BOARDS["pi_4b"].items() if "device-tree" not in k}
    files["proc/cpuinfo"] += "Revision\t: c03114\nModel\t\t: Raspberry Pi 4 Model B Rev 1.4\n"
    here = detect(lay_out(tmp_path, files), arch="aarch64")
    assert here.model == "Raspberry Pi 4 Model B Rev 1.4"
    assert profile_name(here)[0] == "pi_4b"


@pytest.mark.parametrize(
    ("files", "limit_mb"),
    [
        # The second version: of a group and those above it, the least holds.
        (
            {
                "proc/self/cgroup": "0::/system.slice/kellet.service\n",
                "sys/fs/cgroup/system.slice/kellet.service/memory.max": "max\n",
                "sys/fs/cgroup/system.slice/memory.max": "300000000\n",
            },
            300,
        ),
        # The first: "none" is a number near 2^63.
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
            },
            948,
        ),
        (
            {
                "proc/self/cgroup": "4:hugetlb,memory:/docker/abc\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "200000000\n",
            },
            200,
        ),
        # A limit above what is installed limits nothing.
        (
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "99000000000\n"},
            948,
        ),
        ({"proc/self/cgroup": ""}, 948),
    ],
)
def test_limits_of_control_groups(files: dict[str, str], limit_mb: int, tmp_path: Path) -> None:
    here = detect(lay_out(tmp_path, BOARDS["pi_3b"], files), arch="aarch64")
    assert (here.memory_mb, here.limited) == (limit_mb, limit_mb != 948)


@pytest.mark.parametrize(
    ("name", "cpuinfo_of", "profile"),
    [
        ("pi_zero_2w", "pi_zero_2w", "pi_zero_2w"),
        ("pi_3b", "pi_3b", "pi_3b"),
        ("pi_4b", "pi_4b", "pi_4b"),
        ("pi_5", "pi_5", "pi_5"),
        ("pi_5", "pi_3b", "pi_3b"),  # small cores, however much memory
    ],
)
def test_a_board_of_another_maker_gets_what_comes_nearest(
    name: str, cpuinfo_of: str, profile: str, tmp_path: Path
) -> None:
    other = {
        "proc/device-tree/model": "Radxa ROCK\0",
        "proc/cpuinfo": BOARDS[cpuinfo_of]["proc/cpuinfo"],
    }
    here = detect(lay_out(tmp_path, BOARDS[name], other), arch="aarch64")
    chosen, why = profile_name(here)
    assert chosen == profile
    assert "comes nearest" in why


def test_a_battery_makes_a_phone_of_it(tmp_path: Path) -> None:
    battery = supply("bat", "Battery", status="Full", capacity=100)
    files = {"proc/device-tree/model": "PinePhone\0"}
    here = detect(lay_out(tmp_path, BOARDS["pi_3b"], files, battery), arch="aarch64")
    assert here.battery
    assert profile_name(here)[0] == "phone_arm64_low"


@pytest.mark.parametrize("arch", ["armv7l", "armv6l", "armv8l"])
def test_a_32_bit_system_is_told_so(arch: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"32-bit system \(.*64-bit"):
        found(tmp_path, "pi_3b", arch)


def test_a_32_bit_python_on_a_64_bit_kernel_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"32-bit system \(aarch64\)"):
        detect(lay_out(tmp_path, BOARDS["pi_4b"]), arch="aarch64", is_64_bit=False)


def test_a_processor_without_kernels_has_no_profile(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no profile for riscv64"):
        profile_name(found(tmp_path, "pi_4b", "riscv64"))


def test_ids_of_boards_that_share_a_host_name_differ(tmp_path: Path) -> None:
    """Six digits of SHA-256("10000000deadbeef"), the board's serial number."""
    assert device_id(lay_out(tmp_path / "a", BOARDS["pi_4b"])) == "raspberrypi-99862b"
    other = {"proc/device-tree/serial-number": "10000000deadbeed\0"}
    assert device_id(lay_out(tmp_path / "b", BOARDS["pi_4b"], other)) != "raspberrypi-99862b"
    assert device_id(lay_out(tmp_path / "c", BOARDS["phone"])).startswith("localhost-")
    assert device_id(lay_out(tmp_path / "d", BOARDS["container"])) == "5f0c2e91a7b3"
    odd = {"proc/sys/kernel/hostname": "küche.example.org\n"}
    assert device_id(lay_out(tmp_path / "e", odd)) == "k-che"
    assert device_id(tmp_path / "nothing") == "device"


def test_this_machine_has_a_profile() -> None:
    profile, why = profile_here()
    assert why
    assert profile.memory_budget_mb <= max(PROCESS_MB, board.detect().memory_mb // 2)
    assert profile.threads <= board.detect().cores
