"""Ways to personalise as values: from a text, on the wire and back, and what is refused."""

from __future__ import annotations

import pytest

from kellet.sdk.errors import UsageError
from kellet.sdk.personal import Ditto, FineTune, Personal, from_wire, parse


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("ditto", Ditto()),
        ("ditto:0.5", Ditto(0.5)),
        ("ditto:0,epochs=3,local_lr=0.25", Ditto(0, epochs=3, local_lr=0.25)),
        ("finetune:20", FineTune(steps=20)),
        ("finetune,tensors=4.*+2.bias", FineTune(tensors=("4.*", "2.bias"))),
        ("finetune, epochs=2", FineTune(epochs=2)),
    ],
)
def test_texts(text: str, method: Personal) -> None:
    assert parse(text) == method
    assert from_wire(method.wire()) == method
    assert from_wire(method.wire()).wire() == method.wire()


def test_floats_are_rounded_once() -> None:
    assert Ditto(0.1).lam == 0.10000000149011612
    assert Ditto(0.1) == Ditto(Ditto(0.1).lam)
    assert from_wire({**FineTune(tensors=("a",)).wire(), "tensors": ["a"]}).tensors == ("a",)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "say one of ditto, finetune"),
        ("dito:0.1", "say one of ditto, finetune"),
        ("ditto:much", "lam = 'much' is no number"),
        ("ditto:", "lam = '' is no number"),
        ("ditto:-1", "at least 0"),
        ("ditto:nan", "at least 0"),
        ("ditto:1e39", "finite float32"),
        ("ditto:0.1,epochs=0", "at least 1"),
        ("ditto:0.1,steps=1.5", "steps = '1.5' is no number"),
        ("ditto:0.1,tensors=a", "ditto has no 'tensors'"),
        ("finetune:20,lam=1", "finetune has no 'lam'"),
    ],
)
def test_refusals(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert why in str(refused.value)
