"""One example of every message, and hypothesis strategies made from the messages' own schemas."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st
from msgspec import inspect

from kellet import kernels
from kellet.sdk.protocol.body import UpdateHeader
from kellet.sdk.protocol.messages import (
    COUNTED,
    Abort,
    Ack,
    Blob,
    Busy,
    Codecs,
    Decline,
    FromDevice,
    FromServer,
    Get,
    Grant,
    Hello,
    Histogram,
    Idle,
    Join,
    Late,
    Offer,
    Question,
    Receipt,
    Reject,
    Round,
    State,
    ToAll,
    Train,
    Welcome,
)
from kellet.sdk.protocol.vectors import Shapes

__all__ = ["EXAMPLES", "HEADERS", "KINDS", "messages", "shapes", "vectors"]

QUARTERS = np.array([0.25, 0.75], "<f4").tobytes()
NONCE, BOOT, UID = bytes(range(16)), b"bootboot", bytes(range(16, 32))
SHA = hashlib.sha256(b"kellet").digest()
BASE = hashlib.sha256(b"announcement").digest()
WHO: dict[str, Any] = {"nonce": NONCE, "boot": BOOT}
# Maps of the first version: what an algorithm announces grows, the bytes here stay.
COMMON: dict[str, Any] = {"lr_decay": 1.0, "batch_size": 32, "local_epochs": 1}
SCAFFOLD = {"name": "scaffold", "local_lr": 0.10000000149011612, **COMMON, "local_steps": 2}
SCAFFOLD |= {"server_lr": 1.0, "weighting": "uniform", "option": "II", "delta_c": "derived"}
FEDPROX = {"name": "fedprox", "local_lr": 0.05000000074505806, **COMMON, "local_steps": 0}
FEDPROX |= {"server_lr": 1.0, "weighting": "samples", "mu": 0.5, "implicit": False}
YOGI = {"name": "yogi", "server_lr": 0.1, "beta1": 0.9, "tau": 0.001, "beta2": 0.99}
DITTO = {"name": "ditto", "steps": 0, "epochs": 1, "local_lr": 0.0, "lam": 0.125}
RECEIPT = Receipt(uid=UID, seq=5, round=7, counted=True, reason="counted")

EXAMPLES: dict[str, msgspec.Struct] = {
    "round": Round(
        round=7,
        epoch=1,
        plan=Blob(SHA, 1000),
        model=Blob(SHA, 2000),
        control=Blob(SHA, 2000),
        algorithm=SCAFFOLD,
        weighting="uniform",
        codecs=Codecs(delta_c="derived"),
        members=8,
        target=4,
        quorum=2,
        deadline=60.0,
        valid=60.0,
        part_size=65536,
        seed=2**63 - 1,
        plan_name="wisdm",
    ),
    "round with a server optimizer": Round(
        round=10,
        epoch=1,
        plan=Blob(SHA, 1000),
        model=Blob(SHA, 2000),
        control=None,
        algorithm=FEDPROX,
        weighting="samples",
        codecs=Codecs(),
        members=8,
        target=3,
        quorum=1,
        deadline=60.0,
        valid=60.0,
        part_size=65536,
        seed=0,
        server_optimizer=YOGI,
    ),
    "round without controls": Round(
        round=2**31 - 1,
        epoch=0,
        plan=Blob(SHA, 1),
        model=Blob(SHA, 1 << 30),
        control=None,
        algorithm=FEDPROX,
        weighting="samples",
        codecs=Codecs(),
        members=1,
        target=1,
        quorum=1,
        deadline=0.5,
        valid=0.5,
        part_size=1024,
        seed=0,
    ),
    "round with codecs": Round(
        round=8,
        epoch=1,
        plan=Blob(SHA, 1000),
        model=Blob(SHA, 600, "q8"),
        control=Blob(SHA, 600, "q8"),
        algorithm=SCAFFOLD,
        weighting="uniform",
        codecs=Codecs(delta_y=("topk", "q8"), delta_c="q8", feedback=True, share=0.0625),
        members=8,
        target=4,
        quorum=2,
        deadline=60.0,
        valid=60.0,
        part_size=65536,
        seed=0,
        schemes=("w8.row/1", "f32/1"),
    ),
    "round that buffers late updates": Round(
        round=9,
        epoch=1,
        plan=Blob(SHA, 1000),
        model=Blob(SHA, 2000),
        control=None,
        algorithm=FEDPROX,
        weighting="samples",
        codecs=Codecs(),
        members=8,
        target=3,
        quorum=1,
        deadline=60.0,
        valid=300.0,
        part_size=65536,
        seed=0,
        late=Late(buffer=3, max_stale=4),
    ),
    "round with personal models": Round(
        round=11,
        epoch=1,
        plan=Blob(SHA, 1000),
        model=Blob(SHA, 2000),
        control=None,
        algorithm=FEDPROX,
        weighting="samples",
        codecs=Codecs(),
        members=8,
        target=3,
        quorum=1,
        deadline=60.0,
        valid=60.0,
        part_size=65536,
        seed=0,
        personal=DITTO,
    ),
    "round that asks for histograms": Round(
        round=12,
        epoch=1,
        plan=Blob(SHA, 1000),
        model=Blob(SHA, 2000),
        control=None,
        algorithm=FEDPROX,
        weighting="samples",
        codecs=Codecs(),
        members=8,
        target=3,
        quorum=1,
        deadline=60.0,
        valid=60.0,
        part_size=65536,
        seed=0,
        histogram=Question(classes=2, columns=(3,), edges=((-0.5, 1.0),)),
    ),
    "idle": Idle(reason="finished", round=7),
    "hello": Hello(**WHO, incarnation=3, seq=4, pending=UID, epoch=1, audit=2**64 - 1),
    "hello of a newcomer": Hello(**WHO, incarnation=1, seq=0, pending=None, epoch=None, audit=None),
    "hello with schemes": Hello(
        **WHO,
        incarnation=1,
        seq=0,
        pending=None,
        epoch=None,
        audit=None,
        schemes=("w8.row/1", "f32/1"),
        profile="pi_zero_2w",
    ),
    "hello with a histogram": Hello(
        **WHO,
        incarnation=1,
        seq=0,
        pending=None,
        epoch=None,
        audit=None,
        histogram=Histogram(question=BOOT, shares=QUARTERS, epsilon=0.5),
    ),
    "hello that takes a histogram back": Hello(
        **WHO, incarnation=1, seq=0, pending=None, epoch=None, audit=None, histogram=None
    ),
    "join": Join(**WHO, round=7, base=BASE),
    "decline": Decline(**WHO, round=7, base=BASE, reason="not charging"),
    "offer": Offer(
        **WHO, uid=UID, round=7, base=BASE, seq=5, size=8288, part_size=1024, sha256=SHA
    ),
    "get": Get(**WHO, sha256=SHA, missing=b"\x05\x80"),
    "abort": Abort(**WHO, round=7, reason="the loss became nan"),
    "state": State(online=False, boot=BOOT),
    "receipt": RECEIPT,
    "receipt of a refusal": Receipt(uid=UID, seq=5, round=7, counted=False, reason="late"),
    "welcome": Welcome(boot=BOOT, epoch=1, receipt=RECEIPT, audit="same"),
    "welcome without receipt": Welcome(boot=BOOT, epoch=1, receipt=None, audit="none"),
    "train": Train(round=7, base=BASE, seconds=41.5),
    "busy": Busy(after=1.0, round=7, reason="the cohort is full"),
    "busy with uploads": Busy(after=1.0, uid=UID, reason="many uploads are under way"),
    "grant": Grant(uid=UID, worker="0", missing=b"\xff\x01", window=8, lease=30.0),
    "ack": Ack(uid=UID, missing=b""),
    "reject": Reject(code="fenced", reason="a newer process uses this id", boot=BOOT, nonce=NONCE),
    "reject of a version": Reject(code="version", reason="speak 1"),
}

KINDS: tuple[Any, ...] = (FromDevice, FromServer, ToAll, State, UpdateHeader)

HEADERS: dict[str, UpdateHeader] = {
    "derived": UpdateHeader(
        kind="update",
        device="pi-1",
        nonce=NONCE,
        seq=5,
        round=7,
        epoch=1,
        base=BASE,
        steps=2,
        rate_sum=0.25,
        samples=60,
        loss=1.5,
        objective=1.5,
        drift=0.75,
        holdout_samples=6,
        holdout_loss=1.25,
        holdout_accuracy=0.5,
        delta_c="derived",
    ),
    "personal": UpdateHeader(
        kind="update",
        device="pi-1",
        nonce=NONCE,
        seq=5,
        round=11,
        epoch=1,
        base=BASE,
        steps=2,
        rate_sum=0.25,
        samples=60,
        loss=1.5,
        objective=1.5,
        drift=0.75,
        holdout_samples=6,
        holdout_loss=1.25,
        holdout_accuracy=0.5,
        personal_loss=0.25,
        personal_accuracy=1.0,
    ),
    "coded": UpdateHeader(
        kind="update",
        device="pi-1",
        nonce=NONCE,
        seq=9,
        round=8,
        epoch=1,
        base=BASE,
        steps=1,
        rate_sum=0.125,
        samples=1,
        delta_y="q8",
        delta_c="topk",
        scheme="w8.row/1",
    ),
    "explicit": UpdateHeader(
        kind="update",
        device="pi-1",
        nonce=NONCE,
        seq=6,
        round=8,
        epoch=1,
        base=BASE,
        steps=1,
        rate_sum=0.125,
        samples=1,
        delta_c="f32",
    ),
    "leave": UpdateHeader(
        kind="leave", device="pi-1", nonce=NONCE, seq=7, round=0, epoch=1, base=bytes(32)
    ),
}


def kind_of(message: msgspec.Struct) -> Any:
    """The union that a message is read as."""
    for kind in KINDS:
        if isinstance(message, kind):
            return kind
    raise TypeError(type(message))


def messages(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Any value that the schema allows, with texts that fit."""
    return _strategy(inspect.type_info(kind))


