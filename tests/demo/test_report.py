"""The report: one page that needs nothing else, and says what the run says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from kellet.sdk.errors import StorageError
from kellet.server.report import write_report
from kellet.server.report.page import render
from kellet.server.report.record import Curve, Event, Round, Run, load_run, save_run
from kellet.server.report.sources import rounds_of

DEVICES = ["device-1", "device-2", "<device>"]


def curve(algorithm: str, source: str, drift: float) -> Curve:
    """Four rounds in which accuracy grows by 5 points each."""
    rounds = [
        Round(
            round=n,
            state="closed" if n != 3 else "abandoned",
            counted=DEVICES[:2],
            asked=DEVICES,
            train_loss=1.0 / n,
            drift=drift / n,
            loss=2.0 / n,
            accuracy=0.5 + 0.05 * n,
            uplink_bytes=40_000 + n,
            downlink_bytes=90_000,
            closed_at=2.0 + n,
        )
        for n in range(1, 5)
    ]
    return Curve(algorithm=algorithm, source=source, rounds=rounds, control_gap=0)  # type: ignore[arg-type]


@pytest.fixture
def run() -> Run:
    """A demo's run, by hand."""
    return Run(
        title="a title",
        kind="demo",
        algorithm="scaffold",
        created="2026-01-02 03:04 UTC",
        curves=[
            curve("scaffold", "live", 1.0),
            curve("fedavg", "simulated", 3.0),
            curve("fedprox", "simulated", 2.0),
            curve("scaffold", "simulated", 1.0),
        ],
        devices=DEVICES,
        summary={
            "accuracy": 0.7,
            "updates_counted": 8,
            "uplink_bytes": 160_010,
            "downlink_bytes": 360_000,
            "control_gap": 0,
            "unsettled": 0,
            "kills": 1,
            "restarts": 1,
            "replayed": True,
            "device_peak_mb": 87.4,
            "seconds": 12.3,
        },
        settings={"task": "wisdm", "local_lr": 0.10000000149011612, "note": "<b>"},
        versions={"kellet": "0.1.0"},
        events=[
            *(Event(0.1, device, "started") for device in DEVICES),
            Event(2.5, "device-1", "counted", 1),
            Event(3.1, "device-1", "killed", 2),
            Event(4.0, "device-1", "restarted", 3),
            Event(5.0, "device-2", "refused", 3),
            Event(6.5, "device-1", "stopped"),
        ],
    )


class Page(HTMLParser):
    """What a browser would load, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_the_page_loads_nothing(run: Run) -> None:
    html = render(run)
    page = Page(html)
    assert not [tag for tag, _ in page.tags if tag in ("script", "link", "img", "iframe", "object")]
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "data"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert "@import" not in html
    assert not re.findall(r"url\((?!#)", html)
    assert len(html) < 1_000_000


def test_every_drawing_has_words_and_ids_of_its_own(run: Run) -> None:
    html = render(run)
    drawings = [attributes for tag, attributes in Page(html).tags if tag == "svg"]
    assert len(drawings) == 4
    assert all(len(d["aria-label"] or "") > 30 and d["role"] == "img" for d in drawings)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', html))
    assert used <= set(ids)
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ElementTree.fromstring(svg)


def test_colours_come_from_the_page_for_light_and_dark(run: Run) -> None:
    html = render(run)
    style, body = html.split("</style>", 1)
    assert "prefers-color-scheme: dark" in style
    assert not re.findall(r"#[0-9a-f]{6}\b", body)
    for variable in set(re.findall(r"var\((--\w+)\)", body)):
        assert style.count(f"{variable}:") == 2, variable


def test_it_says_what_the_run_says(run: Run) -> None:
    text = Page(render(run)).text
    for words in (
        "SCAFFOLD on WISDM",
        "FedAvg 70.0 %, FedProx 70.0 %, SCAFFOLD 70.0 %",
        "killed ( kill -9 ) and started again 1 time",
        "The largest difference is 0 steps",
        "87 MB",
        "local lr 0.1 ",
        "160.0 kB from devices and 360.0 kB to them",
        "counted in 0 to 4 of 4 rounds",
    ):
        assert words in text, (words, text)


def test_names_of_users_stay_text(run: Run) -> None:
    html = render(run)
    assert "<device>" not in html
    assert "&lt;device&gt;" in html
    assert "<td>&lt;b&gt;</td>" in html


def test_a_gap_and_another_model_are_not_glossed_over(run: Run) -> None:
    bad = msgspec.structs.replace(
        run, summary={**run.summary, "control_gap": 12_345, "replayed": False}
    )
    html = render(bad)
    assert html.count('<div class="bad">') == 2
    assert "12,345" in html
    assert "same SHA-256" not in html


def test_a_run_without_clock_or_comparison_has_a_page_too(run: Run) -> None:
    plain = msgspec.structs.replace(
        run,
        kind="server",
        events=[],
        curves=run.curves[:1],
        summary={
            "accuracy": None,
            "updates_counted": 8,
            "uplink_bytes": 1,
            "downlink_bytes": 2,
        },
    )
    page = Page(render(plain))
    assert "Three algorithms" not in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 4


def test_a_run_is_kept_and_read_again(run: Run, tmp_path: Path) -> None:
    assert load_run(save_run(tmp_path, run)) == run
    page = write_report(tmp_path, load_run(tmp_path / "run.json"))
    assert page.read_text() == render(run)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(StorageError):
        load_run(tmp_path / "run.json")


def test_bytes_of_a_round_are_differences_of_totals() -> None:
    facts = {"state": "closed", "counted": [], "asked": [], "unknown": "left out"}
    rounds = rounds_of(
        [
            {**facts, "round": 1, "uplink_bytes": 10, "downlink_bytes": 100},
            {**facts, "round": 2, "uplink_bytes": 25, "downlink_bytes": 300},
        ]
    )
    assert [(r.uplink_bytes, r.downlink_bytes) for r in rounds] == [(10, 100), (15, 200)]
