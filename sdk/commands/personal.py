"""``kellet plan personal``: a device's own model as an ONNX file."""

from __future__ import annotations

from pathlib import Path

from kellet.sdk.commands import checkpoint
from kellet.sdk.commands.options import Folder, Output, check_output
from kellet.sdk.console import Console

__all__ = ["personal"]


def personal(state: Folder, /, *, output: Output, force: bool = False, json: bool = False) -> None:
    """Write a device's own model as an ONNX file that anyone can run.

    It is the one that the device trained last beside the fleet's. The device may be running.

    Parameters
    ----------
    state
        The --state directory of the device.
    output
        File to write, such as mine.onnx.
    force
        Write over a file that is there.
    json
        Answer with one JSON object.
    """
    from kellet.sdk.durable import write_file
    from kellet.sdk.personal.export import read_own
    from kellet.sdk.plan.checkpoint import export_model

    check_output(output, force=force)
    own = read_own(Path(state))
    write_file(output, export_model(own.plan, own.model))
    facts = checkpoint.describe(output) | {"round": own.round}
    with Console(json=json) as console:
        console.result(facts, f"{checkpoint.words(facts)}\n  trained   in round {own.round}")
