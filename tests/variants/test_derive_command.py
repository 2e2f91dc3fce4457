"""``kellet plan derive``, and schemes in ``show`` and ``check``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.command import command
from support.toy_plans import softmax_regression

from kellet.sdk.plan import Plan


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "toy.kplan").write_bytes(softmax_regression(128, 3, initial=0.5).raw)
    return tmp_path


def test_all_variants_that_apply_are_derived_and_the_others_explained(desk: Path) -> None:
    done = command("plan", "derive", "toy.kplan", "-o", "out.kplan", "--json", cwd=desk)
    (facts,) = done.lines
    assert Plan.open(desk / "out.kplan").hex_id == facts["id"]
    assert list(facts["schemes"]) == ["f32/1", "w8.row/1", "w8.block64/1", "w8.row+a8/1"]
    sizes = [scheme["parameter_bytes"] for scheme in facts["schemes"].values()]
    # 387 floats; 384 bytes, 3 or 6 scales, and 3 floats.
    assert sizes == [4 * 387, 384 + 12 + 12, 384 + 24 + 12, 384 + 12 + 12]
    assert facts["left_out"] == {}
    words = command("plan", "derive", "wisdm", "-o", "wisdm.kplan", cwd=desk).out
    assert "left out w8.row+a8/1: no linear layer has 128 columns" in words
    assert "w8.block64/1" in words


def test_it_writes_over_nothing_unless_it_is_told_to(desk: Path) -> None:
    """Its own source, for one."""
    before = (desk / "toy.kplan").read_bytes()
    again = ("plan", "derive", "toy.kplan", "-o", "toy.kplan", "--biases")
    command(*again, cwd=desk).failed(2, "--output toy.kplan", "there already", "--force")
    assert (desk / "toy.kplan").read_bytes() == before
    assert command(*again, "--force", cwd=desk).code == 0
    assert Plan.open(desk / "toy.kplan").n_train == 3


def test_variants_are_chosen(desk: Path) -> None:
    asked = ("--schemes", "w8.row+a8", "w8.row")
    command("plan", "derive", "toy.kplan", "-o", "out.kplan", *asked, cwd=desk)
    assert Plan.open(desk / "out.kplan").schemes == ("f32/1", "w8.row/1", "w8.row+a8/1")
    command("plan", "derive", "out.kplan", "-o", "none.kplan", "--schemes", "f32", cwd=desk)
    assert (desk / "none.kplan").read_bytes() == (desk / "toy.kplan").read_bytes()
    checked = command("plan", "check", "out.kplan", "--json", cwd=desk).lines[0]
    assert list(checked["variants"]) == ["w8.row/1", "w8.row+a8/1"]
    assert all(found["gradient_error"] < 1e-3 for found in checked["variants"].values())
    assert "w8.row+a8/1" in command("plan", "show", "out.kplan", cwd=desk).out


def test_fewer_tensors_are_trained(desk: Path) -> None:
    command("plan", "derive", "toy.kplan", "-o", "out.kplan", "--biases", cwd=desk)
    plan = Plan.open(desk / "out.kplan")
    assert (plan.n_train, plan.n_params) == (3, 387)
    command("plan", "derive", "har", "-o", "har.kplan", "--last", "1", "--train", "0.*", cwd=desk)
    names = [t.name for t in Plan.open(desk / "har.kplan").manifest.tensors if t.role == "train"]
    assert names == ["0.weight", "0.bias", "7.weight", "7.bias"]


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (["--schemes", "w4"], 2, ["w4", "w8.block64/1"]),
        (["--train", "head.*"], 2, ["head.*", "trains W, b"]),
        (["--last", "3"], 2, ["last 3 layers", "1 to 2"]),
        (["--digest", "0" * 64], 4, ["0000"]),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    desk: Path, asked: list[str], code: int, words: list[str]
) -> None:
    done = command("plan", "derive", "toy.kplan", "-o", "out.kplan", *asked, cwd=desk)
    done.failed(code, *words)
    assert not (desk / "out.kplan").exists()


def test_a_scheme_that_does_not_apply_is_refused_by_name(desk: Path) -> None:
    done = command("plan", "derive", "wisdm", "-o", "o.kplan", "--schemes", "w8.row+a8", cwd=desk)
    done.failed(4, "w8.row+a8/1", "128 columns", "leave it out")


WITHOUT_ONNX = """
import sys
sys.modules["onnx"] = None
from kellet.sdk.errors import ExtraMissing
from kellet.sdk.plan import Plan
for name in ("add_variants", "sparse", "unfit"):
    try:
        getattr(__import__("kellet.sdk.variants", fromlist=[name]), name)
    except ExtraMissing as error:
        print(error)
plan = Plan.open("wisdm")
print([plan.self_test(scheme).scheme for scheme in plan.schemes])
"""


def test_deriving_names_the_package_it_needs_and_devices_need_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ONNX], capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert (
        lines[:3]
        == [
            "this needs the package 'onnx': it is not installed - pip install \"kellet[authoring]\""
        ]
        * 3
    )
    assert lines[3] == "['f32/1', 'w8.row/1', 'w8.block64/1']"
