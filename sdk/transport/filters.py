"""A tree that matches topics against topic filters, level for level.

The rules are MQTT's (MQTT 5, section 4.7): levels are separated by ``/``, the
level ``+`` stands for any one level, ``#`` for all that are left (none
included), and no wildcard at the first level matches a topic that begins with
``$``.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["LevelTree", "is_wildcard"]

V = TypeVar("V")


def is_wildcard(topic_filter: str) -> bool:
    """Whether a (checked) filter can match more than one topic."""
    return "+" in topic_filter or topic_filter.endswith("#")


class _Node(Generic[V]):
    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Node[V]] = {}
        self.here: tuple[V, ...] = ()  # the value at this very path: one or none


class LevelTree(Generic[V]):
    """Values under topics or under filters, found by matching level for level.

    A lookup costs the levels of its argument times the branches that match; it
    never walks what does not match. Results come in a fixed order: branches as
    they were first inserted.
    """

    def __init__(self) -> None:
        self._root: _Node[V] = _Node()

    def set(self, path: str, value: V) -> None:
        """Put ``value`` at ``path`` (a topic or a filter), in place of any before it."""
        node = self._root
        for level in path.split("/"):
            found = node.below.get(level)
            if found is None:
                found = node.below[level] = _Node()
            node = found
        node.here = (value,)

    def remove(self, path: str) -> None:
        """Take away what stands at ``path``; no error where nothing does."""
        trail: list[tuple[_Node[V], str]] = []
        node = self._root
        for level in path.split("/"):
            if level not in node.below:
                return
            trail.append((node, level))
            node = node.below[level]
        node.here = ()
        for parent, level in reversed(trail):
            child = parent.below[level]
            if child.here or child.below:
                return
            del parent.below[level]

    def filters_matching(self, topic: str) -> list[V]:
        """The values whose path, read as a filter, matches ``topic``."""
        found: list[V] = []
        if self._root.below:
            _match_topic(self._root, topic.split("/"), 0, not topic.startswith("$"), found)
        return found

    def topics_matching(self, topic_filter: str) -> list[V]:
        """The values whose path, read as a topic, is matched by ``topic_filter``."""
        found: list[V] = []
        _match_filter(self._root, topic_filter.split("/"), 0, found)
        return found


def _match_topic(node: _Node[V], levels: list[str], depth: int, wild: bool, found: list[V]) -> None:
    """Walk a tree of filters along a topic; ``wild``: wildcards may match at this level."""
    if wild and "#" in node.below:
        found.extend(node.below["#"].here)
    if depth == len(levels):
        found.extend(node.here)
        return
    exact = node.below.get(levels[depth])
    if exact is not None:
        _match_topic(exact, levels, depth + 1, True, found)
    if wild and "+" in node.below:
        _match_topic(node.below["+"], levels, depth + 1, True, found)


def _match_filter(node: _Node[V], levels: list[str], depth: int, found: list[V]) -> None:
    """Walk a tree of topics along a filter."""
    if depth == len(levels):
        found.extend(node.here)
        return
    level = levels[depth]
    if level not in ("+", "#"):
        exact = node.below.get(level)
        if exact is not None:
            _match_filter(exact, levels, depth + 1, found)
        return
    if level == "#":
        found.extend(node.here)
    for name, child in node.below.items():
        if depth == 0 and name.startswith("$"):
            continue
        if level == "#":
            _collect(child, found)
        else:
            _match_filter(child, levels, depth + 1, found)


def _collect(node: _Node[V], found: list[V]) -> None:
    """Take everything at and below a node."""
    found.extend(node.here)
    for child in node.below.values():
        _collect(child, found)
