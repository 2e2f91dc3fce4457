"""The messages, field by field as docs/protocol.md lists them."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.histograms import Histogram, Question
from kellet.sdk.protocol.limits import (
    MAX_BLOB,
    MAX_PART,
    MAX_PARTS,
    MAX_STALE,
    MIN_PART,
    VERSION,
)
from kellet.sdk.protocol.vectors import Codec

__all__ = [
    "FLOAT",
    "NO_BASE",
    "Abort",
    "Ack",
    "Blob",
    "Busy",
    "Codecs",
    "Decline",
    "FromDevice",
    "FromServer",
    "Get",
    "Grant",
    "Hello",
    "Histogram",
    "Idle",
    "Join",
    "Late",
    "Offer",
    "Question",
    "Receipt",
    "Reject",
    "Round",
    "State",
    "ToAll",
    "Train",
    "Welcome",
    "announcement_hash",
    "staleness",
    "update_uid",
]

FLOAT = "f32/1"  # the scheme that every device has
COUNTED = "counted"  # the reason of an update that was
NO_BASE = bytes(32)  # what a leave names instead of an announcement

Bytes8 = Annotated[bytes, Meta(min_length=8, max_length=8)]
Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Sequence64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Size = Annotated[int, Meta(ge=0, le=MAX_BLOB)]
PartSize = Annotated[int, Meta(ge=MIN_PART, le=MAX_PART)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Bitmap = Annotated[bytes, Meta(max_length=MAX_PARTS // 8)]
Text = Annotated[str, Meta(max_length=300)]
Scheme = Annotated[str, Meta(min_length=1, max_length=40)]
Schemes = Annotated[tuple[Scheme, ...], Meta(min_length=1, max_length=16)]
DeltaC = Literal["none", "derived", "f32", "q8", "topk"]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="t"):
    v: Literal[1] = VERSION


class Blob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A content-addressed file, or a vector in ``codec``."""

    sha256: Bytes32
    size: Size
    codec: Literal["f32", "q8"] = "f32"


class Codecs(msgspec.Struct, frozen=True, kw_only=True):
    """How the two vectors of an update travel.

    ``delta_y``: what is accepted, a device takes the first unless its profile prefers
    another of them. ``share``: k/n of ``topk``, for both vectors. ``feedback``: what a
    lossy delta_y left out is added to the next; never with a delta_c that is derived.
    """

    # On the wire under another name: "delta_y" was once a text, and stays reserved.
    delta_y: Annotated[tuple[Codec, ...], Meta(min_length=1, max_length=8)] = msgspec.field(
        default=("f32",), name="uplink"
    )
    delta_c: DeltaC = "none"
    feedback: bool = False
    share: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def check(self) -> None:
        """Raise ``UsageError`` for what would diverge or cannot be: both sides refuse it."""
        if self.feedback and self.delta_c == "derived":
            raise UsageError(
                "error feedback on a delta_y from which delta_c is derived",
                why="c_i is the memory of that error already: with a second one both diverge",
                repair="let delta_c travel (f32, q8 or topk), or leave feedback out",
            )
        if self.feedback and set(self.delta_y) == {"f32"}:
            raise UsageError(
                "error feedback on a delta_y that travels in float32",
                why="nothing is left out of it",
                repair="let delta_y travel as q8 or topk, or leave feedback out",
            )
        if "topk" in (*self.delta_y, self.delta_c) and not self.share:
            raise UsageError(
                "topk without a share",
                why="it says how many elements are sent",
                repair="say topk:0.05",
            )


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """Updates of earlier announcements are counted, too.

    The model moves at ``buffer`` updates, whatever they name; an update may come
    ``max_stale`` rounds after the one that it names.
    """

    buffer: Annotated[int, Meta(ge=1, lt=2**31)]
    max_stale: Annotated[int, Meta(ge=1, le=MAX_STALE)]


class Round(_Message, frozen=True, kw_only=True, tag="round"):
    """The announcement of a round (retained)."""

    round: Count
    epoch: Count
    plan: Blob
    model: Blob
    control: Blob | None
    algorithm: dict[str, Any]
    weighting: Literal["samples", "uniform"]
    codecs: Codecs
    members: Count
    target: Count
    quorum: Count
    deadline: Seconds
    valid: Seconds
    part_size: PartSize
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    plan_name: Text = ""
    schemes: Schemes = (FLOAT,)  # the best first
    # Absent where late updates are refused: such an announcement has the bytes that it had.
    late: Late | msgspec.UnsetType = msgspec.UNSET
    # Name and hyperparameters, for whoever looks: devices need none. Absent with the plain mean.
    server_optimizer: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    # How devices make models of their own, by name and hyperparameters. Absent where none do.
    personal: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    # What devices may tell of their data, if their owners share it. Absent where nothing is asked.
    histogram: Question | msgspec.UnsetType = msgspec.UNSET

    @property
    def blobs(self) -> list[Blob]:
        """What a device needs for it: the plan, the model, and the control where there is one."""
        return [blob for blob in (self.plan, self.model, self.control) if blob]

    @property
    def optimizing(self) -> dict[str, Any] | None:
        """The server's optimiser; None where the model follows the plain mean."""
        return self.server_optimizer if isinstance(self.server_optimizer, dict) else None

    @property
    def personalising(self) -> dict[str, Any] | None:
        """How devices make models of their own; None where they do not."""
        return self.personal if isinstance(self.personal, dict) else None

    @property
    def asking(self) -> Question | None:
        """What is asked of devices' data; None for nothing."""
        return self.histogram if isinstance(self.histogram, Question) else None

    @property
    def buffering(self) -> Late | None:
        """The policy for late updates; None where they are refused."""
        return self.late if isinstance(self.late, Late) else None


