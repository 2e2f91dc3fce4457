"""Parts, bitmaps, and what arrives of a transfer: in any order, repeated, damaged, torn."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.golden import PART

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol.assembly import Assembly
from kellet.sdk.protocol.parts import (
    Part,
    bitmap,
    decode_part,
    encode_part,
    missing_in,
    part_count,
)

UID = bytes(range(16))


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


def assembly(data: bytes, size: int, path: Path | None = None) -> Assembly:
    return Assembly(len(data), size, hashlib.sha256(data).digest(), path)


# -- parts and bitmaps ----------------------------------------------------------------------


def test_the_bytes_of_a_part() -> None:
    raw = encode_part(UID, 258, b"payload")
    assert raw.hex() == PART
    assert raw[:4] == b"KLTP"
    assert raw[4:8] == b"\1\0\0\0"
    assert raw[8:24] == UID
    assert raw[24:28] == (258).to_bytes(4, "little")
    assert decode_part(raw) == Part(UID, 258, memoryview(b"payload"))


@given(
    uid=st.binary(min_size=16, max_size=16),
    index=st.integers(0, 2**32 - 1),
    payload=st.binary(min_size=1, max_size=300),
)
def test_a_part_comes_back(uid: bytes, index: int, payload: bytes) -> None:
    assert decode_part(encode_part(uid, index, payload)) == Part(uid, index, memoryview(payload))


@given(payload=st.binary(min_size=1, max_size=60), data=st.data())
def test_a_damaged_part_is_never_another_payload(payload: bytes, data: st.DataObject) -> None:
    """One changed byte: in the payload it is found; in uid or index it names another transfer."""
    raw = bytearray(encode_part(UID, 3, payload))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        part = decode_part(bytes(raw))
    except ProtocolError:
        return
    assert part.payload == payload
    assert (part.uid, part.index) != (UID, 3) or at in (5, 6, 7)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"KLTP",
        encode_part(UID, 0, b"x")[:-1],
        b"KLTQ" + encode_part(UID, 0, b"x")[4:],
        encode_part(UID, 0, b"x")[:4] + b"\2" + encode_part(UID, 0, b"x")[5:],
        encode_part(UID, 0, b"x") + b"y",
    ],
)
def test_bytes_that_are_no_part(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_part(raw)


def test_counts_and_bitmaps() -> None:
    assert [part_count(size, 10) for size in (1, 9, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]
    assert bitmap({0, 9}, 12) == b"\x01\x02"
    assert bitmap({11}, 12) == b"\x00\x08"
    assert bitmap(set(), 12) == b""
    assert bitmap({0}, 28_000) == b"\x01"
    assert list(missing_in(b"\x01\x02", 12)) == [0, 9]
    assert list(missing_in(b"\xff\xff", 10)) == list(range(10))
    assert list(missing_in(b"", 10)) == []


@given(count=st.integers(1, 2000), data=st.data())
def test_a_bitmap_names_the_same_set(count: int, data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, count - 1)))
    bits = bitmap(wanted, count)
    assert list(missing_in(bits, count)) == sorted(wanted)
    assert len(bits) <= (count + 7) // 8


# -- assembly -------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    data=st.binary(min_size=1, max_size=400),
    size=st.integers(1, 50),
    order=st.randoms(use_true_random=False),
    repeats=st.integers(0, 20),
)
def test_any_order_and_any_repetition_make_the_whole(
    data: bytes, size: int, order: object, repeats: int
) -> None:
    transfer, parts = assembly(data, size), pieces(data, size)
    assert transfer.count == len(parts)
    arrivals = list(range(len(parts))) + [i % len(parts) for i in range(repeats)]
    order.shuffle(arrivals)  # type: ignore[attr-defined]
    seen: set[int] = set()
    for index in arrivals:
        assert transfer.add(index, parts[index]) == (index not in seen)
        seen.add(index)
        left = set(range(len(parts))) - seen
        assert set(missing_in(transfer.missing, transfer.count)) == left
        assert transfer.missing_count == len(left)
        assert transfer.complete == (not left)
        assert transfer.verified() == (not left)
    assert transfer.data() == data


def test_a_wrong_digest_empties_it() -> None:
    data = bytes(range(100))
    transfer = assembly(data, 30)
    for index, part in enumerate(pieces(data[:-1] + b"!", 30)):
        assert transfer.add(index, part)
    assert not transfer.verified()
    assert list(missing_in(transfer.missing, 4)) == [0, 1, 2, 3]
    for index, part in enumerate(pieces(data, 30)):
        assert transfer.add(index, part)
    assert transfer.verified()


@pytest.mark.parametrize(
    ("index", "length"), [(-1, 30), (4, 30), (0, 29), (0, 31), (3, 30), (3, 9), (3, 0), (99, 10)]
)
def test_a_part_that_cannot_belong_is_refused(index: int, length: int) -> None:
    transfer = assembly(bytes(100), 30)  # parts of 30, 30, 30 and 10
    with pytest.raises(ProtocolError):
        transfer.add(index, bytes(length))
    assert transfer.missing_count == 4
    assert transfer.add(3, bytes(10))


def test_a_transfer_of_nothing_is_refused() -> None:
    for size in (0, -1):
        with pytest.raises(ProtocolError, match="no bytes"):
            Assembly(size, 10, bytes(32))


@pytest.mark.parametrize(
    ("before", "after", "came", "left"),
    [
        (30, 10, [0, 2], [3, 4, 5, 9]),  # 0 to 30 and 60 to 90
        (30, 10, [3], [0, 1, 2, 3, 4, 5, 6, 7, 8]),  # the last, of 10
        (10, 30, [0, 1, 2, 4], [1, 2, 3]),  # of 30 to 60 a third
        (30, 20, [0, 1], [3, 4]),  # 60 to 80 is half there, of which nothing is kept
        (34, 33, [2], [0, 1, 2]),  # 68 to 100, of which 99 to 100 is a part
        (34, 40, [0, 1], [1, 2]),  # 3 parts either way, and other bytes in each
        (20, 20, [1], [0, 2, 3, 4]),
    ],
)
def test_a_file_goes_on_in_parts_of_another_size(
    before: int, after: int, came: list[int], left: list[int], tmp_path: Path
) -> None:
    data = os.urandom(100)
    first = assembly(data, before, tmp_path / "up")
    for index in came:
        first.add(index, pieces(data, before)[index])
    first.close()
    again = assembly(data, after, tmp_path / "up")
    assert list(missing_in(again.missing, again.count)) == left
    for index in left:
        assert again.add(index, pieces(data, after)[index])
    assert again.verified()
    assert again.data() == data


def test_a_file_of_another_transfer_is_no_beginning(tmp_path: Path) -> None:
    """Another size, no parts at all, and flags that belong to none."""
    first = assembly(bytes(range(100)), 30, tmp_path / "up")
    first.add(0, bytes(range(30)))
    first.close()
    assert assembly(bytes(99), 30, tmp_path / "up").missing_count == 4
    for raw in (b"", bytes(100), bytes(104), bytes(108), b"\xff" * 108, b"\1" * 5000):
        (tmp_path / "up").write_bytes(raw)
        again = assembly(bytes(100), 30, tmp_path / "up")
        assert again.missing_count == 4
        assert (tmp_path / "up").stat().st_size == 108


def test_a_file_resumes(tmp_path: Path) -> None:
    data = os.urandom(1000)
    parts = pieces(data, 64)
    first = assembly(data, 64, tmp_path / "up")
    for index in (0, 7, 15):
        first.add(index, parts[index])
    shutil.copy(tmp_path / "up", tmp_path / "killed")  # with the map still open
    first.close()
    for name in ("up", "killed"):
        again = assembly(data, 64, tmp_path / name)
        assert set(range(16)) - set(missing_in(again.missing, 16)) == {0, 7, 15}
        for index, part in enumerate(parts):
            assert again.add(index, part) == (index not in (0, 7, 15))
        assert again.verified()
        again.sync()
        again.close()
        assert (tmp_path / name).read_bytes()[:1000] == data
        complete = assembly(data, 64, tmp_path / name)
        assert complete.verified()
        assert complete.data() == data
        complete.discard()
        assert not (tmp_path / name).exists()


def test_syncing_covers_the_data_and_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may lose a new file's name though its data was synced."""
    transfer = assembly(bytes(100), 30, tmp_path / "up")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    transfer.sync()
    assert synced == [str(tmp_path / "up"), str(tmp_path)]
    transfer.close()


