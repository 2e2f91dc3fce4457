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
from machines.alone import Alone
from machines.puppet import Lab, Puppet
from protocol.examples import EXAMPLES, KINDS, shapes
from support.toy_plans import linear_loss, softmax_regression

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.errors import ProtocolError, UsageError
from kellet.sdk.protocol import limits, wire
from kellet.sdk.protocol.assembly import Assembly
from kellet.sdk.protocol.body import decode_body
from kellet.sdk.protocol.messages import Busy, FromServer, Grant, Reject
from kellet.sdk.protocol.parts import decode_part
from kellet.sdk.transport.base import Received

# Bytes that a refusal may cost for a moment: 64 times the largest message, maps being what they
# are. What is attacked with claims a gigabyte.
CHEAP = 64 * limits.CONTROL_BYTES


class Bomb:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('it was run')",))


BUSY = msgpack.packb({"t": "busy", "v": 1, "after": 1.0})


def beside(value: bytes) -> bytes:
    """A message that would be fine, with this in a key that nobody knows."""
    return b"\x84" + BUSY[1:] + b"\xa1x" + value


def nested(depth: int, opening: bytes = b"\x91") -> bytes:
    return beside(opening * depth + b"\xc0")


ATTACKS: dict[str, bytes] = {
    "nothing": b"",
    "a pickle": pickle.dumps(Bomb()),
    "a pickle of protocol 0": pickle.dumps(Bomb(), protocol=0),
    "a 1 GB byte string": beside(b"\xc6\x40\x00\x00\x00"),
    "a 1 GB text": beside(b"\xdb\x40\x00\x00\x00"),
    "4 billion items": beside(b"\xdd\xff\xff\xff\xff"),
    "4 billion keys": b"\xdf\xff\xff\xff\xff",
    "a 1 GB extension": beside(b"\xc9\x40\x00\x00\x00\x05"),
    "10,000 nested lists": nested(10_000),
    "4,000 nested lists": nested(4000),
    "six nested lists": nested(6),
    "six nested maps": nested(6, b"\x81\xa1k"),
    "500 nested maps": nested(500, b"\x81\xa1k"),
    "1 MB of empty maps": beside(b"\xdd\x00\x10\x00\x00" + b"\x80" * (1 << 20)),
    "4 KB of empty maps": beside(b"\xdc\x0f\xd0" + b"\x80" * 4048),
    "a list of 257": beside(b"\xdc\x01\x01" + b"\xc0" * 257),
    "duplicate keys": b"\x84\xa1v\x01\xa1t\xa4busy\xa5after\x01\xa5after\x02",
    "duplicate keys below": beside(b"\x82\xa1a\x01\xa1a\x02"),
    "a duplicate version": b"\x84" + BUSY[1:] + b"\xa1v\x01",
    "trailing bytes": BUSY + b"\xc0",
    "two messages": BUSY + BUSY,
    "half a message": BUSY[:-1],
    "an extension type": beside(b"\xd5\x05ab"),
    "an empty extension": beside(b"\xc7\x00\x05"),
    "a timestamp": beside(msgpack.packb(msgpack.Timestamp(1, 1))),
    "a timestamp of 32 bits": beside(b"\xd6\xff\x00\x00\x00\x01"),
    "a timestamp beyond all time": beside(b"\xc7\x0c\xff" + b"\xff" * 12),
    "a timestamp in a list": beside(b"\x91\xd6\xff\x00\x00\x00\x01"),
    "a reserved byte": beside(b"\xc1"),
    "a list": b"\x93\x01\x02\x03",
    "a number": b"\x01",
    "numbers as keys": beside(b"\x81\x01\x02"),
    "byte strings as keys": beside(b"\x81\xc4\x01v\x01"),
    "a list as a key": beside(b"\x81\x91\x01\x02"),
    "text that is no UTF-8": beside(b"\xa2\xff\xfe"),
    "a key that is no UTF-8": beside(b"\x81\xa1\xff\x01"),
    "half a surrogate": beside(b"\xa3\xed\xa0\x80"),
    "no version": msgpack.packb({"t": "busy", "after": 1.0}),
    "no kind": msgpack.packb({"v": 1, "after": 1.0}),
    "an unknown kind": msgpack.packb({"v": 1, "t": "eval", "after": 1.0}),
    "a kind that is a list": msgpack.packb({"v": 1, "t": ["busy"], "after": 1.0}),
    "a huge int": msgpack.packb({"v": 1, "t": "busy", "after": 2**64 - 1}),
    "a huge round": msgpack.packb({"v": 1, "t": "train", "round": 2**63, "seconds": 1.0}),
    "a huge negative": msgpack.packb({"v": 1, "t": "ack", "uid": bytes(16), "missing": -(2**63)}),
    "too long by one byte": beside(b"\xc5\x0f\xdd" + bytes(limits.CONTROL_BYTES - len(BUSY) - 4)),
}


