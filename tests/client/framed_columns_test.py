"""Arrow arrays of framed payloads: which schema each names, and how failures of the registry are told apart.

Zone: real. With a registry in memory.
"""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from ottla.client.schemas.framed_columns import FramedColumns
from ottla.client.schemas.registry import RegisteredSchema, RegistryRequestError
from ottla.schemas.columns import avro
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.framing import write_framing

pytestmark = pytest.mark.slow  # numba compiles the loops once

GUID = str(uuid.UUID(int=7))
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def record(*names: str, **more: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": "int"} for name in names]
    defaults = [{"name": name, "type": "int", "default": value} for name, value in more.items()]
    return {"type": "record", "name": "R", "fields": [*fields, *defaults]}


OLD, NEW, ALIEN = record("a"), record("a", b=5), record("z")
READER = RegisteredSchema(json.dumps(NEW), "AVRO")


class Registry:
    """Schemas by name, and whether it answers."""

    def __init__(self) -> None:
        texts = {1: OLD, 2: NEW, 3: ALIEN, GUID: OLD}
        self.schemas = {name: RegisteredSchema(json.dumps(each), "AVRO") for name, each in texts.items()}
        self.schemas[4] = RegisteredSchema("{}", "JSON")
        self.asked: list[int | str] = []
        self.failures: list[Exception] = []

    def find_schema(self, name: int | str) -> RegisteredSchema:
        self.asked.append(name)
        if self.failures:
            raise self.failures.pop()
        if name not in self.schemas:
            raise RegistryRequestError(40403, "Schema not found")
        return self.schemas[name]


@pytest.fixture
def registry() -> Registry:
    return Registry()


def columns_of(registry: Registry, reader: RegisteredSchema = READER, **settings: float) -> FramedColumns:
    return FramedColumns(registry, reader, pause_s=0, **settings)


def payload(schema: Any, **value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(name: int | str, schema: Any = OLD, **value: Any) -> bytes:
    return write_framing(name, payload(schema, **value))


def read(decoder: FramedColumns, *payloads: bytes | None, headers: Any = None, is_key: bool = False) -> list[Any]:
    own = None if headers is None else pa.array(headers, HEADERS)
    rows, reasons = decoder.decode(pa.array(payloads, pa.binary()), own, is_key=is_key)
    rows.validate(full=True)
    assert rows.type == decoder.type
    assert len(rows) == len(reasons) == len(payloads)
    shown = zip(rows.to_pylist(), reasons.to_pylist(), strict=True)
    return [row if reason is None else reason for row, reason in shown]


def test_rows_of_all_framings_come_back_in_their_order(registry: Registry) -> None:
    decoder = columns_of(registry)
    plain = payload(OLD, a=4)
    headers = [
        None,
        [],
        [{"key": "other", "value": b"x"}, {"key": "__value_schema_id", "value": b"\0\0\0\0\1"}],
        None,
        None,
    ]
    found = read(decoder, framed(2, NEW, a=1, b=2), framed(GUID, a=3), plain, None, framed(1, a=6), headers=headers)
    assert found == [{"a": 1, "b": 2}, {"a": 3, "b": 5}, {"a": 4, "b": 5}, None, {"a": 6, "b": 5}]


def test_a_header_with_more_than_a_schema_does_not_reach_into_other_rows(registry: Registry) -> None:
    """After a guid, a header has the indexes of a Protobuf message: they would be in front of the payload."""
    decoder = columns_of(registry)
    headers = [None, [{"key": "__value_schema_id", "value": b"\1" + uuid.UUID(GUID).bytes + b"\2"}]]
    found = read(decoder, framed(1, a=4), b"", headers=headers)
    assert found == [{"a": 4, "b": 5}, "it is not framed with the id of a schema"]


def test_the_header_of_keys_is_another_one(registry: Registry) -> None:
    decoder = columns_of(registry)
    headers = [[{"key": "__key_schema_id", "value": b"\0\0\0\0\1"}]]
    assert read(decoder, payload(OLD, a=4), headers=headers, is_key=True) == [{"a": 4, "b": 5}]
    assert read(decoder, payload(OLD, a=4), headers=headers) == ["it is not framed with the id of a schema"]


def test_slices_and_empty_arrays(registry: Registry) -> None:
    decoder = columns_of(registry)
    whole = pa.array([framed(1, a=each) for each in range(10)], pa.binary())
    rows, _ = decoder.decode(whole[3:5])
    assert rows.to_pylist() == [{"a": 3, "b": 5}, {"a": 4, "b": 5}]
    assert read(decoder) == []


def test_ids_are_found_in_the_middle_of_an_array(registry: Registry) -> None:
    payloads = [b"\0\0\0", framed(1, a=1), None, framed(2, NEW, a=2, b=3), b"", framed(1, a=4), b"\1abcde"]
    whole, whole_reasons = columns_of(registry).decode(pa.array(payloads, pa.binary()))
    for first, last in ((1, 6), (2, 4), (4, 5), (1, 2)):
        array, reasons = columns_of(registry).decode(pa.array(payloads, pa.binary())[first:last])
        assert array.to_pylist() == whole[first:last].to_pylist()
        assert reasons.to_pylist() == whole_reasons[first:last].to_pylist()
    assert whole.to_pylist()[1:6] == [{"a": 1, "b": 5}, None, {"a": 2, "b": 3}, None, {"a": 4, "b": 5}]
    assert [each is None for each in whole_reasons.to_pylist()] == [False, True, True, True, False, True, False]


def test_each_reason_costs_its_own_row(registry: Registry) -> None:
    decoder = columns_of(registry)
    found = read(
        decoder,
        framed(1, a=1),
        framed(9, a=1),
        framed(3, ALIEN, z=1),
        write_framing(4, b"{}"),
        write_framing(1, b""),
        b"\0\0",
        b"\1short",
    )
    assert found == [
        {"a": 1, "b": 5},
        "the registry has no schema 9: Schema not found",
        "schema 3 cannot be read with the reader's schema: the field 'a' was not written, and has no default",
        "schema 4 cannot be read with the reader's schema: its type is JSON, and that of the reader's schema is AVRO",
        "it was not written with schema 1, which it names",
        "it is not framed with the id of a schema",
        "it is not framed with the id of a schema",
    ]


def test_what_is_known_is_not_asked_for_again(registry: Registry) -> None:
    decoder = columns_of(registry)
    for _ in range(3):
        read(decoder, framed(1, a=1), framed(9, a=1))
    assert sorted(map(str, registry.asked)) == ["1", "9"]


def test_a_schema_that_was_registered_later_is_found(registry: Registry) -> None:
    decoder = columns_of(registry, unknown_s=0)
    assert read(decoder, framed(9, a=1)) == ["the registry has no schema 9: Schema not found"]
    registry.schemas[9] = registry.schemas[1]
    assert read(decoder, framed(9, a=1)) == [{"a": 1, "b": 5}]


def test_a_schema_that_refers_to_too_many_others_costs_its_own_rows(registry: Registry) -> None:
    registry.failures = [InvalidSchema("it refers to more than 100 others")]
    found = read(columns_of(registry), framed(1, a=1), framed(2, NEW, a=1, b=1))
    assert found == [
        "schema 1 cannot be read with the reader's schema: it refers to more than 100 others",
        {"a": 1, "b": 1},
    ]


def test_known_schemas_are_read_while_the_registry_is_away(registry: Registry) -> None:
    decoder = columns_of(registry)
    read(decoder, framed(1, a=1))
    registry.failures = [RegistryRequestError(0, "away")] * 10
    assert read(decoder, framed(1, a=1)) == [{"a": 1, "b": 5}]
    with pytest.raises(RegistryRequestError, match="away"):
        read(decoder, framed(1, a=1), framed(2, NEW, a=1, b=1))
    assert registry.asked == [1, 2, 2, 2]


def test_a_short_outage_is_waited_for(registry: Registry) -> None:
    registry.failures = [RegistryRequestError(50003, "leader"), RegistryRequestError(503, "proxy")]
    assert read(columns_of(registry), framed(1, a=1)) == [{"a": 1, "b": 5}]


def test_a_refused_user_is_no_reason_for_a_row(registry: Registry) -> None:
    registry.failures = [RegistryRequestError(401, "Unauthorized")]
    with pytest.raises(RegistryRequestError, match="Unauthorized"):
        read(columns_of(registry), framed(1, a=1))
    assert registry.asked == [1]


def test_payloads_of_many_values_are_decoded_in_parts(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = {"type": "array", "items": ["null", "int"]}
    registry.schemas[5] = reader = RegisteredSchema(json.dumps(lists), "AVRO")
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(lists), [None] * 100)
    huge = io.BytesIO()
    fastavro.schemaless_writer(huge, fastavro.parse_schema(lists), [None] * 1000)
    monkeypatch.setattr(avro, "ROWS_MAX", 500)
    few, many = (write_framing(5, each.getvalue()) for each in (out, huge))
    found = read(columns_of(registry, reader), few, few, few, many, few, few)
    assert found[:3] == [*found[4:], [None] * 100]
    assert "more than 500 values" in found[3]
