"""``kellet simulate``: many clients in one process, one run or a sweep of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from kellet.sdk.commands.options import Folder, Whole, called_by_options
from kellet.sdk.console import Console
from kellet.sdk.protocol.spelling import codec_of, no_share
from kellet.sdk.protocol.vectors import CODECS
from kellet.server.commands.algorithm import AlgorithmOptions
from kellet.server.commands.fleet_data import DataOptions
from kellet.server.commands.selection import SelectionOptions
from kellet.server.commands.sweep_options import SweepOptions

if TYPE_CHECKING:
    from kellet.server.research import Measures

__all__ = ["FleetOptions", "MeasureOptions", "command"]

command = App(name="simulate")


@Parameter(name="*", group="Rounds")
@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """How rounds run, and how vectors are held and travel."""

    rounds: Whole = 10
    """Rounds to run."""

    cohort: Whole | None = None
    """Clients that each round asks, drawn by the seed; all, unless given."""

    seed: Whole = 0
    """Decides the split of the data, the cohorts and the batches."""

    scheme: Literal["f32", "w8.row", "w8.block64", "w8.row+a8"] | None = None
    """How clients hold the weights that they train: float32 (unless given), int8 rows or blocks."""

    shift: Literal["f32", "int8"] | None = None
    """How SCAFFOLD's c - c_i is held beside float32 weights."""

    uplink: str | None = None
    """How the models' changes travel: f32 (unless given), q8 (int8 rows), or topk:SHARE, the
    largest alone."""

    share: Annotated[float | None, Parameter(show=False)] = None

    feedback: bool = False
    """Add what an update left out to the next one (not with a derived delta_c)."""

    downlink: Literal["f32", "q8"] | None = None
    """How model and control travel: float32 (unless given) or int8 rows."""

    personal: str | None = None
    """How each client makes a model of its own beside the fleet's: ditto:LAMBDA or
    finetune:STEPS, with more settings as ,NAME=VALUE; judged by --holdout."""

    def settings(self) -> dict[str, Any]:
        """What was given: settings by name. Raises ``UsageError``."""
        no_share(self.share)
        if self.uplink is not None:
            codec_of("uplink", self.uplink, CODECS)
        names = ("cohort", "personal", "scheme", "shift", "uplink", "downlink")
        given = {name: vars(self)[name] for name in names if vars(self)[name] is not None}
        return given | ({"feedback": True} if self.feedback else {})


@Parameter(name="*", group="Measures")
@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """What is measured."""

    judge_every: Whole = 1
    """Rounds from one judgement of the model to the next; 0 judges the last round alone."""

    target_accuracy: float | None = None
    """Tell the rounds and megabytes until the test accuracy was there, .8 for 80 %."""

    def make(self) -> Measures:
        """What is measured. Raises ``UsageError``."""
        from kellet.server.research import Measures

        return Measures(judge_every=self.judge_every, target=self.target_accuracy)


@command.default
def simulate(
    plan: str | None = None,
    /,
    *,
    fleet_data: DataOptions | None = None,
    fleet: FleetOptions | None = None,
    selection: SelectionOptions | None = None,
    algorithm: AlgorithmOptions | None = None,
    measures: MeasureOptions | None = None,
    sweep: SweepOptions | None = None,
    engine: Literal["inline", "local", "ray"] = "inline",
    workers: Whole | None = None,
    report: Folder | None = None,
    json: bool = False,
) -> None:
    """Train over many clients in this process, with the same code: one run, or a sweep.

    The same seed gives the same model, to the last bit. A round waits for all that it asked, so
    nobody is late here: buffers of late updates are for `kellet server`.

    Parameters
    ----------
    plan
        A .kplan file, or a built-in plan: wisdm or har. A task brings its own.
    engine
        Where clients are trained: in this process, in processes of this machine (local), or
        on a Ray cluster that is there (ray). The result is the same, to the last bit.
    workers
        Processes of the engine; as many as there are CPUs, unless given.
    report
        Directory for an HTML report.
    json
        A JSON line a round (and a run), and one object at the end.
    """
    data, fleet = fleet_data or DataOptions(), fleet or FleetOptions()
    chosen, many = algorithm or AlgorithmOptions(), sweep or SweepOptions()
    if report is not None:
        from kellet.server.report import check_folder, check_installed

        check_installed()
        check_folder(report)
    many.check()
    with Console(json=json) as console, called_by_options(column="feature"):
        source = data.source()
        name = data.plan(plan, source)
        settings = data.settings() | fleet.settings()
        settings |= (selection or SelectionOptions()).settings()
        if chosen.schedule:
            settings["schedule"] = chosen.schedule
        common: dict[str, Any] = {
            "rounds": fleet.rounds,
            "seed": fleet.seed,
            "holdout": data.holdout,
            "measures": (measures or MeasureOptions()).make(),
            "execution": {"engine": engine, "workers": workers},
            "report": report,
        }
        if many.asked:
            from kellet.server.commands.sweep import run_sweep

            settings |= _qualified(chosen.settings())
            run_sweep(console, name, source, settings, many, **common)
        else:
            from kellet.server.commands.single import run_single

            run_single(console, name, source, settings, chosen, **common)


def _qualified(settings: dict[str, Any]) -> dict[str, Any]:
    """An algorithm's options by their whole names: --alpha is never the partition's."""
    plain = ("algorithm", "server_optimizer")
    return {k if k in plain else f"algorithm.{k}": value for k, value in settings.items()}
