"""The codecs of vectors: their bytes, what comes back, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kellet import kernels
from kellet.sdk.errors import ProtocolError
from kellet.sdk.plan.manifest import layout
from kellet.sdk.protocol.vectors import (
    CODECS,
    Codec,
    Shapes,
    decode_vector,
    encode_vector,
    vector_limit,
)

# Two rows of three and a bias of two.
ROWS = kernels.row_layout([(2, 3), (2,)])
V = np.array([254, -127, 1, 0, 0, 0, 0.25, -0.5], np.float32)

# Scales 2, 2^-40 (a row of zeros has the least) and 0.5/127; values to the nearest, ties to even.
Q8 = (
    struct.pack("<3f", 2.0, 2.0**-40, np.float32(0.5) / np.float32(127))
    + bytes([127, 0x100 - 64, 0, 0, 0, 0])
    + bytes([64, 0x100 - 127])
)
# k = ceil(.3 * 8) = 3.
TOPK = struct.pack("<3I3f", 0, 1, 2, 254.0, -127.0, 1.0)


def test_the_bytes() -> None:
    assert encode_vector("f32", V, ROWS) == struct.pack("<8f", *V)
    assert encode_vector("q8", V, ROWS) == Q8
    assert encode_vector("topk", V, ROWS, share=0.3) == TOPK


def test_what_comes_back() -> None:
    assert decode_vector("f32", struct.pack("<8f", *V), ROWS, 8).tolist() == V.tolist()
    assert decode_vector("topk", TOPK, ROWS, 8).tolist() == [254, -127, 1, 0, 0, 0, 0, 0]
    scale = np.float32(0.5) / np.float32(127)
    expected = [254, -128, 0, 0, 0, 0, float(np.float32(64) * scale), -0.5]
    assert decode_vector("q8", Q8, ROWS, 8).tolist() == expected


@pytest.mark.parametrize(
    ("codec", "size"), [("f32", 32), ("q8", 3 * 4 + 8), ("topk", 24)], ids=CODECS
)
def test_sizes(codec: Codec, size: int) -> None:
    assert vector_limit(codec, 8, ROWS, 0.3) == size
    assert len(encode_vector(codec, V, ROWS, share=0.3)) == size


@pytest.mark.parametrize(
    ("n", "share", "k"),
    [(8, 0.3, 3), (8, 0.25, 2), (8, 0.0, 1), (8, 1e-9, 1), (8, 1.0, 8), (100, 0.05, 5)],
)
def test_the_largest_are_rounded_up(n: int, share: float, k: int) -> None:
    assert vector_limit("topk", n, kernels.block_layout(n), share) == 8 * k


def test_q8_rounds_by_the_seed_and_on_average_right() -> None:
    layout_ = kernels.block_layout(4096)
    v = np.full(4096, 0.3, np.float32)
    v[::64] = 127  # a scale of 1 in each block: the others are 0 or 1, at 30 %
    once = encode_vector("q8", v, layout_, seed=7)
    assert once == encode_vector("q8", v, layout_, seed=7)
    assert once != encode_vector("q8", v, layout_, seed=8)
    others = decode_vector("q8", once, layout_, 4096)[v < 1]
    assert set(others.tolist()) == {0.0, 1.0}
    assert abs(others.mean() - 0.3) < 0.03
    nearest = decode_vector("q8", encode_vector("q8", v, layout_), layout_, 4096)
    assert not nearest[v < 1].any()


def changed(raw: bytes, at: int, value: bytes) -> bytes:
    return raw[:at] + value + raw[at + len(value) :]


@pytest.mark.parametrize(
    ("codec", "raw"),
    [
        ("f32", bytes(31)),
        ("f32", bytes(36)),
        ("q8", Q8[:-1]),
        ("q8", Q8 + b"\0"),
        ("q8", changed(Q8, 0, struct.pack("<f", float("nan")))),
        ("q8", changed(Q8, 0, struct.pack("<f", float("inf")))),
        ("q8", changed(Q8, 4, struct.pack("<f", -1.0))),
        ("q8", changed(Q8, 4, struct.pack("<f", 0.0))),
        ("q8", changed(Q8, 4, struct.pack("<f", 2.0**81))),
        ("q8", changed(Q8, 12, b"\x80")),
        ("topk", b""),
        ("topk", TOPK[:-4]),
        ("topk", bytes(8 * 9)),
        ("topk", struct.pack("<2I2f", 3, 3, 1.0, 1.0)),
        ("topk", struct.pack("<2I2f", 3, 2, 1.0, 1.0)),
        ("topk", struct.pack("<2I2f", 3, 8, 1.0, 1.0)),
        ("topk", struct.pack("<1I1f", 2**32 - 1, 1.0)),
    ],
)
def test_what_is_off_is_refused(codec: Codec, raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_vector(codec, raw, ROWS, 8)


@pytest.mark.parametrize("codec", ["q8", "topk"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_cannot_be_held_is_not_sent(codec: Codec, value: float) -> None:
    v = V.copy()
    v[4] = value
    with pytest.raises(ValueError, match="finite"):
        encode_vector(codec, v, ROWS, share=0.5)


@pytest.mark.parametrize("codec", CODECS)
def test_vectors_are_read_from_any_place_and_not_written(codec: Codec) -> None:
    raw = encode_vector(codec, V, ROWS, share=0.5)
    wanted = decode_vector(codec, raw, ROWS, 8).tolist()
    for shift in range(5):
        moved = memoryview(bytearray(shift) + raw)[shift:]
        out = decode_vector(codec, moved, ROWS, 8)
        assert out.tolist() == wanted
        assert not out.flags.writeable


def test_shapes_come_from_the_manifest() -> None:
    tensors = layout(
        [
            ("w", (2, 3), "train", "mean"),
            ("frozen", (5, 5), "frozen", "mean"),
            ("mean", (4,), "buffer", "local"),
            ("b", (2,), "train", "mean"),
        ]
    )
    shapes = Shapes.of(tensors)
    assert (shapes.n_update, shapes.n_train) == (12, 8)
    assert shapes.train.tolist() == [2, 3, 1, 2]
    assert shapes.update.tolist() == [2, 3, 1, 2, 1, 4]


_LAYOUTS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=4)
_VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)


@settings(deadline=None, max_examples=150)
@given(
    data=st.data(),
    shapes=_LAYOUTS,
    codec=st.sampled_from(CODECS),
    share=st.floats(0, 1),
    seed=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
def test_any_vector_comes_back_as_near_as_its_codec_says(
    data: st.DataObject, shapes: Any, codec: Codec, share: float, seed: int | None
) -> None:
    rows = kernels.row_layout(shapes)
    n = sum(a * b for a, b in shapes)
    v = np.array(data.draw(st.lists(_VALUES, min_size=n, max_size=n)), np.float32)
    raw = encode_vector(codec, v, rows, seed=seed, share=share)
    assert len(raw) == vector_limit(codec, n, rows, share)
    out = decode_vector(codec, raw, rows, n)
    if codec == "f32":
        assert out.tobytes() == v.tobytes()
    elif codec == "topk":
        sent = np.flatnonzero(out)
        assert out[sent].tobytes() == v[sent].tobytes()
        left = np.delete(np.abs(v), sent).max(initial=0)
        assert left <= np.abs(v[sent]).min(initial=np.inf) or not left
    else:
        row_of = np.repeat(np.arange(int(rows[::2].sum())), np.repeat(rows[1::2], rows[::2]))
        scales = np.frombuffer(raw[: 4 * (row_of[-1] + 1)], "<f4")
        assert np.all(np.abs(out - v) <= scales[row_of] * np.float32(1.0001))


@settings(deadline=None, max_examples=300)
@given(raw=st.binary(max_size=80), codec=st.sampled_from(CODECS))
def test_any_bytes_are_a_vector_or_a_protocol_error(raw: bytes, codec: Codec) -> None:
    try:
        out = decode_vector(codec, raw, ROWS, 8)
    except ProtocolError:
        return
    assert out.shape == (8,)
    assert out.dtype == np.float32


@settings(deadline=None, max_examples=300)
@given(data=st.data(), codec=st.sampled_from(("q8", "topk")))
def test_a_changed_vector_is_a_vector_or_a_protocol_error(
    data: st.DataObject, codec: Codec
) -> None:
    raw = bytearray(Q8 if codec == "q8" else TOPK)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        out = decode_vector(codec, bytes(raw), ROWS, 8)
    except ProtocolError:
        return
    assert codec == "topk" or np.isfinite(out).all()
