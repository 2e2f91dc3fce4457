"""Files of /sys and /proc as real boards have them, laid out below a directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["BOARDS", "default_route", "lay_out", "supply", "zone"]

Files = Mapping[str, str]


def lay_out(root: Path, *parts: Files) -> Path:
    """Write the files of all ``parts`` below ``root``."""
    for files in parts:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root


def zone(number: int, kind: str, millidegrees: int | str) -> Files:
    """A thermal zone."""
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{millidegrees}\n"}


def supply(name: str, kind: str, **facts: object) -> Files:
    """A power supply: a battery, a charger, a port."""
    folder = f"sys/class/power_supply/{name}"
    return {
        f"{folder}/type": f"{kind}\n",
        **{f"{folder}/{key}": f"{value}\n" for key, value in facts.items()},
    }


def default_route(*ways: tuple[str, int], **devices: Mapping[str, str]) -> Files:
    """Default routes (interface, metric), and what /sys says of the interfaces.

    ``devices``: interface to the files in its folder; "device/uevent" makes it a real one.
    """
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    rows = [f"{name}\t00000000\t0101A8C0\t0003\t0\t0\t{m}\t00000000\t0\t0\t0\n" for name, m in ways]
    local = "eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    files = {"proc/net/route": head + local + "".join(rows)}
    for name, facts in devices.items():
        for file, text in facts.items():
            files[f"sys/class/net/{name}/{file}"] = text
    return files


def _arm(*parts: int, features: str = "fp asimd evtstrm crc32 cpuid") -> str:
    core = "processor\t: {}\nFeatures\t: {}\nCPU implementer\t: 0x41\nCPU part\t: {:#x}\n\n"
    return "".join(core.format(i, features, part) for i, part in enumerate(parts))


def _pi(model: str, kilobytes: int, part: int, features: str = "fp asimd crc32 cpuid") -> Files:
    return {
        "proc/device-tree/model": model + "\0",
        "proc/device-tree/serial-number": "10000000deadbeef\0",
        "proc/meminfo": f"MemTotal:       {kilobytes} kB\nMemFree:  1000 kB\n",
        "proc/cpuinfo": _arm(part, part, part, part, features=features),
        "proc/sys/kernel/hostname": "raspberrypi\n",
        "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-1.scope\n",
        "sys/devices/system/cpu/online": "0-3\n",
        **zone(0, "cpu-thermal", 48312),
    }


_DOT = "fp asimd evtstrm aes crc32 atomics asimddp"
BOARDS: dict[str, Files] = {
    "pi_zero_2w": _pi("Raspberry Pi Zero 2 W Rev 1.0", 425_652, 0xD03),
    "pi_3a": _pi("Raspberry Pi 3 Model A Plus Rev 1.0", 425_652, 0xD03),
    "pi_3b": _pi("Raspberry Pi 3 Model B Rev 1.2", 926_504, 0xD03),
    "pi_4b": _pi("Raspberry Pi 4 Model B Rev 1.4", 3_884_420, 0xD08),
    "pi_4b_1gb": _pi("Raspberry Pi 4 Model B Rev 1.2", 926_504, 0xD08),
    "pi_5": _pi("Raspberry Pi 5 Model B Rev 1.0", 8_245_760, 0xD0B, _DOT),
    "phone": {
        "proc/device-tree/model": "Qualcomm Technologies, Inc. SM7150 MTP\0",
        "proc/meminfo": "MemTotal:        5750284 kB\n",
        "proc/cpuinfo": _arm(*[0xD05] * 6, *[0xD0B] * 2, features=_DOT),
        "proc/sys/kernel/hostname": "localhost\n",
        "etc/machine-id": "4d1c6b3a8f3e4a9e8a1d2c3b4a5f6e7d\n",
        "sys/devices/system/cpu/online": "0-7\n",
        **zone(0, "aoss0-usr", 41000),
        **zone(1, "cpu-0-0-usr", 44100),
        **zone(2, "cpu-1-1-usr", 47800),
        **zone(3, "battery", 33000),
        **zone(4, "modem0-usr", -274000),
        **supply("battery", "Battery", status="Charging", capacity=81, present=1),
        **supply("usb", "USB", online=1),
        **default_route(
            ("wlan0", 600), wlan0={"uevent": "DEVTYPE=wlan\n", "type": "1\n", "device/uevent": ""}
        ),
    },
    "phone_low": {
        "proc/device-tree/model": "MT6739\0",
        "proc/meminfo": "MemTotal:        1868532 kB\n",
        "proc/cpuinfo": _arm(*[0xD03] * 4),
        "sys/devices/system/cpu/online": "0-3\n",
        **zone(0, "mtktscpu", 39000),
        **supply("battery", "Battery", status="Discharging", capacity=55),
        **default_route(("ccmni0", 0), ccmni0={"uevent": "INTERFACE=ccmni0\n", "type": "519\n"}),
    },
    "pc": {
        "sys/class/dmi/id/product_name": "OptiPlex 7090\n",
        "proc/meminfo": "MemTotal:       16245892 kB\n",
        "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 fma\n\n",
        "proc/self/cgroup": "0::/user.slice\n",
        "sys/devices/system/cpu/online": "0-7\n",
        **zone(0, "acpitz", 27800),
        **zone(1, "x86_pkg_temp", 61000),
        **zone(2, "iwlwifi_1", 75000),
        **supply("ucsi-source-psy-USBC000:001", "USB", online=0),
        **default_route(
            ("eno1", 100),
            eno1={"uevent": "INTERFACE=eno1\n", "type": "1\n", "device/uevent": "DRIVER=e1000e\n"},
        ),
    },
    "container": {
        "proc/meminfo": "MemTotal:       16245892 kB\n",
        "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 avx512f avx512_vnni\n\n",
        "proc/self/cgroup": "0::/\n",
        "proc/sys/kernel/hostname": "5f0c2e91a7b3\n",
        "sys/fs/cgroup/memory.max": "536870912\n",
        "sys/devices/system/cpu/online": "0,2-3\n",
    },
}