def _strategy(node: Any) -> st.SearchStrategy[Any]:
    match node:
        case inspect.StructType(cls=kind) if kind is Receipt:
            fields = {f.name: _strategy(f.type) for f in node.fields if f.name != "counted"}
            fields["reason"] |= st.just(COUNTED)
            return st.fixed_dictionaries(fields).map(
                lambda said: Receipt(**said, counted=said["reason"] == COUNTED)
            )
        case inspect.StructType(cls=kind) if kind is Histogram:
            shares = st.lists(st.floats(0, 1, width=32), min_size=2, max_size=256)
            return st.builds(
                Histogram,
                question=st.binary(min_size=8, max_size=8),
                shares=shares.map(lambda said: np.array(said, "<f4").tobytes()),
                epsilon=st.none() | st.floats(0, exclude_min=True),
            )
        case inspect.StructType(cls=kind) if kind is Question:
            edges = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=4, unique=True)
            columns = st.dictionaries(st.integers(0, 9), edges.map(sorted).map(tuple), max_size=4)
            return st.builds(
                lambda classes, of: Question(
                    classes=classes, columns=tuple(of), edges=tuple(of.values())
                ),
                st.integers(2, 200),
                columns,
            )
        case inspect.StructType():
            fields = {f.name: _strategy(f.type) for f in node.fields}
            return st.builds(node.cls, **fields)
        case inspect.UnionType():
            return st.one_of([_strategy(t) for t in node.types])
        case inspect.LiteralType():
            return st.sampled_from(node.values)
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            top = node.lt - 1 if node.lt is not None else node.le
            return st.integers(node.ge or 0, 2**64 - 1 if top is None else top)
        case inspect.FloatType():
            if node.ge is None:
                return st.floats(allow_nan=False)
            return st.floats(node.ge, node.le)
        case inspect.BytesType():
            return st.binary(min_size=node.min_length or 0, max_size=node.max_length)
        case inspect.StrType():
            return st.text(
                "abc -é", min_size=node.min_length or 0, max_size=min(node.max_length or 60, 60)
            )
        case inspect.DictType():
            values = st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.floats(0, 1))
            return st.dictionaries(st.text("abcdef", max_size=8), values, max_size=5)
        case inspect.VarTupleType():
            items = st.lists(
                _strategy(node.item_type), min_size=node.min_length or 0, max_size=node.max_length
            )
            return items.map(tuple)
        case inspect.TupleType():
            return st.tuples(*[_strategy(t) for t in node.item_types])
    raise TypeError(node)


def shapes(n_update: int, n_train: int) -> Shapes:
    """A plan with tensors of one dimension, the trained one first."""
    tensors = [(n_train,), (n_update - n_train,)]
    update = kernels.row_layout(t for t in tensors if t[0])
    return Shapes(n_update, n_train, update, kernels.row_layout(tensors[:1]))


def vectors() -> dict[str, Any]:
    """Two updated entries, the first of them trained, for the bodies."""
    return {
        "delta_y": np.array([-0.5, 0.25], np.float32),
        "delta_c": np.array([1.5], np.float32),
        "c_i": np.array([-(2**48)], np.int64),
    }
