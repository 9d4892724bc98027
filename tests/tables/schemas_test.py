"""A topic of registered schemas as a table: columns, their evolution, and records that are not rows."""

from __future__ import annotations

import datetime as dt
import json
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.tables.conftest import Target, Topic
from tests.tables.dead_letters_test import make_letters, read_letters
from tests.tables.registered import Registered, ServiceInMemory, framed, record, served

from ottla.cli.main import cli
from ottla.client import Producer
from ottla.retry.headers import read_trail
from ottla.schemas.framing import KEY_HEADER, VALUE_HEADER, write_framing
from ottla.tables.iceberg import IcebergWriter
from ottla.tables.rows import LAYOUTS

pytestmark = pytest.mark.slow

UTC = dt.UTC
LOGICAL = {
    "d": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "t": {"type": "long", "logicalType": "timestamp-millis"},
    "l": {"type": "long", "logicalType": "local-timestamp-micros"},
    "y": {"type": "int", "logicalType": "date"},
    "u": {"type": "string", "logicalType": "uuid"},
    "h": {"type": "int", "logicalType": "time-millis"},
}
NUMBER = uuid.UUID(int=7)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served(ServiceInMemory()) as found:
        yield found


@pytest.fixture
def registered(port: int, topic: Topic) -> Registered:
    return Registered(port, topic)


def run_table(registered: Registered, target: Target, *more: str, kind: str = "avro") -> Result:
    words = ["table", registered.topic.name, *target.words, "--exit-at-end", "-b", registered.topic.bootstrap]
    schemas = ["--value-schema", kind, "--schema-registry", registered.url]
    return CliRunner().invoke(cli, [*words, *schemas, "-o", "json", *more])


