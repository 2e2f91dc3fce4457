"""Profiles as values, and the reader that says which key is wrong, why, and what it may be.

Standard library alone: setup.py loads this file before anything is installed.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "LOG_MB",
    "PROCESS_MB",
    "Key",
    "Participation",
    "Profile",
    "WrongKey",
    "check_keys",
    "load",
    "names",
    "read",
    "read_toml",
]

# Of a device before it has a plan: its process, and its database's log. kellet.sdk.peak and
# kellet.sdk.planner hold the bytes.
PROCESS_MB = 85
LOG_MB = 5
FOLDER = Path(__file__).resolve().parent
_MOST_BYTES = 64 << 10  # of a file of settings
_PATTERN = r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)"


class _Arch(NamedTuple):
    triple: str
    cpus: tuple[str, ...]  # as LLVM calls them; "generic" is none in particular
    has_python: bool = True


_ARCHES: Final = {
    "aarch64": _Arch(
        "aarch64-unknown-linux-gnu", ("cortex-a53", "cortex-a72", "cortex-a76", "generic")
    ),
    "thumbv7em": _Arch("thumbv7em-unknown-none-eabihf", ("cortex-m7",), has_python=False),
    "x86_64": _Arch("x86_64-unknown-linux-gnu", ("generic",)),
}


@dataclass(frozen=True, kw_only=True)
class Participation:
    """When a device may train. Each condition is off unless it is given.

    ``charging``: only on external power. ``unmetered``: not while the way out is a mobile
    link. ``min_battery``: percent. ``max_celsius``: the ceiling of the processor's
    temperature. ``quiet_hours``: local times of day, ``22:00-07:00``, when it does not train.
    """

    charging: bool = False
    unmetered: bool = False
    min_battery: int = 0
    max_celsius: float | None = None
    quiet_hours: str = ""

    @property
    def quiet_minutes(self) -> tuple[int, int] | None:
        """First and last (exclusive) minute of the day of the quiet hours."""
        found = re.fullmatch(_PATTERN, self.quiet_hours)
        if not found:
            return None
        h0, m0, h1, m1 = map(int, found.groups())
        return 60 * h0 + m0, 60 * h1 + m1


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One class of device. MB are 10^6 bytes.

    ``name`` is that of its file, ``arch`` the processor as ``platform.machine()``
    says it, ``triple`` and ``cpu`` are LLVM's words for the system and for the
    processor that the kernels are tuned for. ``memory_mb``: what the system has.
    ``memory_budget_mb``: what the whole training process may take at its peak.
    ``storage_budget_mb``: what the state directory may take. ``threads``: of one
    training. ``schemes``: families of quantization schemes, best first. ``shift``: how
    SCAFFOLD's c - c_i is held while training. ``max_message_bytes``: of one part that is sent.
    ``uplink_codec``: of delta_y, where the fleet accepts it. ``algorithm``: the one to
    prefer where it fits. The last eight say nothing where ``kernels_only`` is true.
    """

    name: str
    arch: str
    triple: str
    cpu: str
    memory_mb: int
    memory_budget_mb: int = 0
    storage_budget_mb: int = 0
    threads: int = 1
    schemes: tuple[str, ...] = ()
    shift: Literal["f32", "int8"] = "f32"
    max_message_bytes: int = 0
    uplink_codec: Literal["f32", "q8", "topk"] = "f32"
    algorithm: Literal["fedavg", "fedprox", "scaffold"] = "fedavg"
    participation: Participation = field(default_factory=Participation)

    @property
    def kernels_only(self) -> bool:
        """Whether the device runs the C kernels, but no Python and so no wheel."""
        return not _ARCHES[self.arch].has_python

    def changed(self, changes: Mapping[str, Any], *, where: str) -> Profile:
        """This profile with other values, checked; ``participation`` may be given in part.

        ``where`` is named in a ``WrongKey``. What a device *is* cannot be changed.
        """
        for key in changes:
            if key in _IDENTITY:
                raise WrongKey(
                    where,
                    key,
                    "cannot be changed here",
                    why="it says what the device is",
                    repair="copy the profile's file, change the copy, and name it as the profile",
                )
        values = dataclasses.asdict(self)
        values["schemes"] = list(self.schemes)
        kept = {key: value for key, value in values.pop("participation").items() if value}
        if self.kernels_only:
            values = {key: values[key] for key in _ALWAYS}
        given = dict(changes)
        asked = given.pop("participation", {})
        policy = {**kept, **asked} if isinstance(asked, dict) else asked
        values.update(given)
        if policy:
            values["participation"] = policy
        return _made(values, where)


