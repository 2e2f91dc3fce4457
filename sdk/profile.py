"""The profile a device runs with: named, in a file, or that of the board it runs on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kellet import firmware_profiles
from kellet.firmware_profiles import PROCESS_MB, Profile, WrongKey
from kellet.sdk.board import Board, detect, profile_name
from kellet.sdk.errors import UsageError

__all__ = [
    "Profile",
    "changed",
    "check_runs_python",
    "fitted",
    "open_profile",
    "profile_here",
    "refusal",
]

# Of the memory that a board has, where a profile asks for more: the rest is the system's.
_SHARE = 0.5


def open_profile(source: str | Path) -> Profile:
    """A profile by its name, or the path of its file, which ends in ``.toml``.

    Raises ``UsageError`` where there is none, or one that is wrong.
    """
    path = Path(source)
    is_file = isinstance(source, Path) or path.suffix == ".toml" or path.name != str(source)
    try:
        return firmware_profiles.read(path) if is_file else firmware_profiles.load(str(source))
    except WrongKey as error:
        raise refusal(error) from None
    except OSError as error:
        raise UsageError(
            f"the profile {str(source)!r} cannot be read",
            why=error.strerror or str(error),
            repair="give the path of a profile's file, or one of: "
            + ", ".join(firmware_profiles.names()),
        ) from None
    except ValueError as error:
        if is_file:
            raise UsageError(
                str(error), repair="write TOML; docs/profiles.md has the keys"
            ) from None
        raise UsageError(
            f"there is no profile {str(source)!r}",
            why="it is neither one of Kellet's nor the path of a .toml file",
            repair=f"choose one of {', '.join(firmware_profiles.names())}",
        ) from None


def profile_here(root: Path = Path("/")) -> tuple[Profile, str]:
    """The profile of the board this runs on, held to its memory, and why it is that one.

    Raises ``UsageError`` where none comes near.
    """
    board = detect(root)
    name, why = profile_name(board)
    return fitted(open_profile(name), board), why


def fitted(profile: Profile, board: Board) -> Profile:
    """``profile`` with no more memory and threads than ``board`` has."""
    budget = max(PROCESS_MB, min(profile.memory_budget_mb, int(_SHARE * board.memory_mb)))
    return dataclasses.replace(
        profile,
        memory_mb=max(board.memory_mb, budget),
        memory_budget_mb=budget,
        threads=min(profile.threads, board.cores),
    )


def check_runs_python(profile: Profile) -> None:
    """Raise ``UsageError`` for a profile that has the kernels alone."""
    if profile.kernels_only:
        raise UsageError(
            f"no device runs with the profile {profile.name}",
            why=f"{profile.arch} has no Python: a program of yours calls the kernels there",
            repair=f"python -m kellet.kernels.compile --target {profile.name} "
            "--out kernels.o --header kernels.h",
        )


def changed(profile: Profile, changes: Mapping[str, Any], *, where: str) -> Profile:
    """``profile`` with other values, as ``where`` asks for them. Raises ``UsageError``."""
    try:
        return profile.changed(changes, where=where)
    except WrongKey as error:
        raise refusal(error) from None


def refusal(error: WrongKey) -> UsageError:
    """The same words, as an error of the SDK."""
    return UsageError(
        f"{error.where}: {error.key} {error.what}", why=error.why, repair=error.repair
    )
