"""Pieces of a report's page: figures, tables and numbers as HTML, and the page around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

__all__ = ["fact", "figure", "number", "page", "pairs", "percent", "plain", "size", "table"]


def page(*, title: str, created: str, lead: str, facts: str, sections: str, footer: str) -> str:
    """A page that loads nothing. ``title`` and ``created`` are plain text, the others HTML."""
    template = Template((resources.files("kellet.server.report") / "page.html").read_text("utf-8"))
    return template.substitute(
        title=escape(title),
        created=escape(created),
        lead=lead,
        facts=facts,
        sections=sections,
        footer=footer,
    )


def fact(value: str, what: str, mood: str) -> str:
    """A figure at the top of a page. ``mood``: good, bad or empty."""
    return f'<div class="{mood}"><dt>{what}</dt><dd>{value}</dd></div>'


def figure(title: str, drawing: str, caption: str) -> str:
    """A drawing with its caption, both HTML."""
    heading = f"<h3>{title}</h3>" if title else ""
    return f"<figure>{heading}{drawing}<figcaption>{caption}</figcaption></figure>"


def table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows; cells are HTML."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{cell}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def pairs(facts: dict[str, Any]) -> str:
    """A table of names and values, both plain text."""

    def row(key: str, value: Any) -> str:
        name = escape(key.replace("_", " "))
        return f'<tr><th scope="row">{name}</th><td>{escape(plain(value))}</td></tr>'

    rows = "".join(row(key, value) for key, value in facts.items())
    return f"<table><tbody>{rows}</tbody></table>"


def plain(value: Any) -> str:
    """A value for people."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def percent(value: float | None) -> str:
    """A share in percent; empty where there is none."""
    return "" if value is None else f"{100 * value:.1f}&nbsp;%"


def number(value: float | None, digits: int) -> str:
    """A number; empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e3:.1f}&nbsp;kB" if count < 1e6 else f"{count / 1e6:.2f}&nbsp;MB"
