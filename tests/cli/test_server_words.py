"""What an operator reads when the fleet changes under the aggregator."""

from __future__ import annotations

import pytest

from kellet.server.commands.server import _staleness, _words
from kellet.server.ledger import RoundRow


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


def test_how_late_updates_were_on_average() -> None:
    """The mean over updates, not over rounds; nothing to tell where none could be late."""

    def closed(**summary: object) -> RoundRow:
        return RoundRow(1, b"", "closed", summary)

    few = closed(counted=["a"], staleness=3.0)
    many = closed(counted=["a", "b", "c"], staleness=1.0)
    assert _staleness([closed(counted=["a"]), few, many]) == {"staleness": 1.5}
    assert _staleness([closed(counted=["a"])]) == {}
