"""Control messages: there and back, the bytes themselves, and how the schema may grow."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol.examples import EXAMPLES, HEADERS, KINDS, kind_of, messages
from protocol.golden import MESSAGES, OLDER

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol import limits, wire
from kellet.sdk.protocol.body import UpdateHeader
from kellet.sdk.protocol.messages import (
    FromDevice,
    FromServer,
    Reject,
    State,
    ToAll,
    announcement_hash,
    update_uid,
)

ALL: list[Any] = [*get_args(FromDevice), *get_args(FromServer), *get_args(ToAll), State]
EVERYTHING = EXAMPLES | {f"header of {name}": header for name, header in HEADERS.items()}


def tampered(message: msgspec.Struct, **changes: Any) -> bytes:
    """A message's map with other values, or other keys; a None by ``...`` takes one out."""
    fields = msgpack.unpackb(wire.pack(message)) | changes
    raw: bytes = msgpack.packb({k: v for k, v in fields.items() if v is not ...})
    return raw


def test_there_is_an_example_of_every_message() -> None:
    assert {type(example) for example in EXAMPLES.values()} == set(ALL)
    tags = [kind.__struct_config__.tag for kind in ALL]
    assert len(set(tags)) == len(tags) == 16


@pytest.mark.parametrize("name", EVERYTHING)
def test_there_and_back(name: str) -> None:
    message = EVERYTHING[name]
    assert wire.unpack(wire.pack(message), kind_of(message)) == message


