"""``kellet init``: looks at the board and writes a commented ``kellet.toml``."""

from __future__ import annotations

import dataclasses
import json as text_of
from pathlib import Path

from cyclopts import App

from kellet.firmware_profiles import Profile
from kellet.sdk.board import Board, detect, device_id, profile_name
from kellet.sdk.commands.options import Output, check_output
from kellet.sdk.console import Console
from kellet.sdk.profile import fitted, open_profile

__all__ = ["command", "compose"]

command = App(name="init")


@command.default
def init(
    *,
    output: Output = Path("kellet.toml"),
    force: bool = False,
    json: bool = False,
) -> None:
    """Look at this board and write a kellet.toml for it.

    What it cannot know, the broker and the data, is left for you to fill in. Then
    `kellet run --config kellet.toml` takes part in a fleet.

    Parameters
    ----------
    output
        File to write.
    force
        Write over a file that is there.
    json
        Answer with one JSON object.
    """
    from kellet.sdk.durable import write_file

    check_output(output, force=force)
    board = detect()
    name, why = profile_name(board)
    profile = fitted(open_profile(name), board)
    device = device_id()
    write_file(output, compose(board, profile, why, device).encode())
    facts = {
        "file": str(output),
        "device": device,
        "profile": name,
        "why": why,
        "missing": ["broker", "data"],
        "board": dataclasses.asdict(board),
        "memory_budget_mb": profile.memory_budget_mb,
    }
    words = [
        f"{board.model or board.arch}: {board.cores} cores, {board.memory_mb:,} MB"
        f"{', the limit of this container' if board.limited else ''}",
        f"profile {name}: {why}",
        f"written to {output}; fill in broker and data, then: kellet run --config {output}",
    ]
    with Console(json=json) as console:
        console.result(facts, "\n".join(words))


def compose(board: Board, profile: Profile, why: str, device: str) -> str:
    """The text of a ``kellet.toml`` for a device with this id on this board."""
    policy = profile.participation
    ceiling = policy.max_celsius
    found = [
        f"{board.model or 'a board without a name'}, {board.arch}, {board.cores} cores"
        + (f" ({', '.join(board.cpus)})" if board.cpus else ""),
        f"{board.memory_mb:,} MB of memory"
        + (", the limit of this container" if board.limited else ""),
        "features of the processor: " + (", ".join(board.features) or "none that matter"),
        f"thermometer: {_yes(board.thermometer)}; battery: {_yes(board.battery)}",
    ]
    heat = "" if board.thermometer else "  # no thermometer was found: this cannot be held"
    return f"""\
# Kellet on this device, as `kellet init` found it:
#   {(chr(10) + "#   ").join(found)}
# A line that begins with # is not in force. Options of `kellet run` win over this file.

# The name of this device in the fleet. No two may have the same.
device = {_quoted(device)}

# The broker's address: mqtt://HOST:PORT, or mqtts://USER:PASSWORD@HOST:PORT. A password is
# better kept in the variable KELLET_BROKER, which wins over this line.
# broker = "mqtt://192.168.1.10:1883"

# One broker may serve several fleets.
# fleet = "kellet"

# MODULE:FUNCTION, called with the device's name, returns its samples (x, y). The module is
# looked for in the working directory, then beside this file.
# data = "mydata:load"

# Keeps the control variate and the outbox. It must outlive restarts. Paths are from here.
state = "kellet-state"

# The share of the samples that is never trained on and judges the models that come.
# holdout = 0.1

# Whether to make no model of this device's own, though the aggregator says how.
# no_personal = true

# What the aggregator may know of these samples, if it asks: none, labels or labels+features.
# Noise is added to it first where there is an epsilon (docs/selection.md says what both mean).
# share_histogram = "labels"
# histogram_epsilon = 1.0

# What a device of this class can do: {why}.
profile = {_quoted(profile.name)}

# What is otherwise on this one. The keys are those of a profile (docs/profiles.md).
[overrides]
memory_mb = {profile.memory_mb}
# What the training process may take at its peak. `kellet plan check PLAN` says what it needs.
memory_budget_mb = {profile.memory_budget_mb}
threads = {profile.threads}
# storage_budget_mb = {profile.storage_budget_mb}
# schemes = {text_of.dumps(list(profile.schemes))}
# shift = "{profile.shift}"
# uplink_codec = "{profile.uplink_codec}"

# When it may train. A device that may not says so, and no round waits for it.
[participation]
# Only on external power. Without a battery there is always some.
charging = {_bool(policy.charging)}
# Not while the way out is a mobile link. A Wi-Fi that a phone shares looks like any other.
unmetered = {_bool(policy.unmetered)}
# Percent.
min_battery = {policy.min_battery}
# The processor's ceiling, in degrees; training stops there and goes on 5 below.
{"# " if ceiling is None else ""}max_celsius = {75 if ceiling is None else ceiling}{heat}
# Local times of day at which it does not train, also over midnight.
# quiet_hours = "22:00-07:00"
"""


def _quoted(text: str) -> str:
    """A TOML string: JSON's escapes are among TOML's."""
    return text_of.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _yes(value: bool) -> str:
    return "yes" if value else "none"
