"""The body of an update: its bytes, what comes back, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.examples import HEADERS, messages, vectors
from protocol.golden import BODIES

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol.body import UpdateHeader, body_limit, decode_body, encode_body

V = vectors()
MADE: dict[str, tuple[UpdateHeader, dict[str, Any]]] = {
    "derived": (HEADERS["derived"], {"delta_y": V["delta_y"]}),
    "explicit": (HEADERS["explicit"], {"delta_y": V["delta_y"], "delta_c": V["delta_c"]}),
    "leave": (HEADERS["leave"], {"c_i": V["c_i"]}),
    "leave of a newcomer": (HEADERS["leave"], {}),
}


@pytest.mark.parametrize("name", MADE)
def test_the_bytes(name: str) -> None:
    header, vectors_ = MADE[name]
    raw = encode_body(header, **vectors_)
    assert raw.hex() == BODIES[name]
    assert raw[:4] == b"KLU1"
    body = decode_body(bytes.fromhex(BODIES[name]), 2, 1)
    assert body.header == header
    for field in ("delta_y", "delta_c", "c_i"):
        value = getattr(body, field)
        assert (None if value is None else value.tolist()) == (
            vectors_[field].tolist() if field in vectors_ else None
        )
    assert len(raw) <= body_limit(2, 1)


def test_the_vectors_begin_on_a_multiple_of_16() -> None:
    raw = encode_body(HEADERS["explicit"], delta_y=V["delta_y"], delta_c=V["delta_c"])
    head = int.from_bytes(raw[4:8], "little")
    start = len(raw) - 12
    assert start % 16 == 0
    assert 0 <= start - 8 - head < 16
    assert raw[start : start + 8] == V["delta_y"].tobytes()


@settings(deadline=None, max_examples=60)
@given(data=st.data(), n_train=st.integers(1, 20), extra=st.integers(0, 5))
def test_any_update_comes_back(data: st.DataObject, n_train: int, extra: int) -> None:
    header: UpdateHeader = data.draw(messages(UpdateHeader))
    n_update = n_train + extra
    floats = st.floats(width=32)
    given_: dict[str, Any] = {}
    if header.kind == "leave":
        given_["c_i"] = np.array(
            data.draw(
                st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n_train, max_size=n_train)
            )
        )
    else:
        given_["delta_y"] = np.array(
            data.draw(st.lists(floats, min_size=n_update, max_size=n_update)), np.float32
        )
        if header.delta_c == "f32":
            given_["delta_c"] = np.array(
                data.draw(st.lists(floats, min_size=n_train, max_size=n_train)), np.float32
            )
    raw = encode_body(header, **given_)
    assert len(raw) <= body_limit(n_update, n_train)
    body = decode_body(raw, n_update, n_train)
    assert body.header == header
    for field in ("delta_y", "delta_c", "c_i"):
        value = getattr(body, field)
        assert (None if value is None else value.tobytes()) == (
            given_[field].tobytes() if field in given_ else None
        )
    for cut in {1, len(raw) // 2, len(raw) - 9}:
        with pytest.raises(ProtocolError):
            decode_body(raw[:-cut], n_update, n_train)
    with pytest.raises(ProtocolError):
        decode_body(raw + b"\0", n_update, n_train)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("derived", {(2, 1), (2, 2)}),
        ("explicit", {(2, 1)}),
        ("leave", {(2, 1), (3, 1), (1, 1), (100, 1)}),
        ("leave of a newcomer", {(2, 1), (1, 1), (3, 1), (2, 2), (4, 4), (100, 1)}),
    ],
)
def test_the_lengths_come_from_the_plan(name: str, fits: set[tuple[int, int]]) -> None:
    raw = bytes.fromhex(BODIES[name])
    for lengths in [(2, 1), (3, 1), (1, 1), (2, 2), (4, 4), (100, 1)]:
        if lengths in fits:
            decode_body(raw, *lengths)
        else:
            with pytest.raises(ProtocolError, match="bytes of vectors"):
                decode_body(raw, *lengths)


def test_what_a_decoded_update_holds_cannot_be_written() -> None:
    body = decode_body(bytes.fromhex(BODIES["explicit"]), 2, 1)
    for vector in (body.delta_y, body.delta_c):
        assert vector is not None
        assert not vector.flags.writeable


def test_bytes_between_header_and_vectors_are_zero() -> None:
    raw = bytearray.fromhex(BODIES["derived"])
    head = int.from_bytes(raw[4:8], "little")
    assert (8 + head) % 16
    raw[8 + head] = 1
    with pytest.raises(ProtocolError, match="between"):
        decode_body(bytes(raw), 2, 1)


@settings(deadline=None, max_examples=400)
@given(data=st.data(), name=st.sampled_from(sorted(MADE)))
def test_a_changed_body_is_an_update_or_a_protocol_error(data: st.DataObject, name: str) -> None:
    raw = bytearray.fromhex(BODIES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        body = decode_body(bytes(raw), 2, 1)
    except ProtocolError:
        return
    assert isinstance(body.header, UpdateHeader)
