"""Records as JSON lines and as kcat prints them; filters; lines of input."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.commands.records.produce import lines_of
from ottla.cli.reading.filters import all_of, contains_text, matches_regex, on_header, on_key, on_value
from ottla.cli.views.record_text import Placed, compile_format, from_json, to_json
from ottla.client import UsageError
from ottla.record.batch import Record
from ottla.utf8 import decode_text

BYTES = st.none() | st.binary(max_size=30) | st.text(max_size=10).map(str.encode)
NAMES = st.text(max_size=5) | st.binary(max_size=5).map(decode_text)
HEADERS = st.lists(st.tuples(NAMES, BYTES), max_size=3).map(tuple)


@pytest.mark.slow
@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), BYTES, BYTES, HEADERS)
def test_a_record_survives_the_way_through_json(partition, offset, timestamp, key, value, headers) -> None:
    document = json.dumps(to_json("t", partition, Record(offset, timestamp, key, value, headers)), ensure_ascii=False)
    assert "\n" not in document
    line = from_json(document.encode())
    assert line == ("t", partition, timestamp, key, value, headers)


def test_the_documented_form() -> None:
    record = Record(7, 1000, b"\xff", b"caf\xc3\xa9", (("h", None), ("h", b"1")))
    assert to_json("t", 2, record) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1000,
        "headers": [{"key": "h", "value": None}, {"key": "h", "value": "1"}],
        "key": {"base64": "/w=="},
        "value": "caf\u00e9",
    }


def test_lines_written_by_hand_may_be_shorter() -> None:
    line = from_json(b'{"value": {"id": 1, "tags": ["a"]}, "key": 5, "headers": {"h": "1"}, "partition": -1}')
    assert line == (None, None, None, b"5", b'{"id":1,"tags":["a"]}', (("h", b"1"),))
    assert from_json(b'{"value": {"base64": "aGk="}}').value == b"hi"


@pytest.mark.parametrize(
    "text",
    [
        "0.1234567890123456789",
        "1.10",
        "1E5",
        "1e400",
        "-0",
        "9" * 5_000,
        '{"b":1,"a":2,"b":3}',
        '[true,false,null,"é\u2028",{}]',
        '{"base64":"aGk=","and":1}',
    ],
)
def test_json_that_is_not_a_string_is_kept_to_the_digit(text: str) -> None:
    line = from_json(b'{"value": %s, "key": %s}' % (text.encode(), text.encode()))
    assert (line.value, line.key) == (text.encode(), text.encode())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "Expecting value"),
        (b"[]", "not a JSON object"),
        (b"1", "not a JSON object"),
        (b'{"topic": 1}', "topic is not a string"),
        (b'{"partition": "0"}', "partition is not a whole number"),
        (b'{"partition": true}', "partition is not a whole number"),
        (b'{"partition": 2147483648}', "partition is not a whole number"),
        (b'{"timestamp": 1.5}', "timestamp is not a whole number"),
        (b'{"value": {"base64": "a"}}', "value is not valid base64"),
        (b'{"value": {"base64": 1}}', "value is not valid base64"),
        (b'{"key": "\\ud800"}', "key holds half of a surrogate pair"),
        (b'{"headers": 1}', "headers is not a list"),
        (b'{"headers": [{"value": "1"}]}', "headers is not a list"),
        (b'{"headers": [{"key": "h", "value": {"base64": "!"}}]}', "header h is not valid base64"),
        (b'{"value": "\xff"}', "not UTF-8"),
        (b'{"vlaue": 1}', "unknown field 'vlaue'"),
        (b'{"value": 1, "value": 2}', "the field 'value' twice"),
        (b'{"headers": [{"key": "h", "vlaue": 1}]}', "unknown field 'vlaue'"),
        (b'{"headers": [{"key": "\\ud800", "value": "x"}]}', "half of a surrogate pair"),
        (b'{"headers": {"\\ud800": "x"}}', "half of a surrogate pair"),
        (b'{"value": {"a": "\\ud800"}}', "value holds half of a surrogate pair"),
        (b'{"value": NaN}', "NaN is not JSON"),
        (b'{"value": [-Infinity]}', "-Infinity is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_lines_that_are_not_records_are_refused_with_a_reason(line: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_json(line)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_record_or_a_value_error(line: bytes) -> None:
    try:
        found = from_json(line)
    except ValueError:
        return
    assert len(found) == 6


def render(text: str, record: Record) -> bytes:
    return compile_format(text)(Placed("topic", 3, record))


def test_formats_are_kcats() -> None:
    record = Record(9, 1000, b"key", b"value", (("a", b"1"), ("b", None)))
    assert render(r"%t [%p] at %o: %T %K=%k %S=%s %h%%\n\t\x41", record) == (
        b"topic [3] at 9: 1000 3=key 5=value a=1,b=NULL%\n\tA"
    )
    assert render("%R", record) == b"\0\0\0\x05"
    assert render("%k|%K|%s|%S|%R", Record(0, 0, None, None)) == b"|-1||-1|\xff\xff\xff\xff"
    assert render("", record) == b""


@pytest.mark.parametrize("text", ["%x", "%", "a%", "\\q", "\\", "%\n"])
def test_unknown_escapes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--format"):
        compile_format(text)


def test_filters_must_all_hold() -> None:
    record = Record(0, 0, b"user-1", b"hello world", (("source", b"web"), ("empty", None)))
    assert all_of([])(record)
    assert all_of([on_key(contains_text("user")), on_value(matches_regex("^hello .*d$"))])(record)
    assert not all_of([on_key(contains_text("user")), on_value(contains_text("nope"))])(record)
    assert on_header("source=we", contains_text)(record)
    assert on_header("source=^web$", matches_regex)(record)
    assert not on_header("source=x", contains_text)(record)
    assert on_header("empty", contains_text)(record)
    assert not on_header("empty=", contains_text)(record), "null is not an empty text"
    assert not on_key(contains_text(""))(Record(0, 0, None, None))
    assert not on_value(matches_regex(""))(Record(0, 0, None, None))
    with pytest.raises(ValueError, match="is not a regular expression"):
        matches_regex("(")


class Trickle(io.BytesIO):
    """Gives at most a few bytes at a time."""

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(3)


@given(st.binary(max_size=60).map(lambda data: data.replace(b"x", b"\n")))
def test_lines_are_what_lies_between_newlines(data: bytes) -> None:
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert list(lines_of(Trickle(data), 1_000, lambda: None)) == expected
    assert list(lines_of(io.BytesIO(data), 1_000, lambda: None)) == expected


def test_a_line_without_end_stops_at_the_limit() -> None:
    found = lines_of(Trickle(b"ok\n" + b"x" * 10_000), 100, lambda: None)
    assert next(found) == b"ok"
    with pytest.raises(UsageError, match="line 2 is longer than 100 bytes"):
        next(found)
