"""Is this update what the announcement asked for? Pure checks, in the order of their cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.protocol.body import Body, UpdateHeader
from kellet.sdk.protocol.messages import Offer, Round
from kellet.sdk.protocol.vectors import Shapes
from kellet.server.algorithms import explicit_agrees

__all__ = ["Terms", "header_fault", "vector_fault"]

F32 = NDArray[np.float32]
GRID_LIMIT = 2.0**14


@dataclass(frozen=True, slots=True)
class Terms:
    """What a round's updates are held against."""

    round: Round
    base: bytes
    algorithm: FedAvg
    shapes: Shapes
    control: F32 | None  # c_a, decoded from the announcement
    max_norm: float

    def c_a(self, header: UpdateHeader) -> F32 | None:
        """The control that corrected the steps of an update; None for zeros."""
        return None if header.spared is True else self.control


def header_fault(header: UpdateHeader, terms: Terms, device: str, offer: Offer) -> str:
    """The reason of a refusal, or empty: schema, identity, round, epoch, codecs, scheme."""
    if header.device != device or header.nonce != offer.nonce or header.seq != offer.seq:
        return "identity"
    if header.base != terms.base or header.round != terms.round.round:
        return "foreign"
    if header.epoch != terms.round.epoch:
        return "epoch"
    codecs = terms.round.codecs
    if header.delta_y not in codecs.delta_y or header.delta_c != codecs.delta_c:
        return "header"
    if header.scheme not in terms.round.schemes:
        return "header"
    if header.samples < 1:
        return "no_samples"
    if header.spared is True and not terms.algorithm.spares_newcomers:
        return "header"
    numbers = (header.rate_sum, header.loss, header.objective, header.drift)
    if header.steps < 1 or not np.all(np.isfinite(numbers)) or header.rate_sum <= 0:
        return "header"
    return ""


def vector_fault(body: Body, terms: Terms) -> str:
    """The reason of a refusal, or empty: decoded, finite, in range, norm, consistent."""
    delta_y = body.delta_y
    if delta_y is None:
        return "header"
    for vector in (delta_y, body.delta_c):
        if vector is not None and not np.isfinite(vector).all():
            return "not_finite"
        if vector is not None and np.abs(vector).max() >= GRID_LIMIT:
            return "range"
    if terms.max_norm and kernels.norm(delta_y) > terms.max_norm:
        return "norm"
    algorithm, header = terms.algorithm, body.header
    if algorithm.derivable:
        trained = delta_y[: terms.shapes.n_train]
        try:
            implied = algorithm.control_change(terms.c_a(header), trained, header.rate_sum)
        except ValueError:
            return "range"
        # With error feedback, what arrives of delta_y is not what delta_c was made of.
        if body.delta_c is None or terms.round.codecs.feedback or header.delta_c == "derived":
            return ""
        assert header.delta_c != "none"
        if not explicit_agrees(implied, body.delta_c, header.delta_c, terms.shapes.train):
            return "inconsistent"
    return ""
