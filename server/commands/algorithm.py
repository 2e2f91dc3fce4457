"""Options that choose an algorithm and its hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from kellet.sdk.algorithms import FedAvg, make
from kellet.sdk.commands.functions import load_algorithms
from kellet.sdk.commands.options import Whole, called_by_options
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.spelling import codec_of
from kellet.sdk.protocol.vectors import CODECS
from kellet.server import optimizers
from kellet.server.schedules import Schedule, parse

__all__ = ["AlgorithmOptions"]

_OF_OPTIMIZERS = ("beta1", "beta2", "tau", "server_momentum")


@Parameter(name="*", group="Algorithm")
@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """An algorithm; what is not given is the algorithm's default."""

    algorithm: str = "scaffold"
    """What devices run, and how their updates become a model: fedavg, fedprox, scaffold,
    scaffold_m, feddyn, fednova, perfedavg, or MODULE:NAME of your own."""

    local_lr: float | None = None
    """eta_l, the step size on devices."""

    schedule: str = ""
    """How local_lr changes over the rounds: exp:DECAY, step:EVERY:FACTOR, cosine:ROUNDS[:LEAST],
    warmup:ROUNDS, or several joined by commas; constant, unless given."""

    lr_decay: float | None = None
    """Step k of a round uses local_lr * lr_decay^k."""

    batch_size: Whole | None = None
    """Samples in a mini-batch; 0 for all that a device has."""

    local_epochs: Whole | None = None
    """Passes over a device's data in a round."""

    local_steps: Whole | None = None
    """K, steps in a round; 0 leaves it to --local-epochs."""

    server_lr: float | None = None
    """eta_g, how far the model follows the mean update: of the server optimizer, where there is
    one, else of the algorithm."""

    server_optimizer: Literal["avgm", "adagrad", "adam", "yogi"] | None = None
    """How the model follows the mean update: by momentum, or adaptively in each parameter
    (arXiv 1909.06335, 2003.00295); plainly, unless given."""

    beta1: float | None = None
    """adagrad, adam, yogi: how long the mean update is remembered, below 1."""

    beta2: float | None = None
    """adam, yogi: how long its square is remembered, below 1."""

    tau: float | None = None
    """adagrad, adam, yogi: how adaptive they are; larger is less."""

    server_momentum: float | None = None
    """avgm: beta of the server's momentum, below 1."""

    weighting: Literal["samples", "uniform"] | None = None
    """How updates, and SCAFFOLD's controls, are weighted in their means; for SCAFFOLD uniform,
    unless given."""

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

    delta_c: str | None = None
    """SCAFFOLD: whether the control's change is computed by both sides (derived), or travels, and
    how: f32, q8 or topk:SHARE."""

    control_damping: float | None = None
    """SCAFFOLD: the share, up to 1, that controls move; about 0.1 with int8 weights."""

    warm_start: bool | None = None
    """SCAFFOLD: the first round of a device without a control runs as FedAvg does."""

    beta: float | None = None
    """SCAFFOLD-M: the share of what is new in a local step; 1 is SCAFFOLD."""

    alpha: float | None = None
    """FedDyn: strength of the regulariser. Per-FedAvg: the rate of the step ahead."""

    own: Annotated[list[str] | None, Parameter(name="--set")] = None
    """NAME=VALUE, a hyperparameter of your own algorithm; as often as you like."""

    def make(self) -> FedAvg:
        """The algorithm. Raises ``UsageError`` for an option that it does not have."""
        others = {"algorithm", "server_optimizer", "schedule", "own", *_OF_OPTIMIZERS}
        if self.server_optimizer:
            others.add("server_lr")
        with called_by_options():
            given = self._given(vars(self).keys() - others)
            if self.delta_c is not None:
                given["delta_c"] = self._delta_c()[0]
            return make(self.name, **given, **self._own(given))

    def settings(self) -> dict[str, Any]:
        """All that is given, by name, with the algorithm's registered one."""
        given = self._given(vars(self).keys() - {"algorithm", "own", "schedule"})
        return {"algorithm": self.name, **given, **self._own(given)}

    @property
    def share(self) -> float:
        """Of the control's change that topk sends; 0 where it travels otherwise."""
        with called_by_options():
            return self._delta_c()[1] if self.delta_c is not None else 0.0

    def rates(self) -> Schedule:
        """The schedule of ``local_lr``. Raises ``UsageError`` for a malformed one."""
        with called_by_options():
            return parse(self.schedule)

    @property
    def name(self) -> str:
        """The algorithm's registered name; MODULE is imported where one is given."""
        module, _, name = self.algorithm.rpartition(":")
        if module:
            load_algorithms(module, "--algorithm")
        return name

    def _own(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What --set says. Raises ``UsageError`` for what is said twice, or is no NAME=VALUE."""
        from kellet.server.research.names import convert

        own: dict[str, Any] = {}
        for text in self.own or ():
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise UsageError(f"--set {text}", repair="write --set NAME=VALUE")
            if name in own or name in given:
                raise UsageError(f"--set {text}", why=f"{name} is given twice", repair="once")
            own[name] = convert(f"algorithm.{name}", name, value)
        return own

    def optimizer(self) -> optimizers.ServerOptimizer | None:
        """The server optimizer, if one is given. Raises ``UsageError`` as ``make`` does."""
        given = self._given(_OF_OPTIMIZERS)
        with called_by_options():
            if self.server_optimizer:
                given |= self._given(["server_lr"])
                return optimizers.make(self.server_optimizer, **given)
            for name, value in given.items():
                takers = [k for k, kind in optimizers.OPTIMIZERS.items() if hasattr(kind, name)]
                raise UsageError(
                    f"{name} = {value:g}",
                    why="no server optimizer is given",
                    repair=f"add --server-optimizer {' or '.join(takers)}, or leave it out",
                )
        return None

    def _delta_c(self) -> tuple[str, float]:
        return codec_of("delta_c", str(self.delta_c), ("derived", *CODECS))

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: vars(self)[name] for name in names if vars(self)[name] is not None}
