"""``kellet plan``: show, check, export."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from support.command import command
from support.toy_plans import softmax_regression

from kellet.sdk import Plan
from kellet.sdk.plan import export_model

EXPORTED = """
import torch

def model():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    return net, None, torch.randn(6, 4), torch.arange(6) % 3

def half():
    return model()[:2]
"""


def test_show_says_what_the_plan_says(desk: Path) -> None:
    raw = (desk / "toy.kplan").read_bytes()
    facts = command("plan", "show", "toy.kplan", "--json", cwd=desk).lines[0]
    assert facts["plan"] == "softmax_6_3"
    assert facts["id"] == hashlib.sha256(raw).hexdigest()
    assert facts["bytes"] == len(raw)
    assert (facts["parameters"], facts["trained"], facts["update_bytes"]) == (21, 21, 84)
    assert facts["input"]["shape"] == [6]
    assert facts["labels"]["classes"] == 3
    assert [(t["name"], t["shape"], t["role"]) for t in facts["tensors"]] == [
        ("W", [3, 6], "train"),
        ("b", [3], "train"),
    ]
    words = command("plan", "show", "toy.kplan", cwd=desk).out
    assert facts["id"] in words
    assert "21" in words


@pytest.mark.parametrize("name", ["wisdm", "har"])
def test_a_built_in_plan_passes_its_own_test_here(name: str) -> None:
    facts = command("plan", "check", name, "--json").lines[0]
    assert facts["good"] is True
    assert max(facts["loss_error"], facts["gradient_error"], facts["score_error"]) < 1e-4
    assert facts["kernels"] in ("compiled", "numpy")
    assert facts["memory_bytes"]["32"] > facts["memory_bytes"]["1"] > 0


def test_a_digest_is_held_against_the_file(desk: Path) -> None:
    digest = hashlib.sha256((desk / "toy.kplan").read_bytes()).hexdigest()
    assert command("plan", "check", "toy.kplan", "--digest", digest, cwd=desk).code == 0
    other = "0" * 64
    command("plan", "check", "toy.kplan", "--digest", other, cwd=desk).failed(4, "SHA-256")
    command("plan", "check", "toy.kplan", "--digest", "0", cwd=desk).failed(2, "64 hex digits")


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.kplan").write_text("not a plan")
    (tmp_path / "text.onnx").write_text("not a model")
    for name in ("text.kplan", "text.onnx", "absent.kplan", "absent.onnx"):
        command("plan", "show", name, cwd=tmp_path).failed(4)
    command("plan", "show", tmp_path).failed(4, "cannot be read")


def test_show_knows_a_trained_model(tmp_path: Path) -> None:
    plan = softmax_regression(2, 4)
    (tmp_path / "model.onnx").write_bytes(export_model(plan, np.ones(12, np.float32)))
    facts = command("plan", "show", tmp_path / "model.onnx", "--json").lines[0]
    assert facts["trained_from"] == plan.hex_id
    assert facts["inputs"] == [{"name": "batch", "type": "tensor(float)", "shape": ["b", 2]}]
    assert facts["outputs"] == [{"name": "scores", "type": "tensor(float)", "shape": ["b", 4]}]


def test_a_model_of_somebody_else_s_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(bytes(softmax_regression(2, 4).eval_graph))
    command("plan", "show", tmp_path / "other.onnx").failed(4, "which plan it belongs to")


def test_export_writes_a_plan_that_opens(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(EXPORTED)
    done = command(
        *("plan", "export", "nets:model", "-o", "out.kplan", "--labels", "red, green, blue"),
        *("--licence", "MIT", "--json"),
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    plan = Plan.open(tmp_path / "out.kplan")
    assert done.lines[-1]["id"] == plan.hex_id
    assert plan.manifest.name == "out"
    assert plan.manifest.labels.names == ("red", "green", "blue")
    assert plan.manifest.licence == "MIT"
    assert plan.n_train == 4 * 5 + 5 + 5 * 3 + 3
    command("plan", "export", "nets:half", "-o", "x.kplan", cwd=tmp_path).failed(
        2, "an export needs four things"
    )
    assert not (tmp_path / "x.kplan").exists()


@pytest.mark.parametrize(
    ("output", "words"),
    [(".", "it is a directory"), ("pipe", "not a regular file"), ("no/x.kplan", "no directory no")],
)
def test_export_writes_to_a_file_alone(tmp_path: Path, output: str, words: str) -> None:
    (tmp_path / "nets.py").write_text(EXPORTED)
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    done = command("plan", "export", "nets:model", "-o", output, cwd=tmp_path)
    done.failed(2, f"--output {output}", words)
    assert [p for p in sorted(tmp_path.iterdir()) if p.name != "__pycache__"] == before


def test_export_writes_over_a_file_if_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(EXPORTED)
    (tmp_path / "x.kplan").write_text("mine")
    export = ("plan", "export", "nets:model", "-o", "x.kplan")
    command(*export, cwd=tmp_path).failed(2, "--output x.kplan", "there already", "--force")
    assert (tmp_path / "x.kplan").read_text() == "mine"
    assert command(*export, "--force", cwd=tmp_path).code == 0
    assert (tmp_path / "x.kplan").read_bytes() != b"mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--labels", "red,green"], ["2 names of labels", "give 3 names"]),
        (["--columns", "a,b"], ["2 names in columns", "give 4 names"]),
        (["--name", "a b"], ["cannot be called 'a b'"]),
        (["--low", "2", "--high", "1"], ["low = 2 is above high = 1"]),
        (["--low", "nan"], ["low = nan", "finite"]),
    ],
)
def test_what_is_said_of_a_model_must_fit_it(
    tmp_path: Path, options: list[str], words: list[str]
) -> None:
    (tmp_path / "nets.py").write_text(EXPORTED)
    done = command("plan", "export", "nets:model", "-o", "x.kplan", *options, cwd=tmp_path)
    done.failed(2, *words)
