"""A mix rule of one's own: devices whose loss is high count for more.

With ``q = 1`` each delta_y weighs as much as its device's loss: a first-order form of
q-FFL (Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020, arXiv
1905.10497). Devices train as in FedAvg.

    kellet simulate --task wisdm --algorithm fair:fair --set q=1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kellet.sdk.algorithms import FedAvg, register
from kellet.server import halves

__all__ = ["Fair", "LossWeighted"]


@register
@dataclass(frozen=True, kw_only=True)
class Fair(FedAvg):
    """FedAvg under another mix. ``q``: 0 for the plain uniform mean, 1 or 2."""

    name: ClassVar[str] = "fair"

    q: int = 1


class LossWeighted(halves.ServerHalf):
    """Weights are integers: the loss to the power of q, in thousandths."""

    def weight(self, update: halves.Counted) -> int:
        assert isinstance(self.algorithm, Fair)
        weight = 1.0
        for _ in range(self.algorithm.q):
            weight *= update.loss  # + - * / alone: the same bits everywhere
        return max(1, round(1000 * weight))


halves.register(Fair, LossWeighted)