@pytest.mark.parametrize(
    "value", [b"\xc0", b"\xa1a", b"\x91" * 4 + b"\xc0", b"\xdc\x01\x00" + b"\xc0" * 256]
)
def test_what_the_attacks_are_made_of_is_fine(value: bytes) -> None:
    """A message with an unknown key is read: the attacks are refused for what they hold."""
    assert wire.unpack(beside(value), FromServer) == Busy(after=1.0)


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
            assert puppet.offer(header, body, size=size) is None
            assert f"an offer of {size} bytes" in lab.reports("refused")[-1]["error"]

    assert cost(offer) < CHEAP
    assert list((tmp_path / "spool").iterdir()) == []
    assert puppet.deliver(header, body).counted


def test_a_transfer_has_as_many_parts_as_a_bitmap_can_name() -> None:
    Assembly(28_000 * 1024, 1024, bytes(32))
    with pytest.raises(ProtocolError, match="28001 parts"):
        Assembly(28_000 * 1024 + 1, 1024, bytes(32))
    plan = softmax_regression(1000, 3600)  # with delta_c, 29 MB: 28,156 parts of 1 KB
    with pytest.raises(UsageError, match="use at least 1030"):
        Lab(plan, Scaffold(delta_c="f32"), part_size=1024)
    lab = Lab(plan, Scaffold(delta_c="f32"), part_size=65536)
    puppet = Puppet(lab)
    header, body = puppet.body([0.0] * 4)
    assert puppet.offer(header, body, size=28_810_000, part_size=1024) is None
    assert "an offer of 28810000 bytes" in lab.reports("refused")[-1]["error"]
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


@settings(deadline=None, max_examples=200)
@given(
    name=st.sampled_from(sorted(EXAMPLES)),
    changes=st.dictionaries(st.integers(0, 20), _VALUES, max_size=3),
    algorithm=st.dictionaries(
        st.sampled_from(
            ["name", "local_lr", "batch_size", "local_steps", "mu", "implicit", "option", "self"]
        ),
        _VALUES | st.sampled_from(["fedavg", "fedprox", "scaffold", 1e300, 2**62]),
    ),
)
def test_a_device_survives_any_aggregator(
    name: str, changes: dict[int, Any], algorithm: dict[str, Any]
) -> None:
    fields = msgpack.unpackb(wire.pack(EXAMPLES[name]))
    if "algorithm" in fields:
        fields["algorithm"] |= algorithm
    names = sorted(fields)
    fields |= {names[index % len(names)]: value for index, value in changes.items()}
    alone = Alone()
    alone.connect()
    alone.welcome()
    for topic in (alone.topics.round, alone.topics.ctl("a")):
        alone.step(Received(topic, msgpack.packb(fields)))
    if alone.machine.fatal is None:
        alone.wait(100)


@settings(deadline=None, max_examples=300)
@given(raw=st.binary(max_size=120), parts=st.booleans())
def test_any_bytes_are_a_part_or_a_body_or_a_protocol_error(raw: bytes, parts: bool) -> None:
    for head in (b"", b"KLU1", b"KLTP\x01\0\0\0"):
        try:
            decode_part(head + raw) if parts else decode_body(head + raw, shapes(2, 1))
        except ProtocolError:
            continue


_LABS: list[Lab] = []


def _shared_lab() -> Lab:
    """One aggregator takes all of it, one message after another."""
    if not _LABS:
        _LABS.append(Lab(linear_loss(4), Scaffold()))
        Puppet(_LABS[0])
    return _LABS[0]
