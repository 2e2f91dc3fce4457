"""FedNova: devices that run different numbers of steps pull equally hard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kellet.sdk.algorithms.averaging import FedAvg

__all__ = ["FedNova"]


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """FedAvg with each delta_y divided by its device's A before the mean.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization", NeurIPS 2020, arXiv 2007.07481, equation 13. Local steps are FedAvg's,
    local momentum included: A, the sum of the step sizes as momentum weighs them, is the
    paper's ``eta ||a_i||_1``. The server moves by ``mean(A) * mean(delta_y / A)``, both means in
    the round's weights. Where all devices run equally many steps, this is FedAvg.
    """

    name: ClassVar[str] = "fednova"
