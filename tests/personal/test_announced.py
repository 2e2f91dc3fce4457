"""How an operator asks for personal models, and what a restart with others says."""

from __future__ import annotations

from typing import Any

import pytest
from cli.test_round_options import config
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import UsageError
from kellet.sdk.personal import Ditto, FineTune, Personal
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.vectors import Shapes
from kellet.server import FleetConfig
from kellet.server.announcing import Announcer, Standing
from kellet.server.blobs import Blobs
from kellet.server.held import held_out
from kellet.server.ledger import Ledger
from kellet.server.sums import ExactSum

PLAN = softmax_regression(2, 3)


def announcer(personal: Personal | None) -> Announcer:
    chosen = FleetConfig(algorithm=FedAvg(local_lr=0.1), personal=personal)
    return Announcer(chosen, PLAN, Blobs(), Ledger())


def raw(personal: Personal | None) -> bytes:
    shapes = Shapes.of(PLAN.manifest.tensors)
    standing = Standing(
        round=1,
        epoch=1,
        members=1,
        control_weight=1,
        model=PLAN.initial(),
        digest=bytes(32),
        control=ExactSum(shapes.n_train),
        residual=None,
    )
    return announcer(personal).make(standing, None).raw


def test_the_command_takes_a_text() -> None:
    assert config().personal is None
    assert config(personal="ditto:0.5,epochs=2").personal == Ditto(0.5, epochs=2)
    with pytest.raises(UsageError, match="--personal = 'dito'"):
        config(personal="dito")
    with pytest.raises(UsageError, match="no device could train in it"):
        config({"algorithm": "fedavg"}, personal="ditto", scheme="w8.row")


def test_nothing_is_announced_unless_asked_for() -> None:
    assert b"personal" not in raw(None)
    told = wire.read(raw(Ditto(0.5)))
    assert told["personal"] == Ditto(0.5).wire()
    del told["personal"]
    assert told == wire.read(raw(None))


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        (Ditto(0.5), Ditto(0.5), {}),
        (None, None, {}),
        (Ditto(0.5), Ditto(0.25), {"personal_lam": [0.5, 0.25]}),
        (None, FineTune(), {"personal": ["none", "finetune"]}),
    ],
)
def test_a_restart_names_what_is_other(
    before: Personal | None, now: Personal | None, changed: dict[str, Any]
) -> None:
    found = announcer(now).changed_since(raw(before))
    assert {name: found[name] for name in found if name in changed} == changed
    assert bool(found) == bool(changed)


def header(samples: int, accuracy: float | None, own: float | None = None) -> dict[str, Any]:
    told = {"holdout_samples": samples, "holdout_loss": 1.0, "holdout_accuracy": accuracy}
    return told | ({} if own is None else {"personal_loss": 0.5, "personal_accuracy": own})


def test_means_are_weighted_and_the_worst_tenth_is_of_devices() -> None:
    """By hand: (10*.5 + 30*.9)/40 = .8 and, of the one with its own model, .75."""
    told = held_out([header(10, 0.5, 0.75), header(30, 0.9), header(0, None)])
    assert told["holdout_accuracy"] == pytest.approx(0.8, rel=1e-15)
    assert told["holdout_accuracy_worst"] == 0.5
    assert (told["personal_accuracy"], told["personal_accuracy_worst"]) == (0.75, 0.75)
    assert told["personal_loss"] == 0.5


def test_who_measures_nothing_tells_nothing() -> None:
    nothing = {f"holdout_{name}": None for name in ("loss", "accuracy", "accuracy_worst")}
    assert held_out([]) == held_out([header(0, None)]) == nothing
    no_classes = held_out([header(10, None)])
    assert (no_classes["holdout_loss"], no_classes["holdout_accuracy_worst"]) == (1.0, None)
