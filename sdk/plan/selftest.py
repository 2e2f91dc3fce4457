"""Does this machine compute what the machine that made the plan computed?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kellet.sdk.errors import PlanError
from kellet.sdk.plan.bundle import SelfTest, TensorData, VariantTest
from kellet.sdk.plan.evaluator import Evaluator
from kellet.sdk.plan.int8_session import Int8Session
from kellet.sdk.plan.schemes import FLOAT32, check_scheme
from kellet.sdk.plan.session import GradientSession

if TYPE_CHECKING:
    from kellet.sdk.plan.plan import Plan

__all__ = ["SelfTestResult", "record", "record_variant", "run", "run_variant"]

TOLERANCE = 1e-4
# The gradient of int8 weights is held to its own size. Moving the batch by 1e-6
# of itself, more than processors differ by, moves it by up to 1e-5 over the
# models of the tests; with int8 activations by up to 0.04, and the loss by
# 1e-5, for a last bit before a rounding becomes a whole unit after it, and may
# open a ReLU. Wrong arithmetic moves it by its whole size.
_VARIANT_GRADIENT = 1e-3
_ROUNDED = {"w8.row+a8/1": (1e-3, 0.1)}  # loss, gradient
_SAMPLES = 256


@dataclass(frozen=True)
class SelfTestResult:
    """What was computed here, and how far it is from what the plan says.

    Errors are relative to the largest expected value of their kind, or to 1
    where that is smaller. A variant's gradient error is the length of the
    difference over the length of what is expected.
    """

    scheme: str
    loss: float
    expected_loss: float
    loss_error: float
    gradient_error: float
    score_error: float
    seconds: float


def record(plan: Plan, x: np.ndarray, y: np.ndarray) -> SelfTest:
    """Run the plan at its initial parameters and note what comes out."""
    session = GradientSession(plan)
    loss = session.step(x, y)
    count = min(_SAMPLES, plan.n_train)
    places = np.unique(np.linspace(0, plan.n_train - 1, count).astype(np.int64))
    return SelfTest(
        batch=TensorData.of(x),
        labels=TensorData.of(y),
        loss=loss,
        gradient_at=tuple(places.tolist()),
        gradient=tuple(session.grads[places].tolist()),
        scores=TensorData.of(Evaluator(plan).scores(plan.initial(), x)),
    )


def record_variant(plan: Plan, scheme: str) -> VariantTest:
    """Run a variant at its initial parameters, quantised with the seed 0."""
    loss, gradient = _run_variant(plan, scheme, plan.expected)
    return VariantTest(scheme, loss, tuple(gradient.tolist()))


def run(plan: Plan, expected: SelfTest) -> SelfTestResult:
    """Compare this machine's numbers with the plan's. Raises ``PlanError`` when off."""
    began = time.perf_counter()
    x, y = expected.batch.array(), expected.labels.array()
    session = GradientSession(plan)
    loss = session.step(x, y)
    gradient = session.grads[list(expected.gradient_at)]
    scores = Evaluator(plan).scores(plan.initial(), x)
    result = SelfTestResult(
        scheme=FLOAT32,
        loss=loss,
        expected_loss=expected.loss,
        loss_error=_error(np.float64(loss), np.float64(expected.loss)),
        gradient_error=_error(gradient, np.asarray(expected.gradient)),
        score_error=_error(scores, expected.scores.array()),
        seconds=time.perf_counter() - began,
    )
    return _checked(result, TOLERANCE, TOLERANCE)


def run_variant(plan: Plan, scheme: str, expected: SelfTest) -> SelfTestResult:
    """Compare a variant's numbers with the plan's. Raises ``PlanError`` when off.

    ``score_error`` is 0: scores are those of float32 parameters.
    """
    began = time.perf_counter()
    scheme = check_scheme(scheme)
    plan.variant_graph(scheme)  # or a variant that the plan has not is named
    loss, gradient = _run_variant(plan, scheme, expected)
    wanted = next(test for test in expected.variants if test.scheme == scheme)
    result = SelfTestResult(
        scheme=scheme,
        loss=loss,
        expected_loss=wanted.loss,
        loss_error=_error(np.float64(loss), np.float64(wanted.loss)),
        gradient_error=_relative(gradient, np.asarray(wanted.gradient)),
        score_error=0.0,
        seconds=time.perf_counter() - began,
    )
    return _checked(result, *_ROUNDED.get(scheme, (TOLERANCE, _VARIANT_GRADIENT)))


def _run_variant(plan: Plan, scheme: str, expected: SelfTest) -> tuple[float, np.ndarray]:
    session = Int8Session(plan, scheme)
    loss = session.step(expected.batch.array(), expected.labels.array())
    places = np.asarray(expected.gradient_at, np.int64)
    gradient = np.zeros(len(places), np.float32)
    for flat, found in session.gradients():
        inside = (flat.start <= places) & (places < flat.stop)
        gradient[inside] = found[places[inside] - flat.start]
    return loss, gradient


def _checked(result: SelfTestResult, loss: float, gradient: float) -> SelfTestResult:
    for what, error, tolerance in (
        ("loss", result.loss_error, loss),
        ("gradient", result.gradient_error, gradient),
        ("score", result.score_error, TOLERANCE),
    ):
        if not error <= tolerance:
            raise PlanError(
                f"the plan's self-test of {result.scheme} fails: the {what} is off by {error:.2g}",
                why=f"more than {tolerance:g} cannot be rounding",
                repair="install another release of onnxruntime, and report this processor",
            )
    return result


def _relative(found: np.ndarray, wanted: np.ndarray) -> float:
    if not np.isfinite(found).all():
        return float("inf")
    distance = float(np.linalg.norm(found.astype(np.float64) - wanted))
    return distance / max(float(np.linalg.norm(wanted)), 1e-30)


def _error(found: np.ndarray | np.float64, wanted: np.ndarray | np.float64) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    if found.size == 0:
        return 0.0
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(wanted, np.float64))
    return float(difference.max() / max(1.0, float(np.abs(wanted).max())))
