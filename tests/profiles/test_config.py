"""``kellet.toml``: written by `kellet init`, read by `kellet run`, refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.boards import BOARDS, lay_out

from kellet.sdk.board import detect, profile_name
from kellet.sdk.commands.init import compose
from kellet.sdk.config import chosen_profile, read_config
from kellet.sdk.errors import UsageError
from kellet.sdk.profile import changed, fitted, open_profile


def written(folder: Path, text: str) -> Path:
    path = folder / "kellet.toml"
    path.write_text(text)
    return path


def test_what_init_writes_is_what_the_profile_says(tmp_path: Path) -> None:
    """For each board: the file reads back, and changes nothing of the fitted profile."""
    for name in BOARDS:
        arch = "x86_64" if name in ("pc", "container") else "aarch64"
        board = detect(lay_out(tmp_path / name, BOARDS[name]), arch=arch)
        chosen, why = profile_name(board)
        profile = fitted(open_profile(chosen), board)
        config = read_config(written(tmp_path / name, compose(board, profile, why, "pi-1")))
        assert config.options == {
            "device": "pi-1",
            "state": str(tmp_path / name / "kellet-state"),
            "profile": chosen,
        }
        assert chosen_profile(chosen, config) == (profile, "it was asked for")


def test_every_line_that_is_not_in_force_may_be_put_in_force(tmp_path: Path) -> None:
    board = detect(lay_out(tmp_path, BOARDS["pi_4b"]), arch="aarch64")
    profile = fitted(open_profile("pi_4b"), board)
    lines = compose(board, profile, "of its model", "pi-1").splitlines()
    in_force = [line[2:] if line.startswith("# ") and " = " in line else line for line in lines]
    config = read_config(written(tmp_path, "\n".join(in_force)))
    assert config.options["broker"] == "mqtt://192.168.1.10:1883"
    assert config.options["data"] == "mydata:load"
    assert config.participation["quiet_hours"] == "22:00-07:00"
    assert config.overrides["schemes"] == ["f32", "w8.row", "w8.block64"]
    assert chosen_profile("pi_4b", config)[0].participation.quiet_hours == "22:00-07:00"


def test_it_says_what_was_found(tmp_path: Path) -> None:
    board = detect(lay_out(tmp_path, BOARDS["container"]), arch="x86_64")
    text = compose(board, fitted(open_profile("x86_64"), board), "it is a PC", "5f0c2e91a7b3")
    assert "536 MB of memory, the limit of this container\n" in text
    assert "no thermometer was found: this cannot be held" in text
    assert "memory_budget_mb = 268\n" in text


def test_paths_are_from_the_file(tmp_path: Path) -> None:
    text = 'state = "here"\nca_file = "/etc/ca.pem"\nprofile = "gate.toml"\nholdout = 0.5\n'
    config = read_config(written(tmp_path, text))
    assert config.options == {
        "state": str(tmp_path / "here"),
        "ca_file": "/etc/ca.pem",
        "profile": str(tmp_path / "gate.toml"),
        "holdout": 0.5,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("brokr = 'mqtt://x'", "brokr is unknown: no key is so called - did you mean broker?"),
        ("device = ''", "device is '': it is a name or an address - it may be a text"),
        ("keepalive = 1.5", "keepalive is 1.5: it is a time - it may be a whole number of seconds"),
        (
            "keepalive = 0",
            "keepalive is 0: it is a time - it may be a whole number of seconds ",
        ),
        ("keepalive = 65536", "from 1 to 65535"),
        ("connect_timeout = 0", "it may be a number of seconds, above 0 and at most 100000000"),
        ("connect_timeout = nan", "connect_timeout is nan"),
        ("holdout = 1.0", "it may be a number, at least 0 and below 1"),
        (
            "threads = 2",
            "threads is no key here: it is a key of the profile - write it below [overrides]",
        ),
        (
            "max_celsius = 70",
            "max_celsius is no key here: it is a condition for training - "
            "write it below [participation]",
        ),
        (
            "local_lr = 0.1",
            "local_lr is no key here: the aggregator announces how is trained - leave it out",
        ),
        (
            "[overrides.participation]\ncharging = true",
            "overrides.participation is in the wrong place: it is a table of its own - "
            "write [participation]",
        ),
        ("overrides = 3", "overrides is 3: it holds keys of the profile - it may be a table"),
        ("device = ", "is not TOML"),
    ],
)
def test_a_wrong_key_is_refused_with_the_reason(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[overrides]\nthreads = 0",
            "threads is 0: one training runs in as many threads - "
            "it may be a whole number from 1 to 64",
        ),
        (
            "[overrides]\ncpu = 'cortex-a53'",
            "cpu cannot be changed here: it says what the device is",
        ),
        ("[overrides]\nquantization = 'int8'", "quantization is no key here"),
        (
            "[overrides]\nmemory_budget_mb = 2000",
            "memory_budget_mb is 2000: the device has memory_mb = 1900",
        ),
        ("[participation]\nmin_batery = 3", "did you mean min_battery?"),
    ],
)
def test_a_wrong_change_of_the_profile_names_the_file(
    text: str, message: str, tmp_path: Path
) -> None:
    config = read_config(written(tmp_path, text))
    with pytest.raises(UsageError) as caught:
        chosen_profile("pi_4b", config)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(config.path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kellet init"):
        read_config(tmp_path / "kellet.toml")


def test_a_profile_is_a_name_or_a_file(tmp_path: Path) -> None:
    raw = Path(open_profile.__code__.co_filename)  # any file that is no profile
    own = tmp_path / "gate.toml"
    pi = (Path(__file__).parents[2] / "firmware_profiles" / "pi_4b.toml").read_text()
    own.write_text(pi.replace('"pi_4b"', '"gate"'))
    assert open_profile(str(own)).name == "gate"
    assert open_profile(own).memory_budget_mb == open_profile("pi_4b").memory_budget_mb
    for source, words in (
        ("pi_9", "choose one of cortex_m7, phone"),
        (str(tmp_path / "none.toml"), "cannot be read"),
        (str(raw), "is not TOML"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(UsageError, match=words):
            open_profile(source)
    own.write_text(pi)
    with pytest.raises(UsageError, match=r"gate\.toml: name is 'pi_4b'"):
        open_profile(own)


def test_a_change_names_where_it_was_asked_for() -> None:
    with pytest.raises(UsageError, match=r"--set: threads is 'many'"):
        changed(open_profile("pi_4b"), {"threads": "many"}, where="--set")


def test_no_device_runs_with_the_kernels_alone() -> None:
    with pytest.raises(UsageError, match=r"--target cortex_m7 --out kernels\.o"):
        chosen_profile("cortex_m7", None)


def test_a_file_without_an_end_is_not_read() -> None:
    with pytest.raises(UsageError, match="more than 64 KB"):
        read_config(Path("/dev/zero"))
