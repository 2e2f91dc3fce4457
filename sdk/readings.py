"""What the board's sensors say, read from Linux's /sys and /proc.

A sensor that is not there reads as None. What that means for training is
``kellet.sdk.participation``'s to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

__all__ = ["Readings", "Sensors", "text_of"]

# A zone of the processor, as kernels name them; others measure a modem, a charger or the case.
_PROCESSOR = re.compile(r"cpu|soc|core|x86_pkg|package|cluster|big|little|acpitz", re.IGNORECASE)
_PROCESSOR_CHIPS = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
_PLAUSIBLE = (-40.0, 150.0)  # a zone that is off says -274, 0x80000000 or the like

_ROUTE_UP = 0x1
_PPP, _RAW_IP = 512, 519  # link types of modems (include/uapi/linux/if_arp.h)
_MODEM_NAMES = re.compile(r"(wwan|rmnet|ccmni|ppp|wwp)")
# Modems, and phones that share their own link over the cable. An Ethernet chip on the USB,
# such as every Pi before the 4 has on its board, is none of these.
_MODEM_DRIVERS = frozenset(
    {"cdc_mbim", "huawei_cdc_ncm", "ipheth", "option", "qmi_wwan", "rndis_host", "sierra_net"}
)


@dataclass(frozen=True, kw_only=True)
class Readings:
    """One look at the sensors.

    ``charging``: external power is there; None where there is no battery. ``battery``:
    percent. ``celsius``: the hottest part of the processor. ``metered``: the way out of here
    is a mobile link. ``minute``: of the day, in local time. None: there is nothing that
    says so.
    """

    charging: bool | None = None
    battery: float | None = None
    celsius: float | None = None
    metered: bool | None = None
    minute: int = 0


class Sensors:
    """Reads the sensors below ``root``; ``now`` is the local time."""

    def __init__(
        self, root: Path = Path("/"), *, now: Callable[[], datetime] = datetime.now
    ) -> None:
        self._root = root
        self._now = now

    def read(self) -> Readings:
        """One look; a sensor that fails in between reads as None."""
        charging, battery = self._power()
        now = self._now()
        return Readings(
            charging=charging,
            battery=battery,
            celsius=self.celsius(),
            metered=self._metered(),
            minute=60 * now.hour + now.minute,
        )

    def celsius(self) -> float | None:
        """The hottest zone of the processor, or, where none is so called, of all zones."""
        of_processor: list[float] = []
        others: list[float] = []
        for zone in self._each("sys/class/thermal", "thermal_zone*"):
            degrees = _celsius(zone / "temp")
            if degrees is not None:
                is_its = _PROCESSOR.search(_line(zone / "type"))
                (of_processor if is_its else others).append(degrees)
        for chip in self._each("sys/class/hwmon", "hwmon*"):
            if _line(chip / "name") in _PROCESSOR_CHIPS:
                found = (_celsius(path) for path in sorted(chip.glob("temp*_input")))
                of_processor += [degrees for degrees in found if degrees is not None]
        return max(of_processor or others, default=None)

    def _power(self) -> tuple[bool | None, float | None]:
        """Whether external power is there, and the mean of the batteries."""
        plugged, levels, states = [], [], []
        for supply in self._each("sys/class/power_supply", "*"):
            if _line(supply / "scope") == "Device":
                continue  # a mouse or a headset
            if _line(supply / "type") == "Battery":
                if _line(supply / "present") == "0":
                    continue
                states.append(_line(supply / "status"))
                level = _level(supply)
                if level is not None:
                    levels.append(level)
            else:
                plugged.append(_line(supply / "online") not in ("", "0"))
        battery = sum(levels) / len(levels) if levels else None
        if not states:
            return None, None  # the ports of a desktop are listed too, as giving no power
        return any(plugged) or "Charging" in states or states.count("Full") == len(states), battery

    def _metered(self) -> bool | None:
        """Whether the best default route leads over a modem.

        A Wi-Fi that a phone shares is not told from another: NetworkManager may know that,
        but answers over D-Bus alone.
        """
        ways = sorted(self._default_routes())
        for _metric, name in ways:
            device = self._root / "sys/class/net" / name
            if (device / "device").exists() or self._is_modem(name):
                return self._is_modem(name)
        # Nothing but tunnels and bridges: whatever carries them is not in sight.
        return None if not ways else False

    def _default_routes(self) -> list[tuple[int, str]]:
        """(metric, interface) of each default route."""
        routes = []
        for line in text_of(self._root / "proc/net/route").splitlines()[1:]:
            field = line.split()
            everywhere = len(field) >= 8 and field[1] == field[7] == "00000000"
            if everywhere and int(field[3], 16) & _ROUTE_UP:
                routes.append((int(field[6]), field[0]))
        for line in text_of(self._root / "proc/net/ipv6_route").splitlines():
            field = line.split()
            everywhere = len(field) >= 10 and set(field[0] + field[1]) == {"0"}
            if everywhere and int(field[8], 16) & _ROUTE_UP and field[9] != "lo":
                routes.append((int(field[5], 16), field[9]))
        return routes

    def _is_modem(self, name: str) -> bool:
        device = self._root / "sys/class/net" / name
        driver = re.search(r"^DRIVER=(.+)$", text_of(device / "device/uevent"), re.MULTILINE)
        return bool(
            "DEVTYPE=wwan" in text_of(device / "uevent").splitlines()
            or _line(device / "type") in (str(_PPP), str(_RAW_IP))
            or _MODEM_NAMES.match(name)
            or (driver and driver[1] in _MODEM_DRIVERS)
        )

    def _each(self, folder: str, pattern: str) -> list[Path]:
        return sorted((self._root / folder).glob(pattern))


def _level(supply: Path) -> float | None:
    """Percent: as the driver says it, or from what it measures."""
    capacity = _number(supply / "capacity")
    if capacity is not None:
        return float(min(100, max(0, capacity)))
    for kind in ("energy", "charge"):
        now, full = _number(supply / f"{kind}_now"), _number(supply / f"{kind}_full")
        if now is not None and full:
            return min(100.0, 100 * now / full)
    return None


def _celsius(path: Path) -> float | None:
    value = _number(path)
    degrees = None if value is None else value / 1000
    return degrees if degrees is not None and _PLAUSIBLE[0] < degrees < _PLAUSIBLE[1] else None


def _number(path: Path) -> int | None:
    text = _line(path)
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else None


def _line(path: Path) -> str:
    return text_of(path).strip()


def text_of(path: Path) -> str:
    """What a file of the kernel's says; empty where it is not there, or its sensor is off."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