class WrongKey(ValueError):
    """A key that is wrong: where it stands, what it is, why not, and what it may be."""

    def __init__(self, where: str, key: str, what: str, *, why: str, repair: str) -> None:
        super().__init__(f"{where}: {key} {what}: {why} - {repair}")
        self.where, self.key, self.what, self.why, self.repair = where, key, what, why, repair


class Key(NamedTuple):
    """What a key may be. ``good`` is asked once the type is right; ``why`` is its reason."""

    kind: type
    wanted: str
    why: str
    good: Callable[[Any], bool] = lambda _value: True


def _number(kind: type, least: float, most: float, unit: str, why: str) -> Key:
    word = "a whole number" if kind is int else "a number"
    wanted = f"{word} from {least} to {most}{unit and ' ' + unit}"
    return Key(kind, wanted, why, lambda value: least <= value <= most)


def _choice(why: str, *choices: str) -> Key:
    return Key(str, " or ".join(choices), why, lambda value: value in choices)


_SCHEMES: Final = ("f32", "w8.row", "w8.block64", "w8.row+a8")
_IDENTITY: Final = ("name", "arch", "triple", "cpu")
_ALWAYS: Final = (*_IDENTITY, "memory_mb")
_KEYS: Final[dict[str, Key]] = {
    "name": Key(
        str,
        "letters, digits, - and _, at most 64",
        "a profile is known to the fleet by it",
        lambda value: bool(re.fullmatch(r"[\w-]{1,64}", value, re.ASCII)),
    ),
    "arch": _choice("there are kernels for these alone", *_ARCHES),
    "triple": Key(str, "a text", "it is a name of LLVM's"),
    "cpu": Key(str, "a text", "it is a name of LLVM's"),
    "memory_mb": _number(int, 1, 4_000_000, "MB", "it is the RAM that the system has"),
    "memory_budget_mb": _number(
        int,
        PROCESS_MB,
        4_000_000,
        "MB",
        f"Python and onnxruntime take {PROCESS_MB} before anything is trained",
    ),
    "storage_budget_mb": _number(
        int, LOG_MB, 4_000_000, "MB", f"the log of the device's database takes {LOG_MB}"
    ),
    "threads": _number(int, 1, 64, "", "one training runs in as many threads"),
    "schemes": Key(
        list,
        "a list of " + ", ".join(_SCHEMES) + ", each once, the best first",
        "a device trains in one of these",
        lambda value: bool(value) and len({*value}) == len(value) and {*value} <= {*_SCHEMES},
    ),
    "shift": _choice("SCAFFOLD's shift is held in one of these", "f32", "int8"),
    "max_message_bytes": _number(
        int, 1024, 1 << 20, "bytes", "parts of an update are of these sizes"
    ),
    "uplink_codec": _choice(
        "delta_y travels in one of these, and the share of topk is the fleet's", "f32", "q8", "topk"
    ),
    "algorithm": _choice("devices know these", "fedavg", "fedprox", "scaffold"),
    "participation": Key(dict, "a table", "it holds the conditions"),
}
_CONDITIONS: Final[dict[str, Key]] = {
    "charging": Key(bool, "true or false", "either it matters or not"),
    "unmetered": Key(bool, "true or false", "either it matters or not"),
    "min_battery": _number(int, 0, 100, "percent", "a battery holds no more"),
    "max_celsius": _number(float, 30, 150, "degrees", "a processor at work is within these"),
    "quiet_hours": Key(
        str,
        "HH:MM-HH:MM in local time, such as 22:00-07:00, or empty",
        "it is a span of the day that begins and ends at two times",
        lambda value: not value or (bool(re.fullmatch(_PATTERN, value)) and value[:5] != value[6:]),
    ),
}
_OPTIONAL: Final = ("participation",)
# Words that other systems and drafts use: the key to write, and why it is another.
_REMOVED: Final = {
    "quantization": ("schemes", "schemes says which quantized variants a device takes, as a list"),
    "precision": ("schemes", "schemes says which quantized variants a device takes, as a list"),
    "ram_mb": (
        "memory_mb",
        "it is called memory_mb; what training may take of it is memory_budget_mb",
    ),
    "memory_limit_mb": ("memory_budget_mb", "it is what training may take, not what there is"),
    "flash_mb": ("storage_budget_mb", "it is what training may take, not what there is"),
    "cores": ("threads", "it is what training may take, not what there is"),
    "chunk_size": ("max_message_bytes", "it is a limit: brokers have theirs"),
    "compression": ("uplink_codec", "codecs have names: f32, q8 and topk"),
    "target": ("triple", "arch, triple and cpu say what the kernels are built for"),
    "batch_size": ("", "the aggregator announces it; `kellet plan check` says what fits"),
}
_REMOVED_CONDITIONS: Final = {
    "wifi_only": (
        "unmetered",
        "it is called unmetered; a mobile link shared over Wi-Fi looks like Wi-Fi",
    ),
    "max_temperature": ("max_celsius", "it says its unit"),
    "battery": ("min_battery", "it is the least, in percent"),
    "idle": ("", "nothing on Linux says reliably whether somebody uses the device"),
}


