"""``kellet.toml``: what one device is told at every start.

Options of the command win over it. A key that is unknown is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kellet.firmware_profiles import WrongKey
from kellet.firmware_profiles.profile import Key, check_keys, read_toml
from kellet.sdk import profile
from kellet.sdk.errors import UsageError
from kellet.sdk.transport.checks import LONGEST, MOST_KEEPALIVE

__all__ = ["Config", "chosen_profile", "read_config"]

_TEXT = Key(str, "a text", "it is a name or an address", bool)
_FILE = Key(str, "a path", "it names a file or a directory", bool)
_KEYS: Final[dict[str, Key]] = {
    "device": _TEXT,
    "broker": _TEXT,
    "fleet": _TEXT,
    "data": _TEXT,
    "algorithms": _TEXT,
    "state": _FILE,
    "profile": _TEXT,
    "holdout": Key(
        float,
        "a number, at least 0 and below 1",
        "it is a share of the samples",
        lambda value: 0 <= value < 1,
    ),
    "no_personal": Key(bool, "true or false", "either it is or not"),
    "share_histogram": Key(str, "none, labels or labels+features", "it says what may be told"),
    "histogram_epsilon": Key(float, "a number above 0", "it is that of the noise"),
    "keepalive": Key(
        int,
        f"a whole number of seconds from 1 to {MOST_KEEPALIVE}",
        "it is a time",
        lambda value: 1 <= value <= MOST_KEEPALIVE,
    ),
    "connect_timeout": Key(
        float,
        f"a number of seconds, above 0 and at most {LONGEST:.0f}",
        "it is a time",
        lambda value: 0 < value <= LONGEST,
    ),
    "ca_file": _FILE,
    "cert_file": _FILE,
    "key_file": _FILE,
    "separate_bulk": Key(bool, "true or false", "either it is or not"),
    "overrides": Key(dict, "a table", "it holds keys of the profile"),
    "participation": Key(dict, "a table", "it holds the conditions for training"),
}
_PATHS: Final = ("state", "ca_file", "cert_file", "key_file")
_TABLES: Final = ("overrides", "participation")
# Keys that are wanted elsewhere: the one to write, and why.
_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("memory_mb", "memory_budget_mb", "storage_budget_mb", "threads", "schemes", "shift"),
        ("it below [overrides]", "it is a key of the profile"),
    ),
    **dict.fromkeys(
        ("max_message_bytes", "uplink_codec", "algorithm"),
        ("it below [overrides]", "it is a key of the profile"),
    ),
    **dict.fromkeys(
        ("charging", "unmetered", "min_battery", "max_celsius", "quiet_hours"),
        ("it below [participation]", "it is a condition for training"),
    ),
    "id": ("device", "a device's id is called device"),
    "server": ("broker", "a device knows the broker alone, not the aggregator"),
    "local_lr": ("", "the aggregator announces how is trained"),
    "batch_size": ("", "the aggregator announces how is trained"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A file that was read and found to be right in itself.

    ``options``: what it gives of the options of ``kellet run``, by their names with
    underscores; paths are absolute, or from the file's directory. ``overrides``,
    ``participation``: what differs from the profile.
    """

    path: Path
    options: Mapping[str, str | int | float | bool]
    overrides: Mapping[str, Any]
    participation: Mapping[str, Any]


def read_config(path: Path) -> Config:
    """Read a ``kellet.toml``. Raises ``UsageError``, naming the key."""
    try:
        values = read_toml(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read",
            why=error.strerror or str(error),
            repair="write one with `kellet init`, or give the path of yours",
        ) from None
    except ValueError as error:
        raise UsageError(f"{path} is not TOML", why=str(error), repair="correct the line") from None
    try:
        check_keys(values, _KEYS, where=str(path), removed=_ELSEWHERE)
        overrides = values.get("overrides", {})
        if "participation" in overrides:
            raise WrongKey(
                str(path),
                "overrides.participation",
                "is in the wrong place",
                why="it is a table of its own",
                repair="write [participation]",
            )
    except WrongKey as error:
        raise profile.refusal(error) from None
    folder = path.absolute().parent
    options = {key: value for key, value in values.items() if key not in _TABLES}
    for key in _PATHS:
        if key in options:
            options[key] = str(folder / Path(options[key]).expanduser())
    if str(options.get("profile", "")).endswith(".toml"):
        options["profile"] = str(folder / Path(options["profile"]).expanduser())
    return Config(
        path=path,
        options=options,
        overrides=overrides,
        participation=values.get("participation", {}),
    )


def chosen_profile(
    name: str | None, config: Config | None, root: Path = Path("/")
) -> tuple[profile.Profile, str]:
    """The profile that is asked for, with the changes of ``config``; and why it is that one.

    ``name``: of a profile, or the path of its file; None for this board's. Raises
    ``UsageError``, also for a profile that has the kernels alone.
    """
    if name is None:
        found, why = profile.profile_here(root)
    else:
        found, why = profile.open_profile(name), "it was asked for"
    profile.check_runs_python(found)
    if config is None:
        return found, why
    changes: dict[str, Any] = dict(config.overrides)
    if config.participation:
        changes["participation"] = dict(config.participation)
    return profile.changed(found, changes, where=str(config.path)), why
