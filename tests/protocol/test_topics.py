"""Topics: what each means, and what cannot be said in one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.topics import Address, Topics, check_id

T = Topics("farm")
SHA = bytes(range(32))


def test_the_topics() -> None:
    assert T.round == "kellet/1/farm/pub/round"
    assert T.req("pi-1") == "kellet/1/farm/d/pi-1/req"
    assert T.ctl("pi-1") == "kellet/1/farm/d/pi-1/ctl"
    assert T.state("pi-1") == "kellet/1/farm/d/pi-1/state"
    assert T.up("0", "pi-1") == "kellet/1/farm/w/0/pi-1/up"
    assert T.blob(SHA, 12) == f"kellet/1/farm/pub/blob/{SHA.hex()}/12"
    assert T.device_filters("pi-1") == ("kellet/1/farm/pub/round", "kellet/1/farm/d/pi-1/ctl")
    assert T.server_filters("0") == (
        "kellet/1/farm/d/+/req",
        "kellet/1/farm/d/+/state",
        "kellet/1/farm/w/0/+/up",
    )
    everything = [T.round, T.blob(SHA, 1), T.state("a"), T.up("0", "a"), *T.server_filters("0")]
    assert max(topic.count("/") for topic in everything) <= 7  # AWS IoT Core's limit


def test_what_they_mean() -> None:
    assert T.parse(T.round) == Address("round")
    assert T.parse(T.blob(SHA, 12)) == Address("blob", sha256=SHA, part=12)
    assert T.parse(T.req("pi-1")) == Address("req", "pi-1")
    assert T.parse(T.ctl("pi-1")) == Address("ctl", "pi-1")
    assert T.parse(T.state("pi-1")) == Address("state", "pi-1")
    assert T.parse(T.up("7", "pi-1")) == Address("up", "pi-1")


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "kellet/1/farm",
        "kellet/1/farm/",
        "kellet/1/other/d/a/req",
        "kellet/2/farm/d/a/req",
        "/kellet/1/farm/d/a/req",
        "kellet/1/farm/d/a/req/",
        "kellet/1/farm/d/a/b/req",
        "kellet/1/farm/d//req",
        "kellet/1/farm/d/a b/req",
        "kellet/1/farm/d/ä/req",
        "kellet/1/farm/d/a\n/req",
        "kellet/1/farm/d/" + "a" * 65 + "/req",
        "kellet/1/farm/d/a/REQ",
        "kellet/1/farm/w/0/a b/up",
        "kellet/1/farm/pub/blob/abcd/0",
        "kellet/1/farm/pub/blob/" + "g" * 64 + "/0",
        "kellet/1/farm/pub/blob/" + "a" * 64 + "/-1",
        "kellet/1/farm/pub/blob/" + "a" * 64 + "/²",
        "kellet/1/farm/pub/blob/" + "a" * 64 + "/" + "9" * 5000,
    ],
)
def test_what_is_no_topic_of_ours(topic: str) -> None:
    assert T.parse(topic) is None


@given(st.text(max_size=60))
def test_any_text_is_a_topic_or_is_not(text: str) -> None:
    for topic in (text, "kellet/1/farm/" + text, f"kellet/1/farm/d/{text}/req"):
        address = T.parse(topic)
        assert address is None or isinstance(address, Address)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "+", "#", "ä", "a" * 65, "a\n", None, 7])
def test_ids_that_cannot_stand_in_a_topic(name: str) -> None:
    with pytest.raises(UsageError, match="choose another"):
        check_id("device", name)
    with pytest.raises(UsageError):
        Topics(name)
    assert check_id("device", "Pi_4-b") == "Pi_4-b"