def names() -> tuple[str, ...]:
    """Return the names of the profiles that Kellet brings, in order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(name: str) -> Profile:
    """Return one of Kellet's profiles; ValueError for a name that is none, or a wrong file."""
    if name not in names():
        raise ValueError(f"there is no profile {name!r}; the profiles are {', '.join(names())}")
    return read(FOLDER / f"{name}.toml")


def read(path: Path) -> Profile:
    """Return the profile in a TOML file, whose name is the profile's.

    Raises OSError where it cannot be read, ``WrongKey`` where a key is wrong, and
    ValueError where it is no TOML.
    """
    try:
        values = read_toml(path)
    except ValueError as error:
        raise ValueError(f"{path.name} is not TOML: {error}") from error
    profile = _made(values, path.name)
    _one_of(path.name, "name", profile.name, (path.stem,), "a profile is found by its file")
    return profile


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a file of settings says. Raises OSError, and ValueError where it is no TOML."""
    with path.open("rb") as file:
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 10} KB")
    return tomllib.loads(raw.decode("utf-8"))


def check_keys(
    values: Mapping[str, Any],
    keys: Mapping[str, Key],
    *,
    where: str,
    table: str = "",
    removed: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Hold ``values`` against ``keys``. Raises ``WrongKey`` for the first that is wrong.

    ``table``: their table's name, for the message. ``removed``: keys that Kellet
    has not, with the one to write instead (or none) and the reason.
    """
    prefix = table and table + "."
    for name, value in values.items():
        if removed and name in removed:
            instead, why = removed[name]
            repair = f"write {instead}" if instead else "leave it out"
            raise WrongKey(where, prefix + name, "is no key here", why=why, repair=repair)
        if name not in keys:
            close = difflib.get_close_matches(name, keys, 1)
            repair = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(keys)}"
            raise WrongKey(
                where, prefix + name, "is unknown", why="no key is so called", repair=repair
            )
        key = keys[name]
        if not (_is_of(key.kind, value) and key.good(value)):
            raise WrongKey(
                where, prefix + name, f"is {value!r}", why=key.why, repair=f"it may be {key.wanted}"
            )


def _is_of(kind: type, value: object) -> bool:
    if kind is list:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is kind


def _made(values: Mapping[str, Any], where: str) -> Profile:
    check_keys(values, _KEYS, where=where, removed=_REMOVED)
    policy = values.get("participation", {})
    check_keys(policy, _CONDITIONS, where=where, table="participation", removed=_REMOVED_CONDITIONS)
    for key in _ALWAYS:
        _require(key, values, where)
    arch = _ARCHES[values["arch"]]
    why = f"arch is {values['arch']}"
    _one_of(where, "triple", values["triple"], (arch.triple,), why)
    _one_of(where, "cpu", values["cpu"], arch.cpus, why)
    for key in (key for key in _KEYS if key not in _OPTIONAL and arch.has_python):
        _require(key, values, where)
    if not arch.has_python:
        for key in (key for key in values if key not in _ALWAYS):
            raise WrongKey(
                where,
                key,
                "says nothing",
                why=f"{why}, which runs no Python: the kernels alone",
                repair=f"leave it out; such a profile has {', '.join(_ALWAYS)}",
            )
    elif values["memory_budget_mb"] > values["memory_mb"]:
        raise WrongKey(
            where,
            "memory_budget_mb",
            f"is {values['memory_budget_mb']}",
            why=f"the device has memory_mb = {values['memory_mb']}",
            repair="it may be as much as the system can spare",
        )
    fields = {key: value for key, value in values.items() if key != "participation"}
    if "schemes" in fields:
        fields["schemes"] = tuple(fields["schemes"])
    return Profile(**fields, participation=Participation(**policy))


def _require(key: str, values: Mapping[str, Any], where: str) -> None:
    if key not in values:
        wanted = _KEYS[key].wanted
        raise WrongKey(
            where, key, "is missing", why="nothing stands for it", repair=f"it may be {wanted}"
        )


def _one_of(where: str, key: str, value: str, allowed: tuple[str, ...], why: str) -> None:
    if value not in allowed:
        repair = f"it may be {' or '.join(allowed)}"
        raise WrongKey(where, key, f"is {value!r}", why=why, repair=repair)
