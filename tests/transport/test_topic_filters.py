"""Filters against topics, held to MQTT's rules by a plain second reading of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kellet.sdk.errors import UsageError
from kellet.sdk.transport.checks import check_filter, check_topic
from kellet.sdk.transport.filters import LevelTree, is_wildcard


def matches(topic_filter: str, topic: str) -> bool:
    """MQTT 5, section 4.7, read level by level."""
    wanted, levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


@pytest.mark.parametrize(
    ("topic_filter", "topic", "match"),
    [
        # The examples of the standard.
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "sport/tennis", True),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor", False),
        ("+/monitor", "$SYS/monitor", False),
        ("$SYS/#", "$SYS/monitor", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        # $ is special at the front alone.
        ("#", "/$S", True),
        ("+/+", "a/$S", True),
    ],
)
def test_the_standards_examples(topic_filter: str, topic: str, match: bool) -> None:
    filters: LevelTree[str] = LevelTree()
    filters.set(topic_filter, "found")
    assert filters.filters_matching(topic) == (["found"] if match else [])
    topics: LevelTree[str] = LevelTree()
    topics.set(topic, "found")
    assert topics.topics_matching(topic_filter) == (["found"] if match else [])
    assert matches(topic_filter, topic) is match


LEVELS = st.sampled_from(["", "a", "b", "$S"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = (
    st.tuples(
        st.lists(LEVELS | st.just("+"), min_size=0, max_size=3),
        st.sampled_from(["", "a", "+", "#"]),
    )
    .map(lambda parts: "/".join([*parts[0], parts[1]]))
    .filter(bool)
)


@settings(max_examples=60)
@given(st.lists(FILTERS, max_size=8), st.lists(TOPICS, max_size=8), st.data())
def test_trees_agree_with_the_plain_reading(
    filters: list[str], topics: list[str], data: st.DataObject
) -> None:
    by_filter: LevelTree[str] = LevelTree()
    by_topic: LevelTree[str] = LevelTree()
    for each in filters:
        check_filter(each)
        by_filter.set(each, each)
    for each in topics:
        check_topic(each)
        by_topic.set(each, each)
    if filters:
        gone = data.draw(st.sampled_from(filters))
        by_filter.remove(gone)
        filters = [each for each in filters if each != gone]
    for topic in topics:
        assert sorted(by_filter.filters_matching(topic)) == sorted(
            {each for each in filters if matches(each, topic)}
        )
    for each in filters:
        assert sorted(by_topic.topics_matching(each)) == sorted(
            {topic for topic in topics if matches(each, topic)}
        )


def test_removal_leaves_no_branches() -> None:
    tree: LevelTree[int] = LevelTree()
    tree.set("a/b/c", 1)
    tree.set("a/b", 2)
    tree.remove("a/x")
    tree.remove("a/b/c")
    assert tree.topics_matching("a/#") == [2]
    tree.remove("a/b")
    assert tree.topics_matching("#") == []
    assert not tree._root.below


@pytest.mark.parametrize("bad", ["", "a/+b", "a+", "a/#/c", "a#", "\0", "a\ud800", "x" * 65_536])
def test_filters_that_cannot_be(bad: str) -> None:
    with pytest.raises(UsageError):
        check_filter(bad)


@pytest.mark.parametrize("bad", ["", "a/+", "#", "\0", "\ud800", "é" * 32_768])
def test_topics_that_cannot_be(bad: str) -> None:
    with pytest.raises(UsageError):
        check_topic(bad)


def test_wildcards_are_told() -> None:
    assert [is_wildcard(each) for each in ("a/b", "a/+", "+", "#", "a/#")] == [
        False,
        True,
        True,
        True,
        True,
    ]