def copy_rows(registered: Registered, target: Target, *more: str, kind: str = "avro") -> Any:
    result = run_table(registered, target, *more, kind=kind)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def values_of(target: Target, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of all rows, in the order of offsets."""
    rows = target.read_arrow().to_pylist()
    place = "offset" if rows and "offset" in rows[0] else "_kafka_offset"
    return [tuple(row[name] for name in names) for row in sorted(rows, key=lambda row: row[place])]


def test_columns_are_those_of_all_schemas(registered: Registered, target: Target) -> None:
    """Each record with the fields that it was written with, whichever schema came first."""
    old, new = record(a="int", f="float"), record(a="long", f="double", n=["null", record(x="string") | {"name": "N"}])
    first, second = registered.register(old), registered.register(new)
    registered.send(framed(first, old, {"a": 1, "f": 0.5}), None)
    copy_rows(registered, target)
    registered.send(
        framed(second, new, {"a": 1 << 40, "f": 0.1, "n": {"x": "y"}}), framed(first, old, {"a": 2, "f": 1})
    )
    found = copy_rows(registered, target)
    assert (found["rows"], found["dead_letters"]) == (2, 0)
    rows = [(1, 0.5, None), (None, None, None), (1 << 40, 0.1, {"x": "y"}), (2, 1.0, None)]
    assert values_of(target, "a", "f", "n") == rows
    assert values_of(target, "_kafka_key", "_kafka_partition")[0] == (b"key-0", 0)
    deeper = record(n=["null", record(x="string", z=["null", "int"]) | {"name": "N"}])
    registered.send(framed(registered.register(deeper), deeper, {"n": {"x": "q", "z": 3}}))
    copy_rows(registered, target)
    assert values_of(target, "a", "n")[-1] == (None, {"x": "q", "z": 3})
    assert values_of(target, "n")[2] == ({"x": "y", "z": None},)


def test_logical_types(registered: Registered, target: Target) -> None:
    schema = record(**LOGICAL)
    number = registered.register(schema)
    time = dt.datetime(2026, 1, 31, 12, 0, 0, 5000, UTC)
    value = {
        "d": Decimal("12.34"), "t": time, "l": time.replace(tzinfo=None), "y": time.date(), "u": NUMBER,
        "h": dt.time(1, 0),
    }  # fmt: skip
    registered.send(framed(number, schema, value))
    copy_rows(registered, target, "--columns", "nested")
    hour = 3_600_000_000 if target.kind == "delta" else dt.time(1, 0)
    [(row,)] = values_of(target, "value")
    assert row == {**value, "u": str(NUMBER), "h": hour}


def test_json_and_protobuf(registered: Registered, make_target: Callable[[str], Target]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    number = registered.register(schema, "JSON")
    proto = registered.register('syntax = "proto3"; message M { int64 a = 1; }', "PROTOBUF")
    registered.send(write_framing(number, b'{"a":1,"b":"x"}'), write_framing(proto, b"\0\x08\x05"))
    letters = make_letters(registered.topic)
    target = make_target("delta")
    copy_rows(registered, target, "--dead-letters", letters, kind="json")
    assert values_of(target, "a", "b") == [(1, "x")]
    other = make_target("iceberg")
    copy_rows(registered, other, "--dead-letters", letters, kind="protobuf")
    assert values_of(other, "a") == [(5,)]


def test_values_that_are_no_rows(registered: Registered, make_target: Callable[[str], Target]) -> None:
    """Each costs its own record; a schema that does not fit costs those that are written with it."""
    schema, alien = record(a="int", t=LOGICAL["t"]), record(a="string")
    # The id of the schema that comes later is the smaller one: the order of the records decides.
    other, number = registered.register(alien), registered.register(schema)
    good = framed(number, schema, {"a": 1, "t": 0})
    bad = [
        (b"plain", "is not framed"),
        (write_framing(99, b"x"), "the registry has no schema 99"),
        (good[:-1], "was not written with schema"),
        (framed(other, alien, {"a": "x"}), "a is string, the table has int32"),
        (framed(number, schema, {"a": 2, "t": 1 << 60}), "the table's columns cannot hold this value"),
    ]
    registered.send(good, *(value for value, _ in bad), good)
    target, letters = make_target("iceberg"), make_letters(registered.topic)
    for to in (target, make_target("delta")):
        refused = run_table(registered, to)
        assert refused.exit_code == 1
        assert "Give --dead-letters TOPIC" in refused.stderr
    found = copy_rows(registered, target, "--dead-letters", letters)
    assert (found["rows"], found["dead_letters"], found["next_offsets"]["0"]) == (2, 5, 7)
    assert values_of(target, "a", "_kafka_offset") == [(1, 0), (1, 6)]
    found_letters = {each.value: each for each in read_letters(registered.topic, letters)}
    assert len(found_letters) == len(bad)
    for value, reason in bad:
        letter = found_letters[value]
        failure = read_trail(letter.headers).failure
        assert failure is not None
        assert reason in failure.message
        assert failure.kind == f"ottla.tables.{'ColumnConflictError' if value == bad[3][0] else 'RowNotReadableError'}"


def test_a_schema_that_does_not_fit_is_named(registered: Registered, make_target: Callable[[str], Target]) -> None:
    schema, alien = record(a="int"), record(a="string")
    registered.send(framed(registered.register(schema), schema, {"a": 1}))
    target = make_target("delta")
    copy_rows(registered, target)
    number = registered.register(alien)
    registered.send(framed(number, alien, {"a": "x"}))
    result = run_table(registered, target)
    assert f"the columns of schema {number} do not fit the table: a is string, the table has int64" in result.stderr
    assert "register a compatible schema" in result.stderr
    # The options of a table stay the same: the columns of another kind are missing.
    assert "has no column" in run_table(registered, target, "--columns", "nested").stderr


def test_fields_with_names_of_the_record_need_nested_columns(
    registered: Registered, make_target: Callable[[str], Target]
) -> None:
    schema = record(_kafka_offset="int", key="string")
    registered.send(framed(registered.register(schema), schema, {"_kafka_offset": 1, "key": "k"}))
    target = make_target("parquet")
    assert "take --columns nested" in run_table(registered, target).stderr
    other = target._replace(location=f"{target.location}-2")
    copy_rows(registered, other, "--columns", "nested")
    assert values_of(other, "value", "key") == [({"_kafka_offset": 1, "key": "k"}, b"key-0")]


def test_names_that_icebergs_readers_reserve_need_nested_columns(
    registered: Registered, make_target: Callable[[str], Target]
) -> None:
    """Spark reads no table with such a column, whatever made it."""
    assert not IcebergWriter.types.reserved & {name for each in LAYOUTS.values() for name in each.schema.names}
    schema = record(_partition="int")
    registered.send(framed(registered.register(schema), schema, {"_partition": 1}))
    result = run_table(registered, make_target("iceberg"))
    assert "_partition is a column of the record or the table, or reserved by the table's format" in result.stderr
    copy_rows(registered, make_target("delta"))
    other = make_target("iceberg")._replace(location="lake.nested")
    copy_rows(registered, other, "--columns", "nested")
    assert values_of(other, "value") == [({"_partition": 1},)]


def test_upsert_of_decoded_values(registered: Registered, make_target: Callable[[str], Target]) -> None:
    old, new = record(a="int"), record(a="int", l={"type": "array", "items": "string"})
    number, later = registered.register(old), registered.register(new)
    for kind in ("delta", "iceberg"):
        target = make_target(kind)
        registered.send(framed(number, old, {"a": 1}), framed(number, old, {"a": 2}), key=kind)
        copy_rows(registered, target, "--upsert")
        registered.send(framed(later, new, {"a": 3, "l": ["x"]}), None, framed(number, old, {"a": 4}), key=kind)
        copy_rows(registered, target, "--upsert")
        rows = {row["_kafka_key"]: (row["a"], row["l"]) for row in target.read_arrow().to_pylist()}
        assert rows[f"{kind}-0".encode()] == (3, ["x"])
        assert rows[f"{kind}-2".encode()] == (4, None)
        assert f"{kind}-1".encode() not in rows


def test_options_that_need_each_other(registered: Registered, make_target: Callable[[str], Target]) -> None:
    words = ["table", "t", *make_target("delta").words, "-b", registered.topic.bootstrap]
    url = ["--schema-registry", registered.url]
    for given in (["--value-schema", "avro"], ["--key-schema", "avro"], url, ["--key-schema", "text", *url]):
        assert "give both or none" in CliRunner().invoke(cli, [*words, *given]).stderr


def send_keyed(registered: Registered, *pairs: tuple[bytes | None, bytes | None]) -> None:
    with Producer({"bootstrap.servers": registered.topic.bootstrap}) as producer:
        for key, value in pairs:
            producer.send(registered.topic.name, value, key=key, partition=0)


def test_decoded_keys_are_a_column(registered: Registered, make_target: Callable[[str], Target]) -> None:
    """Keys evolve like values; the bytes are a column as before, and tell the rows of an upsert apart."""
    old, new, schema = record(id="int"), record(id="int", shop="string"), record(a="int")
    first, second, value = registered.register(old), registered.register(new), registered.register(schema)
    target = make_target("iceberg")
    one, two = framed(first, old, {"id": 1}), framed(second, new, {"id": 2, "shop": "x"})
    send_keyed(registered, (one, framed(value, schema, {"a": 1})), (one, framed(value, schema, {"a": 2})))
    more = ("--upsert", "--key-schema", "avro")
    copy_rows(registered, target, *more)
    send_keyed(registered, (two, framed(value, schema, {"a": 3})))
    copy_rows(registered, target, *more)
    rows = [({"id": 1, "shop": None}, one, 2), ({"id": 2, "shop": "x"}, two, 3)]
    assert values_of(target, "_kafka_decoded_key", "_kafka_key", "a") == rows
    send_keyed(registered, (one, None))
    copy_rows(registered, target, *more)
    assert values_of(target, "_kafka_decoded_key") == [({"id": 2, "shop": "x"},)]
    refused = run_table(registered, target, "--upsert")
    assert "has the column _kafka_decoded_key: it was made with --key-schema" in refused.stderr


def test_keys_as_text_need_no_registry(registered: Registered, target: Target) -> None:
    words = ["table", registered.topic.name, *target.words, "--exit-at-end", "-b", registered.topic.bootstrap]
    send_keyed(registered, ("é".encode(), b"\xff"), (None, None))
    result = CliRunner().invoke(cli, [*words, "--key-schema", "text"])
    assert result.exit_code == 0, result.stderr
    assert values_of(target, "decoded_key", "key", "value") == [("é", "é".encode(), b"\xff"), (None, None, None)]
    assert "it was made with --key-schema" in CliRunner().invoke(cli, words).stderr
    send_keyed(registered, (b"\xff", b"v"), (b"k", b"w"))
    assert "the key is not text in UTF-8" in CliRunner().invoke(cli, [*words, "--key-schema", "text"]).stderr
    letters = make_letters(registered.topic)
    result = CliRunner().invoke(cli, [*words, "--key-schema", "text", "--dead-letters", letters])
    assert result.exit_code == 0, result.stderr
    assert values_of(target, "decoded_key")[2:] == [("k",)]
    assert [each.key for each in read_letters(registered.topic, letters)] == [b"\xff"]


def test_a_record_whose_key_and_value_are_wrong_is_one_letter(
    registered: Registered, make_target: Callable[[str], Target]
) -> None:
    schema = record(a="int")
    number = registered.register(schema)
    good = framed(number, schema, {"a": 1})
    send_keyed(registered, (b"plain", good), (good, b"plain"), (b"plain", b"plain"), (good, good), (None, good))
    letters, target = make_letters(registered.topic), make_target("delta")
    more = ("--key-schema", "avro", "--columns", "nested", "--dead-letters", letters)
    found = copy_rows(registered, target, *more)
    assert (found["rows"], found["dead_letters"]) == (2, 3)
    assert values_of(target, "offset", "decoded_key", "value") == [(3, {"a": 1}, {"a": 1}), (4, None, {"a": 1})]
    failures = [read_trail(each.headers).failure for each in read_letters(registered.topic, letters)]
    parts = sorted(each.message.partition(" is not framed")[0].rpartition(" ")[2] for each in failures if each)
    assert parts == ["key", "key", "value"]


def test_the_schema_of_a_key_may_be_in_its_own_header(
    registered: Registered, make_target: Callable[[str], Target]
) -> None:
    schema = record(id="int")
    registered.register(schema, subject="headers")
    with urllib.request.urlopen(f"{registered.url}/subjects/headers/versions/1") as answer:
        guid = uuid.UUID(json.loads(answer.read())["guid"])
    payload = framed(0, schema, {"id": 7})[5:]
    with Producer({"bootstrap.servers": registered.topic.bootstrap}) as producer:
        for header in (KEY_HEADER, VALUE_HEADER):
            headers = [(header, b"\x01" + guid.bytes)]
            producer.send(registered.topic.name, b"v", key=payload, headers=headers, partition=0)
    target, letters = make_target("delta"), make_letters(registered.topic)
    words = ["table", registered.topic.name, *target.words, "--exit-at-end", "-b", registered.topic.bootstrap]
    given = ["--key-schema", "avro", "--schema-registry", registered.url, "--dead-letters", letters]
    result = CliRunner().invoke(cli, [*words, *given])
    assert result.exit_code == 0, result.stderr
    assert values_of(target, "offset", "decoded_key") == [(0, {"id": 7})]
    assert [each.key for each in read_letters(registered.topic, letters)] == [payload]
