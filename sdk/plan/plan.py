"""A plan: what a device trains, read from one file and verified."""

from __future__ import annotations

import hashlib
import mmap
import os
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike

from kellet.kernels import aligned
from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.plan import data, selftest
from kellet.sdk.plan.bundle import Contents, SelfTest, read_bundle
from kellet.sdk.plan.container import MAX_BUNDLE_BYTES
from kellet.sdk.plan.evaluator import Evaluator
from kellet.sdk.plan.int8_session import Int8Session
from kellet.sdk.plan.manifest import Manifest
from kellet.sdk.plan.schemes import FLOAT32, check_scheme
from kellet.sdk.plan.session import GradientSession

__all__ = ["BUILTIN_PLANS", "Plan"]

BUILTIN_PLANS = ("har", "wisdm")

_Array = np.ndarray[Any, np.dtype[Any]]
_Floats = np.ndarray[Any, np.dtype[np.float32]]


class Plan:
    """A plan, immutable, read and verified. Made by `Plan.open`.

    ``id`` is the SHA-256 of the file, ``raw`` the file itself. The parameters
    are one float32 vector of ``n_params``: first the ``n_train`` trained ones,
    then float buffers up to ``n_update``, then frozen ones.
    """

    __slots__ = ("_contents", "_id", "_raw")

    _contents: Contents
    _id: bytes
    _raw: bytes | mmap.mmap

    def __init__(self, raw: bytes | mmap.mmap, *, digest: bytes | None = None) -> None:
        """Read the bytes of a plan's file. Raises ``PlanError``."""
        object.__setattr__(self, "_raw", raw)
        object.__setattr__(self, "_contents", read_bundle(raw, digest))
        object.__setattr__(self, "_id", hashlib.sha256(raw).digest())
        self.release()

    @classmethod
    def open(
        cls,
        source: str | os.PathLike[str] | bytes | memoryview,
        *,
        digest: bytes | str | None = None,
    ) -> Self:
        """Open a plan from a path, the name of a built-in plan, or its bytes.

        A string that names an existing file is a path. The file is mapped, not
        read: its parameters take no memory while nobody looks at them. So
        replace the file, if at all, by renaming another over it. ``digest`` is the
        SHA-256 that the file must have, as 32 bytes or 64 hex digits. Raises
        ``PlanError`` for a plan that is unknown, damaged or not the one meant.
        """
        wanted = _digest(digest)
        if isinstance(source, bytes | bytearray | memoryview):
            return cls(bytes(source), digest=wanted)
        if isinstance(source, str) and source in BUILTIN_PLANS and not Path(source).is_file():
            builtin = resources.files("kellet.sdk.plan") / "builtin" / f"{source}.kplan"
            return cls(builtin.read_bytes(), digest=wanted)
        return cls(_read(source), digest=wanted)

    @property
    def id(self) -> bytes:
        """The SHA-256 of the file, 32 bytes."""
        return self._id

    @property
    def hex_id(self) -> str:
        """The SHA-256 of the file, 64 hex digits."""
        return self._id.hex()

    @property
    def raw(self) -> bytes:
        """The file, to be shipped."""
        return bytes(self._raw)

    @property
    def size(self) -> int:
        """Bytes of the file, which are not read for it."""
        return len(self._raw)

    def release(self) -> None:
        """Let go of the memory that a mapped file takes; it is read again where needed."""
        if isinstance(self._raw, mmap.mmap):
            self._raw.madvise(mmap.MADV_DONTNEED)

    @property
    def manifest(self) -> Manifest:
        """What the plan says about itself."""
        return self._contents.manifest

    @property
    def n_params(self) -> int:
        """Elements of the flat vector."""
        return self.manifest.n_params

    @property
    def n_update(self) -> int:
        """Elements that are trained or updated by a step; they come first."""
        return self.manifest.n_update

    @property
    def n_train(self) -> int:
        """Elements that are trained; they come first of all. Gradients have this length."""
        return self.manifest.n_train

    @property
    def local(self) -> tuple[slice, ...]:
        """The parts of the vector that each device keeps to itself (batch statistics)."""
        return tuple(
            slice(tensor.offset, tensor.offset + tensor.size)
            for tensor in self.manifest.tensors
            if tensor.aggregate == "local"
        )

    @property
    def step_graph(self) -> memoryview:
        """The encoded ONNX model of a step."""
        return self._contents.step

    @property
    def schemes(self) -> tuple[str, ...]:
        """How a device may hold the weights: "f32/1", then the variants of the plan."""
        return (FLOAT32, *self._contents.variants)

    def variant_graph(self, scheme: str) -> memoryview:
        """The encoded ONNX model of a step under ``scheme``.

        Raises ``UsageError`` for no scheme, ``PlanError`` for one that the plan has not.
        """
        scheme = check_scheme(scheme)
        if scheme == FLOAT32:
            return self.step_graph
        if scheme not in self._contents.variants:
            raise PlanError(
                f"the plan {self.manifest.name} has no variant {scheme}",
                why=f"it has {', '.join(self.schemes)}",
                repair="add it with `kellet plan derive`, or take another",
            )
        return self._contents.variants[scheme]

    @property
    def eval_graph(self) -> memoryview:
        """The encoded ONNX model of inference."""
        return self._contents.eval

    def initial(self) -> _Floats:
        """Return a fresh, 64-byte aligned copy of the initial parameters [n_params]."""
        vector: _Floats = aligned(self.n_params)
        vector[:] = self.initial_view()
        return vector

    def initial_view(self) -> _Floats:
        """Return the initial parameters [n_params] where they lie in the file, read-only."""
        return np.frombuffer(self._contents.initial, "<f4")

    def completed(self, update: _Floats) -> _Floats:
        """Return the whole vector [n_params] of ``update`` [n_update]: frozen ones added.

        Fresh and 64-byte aligned. Raises ``UsageError`` for another length.
        """
        if update.shape != (self.n_update,):
            raise UsageError(
                f"the model has the shape {list(update.shape)}",
                why=f"what travels of this plan's are {self.n_update} elements",
                repair="pass the trained parameters and the buffers",
            )
        vector: _Floats = aligned(self.n_params)
        vector[: self.n_update] = update
        vector[self.n_update :] = self.initial_view()[self.n_update :]
        self.release()
        return vector

    def views(self, flat: _Floats) -> dict[str, _Floats]:
        """Return the tensors that lie in ``flat``, as views, by name.

        ``flat`` has n_params, n_update or n_train elements; a shorter vector
        holds fewer tensors. Raises ``UsageError`` for another length.
        """
        if flat.ndim != 1 or flat.size not in (self.n_params, self.n_update, self.n_train):
            raise UsageError(
                f"the vector has the shape {list(flat.shape)}",
                why=f"this plan's have {self.n_params} elements, or the first "
                f"{self.n_update} or {self.n_train} of them",
                repair="pass the flat vector, not a part of it",
            )
        return {
            tensor.name: flat[tensor.offset : tensor.offset + tensor.size].reshape(tensor.shape)
            for tensor in self.manifest.tensors
            if tensor.offset + tensor.size <= flat.size
        }

    def check_data(self, x: ArrayLike, y: ArrayLike) -> tuple[_Array, _Array]:
        """Return (x, y) as contiguous arrays of the plan's dtypes.

        x: [n, *input], y: [n, *label]. Raises ``DataError``, naming the row
        and column, for what cannot be trained on.
        """
        return data.check_data(self.manifest, x, y)

    @overload
    def session(
        self, scheme: Literal["f32/1"] = "f32/1", *, threads: int = 1
    ) -> GradientSession: ...

    @overload
    def session(self, scheme: str, *, threads: int = 1) -> GradientSession | Int8Session: ...

    def session(self, scheme: str = FLOAT32, *, threads: int = 1) -> GradientSession | Int8Session:
        """Open a session that computes gradients, for weights held as ``scheme`` says.

        One thread makes digests repeatable on a CPU type. Raises
        ``UsageError`` for no scheme, ``PlanError`` for one that the plan has not.
        """
        if check_scheme(scheme) == FLOAT32:
            return GradientSession(self, threads=threads)
        return Int8Session(self, scheme, threads=threads)

    def evaluator(self, *, threads: int = 1) -> Evaluator:
        """Open an evaluator."""
        return Evaluator(self, threads=threads)

    @property
    def expected(self) -> SelfTest:
        """The self-test's batch, and what must come out of it."""
        return self._contents.self_test

    def self_test(self, scheme: str = FLOAT32) -> selftest.SelfTestResult:
        """Run the plan's own test of a scheme on this machine. Raises ``PlanError`` when off."""
        if check_scheme(scheme) == FLOAT32:
            return selftest.run(self, self._contents.self_test)
        return selftest.run_variant(self, scheme, self._contents.self_test)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a plan is immutable; {name!r} cannot be set")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __reduce__(self) -> tuple[type[Plan], tuple[bytes]]:
        return (type(self), (self.raw,))

    def __repr__(self) -> str:
        return f"<Plan {self.manifest.name} {self.hex_id[:12]} n_params={self.n_params}>"


def _digest(digest: bytes | str | None) -> bytes | None:
    if digest is None:
        return None
    try:
        wanted = bytes.fromhex(digest) if isinstance(digest, str) else bytes(digest)
    except ValueError:
        wanted = b""
    if len(wanted) != 32:
        raise UsageError(
            f"{digest!r} is not the digest of a plan",
            why="a SHA-256 has 32 bytes, or 64 hex digits",
            repair="see `kellet plan show`",
        )
    return wanted


def _read(source: str | os.PathLike[str]) -> bytes | mmap.mmap:
    path = Path(source)
    try:
        with path.open("rb") as file:
            if not 0 < os.fstat(file.fileno()).st_size <= MAX_BUNDLE_BYTES:
                return file.read(MAX_BUNDLE_BYTES + 1)  # a pipe, or refused for its size
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise PlanError(
            f"there is no plan {os.fspath(source)!r}",
            why="it is neither a file nor a built-in plan",
            repair=f"give the path of a .kplan file, or one of: {', '.join(BUILTIN_PLANS)}",
        ) from None
    except OSError as error:
        raise PlanError(
            f"the plan {os.fspath(source)!r} cannot be read",
            why=error.strerror or str(error),
            repair="check the path and its permissions",
        ) from None
