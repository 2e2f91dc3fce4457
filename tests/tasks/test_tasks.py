"""The demo's data: who owns what, and that it is what it says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from kellet.sdk import tasks
from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.tasks import Task, split, task
from kellet.sdk.tasks._har import cut_windows

HAR = Path(__file__).resolve().parents[2] / "examples" / "har"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KELLET_DATA_USERS", raising=False)
    monkeypatch.delenv("KELLET_DATA_DIR", raising=False)


# ---- who is where


@pytest.mark.parametrize("name", tasks.TASKS)
@pytest.mark.parametrize("devices", [1, 8, 24])
def test_a_split_gives_every_user_one_place(name: str, devices: int) -> None:
    whole = task(name)
    shares = split(whole, devices, seed=3)
    assert list(shares.devices) == [f"device-{i}" for i in range(1, devices + 1)]
    owned = [user for users in shares.devices.values() for user in users]
    assert sorted([*owned, *shares.test_users]) == list(whole.users)
    assert len(shares.test_users) == 6
    sizes = [len(users) for users in shares.devices.values()]
    assert max(sizes) - min(sizes) <= 1


def test_the_default_split_is_this_one_for_ever() -> None:
    assert split(task("wisdm"), 8).test_users == (8, 12, 14, 15, 20, 28)
    assert split(task("wisdm"), 8).devices["device-7"] == (10, 11, 27)
    assert split(task("har"), 8).test_users == (1, 2, 10, 14, 17, 25)


def test_the_test_users_depend_on_the_seed_and_not_on_the_devices() -> None:
    whole = task("wisdm")
    assert split(whole, 3, seed=1).test_users == split(whole, 9, seed=1).test_users
    assert split(whole, 3, seed=1).test_users != split(whole, 3, seed=2).test_users


@pytest.mark.parametrize("devices", [0, 31])
def test_a_device_without_a_user_is_refused(devices: int) -> None:
    with pytest.raises(UsageError, match=r"ask for 1 to 30 devices"):
        split(task("wisdm"), devices)


def test_an_unknown_task_names_the_known() -> None:
    with pytest.raises(UsageError, match=r"no task 'mnist'.*wisdm, har"):
        task("mnist")


# ---- what a device is given


def test_a_device_called_after_a_user_gets_that_users_rows() -> None:
    x, y = tasks.wisdm("user-7")
    assert x.shape == (157, 43)
    assert np.bincount(y).tolist() == [55, 46, 19, 12, 13, 12]


def test_the_environment_names_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KELLET_DATA_USERS", "7, 1")
    x, y = tasks.wisdm("device-3")
    assert len(x) == len(y) == 157 + 152
    assert np.array_equal(x[:157], task("wisdm").load_user(7)[0])
    monkeypatch.setenv("KELLET_DATA_USERS", "7;1")
    with pytest.raises(DataError, match=r"KELLET_DATA_USERS is '7;1'.*3,7,12"):
        tasks.wisdm("device-3")


@pytest.mark.parametrize("function", [tasks.wisdm, tasks.har])
def test_a_device_that_owns_nothing_is_told_how_to(function: object) -> None:
    with pytest.raises(DataError, match=r"device 'pi-3' owns.*KELLET_DATA_USERS=3,7,12"):
        function("pi-3")  # type: ignore[operator]
    with pytest.raises(DataError, match=r"no user 99"):
        function("user-99")  # type: ignore[operator]


def test_loading_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no users"):
        task("wisdm").load([])


# ---- WISDM


def test_wisdm_is_whole_scaled_and_without_gaps() -> None:
    whole = task("wisdm")
    x, y = whole.load(whole.users)
    assert (x.shape, x.dtype, y.dtype) == ((5418, 43), np.float32, np.int64)
    assert np.isfinite(x).all()
    assert np.bincount(y).tolist() == [2081, 1625, 632, 528, 306, 246]
    trainers, _ = whole.load(split(whole, 1).devices["device-1"])
    deviation = trainers.std(axis=0, dtype=np.float64)
    assert np.abs(trainers.mean(axis=0, dtype=np.float64)).max() < 1e-5
    assert deviation[30] == 0.0  # XAVG is zero everywhere; it counts as 1
    assert np.abs(np.delete(deviation, 30) - 1).max() < 1e-5
    assert not x[:, 30].any()


def test_wisdm_ships_with_its_readme() -> None:
    folder = Path(tasks.__file__).parent
    assert "always included" in (folder / "WISDM_readme.txt").read_text()
    assert (folder / "wisdm.npz").stat().st_size < 500_000


# ---- HAR


@pytest.fixture(scope="module")
def har() -> Task:
    return task("har", HAR)


def test_har_has_every_window_of_every_user(har: Task) -> None:
    sizes, labels = [], np.zeros(6, int)
    for user in har.users:
        x, y = har.load_user(user)
        assert (x.shape[1:], x.dtype, y.dtype) == ((9, 128), np.float32, np.int64)
        assert x.flags.c_contiguous
        sizes.append(len(x))
        labels += np.bincount(y, minlength=6)
    assert sum(sizes) == 10_411
    assert min(sizes) > 250
    assert labels.min() > 1_300


def test_har_windows_overlap_by_half_and_are_in_their_units(har: Task) -> None:
    x, y = har.load_user(5)
    assert np.array_equal(x[0, :, 64:], x[1, :, :64])
    lying = x[y == 5].mean(axis=(0, 2))
    gravity = np.sqrt((lying[6:] ** 2).sum())
    assert 0.9 < gravity < 1.1
    assert np.abs(lying[:3]).max() < 0.05  # body acceleration has no gravity in it


def test_windows_are_cut_from_each_segment_alone() -> None:
    samples = 192 + 130
    signal = np.zeros((9, samples), np.float32)
    signal[3] = np.arange(samples)  # total acceleration x
    signal[6] = 1  # gravity x
    x, y = cut_windows(signal, np.array([192, 130]), np.array([4, 2]))
    assert y.tolist() == [4, 4, 2]
    assert x[:, 6, 0].tolist() == [0, 64, 192]
    assert x[:, 6, -1].tolist() == [127, 191, 319]
    assert x[:, 0, 0].tolist() == [-1, 63, 191]


def test_a_device_reads_its_own_file_only(tmp_path: Path) -> None:
    shutil.copy(HAR / "user_03.npz", tmp_path)
    alone = task("har", tmp_path)
    assert len(alone.load_user(3)[0]) == len(task("har", HAR).load_user(3)[0])
    with pytest.raises(DataError, match=r"no user_04.npz in .*examples/har"):
        alone.load_user(4)


def test_har_says_where_its_data_is_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"not in .*--data-dir DIR, or set KELLET_DATA_DIR"):
        task("har", tmp_path)
    monkeypatch.setenv("KELLET_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match=r"KELLET_DATA_DIR"):
        tasks.har("user-1")
    monkeypatch.setenv("KELLET_DATA_DIR", str(HAR))
    assert len(tasks.har("user-1")[0]) > 300


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    whole = (HAR / "user_03.npz").read_bytes()
    for content in (whole[:1000], b"", whole[:-200] + bytes(200)):
        (tmp_path / "user_03.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read.*copy it again"):
            task("har", tmp_path).load_user(3)


def test_har_keeps_its_readme_and_origin() -> None:
    assert "Any commercial use is prohibited" in (HAR / "HAPT_README.md").read_text()
    assert "CC BY 4.0" in (HAR / "README.md").read_text()
    assert sum(path.stat().st_size for path in HAR.glob("*.npz")) < 7_000_000
