"""``kellet init``, ``kellet run`` with a file and a profile, ``kellet plan check`` for a class."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command import command

from kellet.sdk.config import read_config

MODULE = """
import numpy as np

def load(device):
    numbers = np.random.default_rng(0)
    return numbers.standard_normal((40, 6)).astype(np.float32), np.arange(40) % 3
"""
NOBODY = "mqtt://127.0.0.1:1"  # nothing listens there


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "mydata.py").write_text(MODULE)
    return tmp_path


def test_init_writes_a_file_that_run_reads(home: Path) -> None:
    facts = command("init", "--json", cwd=home).lines[0]
    assert facts["file"] == "kellet.toml"
    assert facts["missing"] == ["broker", "data"]
    config = read_config(home / "kellet.toml")
    assert config.options["device"] == facts["device"]
    assert config.options["profile"] == facts["profile"]
    assert facts["board"]["memory_mb"] >= config.overrides["memory_budget_mb"]
    # It names what is left to fill in.
    command("run", "--config", "kellet.toml", cwd=home).failed(
        2, "kellet.toml has no broker", "KELLET_BROKER"
    )


def test_init_writes_over_nothing(home: Path) -> None:
    path = home / "kellet.toml"
    path.write_text("mine")
    command("init", cwd=home).failed(
        2, "--output kellet.toml: the file is there already", "--force"
    )
    assert path.read_text() == "mine"
    assert command("init", "--force", cwd=home).code == 0
    assert path.read_text() != "mine"
    command("init", "-o", "no/k.toml", cwd=home).failed(2, "there is no directory no")
    command("init", "-o", ".", cwd=home).failed(2, "it is a directory")


def started(home: Path, *options: object, cwd: Path | None = None, **env: str) -> dict[str, object]:
    """How a device starts that then finds no broker."""
    done = command("run", *options, "--connect-timeout", "0.5", "--json", cwd=cwd or home, env=env)
    assert done.code == 5, done.err
    first = done.lines[0]
    assert first["event"] == "started"
    assert NOBODY in done.err
    return first


def test_run_takes_from_the_file_what_is_not_given(home: Path) -> None:
    (home / "k.toml").write_text(
        f'device = "a-1"\nbroker = "{NOBODY}"\ndata = "mydata:load"\nstate = "s"\n'
        'fleet = "of_the_file"\nprofile = "pi_3b"\nkeepalive = 20\nseparate_bulk = true\n'
        "holdout = 0.25\n[overrides]\nthreads = 1\n[participation]\nmax_celsius = 60\n"
    )
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    first = started(home, "--config", home / "k.toml", cwd=elsewhere)
    assert (first["device"], first["fleet"], first["profile"]) == ("a-1", "of_the_file", "pi_3b")
    assert (home / "s" / "device.db").exists()
    # Options win, and so does the variable.
    given = ("b-2", "--config", "k.toml", "--fleet", "mine", "--profile", "pi_5", "--state", "t")
    first = started(home, *given)
    assert (first["device"], first["fleet"], first["profile"]) == ("b-2", "mine", "pi_5")
    assert (home / "t" / "device.db").exists()
    (home / "k.toml").write_text('broker = "mqtt://of.the.file"\n')
    rest = ("c", "--config", "k.toml", "--data", "mydata:load", "--state", "u")
    started(home, *rest, KELLET_BROKER=NOBODY)


def test_an_empty_variable_is_none(home: Path) -> None:
    path = home / "k.toml"
    path.write_text(f'broker = "{NOBODY}"\n')
    given = ("c", "--data", "mydata:load", "--state", "u")
    for nothing in ("", " "):
        started(home, *given, "--config", "k.toml", KELLET_BROKER=nothing)
        done = command("run", *given, cwd=home, env={"KELLET_BROKER": nothing})
        done.failed(2, "--broker is not given", "KELLET_BROKER", "--config")


def test_help_calls_nothing_required_that_a_file_may_say(home: Path) -> None:
    said = command("run", "--help").out
    assert "Usage: kellet run [OPTIONS] [DEVICE]" in said
    assert "[required]" not in said
    assert "--data and --state are needed, here or in the file of --config." in " ".join(
        said.split()
    )
    command("run", cwd=home).failed(2, "DEVICE is not given")
    command("run", "c", "--broker", NOBODY, cwd=home).failed(2, "--data is not given")


def test_a_wrong_file_ends_before_anything_begins(home: Path) -> None:
    path = home / "k.toml"
    for text, word in (
        ("brokr = 'x'", "did you mean broker?"),
        ("[overrides]\nthreads = 0", "from 1 to 64"),
        ("keepalive = 'long'", "keepalive is 'long'"),
    ):
        path.write_text(text)
        given = ("--broker", NOBODY, "--data", "mydata:load", "--state", "s")
        command("run", "a", "--config", "k.toml", *given, cwd=home).failed(2, word)
    assert not (home / "s").exists()
    command("run", "a", "--config", "none.toml", *given, cwd=home).failed(2, "kellet init")


def test_a_profile_that_no_device_runs_with(home: Path) -> None:
    given = ("--broker", NOBODY, "--data", "mydata:load", "--state", "s")
    said = command("run", "a", *given, "--profile", "cortex_m7", cwd=home)
    said.failed(2, "thumbv7em has no Python", "--target cortex_m7")
    command("run", "a", *given, "--profile", "pi_6", cwd=home).failed(2, "pi_5, pi_zero_2w")


def test_check_says_what_a_class_of_device_makes_of_a_plan() -> None:
    done = command(
        *("plan", "check", "har", "--profile", "pi_zero_2w", "--link", "250kbit", "--json")
    )
    assert done.code == 0
    fit = done.lines[0]["fit"]
    assert fit["fits"] is True
    assert fit["profile"] == "pi_zero_2w"
    assert (fit["chosen"]["scheme"], fit["chosen"]["algorithm"]) == ("w8.row/1", "scaffold")
    assert fit["control_damping"] == 0.1
    bits = 8 * (fit["chosen"]["up_bytes"] + fit["chosen"]["down_bytes"])
    assert fit["chosen"]["seconds"] == pytest.approx(1.04 * bits / 250e3, abs=0.01)
    words = command("plan", "check", "har", "--profile", "pi_zero_2w").out
    assert " -> w8.row/1" in words
    assert "200 MB of memory" in words


def test_check_takes_a_codec_as_the_server_does() -> None:
    """5,094 elements: 510 of them with their indices, against all."""
    up = {}
    for codec in ("f32", "topk:0.1"):
        done = command("plan", "check", "wisdm", "--uplink", codec, "--json")
        up[codec] = done.lines[0]["fit"]["candidates"][0]["up_bytes"]
    assert up["f32"] - up["topk:0.1"] == 4 * 5094 - 8 * 510
    command("plan", "check", "wisdm", "--uplink", "topk").failed(2, "--uplink = 'topk'", "0.05")


def test_check_ends_with_4_where_nothing_fits(tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    source = Path(__file__).parents[2] / "firmware_profiles" / "pi_3b.toml"
    text = source.read_text().replace('"pi_3b"', '"small"')
    small.write_text(text.replace("memory_budget_mb = 450", "memory_budget_mb = 85"))
    done = command("plan", "check", "har", "--profile", small)
    assert done.code == 4
    assert "har does not fit small: the smallest way" in done.out
    assert "MB of memory, of 85; 85 MB of the memory are the process" in done.out
    facts = command("plan", "check", "har", "--profile", small, "--json")
    assert (facts.code, facts.lines[0]["fit"]["fits"]) == (4, False)
    assert "of 85" in facts.lines[0]["fit"]["refusal"]


def test_options_that_cannot_be() -> None:
    command("plan", "check", "wisdm", "--link", "fast").failed(2, "250kbit")
    command("plan", "check", "wisdm", "--batch", "0").failed(2, "batch")
    command("plan", "check", "wisdm", "--samples", "-1").failed(2, "--samples = -1")
    command("plan", "check", "wisdm", "--profile", "pi").failed(2, "no profile 'pi'")
