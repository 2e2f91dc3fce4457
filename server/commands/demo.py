"""``kellet demo``: everything at once, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from cyclopts import App

from kellet.sdk.commands.options import Folder, Whole, called_by_options
from kellet.sdk.console import Console

__all__ = ["command"]

command = App(name="demo")


@command.default
def demo(
    *,
    algorithm: Literal["scaffold", "fedprox", "fedavg"] = "scaffold",
    rounds: Whole | None = None,
    devices: Whole = 8,
    task: Literal["wisdm", "har"] = "wisdm",
    broker: str = "embedded",
    report: Folder = Path("kellet-demo"),
    state: Folder | None = None,
    seed: Whole = 0,
    data_dir: Path | None = None,
    json: bool = False,
) -> int:
    """A whole fleet on this machine: broker, aggregator and devices that come and go.

    Real processes train on real people's phone data over a real MQTT broker, while
    devices are killed and started again. Then the other algorithms are simulated on
    the same data, and a report is written. Ends with 1 if the controls do not add up.

    Parameters
    ----------
    algorithm
        What the fleet runs.
    rounds
        Rounds to run; 30 for wisdm and 12 for har, unless given.
    devices
        Device processes that share the people.
    task
        wisdm (in the package), or har (its data lies in examples/har of the source).
    broker
        embedded, mosquitto, or the address of a running one.
    report
        Directory for report.html.
    state
        Directory for what the processes keep; inside the report's, unless given.
    seed
        Decides who is the test, who is killed when, and the order of batches.
    data_dir
        Where the task's files are (har).
    json
        JSON lines, and one object with the results as the last.
    """
    from kellet.server.demo import Settings, run_demo
    from kellet.server.report import check_folder

    with called_by_options():
        settings = Settings(
            algorithm=algorithm,
            task=task,
            rounds=rounds,
            devices=devices,
            broker=broker,
            seed=seed,
            report=report,
            state_dir=state,
            data_dir=data_dir,
        )
    check_folder(report)
    with Console(json=json) as console:
        facts = run_demo(settings, console)
        console.result(facts, _words(facts))
    return 0 if facts["control_gap"] == 0 else 1


def _words(facts: dict[str, Any]) -> str:
    replay = {
        True: "the simulation of the same rounds ends at the same model, to the last bit",
        False: "the simulation of the same rounds ends at another model",
        None: "no replay: a round was abandoned",
    }[facts["replayed"]]
    return (
        f"accuracy {facts['accuracy']:.1%} on people that no device knows, "
        f"after {facts['rounds']} rounds\n"
        f"{facts['kills']} kills, {facts['restarts']} restarts; "
        f"{facts['updates_counted']} updates counted, each once\n"
        f"control gap {facts['control_gap']}: "
        + ("the sum of all controls is exact\n" if facts["control_gap"] == 0 else "NOT zero\n")
        + f"{replay}\n"
        f"a device's memory peaked at {facts['device_peak_mb']:.0f} MB; "
        f"kernels: {facts['kernels']}; {facts['seconds']:.0f} s in all\n"
        f"report: {facts['report']}"
    )
