"""What the entry modules of child processes share: reports as JSON lines, ends, and kill points.

A child is started with one JSON object as its argument. It writes each report as a JSON line to
stdout, the last one ``error`` where it ends with one, and dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from kellet.sdk.durable import Database
from kellet.sdk.errors import KelletError
from kellet.sdk.protocol.effects import Report

__all__ = ["Stoppable", "serve", "stop_on_sigterm", "tell"]

Spec = dict[str, Any]
PR_SET_PDEATHSIG = 1


def serve(main: Callable[[Spec], object], owners: dict[str, type]) -> None:
    """Run ``main`` on this process's argument, and end as the command would.

    ``owners``: the classes that a kill point may name. Of the argument are read here:
    ``die``: the kill point (see ``_arm``); ``file_limit``: bytes that a file may have;
    ``imports``: paths of modules that are imported first.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    spec: Spec = json.loads(sys.argv[1])
    if "die" in spec:
        _arm(owners, **spec["die"])
    if "file_limit" in spec:
        resource.setrlimit(resource.RLIMIT_FSIZE, (spec["file_limit"], resource.RLIM_INFINITY))
    for module in map(Path, spec.get("imports", ())):
        sys.path.append(str(module.parent))
        importlib.import_module(module.stem)
    try:
        main(spec)
    except KelletError as error:
        tell(Report("error", {"type": type(error).__name__, "text": str(error)}))
        sys.exit(error.exit_code)


def tell(report: Report) -> None:
    """Write a report."""
    print(json.dumps({"kind": report.kind, **report.data}), flush=True)


class Stoppable(Protocol):
    """What ``stop_on_sigterm`` stops."""

    def stop(self) -> None: ...


def stop_on_sigterm(what: Stoppable) -> None:
    """An orderly end on SIGTERM, from the report ``ready`` on."""
    signal.signal(signal.SIGTERM, lambda *_: what.stop())
    tell(Report("ready"))


def _arm(owners: dict[str, type], *, at: str, when: str, count: int = 1) -> None:
    """Kill this process, as ``kill -9`` does, at the ``count``-th call of ``at`` (Class.method).

    ``when``: ``before`` the call, ``inside`` its transaction with everything written but the
    commit, or ``after`` the call.
    """
    class_name, name = at.split(".")
    owner = owners[class_name]
    real = getattr(owner, name)
    calls = 0

    @functools.wraps(real)
    def fatal(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and when == "before":
            _die()
        if calls == count and when == "inside":
            _die_before_commit()
        result = real(*args, **kwargs)
        if calls == count and when == "after":
            _die()
        return result

    setattr(owner, name, fatal)


def _die_before_commit() -> None:
    real = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Iterator[None]:
        with real(self):
            yield
            _die()

    Database.transaction = transaction  # type: ignore[method-assign]


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
