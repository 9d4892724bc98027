"""Payloads of Protobuf: the indexes of a message and the message, as plain values; other bytes are refused.

Zone: pure.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from ottla.schemas.decoding import make_decoder
from ottla.schemas.errors import InvalidPayload
from ottla.schemas.protobuf.decoding import read_indexes
from ottla.schemas.protobuf.schema import ProtobufSchema

TEXT = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; import "google/protobuf/any.proto";
    message Order { int32 order_id = 1; string note = 2; repeated Line lines = 3; map<string, bool> flags = 4;
      oneof payment { bytes card = 5; int64 cash = 6; } Kind kind = 7; google.protobuf.Timestamp at = 8;
      google.protobuf.Any any = 9; float f = 10; Order next = 11;
      message Line { double price = 1; message Part { string name = 1; } } }
    enum Kind { NONE = 0; FAST = 1; }
    message Other { sint32 n = 1; }"""
SCHEMA = ProtobufSchema(TEXT)


def written(values: dict[str, Any], name: str = "shop.Order") -> bytes:
    made = GetMessageClass(SCHEMA.pool.FindMessageTypeByName(name))(**values)
    return bytes(made.SerializeToString())


def varints(*numbers: int) -> bytes:
    """Zigzag varints."""
    out = bytearray()
    for number in numbers:
        rest = (number << 1) ^ (number >> 63)
        while rest > 127:
            out.append(rest & 127 | 128)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def test_values_come_back_with_the_names_of_the_fields() -> None:
    payload = written({"order_id": 7, "note": "ä", "lines": [{"price": 1.5}], "flags": {"a": True}, "card": b"\xff",
                       "kind": 1, "at": {"seconds": 1}, "next": {"cash": 2**40}})  # fmt: skip
    assert make_decoder("PROTOBUF", TEXT)(b"\0" + payload) == {
        "order_id": 7, "note": "ä", "lines": [{"price": 1.5}], "flags": {"a": True}, "card": "/w==", "kind": "FAST",
        "at": "1970-01-01T00:00:01Z", "next": {"cash": str(2**40)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("indexes", "name", "values"),
    [
        (b"\0", "shop.Order", {"order_id": 1}),
        (varints(1, 0), "shop.Order", {"order_id": 1}),
        (varints(1, 1), "shop.Other", {"n": -3}),
        (varints(2, 0, 1), "shop.Order.Line", {"price": 2.5}),  # the entries of the map are the first message in it
        (varints(3, 0, 1, 0), "shop.Order.Line.Part", {"name": "x"}),
    ],
)
def test_indexes_name_the_message(indexes: bytes, name: str, values: dict[str, Any]) -> None:
    assert make_decoder("PROTOBUF", TEXT)(indexes + written(values, name)) == values


def test_a_schema_in_base64_and_its_references_decode_alike() -> None:
    text = 'syntax = "proto3"; import "shop.proto"; message M { shop.Other other = 1; }'
    payload = b"\0\x0a\x02\x08\x05"
    assert make_decoder("PROTOBUF", text, [("shop.proto", TEXT)])(payload) == {"other": {"n": -3}}
    serialized = ProtobufSchema(text, {"shop.proto": TEXT}).serialize()
    assert make_decoder("PROTOBUF", serialized, [("shop.proto", SCHEMA.serialize())])(payload) == {"other": {"n": -3}}
    assert base64.b64decode(serialized)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "does not begin with message indexes"),
        (b"\x80", "does not begin with message indexes"),
        (b"\x80\x80\x80\x80\x80\x01", "does not begin with message indexes"),
        (varints(2, 0), "does not begin with message indexes"),
        (varints(-1), "the number of message indexes is -1"),
        (varints(33), "the number of message indexes is 33"),
        (varints(2**30), "the number of message indexes is"),
        (varints(1, 3), r"no message with the indexes \[3\]"),
        (varints(1, -1), r"no message with the indexes \[-1\]"),
        (varints(2, 0, 2), r"no message with the indexes \[0, 2\]"),
        (varints(4, 0, 0, 0, 0), "no message with the indexes"),
        (b"\0\x08", "not written with its Protobuf schema"),
        (b"\0\x12\x05ab", "not written with its Protobuf schema"),
        (b"\0\x12\x02\xff\xfe", "not written with its Protobuf schema"),
        (b"\0" + written({"any": {"type_url": "type.googleapis.com/no.Such", "value": b"x"}}), "not written with"),
        (b"\0" + written({"at": {"seconds": 2**60}}), "not written with"),
    ],
)
def test_other_bytes_are_refused(payload: bytes, reason: str) -> None:
    with pytest.raises(InvalidPayload, match=reason):
        make_decoder("PROTOBUF", TEXT)(payload)


def test_truncated_payloads_are_refused_or_have_fewer_fields() -> None:
    decode = make_decoder("PROTOBUF", TEXT)
    payload = b"\0" + written({"order_id": 300, "note": "abc", "lines": [{"price": 1.5}]})
    whole = decode(payload)
    for end in range(1, len(payload)):
        try:
            assert decode(payload[:end]).items() <= whole.items()
        except InvalidPayload:
            continue


def test_messages_that_are_nested_too_deeply_are_refused() -> None:
    """Of the runtime's own levels, and of messages in messages of type Any, which it does not count."""
    payload = b""
    for _ in range(200):
        payload = b"\x5a" + _length(payload) + payload
    with pytest.raises(InvalidPayload):
        make_decoder("PROTOBUF", TEXT)(b"\0" + payload)
    inner = b""
    for _ in range(2_000):
        url = b"type.googleapis.com/shop.Order"
        content = b"\x0a" + _length(url) + url + b"\x12" + _length(inner) + inner
        inner = b"\x4a" + _length(content) + content
    with pytest.raises(InvalidPayload):
        make_decoder("PROTOBUF", TEXT)(b"\0" + inner)


def _length(content: bytes) -> bytes:
    rest, out = len(content), bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(payload: bytes) -> None:
    try:
        make_decoder("PROTOBUF", TEXT)(payload)
    except InvalidPayload:
        return


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=32), st.binary(max_size=5))
def test_indexes_are_read_as_they_are_written(indexes: list[int], rest: bytes) -> None:
    begin = varints(len(indexes), *indexes)
    assert read_indexes(begin + rest) == (indexes, len(begin))
