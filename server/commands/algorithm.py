"""Options that choose an algorithm and its hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cyclopts import Parameter

from kellet.sdk.algorithms import FedAvg, make
from kellet.sdk.commands.options import Whole, called_by_options

__all__ = ["AlgorithmOptions"]


@Parameter(name="*", group="Algorithm")
@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """An algorithm; what is not given is the algorithm's default."""

    algorithm: Literal["scaffold", "fedprox", "fedavg"] = "scaffold"
    """What devices run, and how their updates become a model."""

    local_lr: float | None = None
    """eta_l, the step size on devices."""

    lr_decay: float | None = None
    """Step k of a round uses local_lr * lr_decay^k."""

    batch_size: Whole | None = None
    """Samples in a mini-batch; 0 for all that a device has."""

    local_epochs: Whole | None = None
    """Passes over a device's data in a round."""

    local_steps: Whole | None = None
    """K, steps in a round; 0 leaves it to --local-epochs."""

    server_lr: float | None = None
    """eta_g, how far the model follows the mean update."""

    weighting: Literal["samples", "uniform"] | None = None
    """How updates are weighted in the mean; SCAFFOLD's is uniform."""

    momentum: float | None = None
    """beta of local momentum, below 1; not with int8 weights."""

    weight_decay: float | None = None
    """Adds this multiple of the weights to each gradient."""

    clip: float | None = None
    """Largest norm of a gradient, before any correction; 0 for none."""

    mu: float | None = None
    """FedProx: strength of the proximal term."""

    implicit: bool | None = None
    """FedProx: take the proximal term at the new point, stable for any strength."""

    option: Literal["I", "II"] | None = None
    """SCAFFOLD: how the control variate is renewed (arXiv 1910.06378, equation 4)."""

    delta_c: Literal["derived", "f32", "q8", "topk"] | None = None
    """SCAFFOLD: whether the control's change is computed by both sides, or travels, and how."""

    control_damping: float | None = None
    """SCAFFOLD: the share, up to 1, that controls move; about 0.1 with int8 weights."""

    def make(self) -> FedAvg:
        """The algorithm. Raises ``UsageError`` for an option that it does not have."""
        given: dict[str, Any] = {
            name: value
            for name, value in vars(self).items()
            if name != "algorithm" and value is not None
        }
        with called_by_options():
            return make(self.algorithm, **given)
