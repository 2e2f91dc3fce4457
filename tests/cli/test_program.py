"""The program: its commands, its help, its exit codes, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
from support.command import command

import kellet.sdk
from kellet.sdk.cli import GROUP, SUMMARIES

HELLO = """
from cyclopts import App

command = App(name="hello", help="Say hello.")


@command.default
def hello(how: str = "well") -> int:
    if how == "badly":
        raise RuntimeError("something unforeseen")
    print("hello")
    return 0 if how == "well" else 9
"""


@pytest.fixture
def with_hello(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has installed a command of another package."""
    (tmp_path / "hello_command.py").write_text(HELLO)
    info = tmp_path / "hello-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nhello = hello_command:command\n")
    return {"PYTHONPATH": str(tmp_path)}


def test_help_lists_every_command_and_what_it_does() -> None:
    done = command("--help")
    assert done.code == 0
    words = done.out.replace("│", " ").split()
    for entry in metadata.entry_points(group=GROUP):
        assert entry.name in words
        assert set(SUMMARIES[entry.name].split()) <= set(words)


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_the_listed_words_are_the_commands_own(name: str) -> None:
    (entry,) = (e for e in metadata.entry_points(group=GROUP) if e.name == name)
    app = import_module(entry.module).command
    own = app.help or app.default_command.__doc__
    assert own.strip().splitlines()[0] == SUMMARIES[name]


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ("numpy", "onnxruntime", "paho", "kellet.server", "kellet.sdk.runner")),
        (["run", "--help"], ("kellet.server", "onnxruntime", "matplotlib", "torch", "numba")),
        (["demo", "--help"], ("matplotlib", "torch", "numba")),
    ],
)
def test_a_command_imports_only_what_it_needs(arguments: list[str], absent: tuple[str]) -> None:
    code = (
        "import json, sys; from kellet.sdk.cli import run; code = run(sys.argv[1:]);"
        "print(json.dumps(sorted(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert not [name for name in absent if name in loaded]


def test_the_version_is_the_package_s() -> None:
    done = command("--version")
    assert (done.code, done.out.strip()) == (0, metadata.version("kellet"))


def test_another_package_adds_a_command(with_hello: dict[str, str]) -> None:
    assert "Say hello." in command("--help", env=with_hello).out
    done = command("hello", env=with_hello)
    assert (done.code, done.out) == (0, "hello\n")
    assert command("hello", "--how", "so so", env=with_hello).code == 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rum"], ['"rum"', 'Did you mean "run"', "kellet --help"]),
        (["run"], ["DEVICE", "kellet run --help"]),
        (["run", "pi-1"], ["--broker", "kellet run --help"]),
        (["run", "pi-1", "--brocker", "x"], ["--brocker", "kellet run --help"]),
        (["simulate", "--task", "mnist"], ["mnist", "wisdm", "kellet simulate --help"]),
        (["simulate", "--task", "wisdm", "--rounds", "ten"], ["ten", "--rounds"]),
        (["demo", "--no-json"], ["--no-json"]),
    ],
)
def test_a_slip_is_told_with_the_way_to_help(arguments: list[str], words: list[str]) -> None:
    command(*arguments).failed(2, *words)


def test_with_json_an_error_is_the_last_line_too() -> None:
    done = command("plan", "show", "nowhere.kplan", "--json")
    done.failed(4, "nowhere.kplan")
    assert done.lines[-1] == {
        "event": "error",
        "error": "PlanError",
        "what": "there is no plan 'nowhere.kplan'",
        "why": "it is neither a file nor a built-in plan",
        "repair": "give the path of a .kplan file, or one of: har, wisdm",
        "exit_code": 4,
    }


def test_a_fault_of_ours_is_told_in_words_and_shown_on_request(with_hello: dict[str, str]) -> None:
    command("hello", "badly", env=with_hello).failed(
        70, "a fault in Kellet", "RuntimeError: something unforeseen", "KELLET_DEBUG=1"
    )
    shown = command("hello", "badly", env={**with_hello, "KELLET_DEBUG": "1"})
    assert shown.code == 70
    assert "hello_command.py" in shown.err
    assert "Traceback" in shown.err


def test_a_reader_that_goes_away_is_no_fault(desk: Path) -> None:
    program = f"'{sys.executable}' -P -m kellet.sdk.cli simulate toy.kplan"
    script = f"{program} --data mine:clients --rounds 100000 --json | head -n 1"
    done = subprocess.run(
        ["bash", "-c", script + "; echo ${PIPESTATUS[0]}"],
        cwd=desk,
        capture_output=True,
        text=True,
        check=False,
    )
    first, code = done.stdout.splitlines()
    assert json.loads(first)["round"] == 1
    assert code == "141"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("matplotlib", ["simulate", "--task", "wisdm", "--report", "here"], "server"),
        ("matplotlib", ["demo"], "server"),
        ("iotcore", ["server", "wisdm", "--state", "here"], "server"),
        ("torch", ["plan", "export", "json:dumps", "-o", "x.kplan"], "authoring"),
    ],
)
def test_a_missing_extra_is_named_with_the_line_that_brings_it(
    tmp_path: Path, package: str, arguments: list[str], extra: str
) -> None:
    env = without(tmp_path, package)
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "kellet.sdk.cli", *arguments],
        cwd=tmp_path,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"kellet: this needs the package {package!r}: it is not installed - "
        f'pip install "kellet[{extra}]"\n'
    )


def without(tmp_path: Path, package: str) -> dict[str, str]:
    """The environment, for ``python -S``, of somebody who has everything but ``package``."""
    site = tmp_path / "site"
    site.mkdir()
    for folder in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for entry in folder.iterdir():
            if entry.name != package and entry.suffix != ".pth":
                (site / entry.name).symlink_to(entry)
    ours = Path(kellet.sdk.__file__).parents[2]
    return {"PYTHONPATH": os.pathsep.join([str(site), str(ours)])}
