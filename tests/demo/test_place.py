"""Where a demo keeps its things: cleared if it was a demo's, refused if not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kellet.sdk.errors import StorageError, UsageError
from kellet.server.demo.place import MARK, prepare


def test_a_new_directory_is_made_and_marked(tmp_path: Path) -> None:
    prepare(tmp_path / "a" / "b").release()
    assert (tmp_path / "a" / "b" / MARK).is_file()


def test_an_earlier_demo_s_is_cleared(tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "file").touch()
    state = tmp_path / "state"
    prepare(state).release()
    (state / "device-1").mkdir()
    (state / "device-1" / "device.db").touch()
    (state / "run.json").touch()
    (state / "link").symlink_to(outside, target_is_directory=True)
    prepare(state).release()
    assert sorted(path.name for path in state.iterdir()) == [MARK, "lock"]
    assert (outside / "file").exists()


def test_anything_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"it holds thesis\.tex, which no demo left there"):
        prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError, match="it is a file"):
        prepare(tmp_path / "thesis.tex")


def test_two_demos_do_not_share_a_place(tmp_path: Path) -> None:
    first = prepare(tmp_path)
    (tmp_path / "server").mkdir()
    with pytest.raises(StorageError, match="in use"):
        prepare(tmp_path)
    assert (tmp_path / "server").exists()
    first.release()
    prepare(tmp_path).release()
