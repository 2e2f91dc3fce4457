"""Sensors: what is read from /sys and /proc, and what is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pytest
from support.boards import BOARDS, default_route, lay_out, supply, zone

from kellet.sdk.readings import Readings, Sensors

REAL = {"type": "1\n", "uevent": "", "device/uevent": "DRIVER=brcmfmac\n"}


def read(root: Path, *files: Mapping[str, str]) -> Readings:
    return Sensors(lay_out(root, *files), now=lambda: datetime(2026, 3, 1, 6, 45)).read()


def test_a_phone_on_the_charger(tmp_path: Path) -> None:
    assert read(tmp_path, BOARDS["phone"]) == Readings(
        charging=True, battery=81, celsius=47.8, metered=False, minute=6 * 60 + 45
    )


def test_a_phone_on_the_road(tmp_path: Path) -> None:
    assert read(tmp_path, BOARDS["phone_low"]) == Readings(
        charging=False, battery=55, celsius=39, metered=True, minute=405
    )


def test_a_pi(tmp_path: Path) -> None:
    assert read(tmp_path, BOARDS["pi_4b"]) == Readings(celsius=48.312, minute=405)


def test_a_pc(tmp_path: Path) -> None:
    """The Wi-Fi card's 75 degrees are not the processor's, and a port that gives no power is
    no sign of a battery."""
    assert read(tmp_path, BOARDS["pc"]) == Readings(celsius=61, metered=False, minute=405)


def test_a_container_without_sensors(tmp_path: Path) -> None:
    assert read(tmp_path, BOARDS["container"]) == Readings(minute=405)


@pytest.mark.parametrize(
    ("files", "celsius"),
    [
        (zone(0, "gpu", 51000), 51),  # better than nothing
        ({**zone(0, "gpu", 71000), **zone(1, "cpu_thermal", 51000)}, 51),
        (zone(0, "cpu", -274000), None),
        (zone(0, "cpu", "4294967295000"), None),
        (zone(0, "cpu", ""), None),
        (zone(0, "cpu", "N/A"), None),
        ({"sys/class/thermal/thermal_zone0/type": "cpu"}, None),
        (
            {
                "sys/class/hwmon/hwmon0/name": "nvme\n",
                "sys/class/hwmon/hwmon0/temp1_input": "80000\n",
                "sys/class/hwmon/hwmon1/name": "k10temp\n",
                "sys/class/hwmon/hwmon1/temp1_input": "55125\n",
                "sys/class/hwmon/hwmon1/temp3_input": "57250\n",
            },
            57.25,
        ),
    ],
)
def test_thermometers(files: Mapping[str, str], celsius: float | None, tmp_path: Path) -> None:
    assert read(tmp_path, files).celsius == celsius


def battery(**facts: object) -> Mapping[str, str]:
    return supply("BAT0", "Battery", **facts)


@pytest.mark.parametrize(
    ("files", "charging", "level"),
    [
        (battery(status="Discharging", capacity=40), False, 40),
        (battery(status="Charging", capacity=40), True, 40),
        (battery(status="Full", capacity=100), True, 100),
        (battery(status="Unknown", capacity=90), False, 90),
        (
            {**battery(status="Not charging", capacity=80), **supply("AC", "Mains", online=1)},
            True,
            80,
        ),
        (
            {**battery(status="Discharging", capacity=80), **supply("AC", "Mains", online=0)},
            False,
            80,
        ),
        # A charger that is too weak is external power all the same.
        (
            {**battery(status="Discharging", capacity=80), **supply("usb", "USB", online=1)},
            True,
            80,
        ),
        (battery(status="Charging", energy_now=30_000_000, energy_full=40_000_000), True, 75),
        (battery(status="Charging", charge_now=1_000_000, charge_full=4_000_000), True, 25),
        (battery(status="Charging"), True, None),
        (battery(status="Discharging", capacity=20, present=0), None, None),
        (battery(status="Discharging", capacity=20, scope="Device"), None, None),
        (
            {
                **battery(status="Discharging", capacity=20),
                **supply("BAT1", "Battery", status="Discharging", capacity=100),
            },
            False,
            60,
        ),
        (supply("AC", "Mains", online=0), None, None),
    ],
)
def test_power(
    files: Mapping[str, str], charging: bool | None, level: float | None, tmp_path: Path
) -> None:
    readings = read(tmp_path, files)
    assert (readings.charging, readings.battery) == (charging, level)


@pytest.mark.parametrize(
    ("files", "metered"),
    [
        (default_route(("wlan0", 600), wlan0=REAL), False),
        (default_route(("wwan0", 700), wwan0={**REAL, "uevent": "DEVTYPE=wwan\n"}), True),
        (default_route(("ppp0", 0), ppp0={"type": "512\n"}), True),
        (default_route(("rmnet_data0", 0), rmnet_data0={"type": "519\n"}), True),
        # A phone that shares its link over the cable; its name may be any.
        (
            default_route(("enx0a", 100), enx0a={**REAL, "device/uevent": "DRIVER=rndis_host\n"}),
            True,
        ),
        # The Ethernet chip on a Pi 3's board hangs on the USB.
        (default_route(("eth0", 100), eth0={**REAL, "device/uevent": "DRIVER=smsc95xx\n"}), False),
        # The lower metric is the way that is taken.
        (
            default_route(
                ("wwan0", 700), ("eth0", 100), eth0=REAL, wwan0={**REAL, "uevent": "DEVTYPE=wwan\n"}
            ),
            False,
        ),
        # A tunnel is carried by something: the way beneath it decides.
        (
            default_route(
                ("wg0", 0),
                ("wwan0", 700),
                wg0={"type": "65534\n"},
                wwan0={**REAL, "uevent": "DEVTYPE=wwan\n"},
            ),
            True,
        ),
        (default_route(("wg0", 0), wg0={"type": "65534\n"}), False),
        (default_route(), None),
        (
            {
                **default_route(wwan0={**REAL, "uevent": "DEVTYPE=wwan\n"}),
                "proc/net/ipv6_route": (
                    f"{'0' * 32} 00 {'0' * 32} 00 fe80{'0' * 27}1 00000400 00000002 "
                    "00000000 00450003    wwan0\n"
                    f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 00000001 00000000 "
                    "00200200       lo\n"
                ),
            },
            True,
        ),
    ],
)
def test_the_way_out(files: Mapping[str, str], metered: bool | None, tmp_path: Path) -> None:
    assert read(tmp_path, files).metered is metered
