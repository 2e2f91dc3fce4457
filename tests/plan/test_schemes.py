"""Names of schemes, and how a scheme lays out a plan. Worked by hand."""

from __future__ import annotations

import pytest

from kellet.sdk.errors import UsageError
from kellet.sdk.plan import (
    SCHEMES,
    InputSpec,
    Int8Layout,
    LabelSpec,
    Manifest,
    check_scheme,
    family,
)
from kellet.sdk.plan.manifest import FORMAT, layout

TENSORS = [
    ("conv", (4, 3, 3), "train", "mean"),
    ("conv.bias", (4,), "train", "mean"),
    ("linear", (2, 64), "train", "mean"),
    ("wide", (8, 16), "train", "mean"),
    ("mean", (2, 2), "buffer", "local"),
    ("table", (16, 4), "frozen", "mean"),
    ("scale", (5,), "frozen", "mean"),
]


def manifest() -> Manifest:
    return Manifest(
        format=FORMAT,
        name="m",
        input=InputSpec(shape=(1,)),
        labels=LabelSpec(),
        loss="custom",
        tensors=layout(TENSORS),
        memory={},
        opset=18,
        min_onnxruntime="1.20",
    )


def test_a_family_is_its_newest_version() -> None:
    assert SCHEMES == ("f32/1", "w8.row/1", "w8.block64/1", "w8.row+a8/1")
    assert [family(name) for name in SCHEMES] == ["f32", "w8.row", "w8.block64", "w8.row+a8"]
    assert [check_scheme(family(name)) for name in SCHEMES] == list(SCHEMES)
    assert [check_scheme(name) for name in SCHEMES] == list(SCHEMES)


@pytest.mark.parametrize("name", ["", "w8", "w8.row/2", "W8.ROW", "f32/", "/1", "w8.row /1"])
def test_another_name_is_refused_with_what_it_may_be(name: str) -> None:
    for ask in (check_scheme, family):
        with pytest.raises(UsageError, match=r"no scheme.*f32/1, w8.row/1, w8.block64/1"):
            ask(name)


def test_rows_are_first_axes_and_vectors_and_buffers_stay_float() -> None:
    found = Int8Layout.of(manifest(), "w8.row")
    assert [(t.tensor.name, t.shape) for t in found.weights] == [
        ("conv", (4, 9)),
        ("linear", (2, 64)),
        ("wide", (8, 16)),
    ]
    assert [(t.values, t.scales) for t in found.weights] == [
        (slice(0, 36), slice(0, 4)),
        (slice(36, 164), slice(4, 6)),
        (slice(164, 292), slice(6, 14)),
    ]
    assert [(t.tensor.name, t.shape, t.values) for t in found.frozen] == [
        ("table", (16, 4), slice(0, 64))
    ]
    assert [(t.tensor.name, t.rest, t.flat) for t in found.rest] == [
        ("conv.bias", slice(0, 4), slice(36, 40)),
        ("mean", slice(4, 8), slice(296, 300)),
        ("scale", slice(8, 13), slice(364, 369)),
    ]
    assert (found.n_weights, found.n_scales) == (292, 14)
    assert (found.n_rest_train, found.n_rest_update, found.n_rest) == (4, 8, 13)
    assert found.rows.tolist() == [4, 9, 2, 64, 8, 16]
    # values and scales of the trained, of the frozen, and 13 floats
    assert found.state_bytes == 292 + 4 * 14 + 64 + 4 * 16 + 4 * 13


def test_blocks_are_of_64_where_they_fit_and_rows_elsewhere() -> None:
    found = Int8Layout.of(manifest(), "w8.block64")
    assert [t.shape for t in found.weights] == [(4, 9), (2, 64), (2, 64)]
    assert [t.shape for t in found.frozen] == [(1, 64)]
    assert found.n_scales == 8
    assert [t.values for t in found.weights] == [
        t.values for t in Int8Layout.of(manifest(), "w8.row").weights
    ]


def test_integer_activations_change_no_layout() -> None:
    assert Int8Layout.of(manifest(), "w8.row+a8") == Int8Layout.of(manifest(), "w8.row/1")


def test_float32_has_no_int8_layout() -> None:
    with pytest.raises(UsageError, match="no int8 layout"):
        Int8Layout.of(manifest(), "f32/1")
