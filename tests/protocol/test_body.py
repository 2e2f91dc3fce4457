"""The body of an update: its bytes, what comes back, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.examples import HEADERS, messages, shapes, vectors
from protocol.golden import BODIES, OLDER_BODIES

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol.body import UpdateHeader, body_limit, decode_body, encode_body, leave_limit
from kellet.sdk.protocol.vectors import Shapes, decode_vector, encode_vector

V = vectors()
MADE: dict[str, tuple[UpdateHeader, dict[str, Any]]] = {
    "derived": (HEADERS["derived"], {"delta_y": V["delta_y"]}),
    "explicit": (HEADERS["explicit"], {"delta_y": V["delta_y"], "delta_c": V["delta_c"]}),
    "coded": (
        HEADERS["coded"],
        {
            "delta_y": encode_vector("q8", V["delta_y"], shapes(2, 1).update),
            "delta_c": encode_vector("topk", V["delta_c"], shapes(2, 1).train),
        },
    ),
    "personal": (HEADERS["personal"], {"delta_y": V["delta_y"]}),
    "leave": (HEADERS["leave"], {"c_i": V["c_i"]}),
    "leave of a newcomer": (HEADERS["leave"], {}),
}


def limit(plan: Shapes, header: UpdateHeader, share: float = 0.0) -> int:
    if header.kind == "leave":
        return leave_limit(plan)
    return body_limit(plan, (header.delta_y,), header.delta_c, share)


@pytest.mark.parametrize("name", MADE)
def test_the_bytes(name: str) -> None:
    header, vectors_ = MADE[name]
    raw = encode_body(header, **vectors_)
    assert raw.hex() == BODIES[name]
    assert raw[:4] == b"KLU1"
    body = decode_body(bytes.fromhex(BODIES[name]), shapes(2, 1))
    assert body.header == header
    for field in ("delta_y", "delta_c", "c_i"):
        value = getattr(body, field)
        assert (None if value is None else value.tolist()) == (
            V[field].tolist() if field in vectors_ else None
        )
    assert len(raw) <= limit(shapes(2, 1), header)


def test_the_vectors_begin_on_a_multiple_of_16() -> None:
    raw = encode_body(HEADERS["explicit"], delta_y=V["delta_y"], delta_c=V["delta_c"])
    head = int.from_bytes(raw[4:8], "little")
    start = len(raw) - 12
    assert start % 16 == 0
    assert 0 <= start - 8 - head < 16
    assert raw[start : start + 8] == V["delta_y"].tobytes()


def test_a_second_vector_begins_on_a_multiple_of_4() -> None:
    header, vectors_ = MADE["coded"]
    raw = encode_body(header, **vectors_)
    # Scales of two rows, two values, two zeros; then one index and its value.
    assert raw[-20:] == vectors_["delta_y"] + bytes(2) + vectors_["delta_c"]
    with pytest.raises(ProtocolError, match="between"):
        decode_body(raw[:-10] + b"\1" + raw[-9:], shapes(2, 1))


@settings(deadline=None, max_examples=100)
@given(
    data=st.data(),
    n_train=st.integers(1, 20),
    extra=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_any_update_comes_back(data: st.DataObject, n_train: int, extra: int, share: float) -> None:
    header: UpdateHeader = data.draw(messages(UpdateHeader))
    plan = shapes(n_train + extra, n_train)
    floats = st.floats(-1e9, 1e9, width=32)

    def drawn(n: int) -> np.ndarray[Any, Any]:
        return np.array(data.draw(st.lists(floats, min_size=n, max_size=n)), np.float32)

    sent: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    if header.kind == "leave":
        integers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n_train, max_size=n_train)
        sent["c_i"] = wanted["c_i"] = np.array(data.draw(integers))
    else:
        rows = {"delta_y": plan.update, "delta_c": plan.train}
        for field, n in (("delta_y", plan.n_update), ("delta_c", plan.n_train)):
            codec = getattr(header, field)
            if codec not in ("none", "derived"):
                sent[field] = encode_vector(codec, drawn(n), rows[field], seed=1, share=share)
                wanted[field] = decode_vector(codec, sent[field], rows[field], n)
    raw = encode_body(header, **sent)
    assert len(raw) <= limit(plan, header, share)
    body = decode_body(raw, plan, share)
    assert body.header == header
    for field in ("delta_y", "delta_c", "c_i"):
        value = getattr(body, field)
        assert (None if value is None else value.tobytes()) == (
            wanted[field].tobytes() if field in wanted else None
        )
    for cut in {1, len(raw) // 2, len(raw) - 9}:
        with pytest.raises(ProtocolError):
            decode_body(raw[:-cut], plan, share)
    with pytest.raises(ProtocolError):
        decode_body(raw + b"\0", plan, share)


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("derived", {(2, 1), (2, 2)}),
        ("coded", {(2, 1), (3, 1)}),
        ("explicit", {(2, 1)}),
        ("leave", {(2, 1), (3, 1), (1, 1), (100, 1)}),
        ("leave of a newcomer", {(2, 1), (1, 1), (3, 1), (2, 2), (4, 4), (100, 1)}),
    ],
)
def test_the_lengths_come_from_the_plan(name: str, fits: set[tuple[int, int]]) -> None:
    raw = bytes.fromhex(BODIES[name])
    for lengths in [(2, 1), (3, 1), (1, 1), (2, 2), (4, 4), (100, 1)]:
        if lengths in fits:
            decode_body(raw, shapes(*lengths))
        else:
            with pytest.raises(ProtocolError, match="bytes of vectors"):
                decode_body(raw, shapes(*lengths))


def test_what_a_decoded_update_holds_cannot_be_written() -> None:
    body = decode_body(bytes.fromhex(BODIES["explicit"]), shapes(2, 1))
    for vector in (body.delta_y, body.delta_c):
        assert vector is not None
        assert not vector.flags.writeable


def test_bytes_between_header_and_vectors_are_zero() -> None:
    raw = bytearray.fromhex(BODIES["derived"])
    head = int.from_bytes(raw[4:8], "little")
    assert (8 + head) % 16
    raw[8 + head] = 1
    with pytest.raises(ProtocolError, match="between"):
        decode_body(bytes(raw), shapes(2, 1))


@settings(deadline=None, max_examples=400)
@given(data=st.data(), name=st.sampled_from(sorted(MADE)))
def test_a_changed_body_is_an_update_or_a_protocol_error(data: st.DataObject, name: str) -> None:
    raw = bytearray.fromhex(BODIES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        body = decode_body(bytes(raw), shapes(2, 1))
    except ProtocolError:
        return
    assert isinstance(body.header, UpdateHeader)


@pytest.mark.parametrize("name", OLDER_BODIES)
def test_bodies_of_older_senders_are_still_read(name: str) -> None:
    header, vectors_ = MADE[name]
    body = decode_body(bytes.fromhex(OLDER_BODIES[name]), shapes(2, 1))
    assert body.header == header
    assert [f for f in ("delta_y", "delta_c", "c_i") if getattr(body, f) is not None] == list(
        vectors_
    )


@pytest.mark.parametrize("accuracy", [1.5, -0.25, float("nan")])
def test_an_accuracy_is_a_share(accuracy: float) -> None:
    header = msgspec.structs.replace(HEADERS["personal"], personal_accuracy=accuracy)
    with pytest.raises(ProtocolError):
        decode_body(encode_body(header, delta_y=V["delta_y"]), shapes(2, 1))
