"""docs/reliability.md says what the results say."""

from __future__ import annotations

import json

from faults.report import MEASURES, PAGE, RESULTS, page


def test_the_page_is_made_of_the_results() -> None:
    results = json.loads(RESULTS.read_text())
    assert PAGE.read_text() == page(results)
    assert results.keys() <= MEASURES.keys()
    for part in results.values():
        for row in part["rows"]:
            assert "broken" not in row["outcome"], row
            assert "not found" not in row["outcome"], row
