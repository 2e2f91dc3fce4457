"""The board this runs on, as Linux describes it, and the profile of its class.

Everything is read below ``root``, so that a test can lay out the files of any board.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kellet.sdk.errors import UsageError
from kellet.sdk.readings import Sensors, text_of

__all__ = ["Board", "detect", "device_id", "profile_name"]

_PI_MODELS = (  # as a device tree calls them; the first that fits counts
    (r"Raspberry Pi Zero 2", "pi_zero_2w"),
    (r"Raspberry Pi 3 Model A", "pi_zero_2w"),  # 512 MB as well
    (r"Raspberry Pi (3|Compute Module 3)", "pi_3b"),
    (r"Raspberry Pi (4|Compute Module 4)", "pi_4b"),
    (r"Raspberry Pi (5|Compute Module 5)", "pi_5"),
)
# Of MIDR_EL1, as /proc/cpuinfo has it ("CPU part"), for "CPU implementer" 0x41, Arm.
_ARM_PARTS = {
    0xD03: "cortex-a53",
    0xD04: "cortex-a35",
    0xD05: "cortex-a55",
    0xD07: "cortex-a57",
    0xD08: "cortex-a72",
    0xD09: "cortex-a73",
    0xD0A: "cortex-a75",
    0xD0B: "cortex-a76",
    0xD0C: "neoverse-n1",
    0xD0D: "cortex-a77",
    0xD41: "cortex-a78",
    0xD44: "cortex-x1",
    0xD46: "cortex-a510",
    0xD47: "cortex-a710",
    0xD49: "neoverse-n2",
    0xD4D: "cortex-a715",
    0xD80: "cortex-a520",
    0xD81: "cortex-a720",
}
_SMALL_CORES = frozenset({"cortex-a35", "cortex-a53", "cortex-a55", "cortex-a510", "cortex-a520"})
_SHOWN = ("neon", "asimd", "asimddp", "i8mm", "sse4_2", "avx2", "fma", "avx512f", "avx512_vnni")
_UNLIMITED = 1 << 60  # a cgroup of the first version says "none" by a number beyond this
_PHONE_MB = 2500  # below it, a phone is of the lower class


@dataclass(frozen=True, kw_only=True)
class Board:
    """What was found. MB are 10^6 bytes.

    ``model``: the maker's name for it, or empty. ``arch``: as ``platform.machine()`` says it.
    ``memory_mb``: the RAM that a process here may have; ``limited`` where that is a
    container's limit. ``cores``: that may be used. ``cpus``: kinds of cores, where known.
    ``features``: of the processor, those that matter to training. ``thermometer``,
    ``battery``: whether there is one.
    """

    model: str
    arch: str
    memory_mb: int
    limited: bool
    cores: int
    cpus: tuple[str, ...]
    features: tuple[str, ...]
    thermometer: bool
    battery: bool


def detect(
    root: Path = Path("/"), *, arch: str | None = None, is_64_bit: bool = sys.maxsize > 2**32
) -> Board:
    """Look at the board whose /sys and /proc lie below ``root``.

    Raises ``UsageError`` where a 32-bit system runs on it: there is no profile for one.
    """
    arch = arch or platform.machine()
    if not is_64_bit or arch.startswith(("armv6", "armv7", "armv8l", "i686")):
        raise UsageError(
            f"this is a 32-bit system ({arch})",
            why="onnxruntime has no wheels for it, though the processor may well be a 64-bit one",
            repair="install the 64-bit system, or choose a profile yourself with --profile",
        )
    installed = _memory(root)
    limit = _memory_limit(root)
    memory = min(installed, limit) if limit else installed
    cpuinfo = text_of(root / "proc/cpuinfo")
    readings = Sensors(root).read()
    return Board(
        model=_model(root, cpuinfo),
        arch=arch,
        memory_mb=memory // 10**6,
        limited=memory < installed,
        cores=_cores(root),
        cpus=_cpus(cpuinfo),
        features=_features(cpuinfo),
        thermometer=readings.celsius is not None,
        battery=readings.battery is not None,
    )


def profile_name(board: Board) -> tuple[str, str]:
    """The name of the profile of the board's class, and why it is that one.

    Raises ``UsageError`` where none comes near.
    """
    if board.arch == "x86_64":
        return "x86_64", "it is a PC or a server"
    if board.arch != "aarch64":
        raise UsageError(
            f"there is no profile for {board.arch}",
            why="the kernels are built for x86_64 and aarch64",
            repair="write one (docs/profiles.md), and name its file with --profile",
        )
    for pattern, name in _PI_MODELS:
        if re.match(pattern, board.model):
            return name, f"it is a {board.model}"
    small = bool(board.cpus) and _SMALL_CORES.issuperset(board.cpus)
    kind = " and ".join(board.cpus) or "unknown cores"
    if board.battery:
        if small or board.memory_mb < _PHONE_MB:
            return "phone_arm64_low", f"it has a battery, {kind} and {board.memory_mb} MB"
        return "phone_arm64", f"it has a battery, {kind} and {board.memory_mb} MB"
    if board.memory_mb < 800:
        name = "pi_zero_2w"
    elif small or board.memory_mb < 1500:
        name = "pi_3b"
    elif "cortex-a72" in board.cpus or board.memory_mb < 3500:
        name = "pi_4b"
    else:
        name = "pi_5"
    return name, f"with {kind} and {board.memory_mb} MB it comes nearest to that"


def device_id(root: Path = Path("/")) -> str:
    """An id for this device: its host's name and six digits of what only it has.

    Boards leave the factory with one host name, and SD cards are copied: the digits are of
    the board's serial number, or of the system's id where there is none.
    """
    host = text_of(root / "proc/sys/kernel/hostname").strip().partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", host).strip("-")[:40] or "device"
    for place in ("proc/device-tree/serial-number", "etc/machine-id"):
        own = text_of(root / place).strip("\0\n ")
        if own:  # hashed, for it is not meant to be told
            return f"{name}-{hashlib.sha256(own.encode()).hexdigest()[:6]}"
    return name


def _model(root: Path, cpuinfo: str) -> str:
    for place in ("proc/device-tree/model", "sys/firmware/devicetree/base/model"):
        model = text_of(root / place).strip("\0\n ")
        if model:
            return model
    found = re.search(r"^Model\s*:\s*(.+)$", cpuinfo, re.MULTILINE)  # a container on a Pi
    if found:
        return found[1].strip()
    return text_of(root / "sys/class/dmi/id/product_name").strip()


def _memory(root: Path) -> int:
    found = re.search(r"^MemTotal:\s*(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    if not found:
        raise UsageError(
            "the memory of this machine is not known",
            why=f"{root / 'proc/meminfo'} does not say it",
            repair="choose a profile with --profile",
        )
    return int(found[1]) * 1024


def _memory_limit(root: Path) -> int | None:
    """The least limit of the control groups that this process is in, in bytes."""
    limits = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        number, controllers, group = [*line.split(":", 2), "", ""][:3]
        tops: tuple[str, ...]
        if number == "0" and not controllers:
            tops, name = ("sys/fs/cgroup", "sys/fs/cgroup/unified"), "memory.max"
        elif "memory" in controllers.split(","):
            tops, name = ("sys/fs/cgroup/memory",), "memory.limit_in_bytes"
        else:
            continue
        parts = Path(group.lstrip("/"))
        # A limit of any group above holds too; inside a container the names of those
        # outside lead nowhere, and its own is the top.
        for top in tops:
            for place in (parts, *parts.parents):
                text = text_of(root / top / place / name).strip()
                if text.isdigit() and int(text) < _UNLIMITED:
                    limits.append(int(text))
    return min(limits, default=None)


def _cores(root: Path) -> int:
    """Cores that are online and, on this very machine, not denied to this process."""
    online = text_of(root / "sys/devices/system/cpu/online").strip()
    count = 0
    for span in filter(None, online.split(",")):
        first, _, last = span.partition("-")
        count += int(last or first) - int(first) + 1
    if root != Path("/"):
        return max(1, count)
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(count or allowed, allowed))


def _cpus(cpuinfo: str) -> tuple[str, ...]:
    parts = {int(part, 16) for part in re.findall(r"^CPU part\s*:\s*(\w+)", cpuinfo, re.MULTILINE)}
    return tuple(sorted(_ARM_PARTS.get(part, f"part-{part:x}") for part in parts))


def _features(cpuinfo: str) -> tuple[str, ...]:
    found = re.search(r"^(?:Features|flags)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    has = set(found[1].split()) if found else set()
    return tuple(feature for feature in _SHOWN if feature in has)
