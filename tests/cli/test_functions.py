"""``MODULE:FUNCTION``: what users write, and what they are told when it is wrong."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kellet.sdk.commands.functions import call, data_function, find_function, xy
from kellet.sdk.console import Console
from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.signals import Interrupted

MODULE = """
def load(device):
    return [[1.0]], [0]

def broken(device):
    return open("/no/such/file")

def three(device):
    return 1, 2, 3

class Sources:
    @staticmethod
    def second(device):
        return device, "labels"

number = 5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with users' modules in it."""
    (tmp_path / "functions_of_mine.py").write_text(MODULE)
    (tmp_path / "functions_that_fail.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "functions_with_a_slip.py").write_text("x = 1\ny = 1 / 0\n")
    (tmp_path / "functions_that_do_not_parse.py").write_text("def load(:\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_a_module_in_the_working_directory_is_found() -> None:
    assert data_function("functions_of_mine:load")("pi-1") == ([[1.0]], [0])
    assert data_function("functions_of_mine:Sources.second")("pi-1") == ("pi-1", "labels")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("functions_of_mine", "MODULE:FUNCTION"),
        ("functions_of_mine.py:load", "functions_of_mine.py"),
        ("functions of mine:load", "MODULE:FUNCTION"),
        (":load", "MODULE:FUNCTION"),
        ("functions_of_yours:load", "no module 'functions_of_yours'"),
        ("functions_of_mine.inner:load", "no module 'functions_of_mine.inner'"),
        ("functions_of_mine:laod", "did you mean load?"),
        ("functions_of_mine:Sources.third", "has no 'third'"),
        ("functions_of_mine:number", "of type int"),
    ],
)
def test_a_slip_in_the_name_is_a_usage_error(spec: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_function(spec, "--data")
    assert words in str(caught.value)
    assert "--data" in str(caught.value)
    assert caught.value.repair


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("functions_that_fail:load", "No module named 'no_such_package_at_all'"),
        ("functions_with_a_slip:load", "ZeroDivisionError: division by zero (line 2 of "),
        ("functions_that_do_not_parse:load", "SyntaxError"),
    ],
)
def test_a_module_that_fails_is_a_data_error(spec: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        find_function(spec, "--data")
    assert words in str(caught.value)


@pytest.mark.usefixtures("here")
def test_what_a_function_raises_is_told_with_its_line() -> None:
    with pytest.raises(DataError) as caught:
        data_function("functions_of_mine:broken")("pi-1")
    assert "functions_of_mine:broken raised FileNotFoundError" in str(caught.value)
    assert "line 6 of " in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_function_of_other_arguments_is_told() -> None:
    with pytest.raises(DataError, match="takes 0 positional arguments but 1 was given"):
        call(lambda: None, "mine:load", "pi-1")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned a NoneType"),
        ((1, 2, 3), "returned a tuple of 3"),
        ({"x": 1, "y": 2}, "returned a dict"),
        (iter((1, 2)), "returned a tuple_iterator"),
    ],
)
def test_data_is_a_pair(value: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        xy(value, "mine:load")
    assert xy([1, 2], "mine:load") == (1, 2)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("leave", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
def test_a_function_that_leaves_is_a_data_error(leave: BaseException) -> None:
    def load(_device: str) -> None:
        raise leave

    with pytest.raises(DataError, match=f"mine:load raised {type(leave).__name__}"):
        call(load, "mine:load", "pi-1")


def test_a_signal_is_not_the_function_s_fault() -> None:
    def load() -> None:
        raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted):
        call(load, "mine:load")


def test_a_module_that_leaves_is_a_data_error(here: Path) -> None:
    (here / "functions_that_leave.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(DataError, match="SystemExit: 0 \\(line 2 of "):
        find_function("functions_that_leave:load", "--data")


def test_what_a_function_prints_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        print("mine")
        Console(json=True).result({"ours": 1}, "")

    call(load, "mine:load")
    assert capsys.readouterr() == ('{"ours": 1}\n', "mine\n")