class Idle(_Message, frozen=True, kw_only=True, tag="idle"):
    """No round is open (retained)."""

    reason: Literal["waiting", "finished"]
    round: Count


class _Request(_Message, frozen=True, kw_only=True):
    nonce: Bytes16
    boot: Bytes8


class Hello(_Request, frozen=True, kw_only=True, tag="hello"):
    """First message on each connection: who this is and what it holds."""

    incarnation: Count
    seq: Sequence64
    pending: Bytes16 | None
    epoch: Count | None
    audit: Annotated[int, Meta(ge=0)] | None
    schemes: Schemes = (FLOAT,)  # what this device can do
    profile: Text = ""
    # Absent unless the device's owner shares it; None takes back what was told before.
    histogram: Histogram | msgspec.UnsetType | None = msgspec.UNSET


class Join(_Request, frozen=True, kw_only=True, tag="join"):
    """Willing to train in this round."""

    round: Count
    base: Bytes32


class Decline(_Request, frozen=True, kw_only=True, tag="decline"):
    """May not train now: the round need not wait for this device."""

    round: Count
    base: Bytes32
    reason: Text


class Offer(_Request, frozen=True, kw_only=True, tag="offer"):
    """An update is ready to travel."""

    uid: Bytes16
    round: Count
    base: Bytes32
    seq: Sequence64
    size: Size
    part_size: PartSize
    sha256: Bytes32


class Get(_Request, frozen=True, kw_only=True, tag="get"):
    """Parts of a blob are missing here."""

    sha256: Bytes32
    missing: Bitmap


class Abort(_Request, frozen=True, kw_only=True, tag="abort"):
    """Told to train, but cannot."""

    round: Count
    reason: Text


class State(_Message, frozen=True, kw_only=True, tag="state"):
    """A hint (retained; the last will says ``online`` false)."""

    online: bool
    boot: Bytes8


class Receipt(_Message, frozen=True, kw_only=True, tag="receipt"):
    """The ledger's durable answer to an update. It says twice whether that was counted.

    A device moves c_i on this word alone: one flipped bit must not turn it round.
    """

    uid: Bytes16
    seq: Sequence64
    round: Count
    counted: bool
    reason: Text

    def __post_init__(self) -> None:
        if self.counted != (self.reason == COUNTED):
            raise ValueError(f"counted = {self.counted} for the reason {self.reason!r}")


class Welcome(_Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to ``hello``."""

    boot: Bytes8
    epoch: Count
    receipt: Receipt | None
    audit: Literal["same", "none"]


class Train(_Message, frozen=True, kw_only=True, tag="train"):
    """This device is asked to train."""

    round: Count
    base: Bytes32
    seconds: Seconds


class Busy(_Message, frozen=True, kw_only=True, tag="busy"):
    """Not now."""

    after: Seconds
    round: Count | None = None
    uid: Bytes16 | None = None
    reason: Text = ""


class Grant(_Message, frozen=True, kw_only=True, tag="grant"):
    """Send these parts."""

    uid: Bytes16
    worker: Text
    missing: Bitmap
    window: Annotated[int, Meta(ge=1, le=1024)]
    lease: Seconds


class Ack(_Message, frozen=True, kw_only=True, tag="ack"):
    """These parts have not arrived yet."""

    uid: Bytes16
    missing: Bitmap


class Reject(_Message, frozen=True, kw_only=True, tag="reject"):
    """The conversation cannot go on like this."""

    code: Literal["version", "fenced", "restored", "unknown"]
    reason: Text
    boot: Bytes8 | None = None
    nonce: Bytes16 | None = None
    speaks: tuple[int, int] = (VERSION, VERSION)


ToAll = Round | Idle
FromDevice = Hello | Join | Decline | Offer | Get | Abort
FromServer = Welcome | Train | Busy | Grant | Ack | Receipt | Reject


def announcement_hash(raw: bytes) -> bytes:
    """SHA-256 over an announcement's raw payload: the ``base`` of updates (32 bytes)."""
    return hashlib.sha256(raw).digest()


def staleness(named: Round, opened: Round) -> int | None:
    """How many rounds before ``opened`` an update's announcement was (0: it is that one's).

    None where its update is not counted in that round: both must allow for it, and
    be of one control epoch.
    """
    rounds = opened.round - named.round
    if rounds == 0:
        return 0
    if named.buffering is None or opened.buffering is None or named.epoch != opened.epoch:
        return None
    most = min(named.buffering.max_stale, opened.buffering.max_stale)
    return rounds if 0 < rounds <= most else None


def update_uid(nonce: bytes, seq: int, base: bytes) -> bytes:
    """The name of the work a membership does at ``seq`` from ``base`` (16 bytes)."""
    return hashlib.sha256(nonce + seq.to_bytes(8, "little") + base).digest()[:16]
