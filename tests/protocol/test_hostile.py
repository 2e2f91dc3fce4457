"""Case 32: bytes made to hurt. They are refused before they cost memory, and never crash."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines.puppet import Lab, Puppet
from protocol.examples import EXAMPLES, KINDS
from support.toy_plans import linear_loss, softmax_regression

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.errors import ProtocolError, UsageError
from kellet.sdk.protocol import limits, wire
from kellet.sdk.protocol.assembly import Assembly
from kellet.sdk.protocol.body import decode_body
from kellet.sdk.protocol.messages import Grant, Receipt, Reject
from kellet.sdk.protocol.parts import decode_part
from kellet.sdk.transport.base import Received

# Bytes that a refusal may cost for a moment: 64 times the largest message, maps being what they
# are. What is attacked with claims a gigabyte.
CHEAP = 64 * limits.CONTROL_BYTES


class Bomb:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('it was run')",))


def nested(depth: int, opening: bytes = b"\x91", core: bytes = b"\xc0") -> bytes:
    return b"\x82\xa1v\x01\xa1x" + opening * depth + core


BUSY = msgpack.packb({"t": "busy", "v": 1, "after": 1.0})

ATTACKS: dict[str, bytes] = {
    "nothing": b"",
    "a pickle": pickle.dumps(Bomb()),
    "a pickle of protocol 0": pickle.dumps(Bomb(), protocol=0),
    "a 1 GB byte string": b"\x82\xa1v\x01\xa1x\xc6\x40\x00\x00\x00",
    "a 1 GB text": b"\x82\xa1v\x01\xa1x\xdb\x40\x00\x00\x00",
    "4 billion items": b"\x82\xa1v\x01\xa1x\xdd\xff\xff\xff\xff",
    "4 billion keys": b"\xdf\xff\xff\xff\xff",
    "a 1 GB extension": b"\x82\xa1v\x01\xa1x\xc9\x40\x00\x00\x00\x05",
    "10,000 nested lists": nested(10_000),
    "4,000 nested lists": nested(4000),
    "seven nested lists": nested(7),
    "nested maps": nested(500, b"\x81\xa1k"),
    "1 MB of empty maps": b"\x92\xdd\x00\x10\x00\x00" + b"\x80" * (1 << 20),
    "4 KB of empty maps": b"\x82\xa1v\x01\xa1x\xdc\x0f\xf0" + b"\x80" * 4080,
    "a list of 257": b"\x82\xa1v\x01\xa1x\xdc\x01\x01" + b"\xc0" * 257,
    "duplicate keys": b"\x84\xa1v\x01\xa1t\xa4busy\xa5after\x01\xa5after\x02",
    "duplicate keys below": b"\x82\xa1v\x01\xa1x\x82\xa1a\x01\xa1a\x02",
    "a duplicate version": b"\x84\xa1v\x01\xa1v\x01\xa1t\xa4busy\xa5after\x01",
    "trailing bytes": BUSY + b"\xc0",
    "two messages": BUSY + BUSY,
    "half a message": BUSY[:-1],
    "an extension type": msgpack.packb({"v": 1, "x": msgpack.ExtType(5, b"data")}),
    "an empty extension": b"\x82\xa1v\x01\xa1x\xc7\x00\x05",
    "a timestamp": msgpack.packb({"v": 1, "x": msgpack.Timestamp(1, 1)}),
    "a timestamp of 32 bits": b"\x82\xa1v\x01\xa1x\xd6\xff\x00\x00\x00\x01",
    "a timestamp beyond all time": b"\x82\xa1v\x01\xa1x\xc7\x0c\xff" + b"\xff" * 12,
    "a reserved byte": b"\x82\xa1v\x01\xa1x\xc1",
    "a list": b"\x93\x01\x02\x03",
    "a number": b"\x01",
    "numbers as keys": b"\x82\xa1v\x01\x01\x02",
    "byte strings as keys": b"\x82\xc4\x01v\x01\xc4\x01t\x01",
    "a list as a key": b"\x82\xa1v\x01\x91\x01\x02",
    "text that is no UTF-8": b"\x82\xa1v\x01\xa1x\xa2\xff\xfe",
    "a key that is no UTF-8": b"\x82\xa1v\x01\xa1\xff\x01",
    "half a surrogate": b"\x82\xa1v\x01\xa1x\xa3\xed\xa0\x80",
    "no version": msgpack.packb({"t": "busy", "after": 1.0}),
    "no kind": msgpack.packb({"v": 1, "after": 1.0}),
    "an unknown kind": msgpack.packb({"v": 1, "t": "eval", "after": 1.0}),
    "a kind that is a list": msgpack.packb({"v": 1, "t": ["busy"], "after": 1.0}),
    "a huge int": msgpack.packb({"v": 1, "t": "busy", "after": 2**64 - 1}),
    "a huge round": msgpack.packb({"v": 1, "t": "train", "round": 2**63, "seconds": 1.0}),
    "a huge negative": msgpack.packb({"v": 1, "t": "ack", "uid": bytes(16), "missing": -(2**63)}),
    "too long by one byte": msgpack.packb({"v": 1, "x": bytes(limits.CONTROL_BYTES)}),
}


def cost(action: Callable[[], object]) -> int:
    """The most bytes that were held at once."""
    action()  # once for caches and imports
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("attack", ATTACKS)
def test_case_32_refused_before_it_costs_memory(attack: str) -> None:
    raw = ATTACKS[attack]

    def refuse() -> None:
        for kind in KINDS:
            with pytest.raises(ProtocolError):
                wire.unpack(raw, kind)

    assert cost(refuse) < CHEAP


@pytest.mark.parametrize("attack", ATTACKS)
def test_case_32_the_aggregator_goes_on(attack: str) -> None:
    """On every topic it listens to; what is not answered is reported."""
    lab = Lab(linear_loss(4), Scaffold(), target=1)
    puppet = Puppet(lab, "victim")
    topics = lab.machine.topics
    raw = ATTACKS[attack]

    def attack_all() -> None:
        for topic in (topics.req("a"), topics.state("a"), topics.up("0", "a"), topics.round):
            lab.step(Received(topic, raw))

    assert cost(attack_all) < CHEAP
    assert puppet.send([1, 2, 3, 4]).counted


@pytest.mark.parametrize("version", ["x" * 4060, bytes(2000), ["y" * 2000, "z" * 2000], 2, None])
def test_a_wrong_major_is_answered_with_the_range_however_it_looks(version: Any) -> None:
    lab = Lab(linear_loss(4), Scaffold())
    puppet = Puppet(lab)
    raw = msgpack.packb({"v": version, "t": "join"})
    assert len(raw) <= limits.CONTROL_BYTES
    (answer,) = puppet._answers(lab.machine.topics.req("a"), raw)
    assert isinstance(answer, Reject)
    assert (answer.code, answer.speaks, answer.boot) == ("version", (1, 1), None)


@pytest.mark.parametrize("length", [2049, 1 << 30, 2**32 - 1])
def test_case_32_a_header_that_claims_a_gigabyte(length: int) -> None:
    raw = struct.pack("<4sI", b"KLU1", length) + bytes(64)

    def refuse() -> None:
        with pytest.raises(ProtocolError):
            decode_body(raw, 4, 4)

    assert cost(refuse) < CHEAP


def test_case_32_an_offer_of_a_gigabyte(tmp_path: Path) -> None:
    """Refused by its size, before anything is reserved in memory or on the disk."""
    lab = Lab(linear_loss(4), Scaffold(), state=tmp_path)
    puppet = Puppet(lab)
    header, body = puppet.body([1, 2, 3, 4])

    def offer() -> None:
        for size in (1 << 30, 1 << 20, 0):
            receipt = puppet.offer(header, body, size=size)
            assert isinstance(receipt, Receipt)
            assert (receipt.counted, receipt.reason) == (False, "size")

    assert cost(offer) < CHEAP
    assert list((tmp_path / "spool").iterdir()) == []
    assert puppet.deliver(header, body).counted


def test_a_transfer_has_as_many_parts_as_a_bitmap_can_name() -> None:
    Assembly(28_000 * 1024, 1024, bytes(32))
    with pytest.raises(ProtocolError, match="28001 parts"):
        Assembly(28_000 * 1024 + 1, 1024, bytes(32))
    plan = softmax_regression(1000, 3600)  # a leave has 29 MB: 28,154 parts of 1 KB
    with pytest.raises(UsageError, match="use at least 1030"):
        Lab(plan, Scaffold(), part_size=1024)
    puppet = Puppet(Lab(plan, Scaffold(), part_size=65536))
    header, body = puppet.body([0.0] * 4)
    receipt = puppet.offer(header, body, size=28_810_000, part_size=1024)
    assert (receipt.counted, receipt.reason) == (False, "size")
    assert isinstance(puppet.offer(header, body, size=28_810_000, part_size=65536), Grant)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=300)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_protocol_error(kind: Any, raw: bytes) -> None:
    try:
        message = wire.unpack(raw, kind)
    except ProtocolError:
        return
    assert isinstance(message, kind)


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_a_message_with_bytes_changed_is_a_message_or_a_protocol_error(data: st.DataObject) -> None:
    raw = bytearray(wire.pack(EXAMPLES[data.draw(st.sampled_from(sorted(EXAMPLES)))]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                raw[at] = data.draw(st.integers(0, 255))
            case "cut":
                del raw[at : at + data.draw(st.integers(1, 5))]
            case "insert":
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=5))
        if not raw:
            break
    for kind in KINDS:
        try:
            message = wire.unpack(bytes(raw), kind)
        except ProtocolError:
            continue
        assert isinstance(message, kind)
        wire.pack(message)


_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=40),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(sorted(EXAMPLES)),
    changes=st.dictionaries(st.integers(0, 20), _VALUES, min_size=1, max_size=3),
)
def test_a_field_of_any_other_value_is_a_message_or_a_protocol_error(
    name: str, changes: dict[int, Any]
) -> None:
    fields = msgpack.unpackb(wire.pack(EXAMPLES[name]))
    names = sorted(fields)
    fields |= {names[index % len(names)]: value for index, value in changes.items()}
    raw = msgpack.packb(fields)
    lab = _shared_lab()
    lab.step(Received(lab.machine.topics.req("a"), raw))
    for kind in KINDS:
        try:
            wire.unpack(raw, kind)
        except ProtocolError:
            continue


@settings(deadline=None, max_examples=300)
@given(raw=st.binary(max_size=120), parts=st.booleans())
def test_any_bytes_are_a_part_or_a_body_or_a_protocol_error(raw: bytes, parts: bool) -> None:
    for head in (b"", b"KLU1", b"KLTP\x01\0\0\0"):
        try:
            decode_part(head + raw) if parts else decode_body(head + raw, 2, 1)
        except ProtocolError:
            continue


_LABS: list[Lab] = []


def _shared_lab() -> Lab:
    """One aggregator takes all of it, one message after another."""
    if not _LABS:
        _LABS.append(Lab(linear_loss(4), Scaffold()))
        Puppet(_LABS[0])
    return _LABS[0]
