"""Values of options: lines of the console producer, lists of settings, durations, offsets, rules of partitions."""

from __future__ import annotations

import pytest

from ottla.client.consumer.record import ConsumerRecord
from ottla.kafka_tools.options import ToolError
from ottla.kafka_tools.tools.cluster.config_entities import number_text
from ottla.kafka_tools.tools.cluster.configs import parse_config_list
from ottla.kafka_tools.tools.console.message_formats import make_format
from ottla.kafka_tools.tools.console.message_lines import LineParser, LineRecord
from ottla.kafka_tools.tools.groups.offset_resets import parse_datetime_ms, parse_duration_ms
from ottla.kafka_tools.tools.topics.delete_records import parse_offsets
from ottla.kafka_tools.tools.topics.get_offsets import parse_rule
from ottla.kafka_tools.tools.topics.topics import parse_assignment
from ottla.types import TopicPartition

RECORD = ConsumerRecord("t", 3, 7, 1_700_000_000_000, 1, b"\0\0\0\0\0\0\0\5", None, (("h", None),), 4)


def test_lines_with_headers_and_keys() -> None:
    parser = LineParser.from_properties({"parse.key": "true", "parse.headers": "true", "null.marker": "NIL"})
    assert parser.parse_line(b"a:1,b:NIL\tk\tv", 1) == LineRecord(b"k", b"v", (("a", b"1"), ("b", None)))
    assert parser.parse_line(b"NIL\tNIL\tNIL", 1) == LineRecord(None, None, ())
    with pytest.raises(ToolError, match="No headers delimiter found on line number 9: 'nothing'"):
        parser.parse_line(b"nothing", 9)
    with pytest.raises(ToolError, match="No header key separator found in pair 'a' on line number 2"):
        parser.parse_line(b"a\tk\tv", 2)
    with pytest.raises(ToolError, match="should not be equal to the null marker"):
        parser.parse_line(b"NIL:1\tk\tv", 2)


def test_lines_with_errors_to_ignore() -> None:
    parser = LineParser.from_properties({"parse.key": "true", "ignore.error": "true"})
    assert parser.parse_line(b"nothing", 1) == LineRecord(None, b"nothing")


@pytest.mark.parametrize(
    "properties", [{"nonsense": "1"}, {"key.separator": ""}, {"headers.separator": ":"}, {"headers.delimiter": ","}]
)
def test_wrong_properties_of_lines(properties: dict[str, str]) -> None:
    with pytest.raises(ToolError):
        LineParser.from_properties(properties)


def test_formats() -> None:
    names = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key")
    properties = {f"print.{name}": "true" for name in names}
    properties |= {"key.separator": "|", "key.deserializer": "org.apache.kafka.common.serialization.LongDeserializer"}
    expected = (
        b"LogAppendTime:1700000000000|Partition:3|Offset:7|Delivery:NOT_PRESENT|Epoch:NOT_PRESENT|h:null|5|null\n"
    )
    assert make_format("", properties)(RECORD) == expected
    assert make_format("org.apache.kafka.tools.consumer.NoOpMessageFormatter", {})(RECORD) == b""
    with pytest.raises(ValueError, match="ShortDeserializer received 8 bytes"):
        make_format("", {**properties, "key.deserializer": "ShortDeserializer"})(RECORD)


@pytest.mark.parametrize(
    ("name", "properties"),
    [("org.example.Mine", {}), ("", {"print.nonsense": "true"}), ("", {"key.deserializer": "org.example.Mine"})],
)
def test_unknown_formats_are_refused(name: str, properties: dict[str, str]) -> None:
    with pytest.raises(ToolError):
        make_format(name, properties)


def test_lists_of_settings() -> None:
    assert parse_config_list("a=1,b=[x,y=z],c=") == {"a": "1", "b": "x,y=z", "c": ""}
    with pytest.raises(ToolError, match="all configs to be added must be in the format"):
        parse_config_list("a=1,b")


@pytest.mark.parametrize(
    ("number", "text"), [(1024.0, "1024.0"), (20971520.0, "2.097152E7"), (0.5, "0.5"), (1e7, "1.0E7"), (0.0, "0.0")]
)
def test_numbers_as_java_prints_them(number: float, text: str) -> None:
    assert number_text(number) == text


def test_durations_and_times() -> None:
    assert parse_duration_ms("P1DT2H3M4.5S") == 93_784_500
    assert parse_duration_ms("-PT1S") == -1000
    assert parse_datetime_ms("2023-11-14T22:13:20.004") == 1_700_000_000_004
    assert parse_datetime_ms("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    for wrong in ("P", "1h", "PT"):
        with pytest.raises(ToolError):
            parse_duration_ms(wrong)
    with pytest.raises(ToolError, match="Unparseable date"):
        parse_datetime_ms("2023-11-14")


def test_files_of_offsets() -> None:
    text = '{"partitions":[{"topic":"t","partition":0,"offset":-1}],"version":1}'
    assert parse_offsets(text) == {TopicPartition("t", 0): -1}
    for wrong in ("[", "[]", '{"version":2}', "{}", text.replace("-1", "-2"), text.replace('"t"', "1"), "[" * 100_000):
        with pytest.raises(ToolError):
            parse_offsets(wrong)


@pytest.mark.parametrize(
    ("rule", "partitions"),
    [("t", [0, 1, 2, 3]), ("t:2", [2]), ("t:1-3", [1, 2]), ("t:2-", [2, 3]), ("t:-2", [0, 1]), (":1", [1]), ("u", [])],
)
def test_rules_of_partitions(rule: str, partitions: list[int]) -> None:
    wanted = parse_rule(rule)
    assert [number for number in range(4) if wanted(TopicPartition("t", number))] == partitions


def test_assignments() -> None:
    assert parse_assignment("1:2,2:3") == {0: [1, 2], 1: [2, 3]}
    for wrong in ("1:1", "1:2,3", "a"):
        with pytest.raises(ToolError):
            parse_assignment(wrong)
