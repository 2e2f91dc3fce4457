"""The program ``kellet``: finds its commands, runs one, and ends with a code that means something.

A command is an entry point in the group ``kellet.commands``: a ``cyclopts.App`` or a
function, which may return an exit code. Only the command that is asked for is
imported, so that ``kellet run`` never imports the server.

Exit codes: 0, those of ``kellet.sdk.errors``, 128 + n after signal n, and 70 for a fault
in Kellet itself. ``KELLET_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from kellet.sdk import signals
from kellet.sdk.console import print_error
from kellet.sdk.errors import ExtraMissing, KelletError, StorageError, UsageError

if TYPE_CHECKING:
    from cyclopts import App

__all__ = ["GROUP", "SUMMARIES", "main", "run"]

GROUP = "kellet.commands"
OURSELVES_TO_BLAME = 70
READER_GONE = 141  # 128 + SIGPIPE

# One line for each of our commands, so that `kellet --help` need not import them.
SUMMARIES = {
    "demo": "A whole fleet on this machine: broker, aggregator and devices that come and go.",
    "init": "Look at this board and write a kellet.toml for it.",
    "plan": "Show, check, export or derive a plan: what a device trains.",
    "report": "Make the HTML report of a run that was kept.",
    "run": "Take part in a fleet as a device.",
    "server": "Run a fleet's rounds beside a broker.",
    "simulate": "Train over many clients in this process, with the same code: one run, or a sweep.",
}


def main() -> None:
    """The console script."""
    code = run(sys.argv[1:])
    signals.release()
    sys.exit(code)


def run(tokens: Sequence[str]) -> int:
    """Run the command that ``tokens`` name; the exit code."""
    json = "--json" in tokens
    signals.install()
    warnings.showwarning = _warn
    try:
        result = _run(tokens)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except KelletError as error:
        return _failed(error, json)
    except signals.Interrupted as error:
        return _stopped(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except ModuleNotFoundError as error:
        return _failed(_missing(error), json)
    except OSError as error:
        return _failed(_disk(error), json)
    except Exception as error:  # the last line of defence: said in words, never as a traceback
        return _failed(_fault(error), json)


def _run(tokens: Sequence[str]) -> object:
    from cyclopts import CycloptsError  # takes its time; a Ctrl-C meanwhile is in order

    try:
        return _app(tokens)(tokens)
    except CycloptsError as error:
        asked = tokens[0] if tokens[0] in SUMMARIES else ""
        help_ = " ".join(filter(None, ("kellet", asked, "--help")))
        raise UsageError(str(error).strip().rstrip("."), repair=f"see {help_}") from None


def _app(tokens: Sequence[str]) -> App:
    """The program, with the command that is asked for and the names of the others."""
    from cyclopts import App, Parameter

    app = App(
        name="kellet",
        help="Federated learning on small devices over MQTT: SCAFFOLD, FedProx, FedAvg.",
        version=_version,
        version_flags=["--version"],
        default_parameter=Parameter(
            negative=(), show_env_var=False, env_var_split=_from_environment
        ),
        help_format="plaintext",
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    wanted = tokens[0] if tokens else ""
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        if entry.name == wanted:
            app.command(entry.load(), name=entry.name)
        elif entry.name in SUMMARIES:
            app.command(App(name=entry.name, help=SUMMARIES[entry.name]))
        else:
            app.command(_of_others(entry), name=entry.name)
    return app


def _from_environment(_type: object, value: str, *, delimiter: str | None = None) -> list[str]:
    """The value of a variable; one that is set to nothing counts as not set."""
    return [value] if value.strip() else []


def _of_others(entry: metadata.EntryPoint) -> Any:
    """Another package's command, for its line of help; one that is broken must not break ours."""
    from cyclopts import App

    try:
        return entry.load()
    except ImportError as error:
        return App(name=entry.name, help=f"(cannot be loaded: {error})")


def _warn(message: Warning | str, *_rest: Any, **_more: Any) -> None:
    """A warning as a sentence, not as a line of source."""
    print(f"kellet: {message}", file=sys.stderr, flush=True)


def _version() -> str:
    return metadata.version("kellet")


def _failed(error: KelletError, json: bool) -> int:
    number = signals.raised()
    if number is not None and error.__cause__ is not None:  # a signal, in other words
        return _stopped(signals.Interrupted(number))
    if os.environ.get("KELLET_DEBUG") == "1":
        import traceback

        traceback.print_exception(error.__cause__ or error)
    print_error(error, json=json)
    return error.exit_code


def _stopped(error: signals.Interrupted) -> int:
    print(f"kellet: stopped by {error.number.name}", file=sys.stderr, flush=True)
    return error.exit_code


def _missing(error: ModuleNotFoundError) -> KelletError:
    """Name the extra that brings a package, from what our own metadata requires."""
    package = (error.name or "").partition(".")[0]
    for requirement in metadata.requires("kellet") or () if package != "kellet" else ():
        name, _, condition = requirement.partition(";")
        extra = re.search(r"""extra\s*==\s*["'](\w+)["']""", condition)
        if extra and re.match(r"[\w.-]+", name)[0].replace("-", "_") == package:  # type: ignore[index]
            missing = ExtraMissing(extra[1], package)
            missing.__cause__ = error
            return missing
    return _fault(error)


def _disk(error: OSError) -> KelletError:
    where = error.filename or "a file"
    failed = StorageError(
        f"{where} cannot be read or written",
        why=error.strerror or str(error),
        repair="check the path, its permissions and the space on the disk",
    )
    failed.__cause__ = error
    return failed


def _fault(error: Exception) -> KelletError:
    fault = KelletError(
        "a fault in Kellet",
        why=f"{type(error).__name__}: {error}",
        repair="nothing that was receipted is lost; KELLET_DEBUG=1 shows where, please report it",
    )
    fault.exit_code = OURSELVES_TO_BLAME
    fault.__cause__ = error
    return fault


if __name__ == "__main__":
    main()
