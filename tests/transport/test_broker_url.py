"""Addresses of brokers."""

from __future__ import annotations

import pytest

from kellet.sdk.errors import UsageError
from kellet.sdk.transport.url import BrokerUrl, parse_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("mqtt://pi", BrokerUrl("mqtt", "pi", 1883)),
        ("mqtts://pi", BrokerUrl("mqtts", "pi", 8883)),
        ("MQTT://Pi.local:1/", BrokerUrl("mqtt", "pi.local", 1)),
        (" mqtt://10.0.0.1:65535 ", BrokerUrl("mqtt", "10.0.0.1", 65_535)),
        ("mqtt://[::1]:1884", BrokerUrl("mqtt", "::1", 1884)),
        ("mqtt://a@pi", BrokerUrl("mqtt", "pi", 1883, "a")),
        ("mqtts://a:b@pi:9", BrokerUrl("mqtts", "pi", 9, "a", "b")),
        ("mqtt://a%40b:c%2Fd%3A%23@pi", BrokerUrl("mqtt", "pi", 1883, "a@b", "c/d:#")),
        ("mqtt://a:@pi", BrokerUrl("mqtt", "pi", 1883, "a", "")),
    ],
)
def test_addresses(text: str, url: BrokerUrl) -> None:
    assert parse_url(text) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the scheme is missing - write mqtt://HOST:PORT"),
        ("pi:1883", "the scheme is missing"),
        ("http://pi", "unknown scheme 'http'"),
        ("tcp://pi:1883", "write mqtt://HOST:PORT"),
        ("ssl://pi:8883", "write mqtts://HOST:PORT"),
        ("wss://pi", "MQTT over WebSocket"),
        ("mqtt://", "the host is missing"),
        ("mqtt://:1883", "the host is missing"),
        ("mqtt://a b", "the host is missing"),
        ("mqtt://pi:0", "not a number from 1 to 65535"),
        ("mqtt://pi:65536", "not a number from 1 to 65535"),
        ("mqtt://pi:-1", "not a number from 1 to 65535"),
        ("mqtt://pi:mqtt", "not a number from 1 to 65535"),
        ("mqtt://pi/topic", "something follows the port of pi"),
        ("mqtt://pi?x=1", "something follows the port of pi"),
        ("mqtt://pi#x", "something follows the port of pi"),
        ("mqtt://[::1", "put IPv6 addresses in brackets"),
        ("mqtt://:secret@pi", "a password without a user"),
    ],
)
def test_what_is_no_address_is_refused_with_the_repair(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert message in str(caught.value)
    assert caught.value.repair


@pytest.mark.parametrize(
    "text",
    ["mqtt://u:secret@pi:0", "mqtt://u:secret@pi/x", "mqtt://u:sec/secret@pi", "x://u:secret@h"],
)
def test_no_message_repeats_a_password(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)


def test_the_text_form_leaves_credentials_out() -> None:
    url = parse_url("mqtts://user:secret@pi")
    assert str(url) == "mqtts://pi:8883"
    assert "secret" not in repr(url)
    assert "user" not in repr(url)
    assert str(parse_url("mqtt://[::1]")) == "mqtt://[::1]:1883"
    assert url.tls
    assert not parse_url("mqtt://pi").tls
