"""Payloads: what was written with a schema is read, anything else is refused as such.

Zone: pure.
"""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.schemas.decoding import make_decoder
from ottla.schemas.errors import InvalidPayload, InvalidSchema

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "bytes"]},
    ],
}


def written(value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), value)
    return out.getvalue()


def test_avro_values_come_back() -> None:
    value = {"id": 1, "tags": ["a", "ä"], "note": b"\xff"}
    assert make_decoder("AVRO", json.dumps(ORDER))(written(value)) == value


def test_truncated_and_longer_payloads_are_refused() -> None:
    decode = make_decoder("AVRO", json.dumps(ORDER))
    payload = written({"id": 1, "tags": ["a"], "note": b"xyz"})
    for end in range(len(payload)):
        with pytest.raises(InvalidPayload):
            decode(payload[:end])
    with pytest.raises(InvalidPayload, match="1 bytes follow"):
        decode(payload + b"\0")


def test_bytes_alone_are_the_whole_payload() -> None:
    """As Confluent's serializers write them."""
    assert make_decoder("AVRO", '"bytes"')(b"\x04ab") == b"\x04ab"


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(payload: bytes) -> None:
    decode = make_decoder("AVRO", json.dumps(ORDER))
    try:
        value = decode(payload)
    except InvalidPayload:
        return
    assert value.keys() == {"id", "tags", "note"}


@pytest.mark.parametrize(
    "items",
    ["null", {"type": "fixed", "name": "F", "size": 0}, {"type": "record", "name": "E", "fields": []},
     {"type": "record", "name": "N", "fields": [{"name": "a", "type": "null"}]}],
)  # fmt: skip
def test_arrays_of_items_without_bytes_are_refused(items: object) -> None:
    """Ten bytes could ask for 2^62 of them."""
    text = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
    )
    with pytest.raises(InvalidSchema, match="take no bytes"):
        make_decoder("AVRO", text)


def test_counts_of_items_that_are_not_there_are_refused() -> None:
    decode = make_decoder("AVRO", '{"type": "array", "items": "string"}')
    with pytest.raises(InvalidPayload):
        decode(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")


def test_values_that_are_nested_without_end_are_refused() -> None:
    """fastavro's compiled reader would overflow the stack, which ends the process."""
    node = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'
    decode = make_decoder("AVRO", node)
    assert decode(b"\2\0") == {"next": {"next": None}}
    with pytest.raises(InvalidPayload, match="nested too deeply"):
        decode(b"\2" * 1_000_000 + b"\0")


def test_json_values_come_back_and_others_are_refused() -> None:
    decode = make_decoder("JSON", "{}")
    assert decode(b'{"a": [1]}') == {"a": [1]}
    for bad in (b"", b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(InvalidPayload):
            decode(bad)


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(InvalidSchema, match="XML cannot be decoded"):
        make_decoder("XML", "<a/>")
