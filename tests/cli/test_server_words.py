"""What an operator reads when the fleet changes under the aggregator."""

from __future__ import annotations

import pytest

from kellet.server.commands.server import _words


@pytest.mark.parametrize(
    ("kind", "facts", "text"),
    [
        (
            "settings_changed",
            {"changed": {"local_lr": [0.5, 0.25], "seed": [1, 2]}},
            "training goes on with other settings: local_lr 0.5 -> 0.25, seed 1 -> 2",
        ),
        (
            "silent",
            {"devices": ["a", "b"], "members": 3},
            "not heard of for too long: a, b; their controls would bias the others'",
        ),
        ("epoch", {"epoch": 2}, "control epoch 2: every control starts again at zero"),
        ("counted", {"device": "a", "round": 1, "kind": "update"}, ""),
    ],
)
def test_a_report_in_words(kind: str, facts: dict[str, object], text: str) -> None:
    assert _words(kind, facts) == text
