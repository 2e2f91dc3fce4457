"""How a device makes a model of its own, as values that an announcement carries.

Each is a frozen dataclass of hyperparameters, floats rounded to float32 when it is made. How its
local steps are run, it says as an algorithm of one device: ``recipe``.

>>> parse("ditto:0.1,epochs=2")
Ditto(steps=0, epochs=2, local_lr=0.0, lam=0.10000000149011612)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from kellet.sdk.algorithms import FedAvg, FedProx, make_one_of
from kellet.sdk.algorithms.fields import hold_fields
from kellet.sdk.errors import UsageError, require
from kellet.sdk.plan.manifest import TensorSpec

__all__ = ["METHODS", "Ditto", "FineTune", "Personal", "from_wire", "parse"]


@dataclass(frozen=True, kw_only=True)
class Personal:
    """What all of them have.

    ``steps``: on the device's own data in each round that it takes part in, or ``epochs``
    passes where that is 0. ``local_lr``: their rate; 0 for the algorithm's own.
    """

    name: ClassVar[str]
    lasting: ClassVar[bool]
    """Whether v goes on from where it was, or begins anew from each received model."""
    first: ClassVar[str]
    """The hyperparameter that ``NAME:VALUE`` gives."""

    steps: int = 0
    epochs: int = 1
    local_lr: float = 0.0

    def __post_init__(self) -> None:
        hold_fields(self, {"steps": 0, "epochs": 1}, least=0)

    def recipe(self, algorithm: FedAvg) -> FedAvg:
        """The local steps, beside those of the round's ``algorithm``.

        They take its batches' size, decay of the rate, weight decay and clipping. ``UsageError``
        where they would diverge.
        """
        return FedAvg(**self._shared(algorithm, algorithm.local_lr))

    def trained(self, tensors: Sequence[TensorSpec]) -> list[slice]:
        """Which parts of the plan's vector are trained, of all that are. ``UsageError``."""
        own = [t for t in tensors if t.role == "train"]
        return [slice(0, sum(t.size for t in own))]

    def wire(self) -> dict[str, Any]:
        """Name and hyperparameters, as an announcement carries them."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def _shared(self, algorithm: FedAvg, rate: float) -> dict[str, Any]:
        return {
            "local_lr": self.local_lr or rate,
            "lr_decay": algorithm.lr_decay,
            "batch_size": algorithm.batch_size,
            "local_epochs": self.epochs,
            "local_steps": self.steps,
            "weight_decay": algorithm.weight_decay,
            "clip": algorithm.clip,
        }


@dataclass(frozen=True, kw_only=True)
class Ditto(Personal):
    """A personal model v on a leash to the model x that all share.

    Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
    arXiv 2012.04221, algorithm 1: ``v -= local_lr * (grad f(v) + lam * (v - x))`` with the x
    that was received for the round. v begins as the first x that comes, and lasts. ``lam = 0``
    is a model of this device's data alone; the larger, the closer to x.
    """

    name: ClassVar[str] = "ditto"
    lasting: ClassVar[bool] = True
    first: ClassVar[str] = "lam"

    lam: float = dataclasses.field(default=0.1, kw_only=False)

    def recipe(self, algorithm: FedAvg) -> FedAvg:
        shared = self._shared(algorithm, algorithm.local_lr)
        if shared["local_lr"] * self.lam >= 2:
            raise UsageError(
                f"ditto: local_lr * lam = {shared['local_lr'] * self.lam:g}",
                why="its step diverges from 2 upwards",
                repair="lower lam, or give ditto a local_lr of its own",
            )
        return FedProx(**shared, mu=self.lam)


@dataclass(frozen=True, kw_only=True)
class FineTune(Personal):
    """The received model after some steps on the device's own data, anew in each round.

    Under Per-FedAvg (arXiv 2002.07948) this is what the model is trained for: one step, at the
    rate of its look-ahead unless ``local_lr`` says otherwise.

    ``tensors``: which are trained, by name or pattern ("head.*"); all where none is named.
    """

    name: ClassVar[str] = "finetune"
    lasting: ClassVar[bool] = False
    first: ClassVar[str] = "steps"

    tensors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = self.tensors
        listed = isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in names)
        require(listed, "tensors", names, "a list of names or patterns")
        object.__setattr__(self, "tensors", tuple(names))

    def recipe(self, algorithm: FedAvg) -> FedAvg:
        return FedAvg(**self._shared(algorithm, algorithm.lookahead or algorithm.local_lr))

    def trained(self, tensors: Sequence[TensorSpec]) -> list[slice]:
        if not self.tensors:
            return super().trained(tensors)
        own = [t for t in tensors if t.role == "train"]
        for pattern in self.tensors:
            if not any(fnmatchcase(t.name, pattern) for t in own):
                raise UsageError(
                    f"finetune: the plan trains no tensor {pattern!r}",
                    repair=f"name some of {', '.join(t.name for t in own)[:200]}",
                )
        chosen = (t for t in own if any(fnmatchcase(t.name, p) for p in self.tensors))
        return _joined([slice(t.offset, t.offset + t.size) for t in chosen])


METHODS: dict[str, type[Personal]] = {kind.name: kind for kind in (Ditto, FineTune)}


def from_wire(fields: Mapping[str, Any]) -> Personal:
    """The method of an announcement; ``UsageError`` where this version does not know it."""
    return make_one_of(METHODS, "way to personalise", fields)


def parse(text: str) -> Personal:
    """``NAME[:VALUE][,KEY=VALUE...]``: ``ditto:0.1``, ``finetune:20,local_lr=0.01``.

    VALUE is Ditto's ``lam`` and fine-tuning's ``steps``. Patterns of ``tensors`` are joined by
    "+". Raises ``UsageError``.
    """
    head, *rest = (part.strip() for part in text.split(","))
    name, colon, value = head.partition(":")
    kind = METHODS.get(name)
    if kind is None:
        raise UsageError(
            f"personal = {text!r}", repair=f"say one of {', '.join(METHODS)}, as in ditto:0.1"
        )
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    given = {kind.first: value} if colon else {}
    for part in rest:
        key, _, value = part.partition("=")
        given[key] = value
    return from_wire(
        {"name": name} | {key: _value(text, key, types.get(key), v) for key, v in given.items()}
    )


def _value(text: str, key: str, wanted: object, value: str) -> object:
    try:
        if wanted == "int":
            return int(value)
        if wanted == "float":
            return float(value)
    except ValueError:
        raise UsageError(f"personal = {text!r}", why=f"{key} = {value!r} is no number") from None
    return tuple(value.split("+"))


def _joined(spans: list[slice]) -> list[slice]:
    """Neighbours as one."""
    out: list[slice] = []
    for span in spans:
        if out and out[-1].stop == span.start:
            out[-1] = slice(out[-1].start, span.stop)
        else:
            out.append(span)
    return out
