"""``kellet simulate``: many clients in one process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from kellet.sdk.commands.options import Folder, Whole, called_by_options
from kellet.sdk.console import Console
from kellet.sdk.errors import DataError, UsageError
from kellet.server.commands.algorithm import AlgorithmOptions
from kellet.server.commands.rounds import RoundLog, megabytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kellet.server.history import History, RoundRecord
    from kellet.server.simulate import Clients

__all__ = ["command"]

command = App(name="simulate")


@command.default
def simulate(
    plan: str | None = None,
    /,
    *,
    data: str | None = None,
    task: Literal["wisdm", "har"] | None = None,
    devices: Whole = 8,
    data_dir: Path | None = None,
    test: str | None = None,
    rounds: Whole = 10,
    cohort: Whole | None = None,
    seed: Whole = 0,
    algorithm: AlgorithmOptions | None = None,
    scheme: Literal["f32", "w8.row", "w8.block64", "w8.row+a8"] = "f32",
    shift: Literal["f32", "int8"] = "f32",
    uplink: Literal["f32", "q8", "topk"] = "f32",
    share: float = 0.01,
    feedback: bool = False,
    downlink: Literal["f32", "q8"] = "f32",
    report: Folder | None = None,
    json: bool = False,
) -> None:
    """Train over many clients in this process, with the same code.

    The same seed gives the same model, to the last bit.

    Parameters
    ----------
    plan
        A .kplan file, or a built-in plan: wisdm or har. A task brings its own.
    data
        MODULE:FUNCTION, called without arguments, returns a dict: client id -> (x, y).
    task
        Instead of --data: people's data that we know, with six of them as the test.
    devices
        Devices that share a task's people.
    data_dir
        Where the task's files are (har).
    test
        MODULE:FUNCTION, called without arguments, returns (x, y) to judge each model.
    rounds
        Rounds to run.
    cohort
        Clients that each round asks, drawn by the seed; all, unless given.
    seed
        Decides the split of a task, the cohorts and the batches.
    scheme
        How clients hold the weights that they train: float32, or int8 rows or blocks.
    shift
        How SCAFFOLD's c - c_i is held beside float32 weights.
    uplink
        How the models' changes travel: float32, int8 rows, or the largest alone.
    share
        The share of a change that is sent by topk.
    feedback
        Add what an update left out to the next one (not with a derived delta_c).
    downlink
        How model and control travel: float32 or int8 rows.
    report
        Directory for an HTML report of the run.
    json
        A JSON line a round, and one object at the end.
    """
    from kellet.sdk.plan import Plan
    from kellet.server.simulate import simulate as run

    if report is not None:
        from kellet.server.report import check_folder, check_installed

        check_installed()
        check_folder(report)
    name, clients, judged = _people(
        plan, data=data, task=task, devices=devices, seed=seed, data_dir=data_dir
    )
    if test is not None:
        judged = _test_set(test)
    opened = Plan.open(name)
    chosen = algorithm or AlgorithmOptions()
    value, optimizer = chosen.make(), chosen.optimizer()
    with Console(json=json) as console, called_by_options():
        by = optimizer.name if optimizer else None
        teller = _Teller(console, value.name, by, len(clients), rounds, scheme)
        history = run(
            opened,
            clients,
            value,
            server_optimizer=optimizer,
            rounds=rounds,
            cohort=cohort,
            seed=seed,
            scheme=scheme,
            shift=shift,
            uplink=uplink,
            share=share if "topk" in (uplink, getattr(value, "delta_c", "")) else 0.0,
            feedback=feedback,
            downlink=downlink,
            test=judged,
            on_round=teller.tell,
        )
        facts = teller.summary(history)
        if report is not None:
            from kellet.server.report import from_history, save_run, write_report

            record = from_history(opened, history, value, seed, facts, optimizer)
            save_run(report, record)
            facts["report"] = str(write_report(report, record))
        console.end_display(keep=False)
        console.result(facts, _words(facts))


class _Teller:
    """Shows rounds as they close."""

    def __init__(  # noqa: PLR0917
        self,
        console: Console,
        algorithm: str,
        optimizer: str | None,
        clients: int,
        rounds: int,
        scheme: str,
    ) -> None:
        self._console = console
        self._optimizer = optimizer
        self._scheme = scheme
        self._algorithm = algorithm
        self._clients = clients
        self._rounds = rounds
        self._log = RoundLog(console, evaluated=False)
        self._began = time.monotonic()

    def tell(self, record: RoundRecord) -> None:
        facts = vars(record) | self._log.traffic(vars(record))
        self._console.event("round", facts)
        self._log.closed(facts)
        self._console.show(self._view)

    def _view(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        done = self._log.last["round"]
        name = f"{self._algorithm} with {self._optimizer}" if self._optimizer else self._algorithm
        head = Text(f"{name}, {self._clients} clients, round {done} of {self._rounds}")
        return Group(head, ProgressBar(self._rounds, done, width=60), self._log.table())

    def summary(self, history: History) -> dict[str, Any]:
        last = history.rounds[-1]
        return {
            "event": "summary",
            "algorithm": self._algorithm,
            "server_optimizer": self._optimizer,
            "scheme": self._scheme,
            "rounds": len(history.rounds),
            "accuracy": history.accuracy,
            "loss": history.loss,
            "clients": self._clients,
            "updates_counted": history.updates_counted,
            "updates_refused": history.updates_refused,
            "control_gap": history.control_gap,
            "uplink_bytes": last.uplink_bytes,
            "downlink_bytes": last.downlink_bytes,
            "seconds": round(time.monotonic() - self._began, 2),
            "digest": history.digest,
        }


def _words(facts: Mapping[str, Any]) -> str:
    accuracy = "" if facts["accuracy"] is None else f", accuracy {facts['accuracy']:.1%}"
    text = (
        f"{facts['rounds']} rounds in {facts['seconds']:.1f} s{accuracy}; "
        f"{facts['updates_counted']} updates counted, control gap {facts['control_gap']}, "
        f"{megabytes(facts['uplink_bytes'])} up, {megabytes(facts['downlink_bytes'])} down\n"
        f"model {facts['digest']}"
    )
    return text + (f"\nreport: {facts['report']}" if "report" in facts else "")


def _people(
    plan: str | None,
    *,
    data: str | None,
    task: str | None,
    devices: int,
    seed: int,
    data_dir: Path | None,
) -> tuple[str, Clients, Any]:
    """(plan, clients, test set) as the options say it."""
    if (data is None) == (task is None):
        raise UsageError(
            "it is not clear whose data to train on",
            why="neither --data nor --task is given" if data is None else "both are given",
            repair="give --data MODULE:FUNCTION, or --task wisdm",
        )
    if task is not None:
        from kellet.sdk import tasks

        known = tasks.task(task, data_dir)
        people = tasks.split(known, devices, seed)
        clients = {device: known.load(users) for device, users in people.devices.items()}
        return plan or known.plan_name, clients, known.load(people.test_users)
    if plan is None:
        raise UsageError("no plan is given", repair="kellet simulate PLAN --data MODULE:FUNCTION")
    assert data is not None
    return plan, _clients(data), None


def _clients(spec: str) -> Clients:
    from kellet.sdk.commands.functions import call, find_function, xy

    found = call(find_function(spec, "--data"), spec)
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise DataError(
            f"{spec} returned a {type(found).__name__}",
            why="a simulation needs each client's data under its id",
            repair="return a dict: {'client-1': (x, y), ...}",
        )
    return {name: xy(pair, f"{spec}, client {name}") for name, pair in found.items()}


def _test_set(spec: str) -> Any:
    from kellet.sdk.commands.functions import call, find_function, xy

    return xy(call(find_function(spec, "--test"), spec), spec)
