"""Settings by Kafka's keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import ClientConfig, ConfigError, parse_properties, split_unknown
from ottla.client.backoff import backoff_ms
from ottla.client.connections.address import Address, parse_addresses
from ottla.client.retry import Deadline, Retries


def test_values_come_as_text_or_as_their_type() -> None:
    config = ClientConfig.from_mapping({"fetch.max.bytes": "100", "check.crcs": "FALSE", "acks": "-1"})
    assert (config.fetch_max_bytes, config.check_crcs, config.acks) == (100, False, "-1")
    assert ClientConfig.from_mapping({"batch.size": 7}).batch_size == 7
    assert ClientConfig.from_mapping({"client.id": "\udcff"}).client_id == "\udcff", "a byte that is no UTF-8"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bootstrap.server": "x"}, "Did you mean bootstrap.servers"),
        ({"bootstrap_servers": "x"}, "is not a setting"),
        ({"zzzzzz": "x"}, "docs/config-client.md"),
        ({"batch.size": "many"}, "batch.size=many is not a whole number"),
        ({"batch.size": "-1"}, "batch.size=-1 is out of range"),
        ({"check.crcs": "yes"}, "Use true or false"),
        ({"acks": "2"}, "acks=2 is not known"),
        ({"compression.type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"security.protocol": "TLS"}, "PLAINTEXT"),
        ({"enable.idempotence": "true", "acks": "1"}, "contradicts"),
        ({"client.id": "x" * 40_000}, "client.id"),
        ({"client.id": "\ud83d"}, "half of a surrogate pair"),
    ],
)
def test_errors_for_bad_settings_have_a_next_step(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ClientConfig.from_mapping(settings)


def test_unset_settings_adjust_to_explicit_ones() -> None:
    assert ClientConfig.from_mapping({"acks": "1"}).enable_idempotence is False
    assert ClientConfig.from_mapping({"acks": "all"}).enable_idempotence is True
    assert ClientConfig.from_mapping({}).enable_idempotence is True


def test_unknown_keys_can_be_split_off() -> None:
    known, warnings = split_unknown({"acks": "all", "ssl.keystore": "x", "group.id": "g"})
    assert known == {"acks": "all"}
    assert len(warnings) == 2


def test_properties_as_java_writes_them() -> None:
    text = "# comment\n! another\n\nacks = all\nclient.id: me=you\nbootstrap.servers=a:1,\\\nb:2\n"
    assert parse_properties(text) == {"acks": "all", "client.id": "me=you", "bootstrap.servers": "a:1,b:2"}
    with pytest.raises(ConfigError, match="line 1"):
        parse_properties("acks")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", [Address("a", 1)]),
        (" a:1 , b:2 ,a:1,", [Address("a", 1), Address("b", 2)]),
        ("[::1]:9", [Address("::1", 9)]),
        ("[::1]", [Address("::1", 9092)]),
        ("::1", [Address("::1", 9092)]),
        ("host", [Address("host", 9092)]),
        ("PLAINTEXT://host:5", [Address("host", 5)]),
    ],
)
def test_addresses(text: str, addresses: list[Address]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ",", ":9092", "a:0", "a:65536", "a:x", "a:-1", "a:\u0661", "TELNET://a:1"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_addresses(text)


def test_an_address_is_written_as_it_is_read() -> None:
    assert str(Address("::1", 9)) == "[::1]:9"
    assert str(Address("a", 9)) == "a:9"


@given(st.floats(0, 1e4), st.floats(0, 1e5), st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_doubles_within_its_bounds(first: float, most: float, attempt: int, draw: float) -> None:
    wait = backoff_ms(first, most, attempt, draw)
    nominal = min(most, first * 2 ** min(attempt, 30))
    assert 0.8 * nominal - 1e-6 <= wait <= min(most, 1.2 * nominal + 1e-6)


def test_retries_end_at_the_deadline_with_the_last_error() -> None:
    from ottla.client import ClientError, DeadlineError

    retries = Retries("the thing", Deadline.after_ms(0), 1, 1)
    with pytest.raises(DeadlineError, match="gave up: the thing, after 1 attempts; the last error: why") as caught:
        retries.wait_backoff(ClientError("why", "do that"))
    assert caught.value.next_step == "do that"


def test_a_fraction_of_a_millisecond_is_not_sent_as_0() -> None:
    deadline = Deadline.after_ms(10_000)
    assert 10_000 >= deadline.remaining_ms() >= deadline.remaining_s() * 1000
    assert Deadline(0).remaining_ms() == 0
