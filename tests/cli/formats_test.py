"""Formats of bytes, JSON conditions, several topics and whole files, in `ottla produce` and `ottla consume`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Ottla

from ottla.cli.reading.byte_formats import FORMAT_NAMES, format_bytes, parse_bytes
from ottla.cli.reading.decoded import DecodedRecord
from ottla.cli.reading.json_filters import json_filter

SIZES = {"int16": 2, "int32": 4, "int64": 8, "uint32": 4, "uint64": 8, "float32": 4, "float64": 8, "timestamp": 8}


@pytest.mark.slow
@given(st.sampled_from(FORMAT_NAMES), st.binary(max_size=9))
def test_bytes_that_are_shown_can_be_read_back(name: str, content: bytes) -> None:
    content = content.ljust(SIZES.get(name, 0), b"\0")[: SIZES.get(name, 9)]
    try:
        shown = format_bytes(name)(content)
    except ValueError:
        assert name == "timestamp", "a date has limits"
        return
    if b"nan" not in shown:
        assert parse_bytes(name)(shown) == content


@pytest.mark.slow
@given(st.sampled_from(FORMAT_NAMES), st.binary(max_size=60))
def test_other_bytes_are_a_value_error(name: str, content: bytes) -> None:
    for convert in (format_bytes(name), parse_bytes(name)):
        try:
            convert(content)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [("hex", b"\x00\xff", b"00ff"), ("base64", b"\xff", b"/w=="), ("int32", b"\xff\xff\xff\xfe", b"-2"),
     ("uint32", b"\xff\xff\xff\xfe", b"4294967294"), ("float64", b"\x3f\xf8" + bytes(6), b"1.5"),
     ("timestamp", (1_700_000_000_123).to_bytes(8, "big"), b"2023-11-14T22:13:20.123Z")],
)  # fmt: skip
def test_what_is_shown(name: str, content: bytes, text: bytes) -> None:
    assert format_bytes(name)(content) == text
    assert parse_bytes(name)(text) == content


def passes(text: str | None, *conditions: str) -> bool:
    return json_filter(conditions)(DecodedRecord(0, 0, None, None if text is None else text.encode(), ()))


DOCUMENT = '{"user": {"id": 5, "name": "ann", "on": true}, "items": [1, {"x": null}], "a b": "5", "π": 1.5}'


@pytest.mark.parametrize(
    ("condition", "expected"),
    [(".user.id=5", True), (".user.id = 5.0", True), (".user.id=6", False), (".user.id!=6", True),
     (".user.id>=5", True), (".user.id<5", False), (".user.id>4", True), (".user.name=ann", True),
     ('.user.name="ann"', True),
     (".user.name~^a", True), (".user.name~^b", False), (".user.name>ana", True), (".user.on=true", True),
     (".user.on=1", False), (".user.on>0", False), (".user", True), (".nothing", False), (".nothing!=1", False),
     (".items[0]=1", True), (".items[-1].x=null", True), (".items[2]", False), (".items.x", False),
     ('."a b"="5"', True),
     ('."a b"=5', False), ('."π"=1.5', True), ('.user={"id":5,"name":"ann","on":true}', True), (".user[0]", False)],
)  # fmt: skip
def test_conditions(condition: str, expected: bool) -> None:
    assert passes(DOCUMENT, condition) is expected


def test_values_that_are_not_json_do_not_pass() -> None:
    for text in (None, "", "{", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
        assert not passes(text, "[0]")
    assert passes("[3]", "[0]=3", "[0]<4")
    assert not passes("[3]", "[0]=3", "[0]<3")


@pytest.mark.parametrize("condition", ["", "user", ".a b", ".a==", "=5", ".", ".a~[", '."a', ".a[x]", "." + "[" * 9999])
def test_what_is_not_a_condition(condition: str) -> None:
    if condition == ".a==":
        assert passes('{"a": "="}', condition), "the text may begin with ="
        return
    with pytest.raises(ValueError, match="is not a"):
        json_filter([condition])


def test_formats_make_the_round_trip(ottla: Ottla) -> None:
    words = ("--key-format", "int64", "--value-format", "hex")
    ottla("topic", "create", "formats", "-p", "1")
    assert ottla("produce", "formats", "-K", ":", *words, stdin="7:00ff\n-1:\n").exit_code == 0
    read = ("consume", "formats", "-e")
    assert ottla(*read, *words, "-f", "%k=%s ").stdout == "7=00ff -1= "
    raw = [json.loads(line) for line in ottla(*read, "-o", "jsonl").stdout.splitlines()]
    assert [each["value"] for each in raw] == [{"base64": "AP8="}, ""]
    other = ottla(*read, "--value-format", "float32")
    assert other.stdout_bytes == b"\x00\xff\n\n"
    assert "values that are not of the format float32 are shown as they are: 2 bytes are not a float" in other.stderr
    wrong = ottla("produce", "formats", "--value-format", "int16", stdin="1\n70000\n")
    assert (wrong.exit_code, "line 2 of the input: '70000' is not an integer of 2 bytes" in wrong.stderr) == (1, True)
    assert ottla("produce", "formats", "-k", "x", "--key-format", "hex", stdin="1\n").exit_code == 2


def test_whole_files_are_records(ottla: Ottla, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"one\ntwo\n")
    second.write_bytes(b"")
    ottla("topic", "create", "whole", "-p", "1")
    files = ("--file", str(first), "--file", str(second), "--file", "-")
    assert ottla("produce", "whole", "--whole", *files, stdin="three\n").exit_code == 0
    assert ottla("consume", "whole", "-e", "-f", "[%s]").stdout == "[one\ntwo\n][][three\n]"
    ottla("topic", "create", "lined", "-p", "1")
    assert ottla("produce", "lined", *files, stdin="three").exit_code == 0
    assert ottla("consume", "lined", "-e").stdout == "one\ntwo\nthree\n"


def test_a_whole_file_that_is_too_long(ottla: Ottla, tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"x")
    large.write_bytes(bytes(1_048_577))
    shown = ottla("produce", "large", "--whole", "--file", str(small), "--file", str(large), "--file", str(small))
    assert shown.exit_code == 2
    assert f"{large} is longer than 1048576 bytes" in shown.stderr
    assert "-X max.request.size=" in shown.stderr
    assert ottla("produce", "large", "--whole", "--file", str(tmp_path / "none")).exit_code == 1
    assert ottla("produce", "large", "--whole", "--jsonl").exit_code == 2


@pytest.fixture(scope="module")
def three(brokers: str) -> tuple[str, str, str]:
    from click.testing import CliRunner

    from ottla.cli.main import cli

    names = ("many-1", "many-2", "many-other")
    for name in names:
        CliRunner().invoke(cli, ["topic", "create", name, "-p", "2", "-b", brokers])
        CliRunner().invoke(cli, ["produce", name, "-b", brokers], input=f"of {name}\n")
    return names


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--group", "many", "--from-beginning")])
def test_several_topics(ottla: Ottla, three: tuple[str, str, str], more: tuple[str, ...]) -> None:
    group = [f"{more[1]}-{{}}", *more[2:]] if more else []

    def read(*words: str) -> list[str]:
        own = [each.format(abs(hash(words))) for each in group]
        shown = ottla("consume", *words, "-e", "-f", "%t %s\n", *(["--group", *own] if own else []))
        assert shown.exit_code == 0, shown.stderr
        return sorted(shown.stdout.splitlines())

    assert read("many-1", "-t", "many-other") == ["many-1 of many-1", "many-other of many-other"]
    assert read("--include", r"many-\d") == ["many-1 of many-1", "many-2 of many-2"]


def test_topics_that_are_not_there(ottla: Ottla, three: tuple[str, str, str]) -> None:
    assert ottla("consume", "-e").exit_code == 2
    assert ottla("consume", "many-1", "--include", "x", "-e").exit_code == 2
    assert ottla("consume", "--include", "[", "-e").exit_code == 2
    shown = ottla("consume", "--include", "many", "-e")
    assert (shown.exit_code, "no topic matches 'many'" in shown.stderr) == (3, True)
    assert ottla("consume", "many-1", "many-none", "-e").exit_code == 3


@pytest.mark.slow
def test_where_a_reader_begins_that_stops_at_the_end(ottla: Ottla, three: tuple[str, str, str]) -> None:
    assert ottla("consume", "many-1", "-e").stdout == "of many-1\n", "at the start: otherwise it would read nothing"
    shown = ottla("consume", "many-1", "-e", "--group", "at-the-end")
    assert (shown.stdout, "the group has committed nothing it begins at the end" in shown.stderr) == ("", True)


def test_json_conditions_choose_records(ottla: Ottla) -> None:
    ottla("topic", "create", "conditions", "-p", "1")
    ottla("produce", "conditions", stdin='{"id":1}\nnot JSON\n{"id":2,"to":"a"}\n{"id":3,"to":"b"}\n')
    shown = ottla("consume", "conditions", "-e", "--json", ".id>1", "--json", ".to~^[ab]$", "-n", "1")
    assert shown.stdout == '{"id":2,"to":"a"}\n'
    assert ottla("consume", "conditions", "-e", "--json", "id").exit_code == 2
