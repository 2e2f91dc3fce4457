"""A full disk ends a process with a clear error; nothing is lost, and it goes on afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.rows import record
from support.fleet import Child, Fleet, MakeFleet

from kellet.sdk.errors import StorageError

PAGE = 4096


class SmallDisk:
    """A file system of 2 MB that can be filled to the last page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, *, but: int = 0) -> None:
        """Leave ``but`` pages."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(PAGE))
            except OSError:
                pass
            file.truncate(os.fstat(file.fileno()).st_size // PAGE * PAGE - but * PAGE)

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield SmallDisk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _ends_for_want_of_space(child: Child) -> None:
    assert child.end() == StorageError.exit_code
    (told,) = child.reports("error")
    assert told["type"] == "StorageError"
    assert "free some space on the disk; nothing was lost" in told["text"]


def test_a_devices_disk_is_full(make_fleet: MakeFleet, disk: SmallDisk) -> None:
    fleet = make_fleet("a b", rounds=6)
    (fleet.folder / "a").symlink_to(disk.folder)
    aggregator = fleet.aggregator()
    device_a, device_b = fleet.device("a"), fleet.device("b")
    aggregator.wait_for("round", round=2)
    disk.fill()
    _ends_for_want_of_space(device_a)
    _ends_for_want_of_space(fleet.device("a"))  # its start cannot be written down
    disk.free()
    assert fleet.device("a").end() == 0
    assert [aggregator.end(), device_b.end()] == [0, 0]
    fleet.check_undisturbed()
    record(
        "a device's disk full (a small tmpfs)",
        2,
        "ended with a clear error, went on once there was room; the undisturbed run's models",
    )


def test_the_aggregators_disk_is_full(make_fleet: MakeFleet, disk: SmallDisk) -> None:
    fleet = make_fleet("a b c", rounds=3)
    (fleet.folder / "server").symlink_to(disk.folder)
    aggregator = fleet.aggregator()
    device_a, device_b = fleet.device("a"), fleet.device("b")
    device_b.wait_for("welcome")
    device_b.pause()
    device_c = fleet.device("c")
    for device in (device_a, device_c):
        device.wait_for("settled", round=1)
    disk.fill()
    device_b.resume()
    told = aggregator.wait_for("storage")  # no room for its update: it is asked to wait
    assert "the disk is full - free some space" in told["error"]
    device_c.kill()
    device_c = fleet.device("c")
    _ends_for_want_of_space(aggregator)  # nor for a line in the ledger
    _ends_for_want_of_space(fleet.aggregator())
    disk.free()
    assert fleet.aggregator().end() == 0
    assert [device.end() for device in (device_a, device_b, device_c)] == [0, 0, 0]
    fleet.check_undisturbed()
    record(
        "the aggregator's disk full (a small tmpfs): for an update, for a row, at its start",
        3,
        "told the device to wait, then ended with a clear error; the undisturbed run's models",
    )


@pytest.mark.parametrize("who", ["a", "aggregator"])
def test_a_file_may_not_grow(make_fleet: MakeFleet, who: str) -> None:
    """A quota: the same, wherever a file system cannot be mounted."""
    fleet = make_fleet("a b", rounds=20)
    limited = {"file_limit": 80_000 if who == "a" else 200_000}
    device_b = fleet.device("b")
    if who == "a":
        aggregator = fleet.aggregator()
        _ends_in_the_middle(fleet, fleet.device("a", **limited))
        device_a = fleet.device("a")
    else:
        device_a = fleet.device("a")
        _ends_in_the_middle(fleet, fleet.aggregator(**limited))
        aggregator = fleet.aggregator()
    assert [aggregator.end(), device_a.end(), device_b.end()] == [0, 0, 0]
    fleet.check_undisturbed()
    record(
        f"a file of the {'device' if who == 'a' else 'aggregator'} may not grow (RLIMIT_FSIZE)",
        1,
        "ended with a clear error, went on without the limit; the undisturbed run's models",
    )


def _ends_in_the_middle(fleet: Fleet, child: Child) -> None:
    assert child.end() == StorageError.exit_code
    (told,) = child.reports("error")
    assert told["type"] == "StorageError"
    assert 1 <= len(fleet.ledger.models()) < 20