@settings(deadline=None, max_examples=60)
@given(data=st.binary(min_size=40, max_size=200), change=st.data())
def test_a_torn_file_is_never_taken_for_the_whole(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, change: st.DataObject
) -> None:
    """A power cut leaves any bytes where data or flags were: the digest decides."""
    path = tmp_path_factory.mktemp("torn") / "up"
    transfer = assembly(data, 16, path)
    for index, part in enumerate(pieces(data, 16)):
        transfer.add(index, part)
    transfer.close()
    raw = bytearray(path.read_bytes())
    for _ in range(change.draw(st.integers(1, 5))):
        raw[change.draw(st.integers(0, len(raw) - 1))] = change.draw(st.sampled_from([0, 1, 255]))
    if change.draw(st.booleans()):
        del raw[change.draw(st.integers(0, len(raw))) :]
    path.write_bytes(raw)

    again = assembly(data, 16, path)
    if again.verified():
        assert again.data() == data
    for index, part in enumerate(pieces(data, 16)):
        again.add(index, part)
    if not again.verified():  # a damaged part was marked as here: now all are asked for
        assert again.missing_count == again.count
        for index, part in enumerate(pieces(data, 16)):
            assert again.add(index, part)
        assert again.verified()
    assert again.data() == data
    again.discard()
