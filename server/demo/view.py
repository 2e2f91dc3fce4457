"""The demo on a terminal: what each device does, and the rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kellet.server.commands.rounds import megabytes
from kellet.server.demo.live import LiveRun
from kellet.server.demo.recipe import Settings

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["live_view"]

_SIGNS = {
    "starting": ("…", "yellow"),
    "ready": ("○", "dim"),
    "training": ("●", "cyan"),
    "sending": ("▲", "blue"),
    "offline": ("~", "yellow"),
    "killed": ("✗", "bold red"),
    "done": ("✓", "green"),
}


def live_view(settings: Settings, run: LiveRun) -> RenderableType:
    """Title, one sign a device, the last rounds, and what they cost."""
    from rich.console import Group
    from rich.text import Text

    title = Text.assemble(
        (settings.algorithm, "bold"),
        f" on {settings.task}: {settings.devices} device processes over MQTT, round ",
        (f"{run.open_round}", "bold"),
        f" of {settings.n_rounds}, {run.seconds:.0f} s",
    )
    devices = Text()
    for number, doing in enumerate(run.doing.values(), 1):
        sign, style = _SIGNS[doing]
        devices.append(f"{number}{sign} ", style)
    legend = Text("● training  ▲ sending  ✗ killed  … starting", "dim")
    last = run.log.last
    foot = Text(
        f"killed {run.kills}, restarted {run.restarts}"
        + (
            f"; {megabytes(last['uplink_bytes'])} up, {megabytes(last['downlink_bytes'])} down"
            if last
            else ""
        )
    )
    parts = [title, Text.assemble(devices, "  ", legend)]
    return Group(*parts, *([run.log.table()] if run.log.rounds else []), foot)
