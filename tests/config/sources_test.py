"""Sources of configuration text: properties, TOML, environment, flags, and their precedence.

Zone: real.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.broker import BROKER_ROWS, BrokerConfig
from ottla.config.rows import ConfigError
from ottla.config.sources import from_environment, merge_layers, parse_assignment, parse_properties, parse_toml


def test_a_server_properties_as_kafka_ships_it():
    text = (
        "# Licensed to nobody\n\n"
        "broker.id=0\n"
        "listeners = PLAINTEXT://:9092\n"
        "log.dirs: /var/lib/kafka\n"
        "! also a comment\n"
        "log.retention.hours 24\n"
        "max.connections.per.ip.overrides=a:1,\\\n"
        "    b:2\n"
    )
    assert parse_properties(text) == {
        "broker.id": "0",
        "listeners": "PLAINTEXT://:9092",
        "log.dirs": "/var/lib/kafka",
        "log.retention.hours": "24",
        "max.connections.per.ip.overrides": "a:1,b:2",
    }


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=b=c", {"a": "b=c"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a =  b  ", {"a": "b  "}),
        ("a\t:\tb", {"a": "b"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=\\u0041\\t\\n\\\\", {"a": "A\t\n\\"}),
        ("a=C:\\\\dir", {"a": "C:\\dir"}),
        ("a=x\\\\\nb=y", {"a": "x\\", "b": "y"}),
        ("a=x\\\r\n   # no comment", {"a": "x# no comment"}),
        ("a=1\rb=2", {"a": "1", "b": "2"}),
        ("   \n# c \\\nd=1", {"d": "1"}),
        ("a=x\\", {"a": "x"}),
        ("a=\\q", {"a": "q"}),
        ("", {}),
    ],
)
def test_the_rules_of_java_properties(text, pairs):
    assert parse_properties(text) == pairs


def test_a_broken_unicode_escape_is_a_named_error():
    with pytest.raises(ConfigError, match="four hexadecimal"):
        parse_properties("a=\\u12")


@pytest.mark.slow
@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused_by_name(text):
    refused = "properties"
    try:
        pairs = parse_properties(text)
    except ConfigError as error:
        refused = error.key
    else:
        assert all(isinstance(name, str) for name in pairs)
    assert refused == "properties"


LATIN = st.text(st.characters(max_codepoint=255), max_size=8)


@pytest.mark.slow
@given(st.dictionaries(LATIN.filter(bool), LATIN, max_size=4))
def test_escaped_text_is_parsed_back(pairs):
    escape = {code: f"\\u{code:04x}" for code in range(256)}
    text = "\n".join(f"{name.translate(escape)}={value.translate(escape)}" for name, value in pairs.items())
    assert parse_properties(text) == pairs


def test_toml_has_the_same_keys_dotted_or_in_tables():
    text = """
    num.partitions = 3
    "max.connections.per.ip" = 10
    auto.create.topics.enable = false
    listeners = ["PLAINTEXT://:9092", "PLAINTEXT2://:9093"]
    log.cleaner.min.cleanable.ratio = 0.25
    [log.retention]
    hours = 24
    """
    pairs = parse_toml(text)
    assert pairs == {
        "num.partitions": "3",
        "max.connections.per.ip": "10",
        "auto.create.topics.enable": "false",
        "listeners": "PLAINTEXT://:9092,PLAINTEXT2://:9093",
        "log.cleaner.min.cleanable.ratio": "0.25",
        "log.retention.hours": "24",
    }
    assert set(pairs) <= set(BROKER_ROWS)


@pytest.mark.parametrize(
    "text", ["a = ", "a = 1979-05-27", "a = [[{}]]", "max.connections = 1\nmax.connections.per.ip = 2"]
)
def test_invalid_toml_raises_a_named_error(text):
    with pytest.raises(ConfigError):
        parse_toml(text)


def test_the_environment_rule_of_kafkas_images():
    pairs = from_environment(
        {
            "KAFKA_NUM_PARTITIONS": "3",
            "KAFKA_LISTENER_NAME_MY___LISTENER_SSL_KEY": "a",
            "KAFKA_A__B": "b",
            "KAFKA_HEAP_OPTS": "-Xmx1G",
            "KAFKA_JMX_PORT": "9",
            "KAFKA_LOG4J_ROOT_LOGLEVEL": "DEBUG",
            "KAFKA_VERSION": "4",
            "KAFKA_": "x",
            "PATH": "/bin",
        }
    )
    assert pairs == {"num.partitions": "3", "listener.name.my-listener.ssl.key": "a", "a_b": "b"}


def test_flags_beat_environment_beats_file_beats_default():
    merged = merge_layers(
        dict([parse_assignment("num.partitions=4")]),
        from_environment({"KAFKA_NUM_PARTITIONS": "3", "KAFKA_LOG_RETENTION_MS": "30"}),
        parse_properties("num.partitions=2\nlog.retention.ms=20\nlog.segment.bytes=200"),
    )
    config, warnings = BrokerConfig.from_properties(merged)
    assert (config.num_partitions, config.log_retention_ms, config.log_segment_bytes) == (4, 30, 200)
    assert config.default_replication_factor == 1
    assert warnings == []


@pytest.mark.parametrize("text", ["num.partitions", "=3", ""])
def test_a_flag_without_key_and_value_is_a_named_error(text):
    with pytest.raises(ConfigError, match="key=value"):
        parse_assignment(text)