@pytest.mark.parametrize("kind", [*ALL, UpdateHeader])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_anything_the_schema_allows_comes_back(kind: Any, data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    try:
        raw = wire.pack(message)
    except ProtocolError as error:
        assert "at most 4096" in str(error)  # noqa: PT017
        return
    assert wire.unpack(raw, kind_of(message)) == message


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes(name: str) -> None:
    message = EXAMPLES[name]
    assert wire.pack(message).hex() == MESSAGES[name]
    assert wire.unpack(bytes.fromhex(MESSAGES[name]), kind_of(message)) == message


@pytest.mark.parametrize("name", OLDER)
def test_bytes_of_older_senders_are_still_read(name: str) -> None:
    message = EXAMPLES[name]
    assert wire.unpack(bytes.fromhex(OLDER[name]), kind_of(message)) == message


@pytest.mark.parametrize("name", EVERYTHING)
def test_unknown_keys_are_ignored(name: str) -> None:
    message = EVERYTHING[name]
    raw = tampered(message, colour="green", later={"a": [1, 2, {"b": None}]})
    assert wire.unpack(raw, kind_of(message)) == message


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_field_without_a_default_is_needed(name: str) -> None:
    message = EVERYTHING[name]
    for field in msgspec.structs.fields(message):
        raw = tampered(message, **{field.name: ...})
        if field.name == "v" or field.required:
            with pytest.raises(ProtocolError):
                wire.unpack(raw, kind_of(message))
        else:
            read = wire.unpack(raw, kind_of(message))
            assert getattr(read, field.name) == field.default


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("version", [0, 2, -1, 2**63, "1", None, [1], {}, "x" * 3000])
def test_another_major_version_is_known_as_such(name: str, version: Any) -> None:
    message = EVERYTHING[name]
    with pytest.raises(wire.VersionMismatch, match="this side speaks 1 to 1") as caught:
        wire.unpack(tampered(message, v=version, t="tomorrow"), kind_of(message), limit=1 << 14)
    assert len(str(caught.value)) < 300  # it goes into a reject, whose reason is short


@pytest.mark.parametrize("version", [True, 1.0])
def test_a_version_that_only_looks_like_one_is_no_message(version: Any) -> None:
    with pytest.raises(ProtocolError):
        wire.unpack(tampered(EXAMPLES["busy"], v=version), FromServer)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("hello", {"nonce": bytes(15)}),
        ("hello", {"nonce": "sixteen letters!"}),
        ("hello", {"boot": bytes(9)}),
        ("hello", {"seq": -1}),
        ("hello", {"seq": 2**63}),
        ("hello", {"seq": 1.0}),
        ("hello", {"incarnation": 2**31}),
        ("hello", {"pending": b""}),
        ("join", {"base": bytes(31)}),
        ("join", {"round": True}),
        ("offer", {"size": (1 << 30) + 1}),
        ("offer", {"part_size": 1023}),
        ("offer", {"part_size": (1 << 20) + 1}),
        ("get", {"missing": bytes(3501)}),
        ("get", {"missing": "bits"}),  # which is base64 for other bytes
        ("ack", {"uid": "AAAAAAAAAAAAAAAAAAAAAA=="}),
        ("abort", {"reason": "x" * 301}),
        ("abort", {"reason": b"bytes"}),
        ("state", {"online": 1}),
        ("round", {"deadline": float("nan")}),
        ("round", {"deadline": float("inf")}),
        ("round", {"deadline": -1.0}),
        ("round", {"seed": 2**63}),
        ("round", {"weighting": "loudness"}),
        ("round", {"codecs": {"uplink": ["f16"]}}),
        ("round", {"codecs": {"uplink": "f32"}}),
        ("round", {"codecs": {"uplink": []}}),
        ("round", {"codecs": {"delta_c": "f16"}}),
        ("round", {"codecs": {"share": 1.5}}),
        ("round", {"model": {"sha256": bytes(32), "size": 8, "codec": "topk"}}),
        ("round", {"schemes": []}),
        ("round", {"schemes": ["x"] * 17}),
        ("hello", {"schemes": ["x" * 41]}),
        ("hello", {"schemes": "f32/1"}),
        ("hello", {"profile": None}),
        ("round", {"plan": {"sha256": bytes(31), "size": 1}}),
        ("round", {"plan": None}),
        ("round", {"algorithm": "scaffold"}),
        ("grant", {"window": 0}),
        ("grant", {"window": 1025}),
        ("busy", {"after": "soon"}),
        ("reject", {"code": "tired"}),
        ("reject", {"speaks": [1, 1, 1]}),
        ("idle", {"reason": "asleep"}),
        ("receipt", {"counted": None}),
        ("header of derived", {"kind": "gift"}),
        ("header of derived", {"samples": -1}),
        ("header of derived", {"delta_y": "derived"}),
        ("header of derived", {"delta_c": "q4"}),
        ("header of derived", {"scheme": ""}),
        ("header of derived", {"device": "x" * 65}),
    ],
)
def test_a_field_outside_its_limits_is_refused(name: str, changes: dict[str, Any]) -> None:
    message = EVERYTHING[name]
    with pytest.raises(ProtocolError, match="schema"):
        wire.unpack(tampered(message, **changes), kind_of(message))


def test_each_side_hears_only_the_other() -> None:
    for message in EXAMPLES.values():
        for kind in KINDS:
            if not isinstance(message, kind):
                with pytest.raises(ProtocolError):
                    wire.unpack(wire.pack(message), kind)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="at most 4096"):
        wire.pack(Reject(code="unknown", reason="x" * 5000))


def test_every_message_fits() -> None:
    """The largest bitmap and the longest texts, each in one control message."""
    assert limits.MAX_PARTS // 8 + 300 < limits.CONTROL_BYTES
    for message in EXAMPLES.values():
        assert len(wire.pack(message)) < 700


def test_names() -> None:
    """The uid is the work's: the same for the same (nonce, sequence, announcement)."""
    base = announcement_hash(b"announcement")
    assert base.hex() == "86118a3b7fc92492b026562882076481e99119cc9563879b4f0076cf8d7bff31"
    uid = update_uid(bytes(16), 1, base)
    assert uid.hex() == "6a5e47545643f61af840180589c52dec"
    assert len({update_uid(bytes(16), 2, base), update_uid(b"\1" * 16, 1, base), uid}) == 3
