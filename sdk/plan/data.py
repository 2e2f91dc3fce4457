"""A user's arrays against what the plan expects."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.plan.manifest import InputSpec, LabelSpec, Manifest

__all__ = ["check_data", "check_features", "check_labels", "check_vector"]

_Array = np.ndarray[Any, np.dtype[Any]]


def check_data(manifest: Manifest, x: ArrayLike, y: ArrayLike) -> tuple[_Array, _Array]:
    """Return (x, y) as contiguous arrays of the plan's dtypes, or refuse them.

    x has shape [n, *input], y [n, *label]. Raises ``DataError`` for a wrong
    shape or dtype, no rows, NaN or infinity, values out of range and labels
    that are not classes of the plan. Arrays that fit are not copied.
    """
    features = check_features(manifest.input, x)
    labels = check_labels(manifest.labels, y)
    if len(features) != len(labels):
        raise DataError(
            f"x has {len(features)} rows and y has {len(labels)}",
            why="each row of x needs one label",
            repair="return x and y of the same length",
        )
    return features, labels


def check_features(spec: InputSpec, x: ArrayLike) -> _Array:
    """Return x as a contiguous array [n, *input]. Raises ``DataError``."""
    raw = _numbers("x", x)
    if raw.ndim == 0 or raw.shape[1:] != spec.shape:
        raise _wrong_shape("x", raw.shape, spec.shape)
    if len(raw) == 0:
        raise DataError(
            "x has no rows",
            why="a plan cannot train or be tested on nothing",
            repair="check where the data is read; a device without data should not join",
        )
    if raw.dtype.kind == "f":
        bad = ~np.isfinite(raw)
        if bad.any():
            raise _bad_value(spec, raw, bad, "NaN and infinity make every parameter NaN")
    if spec.dtype == "int64":
        return _in_range(spec, _whole("x", raw, "token or index"))
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(raw, np.float32)
    overflow = ~np.isfinite(features)
    if overflow.any():
        raise _bad_value(spec, raw, overflow, "it does not fit in float32")
    return _in_range(spec, features)


def check_labels(spec: LabelSpec, y: ArrayLike) -> _Array:
    """Return y as a contiguous array [n, *label]. Raises ``DataError``."""
    raw = _numbers("y", y)
    if raw.ndim == 0 or raw.shape[1:] != spec.shape:
        raise _wrong_label_shape(spec, raw)
    if spec.dtype == "float32":
        labels = np.ascontiguousarray(raw, np.float32)
        bad = ~np.isfinite(labels)
        if bad.any():
            place = np.argwhere(bad)[0]
            raise DataError(
                f"y has {raw[tuple(place)]} in row {place[0]}",
                why="a label must be a finite float32",
                repair="drop the row, or fill the label",
            )
        return labels
    classes = _whole("y", raw, "class")
    if spec.classes is not None:
        bad = (classes < 0) | (classes >= spec.classes)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            shifted = int(classes.min()) == 1 and int(classes.max()) == spec.classes
            raise DataError(
                f"y has the label {classes.ravel()[int(np.flatnonzero(bad)[0])]} in row {row}",
                why=f"the plan's classes are 0 to {spec.classes - 1}",
                repair="count classes from 0: y - 1" if shifted else "map the labels to classes",
            )
    return classes


def check_vector(manifest: Manifest, params: ArrayLike) -> _Array:
    """Return the flat vector [n_params], contiguous. Raises ``UsageError``."""
    vector = np.ascontiguousarray(params)
    if vector.dtype != np.float32 or vector.shape != (manifest.n_params,):
        raise UsageError(
            f"the parameters are {vector.dtype} {list(vector.shape)}",
            why=f"the plan's are float32 [{manifest.n_params}]",
            repair="pass the flat vector of this plan",
        )
    return vector


def _numbers(what: str, values: ArrayLike) -> _Array:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(
            f"{what} is not an array", why=str(error), repair="give rows of equal length"
        ) from None
    if array.dtype.kind not in "buif":
        raise DataError(
            f"{what} has the dtype {array.dtype}",
            why="a plan takes numbers",
            repair=f"convert {what} to numbers first",
        )
    return array


def _whole(what: str, raw: _Array, meaning: str) -> _Array:
    """Return ``raw`` as int64. Raises ``DataError`` where a value is not whole."""
    if raw.dtype.kind == "f":
        bad = ~np.isfinite(raw) | (raw != np.rint(raw)) | (np.abs(raw) >= 2.0**53)
        if bad.any():
            place = np.argwhere(bad)[0]
            raise DataError(
                f"{what} has {raw[tuple(place)]} in row {place[0]}",
                why=f"a {meaning} is an integer",
                repair=f"make {what} an integer array",
            )
    elif raw.dtype.kind == "u" and raw.size and int(raw.max()) > np.iinfo(np.int64).max:
        raise DataError(
            f"{what} has {raw.max()}", why="it does not fit in int64", repair="use smaller numbers"
        )
    return np.ascontiguousarray(raw, np.int64)


def _in_range(spec: InputSpec, features: _Array) -> _Array:
    low = -np.inf if spec.low is None else spec.low
    high = np.inf if spec.high is None else spec.high
    if np.isinf(low) and np.isinf(high):
        return features
    bad = (features < low) | (features > high)
    if bad.any():
        raise _bad_value(spec, features, bad, f"the plan takes values from {low:g} to {high:g}")
    return features


def _bad_value(spec: InputSpec, raw: _Array, bad: _Array, why: str) -> DataError:
    place = np.argwhere(bad)[0]
    where = f"row {place[0]}"
    if len(place) == 2:
        where += f", column {place[1]}"
        if spec.columns:
            where += f" ({spec.columns[place[1]]})"
    elif len(place) > 2:
        where += f", at {tuple(int(axis) for axis in place[1:])}"
        if spec.columns:
            where += f" ({spec.columns[place[1]]})"
    return DataError(
        f"x has {raw[tuple(place)]} in {where}, and {int(bad.sum()) - 1} more such values",
        why=why,
        repair="fill or drop these values before training",
    )


def _wrong_shape(what: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> DataError:
    axes = ", ".join(["n", *map(str, wanted)])
    if found == wanted:
        repair = "add the batch axis: x[None]"
    elif len(found) == 3 and found[1:] == wanted[::-1]:
        repair = "swap the last two axes: x.transpose(0, 2, 1)"
    elif found[1:] and int(np.prod(found[1:])) == int(np.prod(wanted)):
        repair = (
            f"x.reshape(-1, {', '.join(map(str, wanted))}), if that is the order of the numbers"
        )
    else:
        repair = "see the plan's input with `kellet plan show`"
    return DataError(
        f"{what} has the shape {list(found)}", why=f"the plan takes [{axes}]", repair=repair
    )


def _wrong_label_shape(spec: LabelSpec, raw: _Array) -> DataError:
    axes = ", ".join(["n", *map(str, spec.shape)])
    repair = "give one label a row"
    if not spec.shape and raw.ndim == 2 and raw.shape[1] == 1:
        repair = "y.ravel()"
    elif not spec.shape and raw.ndim == 2 and raw.shape[1] == spec.classes:
        repair = "give the class's number, not one column a class: y.argmax(axis=1)"
    return DataError(
        f"y has the shape {list(raw.shape)}", why=f"the plan takes [{axes}]", repair=repair
    )
