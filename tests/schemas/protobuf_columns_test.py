"""Protobuf payloads as Arrow columns and back, compared with Protobuf's own classes.

Zone: pure.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.schemas.registry import RegisteredSchema
from ottla.schemas.columns import protobuf_shapes
from ottla.schemas.columns.avro_writing import InvalidValue
from ottla.schemas.columns.formats import make_columns
from ottla.schemas.columns.protobuf import ProtobufColumns
from ottla.schemas.columns.protobuf_writing import ProtobufWriter
from ottla.schemas.columns.verdicts import TooManyValues, Verdict
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.protobuf.decoding import find_message
from ottla.schemas.protobuf.schema import ProtobufSchema

EVERY = """syntax = "proto3"; package shop;
    import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
    message Other { message Inner { message Deep { int32 x = 1; } } }
    enum Kind { NONE = 0; BOOK = 1; ALSO = 2; }
    message Empty {}
    message Line { string text = 1; optional int32 pieces = 2; repeated Kind kinds = 3; }
    message Order {
      int64 id = 1; optional string note = 2; bool paid = 3; double price = 4; float weight = 5; bytes raw = 6;
      uint32 small = 7; fixed64 large = 8; sint32 minus = 9; sfixed64 far = 10; Kind kind = 11; Line first = 12;
      repeated Line lines = 13; map<string, int32> counts = 14; map<int64, Line> more = 15; repeated int32 packed = 16;
      oneof how { int32 card = 17; string voucher = 18; Line gift = 19; }
      google.protobuf.Timestamp at = 20; google.protobuf.Duration took = 21; Empty nothing = 22; bytes from = 23; }"""
SCHEMA = ProtobufSchema(EVERY)
ORDER = GetMessageClass(find_message(SCHEMA, "Order"))
INDEXES = b"\x02\x06"
UTC = dt.UTC


def decoded(payloads: list[bytes | None], reader: str = EVERY, message: str = "Order", skipped: int = 0) -> list[Any]:
    columns = ProtobufColumns(SCHEMA, ProtobufSchema(reader), message)
    array, verdicts = columns.decode(pa.array(payloads, pa.binary()), skipped)
    array.validate(full=True)
    assert array.type == columns.type
    return [value if verdict == Verdict.READ else Verdict(verdict)
            for value, verdict in zip(array.to_pylist(), verdicts, strict=True)]  # fmt: skip


def written(value: Any) -> bytes:
    return INDEXES + bytes(value.SerializeToString())


LINE = {"text": "ü", "pieces": 3, "kinds": ["BOOK", "NONE"]}
EMPTY_LINE: dict[str, Any] = {"text": "", "pieces": None, "kinds": []}
FULL: dict[str, Any] = {
    "id": -7, "note": "", "paid": True, "price": 0.5, "weight": 0.25, "raw": b"\xff", "small": -1, "large": -2,
    "minus": -5, "far": 2**62, "kind": "ALSO", "first": LINE, "lines": [EMPTY_LINE, LINE], "counts": [("a", 1)],
    "more": [(-1, LINE)], "packed": [1, -2], "card": None, "voucher": "v", "gift": None,
    "at": dt.datetime(1969, 12, 31, 23, 59, 59, 750_000, tzinfo=UTC), "took": dt.timedelta(milliseconds=-1500),
    "from": b"f",
}  # fmt: skip
NOTHING: dict[str, Any] = {
    "id": 0, "note": None, "paid": False, "price": 0.0, "weight": 0.0, "raw": b"", "small": 0, "large": 0, "minus": 0,
    "far": 0, "kind": "NONE", "first": None, "lines": [], "counts": [], "more": [], "packed": [], "card": None,
    "voucher": None, "gift": None, "at": None, "took": None, "from": b"",
}  # fmt: skip


def full_message() -> Any:
    line = {"text": "ü", "pieces": 3, "kinds": [1, 0]}
    value = ORDER(id=-7, note="", paid=True, price=0.5, weight=0.25, raw=b"\xff", small=2**32 - 1, large=2**64 - 2,
                  minus=-5, far=2**62, kind=2, first=line, lines=[{}, line], counts={"a": 1}, packed=[1, -2],
                  voucher="v", nothing={}, **{"from": b"f"})  # fmt: skip
    value.more[-1].CopyFrom(value.first)
    value.at.FromDatetime(FULL["at"])
    value.took.FromTimedelta(FULL["took"])
    return value


def test_every_type_is_read_as_protobuf_reads_it() -> None:
    assert decoded([written(full_message()), None, INDEXES, written(ORDER(kind=9))]) == [
        FULL, None, NOTHING, {**NOTHING, "kind": "UNKNOWN_ENUM_VALUE_Kind_9"},
    ]  # fmt: skip


def test_types_are_those_of_sparks_from_protobuf() -> None:
    kind = ProtobufColumns(SCHEMA, SCHEMA, "shop.Order").type
    shown = {each.name: each.type for each in kind}
    assert (shown["small"], shown["large"], shown["kind"]) == (pa.int32(), pa.int64(), pa.string())
    assert (shown["at"], shown["took"]) == (pa.timestamp("us", "UTC"), pa.duration("us"))
    assert shown["counts"] == pa.map_(pa.string(), pa.int32())
    assert "nothing" not in shown


def test_every_type_is_written_as_protobuf_writes_it() -> None:
    values = pa.array([FULL, None, {"id": 1}], ProtobufColumns(SCHEMA, SCHEMA, "Order").type)
    payloads = ProtobufWriter(SCHEMA, "Order").encode_values(values, b"\0\0\0\0\7").to_pylist()
    assert payloads[0][:7] == b"\0\0\0\0\7" + INDEXES
    message = full_message()
    message.ClearField("nothing")
    assert ORDER.FromString(payloads[0][7:]) == message
    assert payloads[1] is None
    assert ORDER.FromString(payloads[2][7:]) == ORDER(id=1)
    assert decoded(payloads, skipped=5)[:2] == [FULL, None]


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=30), st.integers(0, 90))
def test_any_bytes_are_read_or_marked(payload: bytes, at: int) -> None:
    good = written(full_message())
    payload = good[:at] + payload + good[at + len(payload) :]
    shown = decoded([good, payload, good])
    assert shown[0] == shown[2] == FULL
    if not payload.startswith(INDEXES):
        return
    try:
        ORDER.FromString(payload[2:])
    except DecodeError:
        assert shown[1] == Verdict.NOT_WRITTEN_WITH_IT
    else:
        assert not isinstance(shown[1], Verdict) or shown[1] == Verdict.NOT_READABLE


@pytest.mark.parametrize("indexes", [b"", b"\x02", b"\x02\x63", b"\x01", b"\x7f", b"\xff" * 6, b"\x04\0\x63"])
def test_indexes_of_no_message_are_marked(indexes: bytes) -> None:
    assert decoded([indexes]) == [Verdict.NOT_WRITTEN_WITH_IT]


def test_another_message_cannot_be_read() -> None:
    assert decoded([b"\0", INDEXES]) == [Verdict.NOT_READABLE, NOTHING]
    deep = ProtobufColumns(SCHEMA, SCHEMA, "Other.Inner.Deep")
    (payload,) = ProtobufWriter(SCHEMA, "Other.Inner.Deep").encode_values(pa.array([{"x": 5}])).to_pylist()
    assert payload == b"\x06\0\0\0\x08\x05"
    assert deep.decode(pa.array([payload]))[0].to_pylist() == [{"x": 5}]


def test_fields_are_found_by_number_and_packages_may_differ() -> None:
    reader = 'syntax = "proto3"; package new; message Order { int64 number = 1; optional int32 added = 99; }'
    assert decoded([written(ORDER(id=5, note="x"))], reader) == [{"number": 5, "added": None}]


def test_defaults_of_proto2() -> None:
    schema = ProtobufSchema(
        'syntax = "proto2"; message A { optional int32 a = 1 [default = 7]; optional int32 b = 2; }'
    )
    assert ProtobufColumns(schema, schema).decode(pa.array([b"\0"]))[0].to_pylist() == [{"a": 7, "b": None}]


def test_a_time_that_no_column_holds_costs_its_own_row() -> None:
    value = ORDER()
    value.at.seconds = 2**62
    assert decoded([INDEXES, written(value), INDEXES]) == [NOTHING, Verdict.NOT_READABLE, NOTHING]


def test_many_values_of_few_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_shapes, "VALUES_MAX", 1000)
    payload = written(ORDER(lines=[{}] * 300))
    with pytest.raises(TooManyValues, match="fewer at a time"):
        decoded([payload])
    monkeypatch.setattr(protobuf_shapes, "VALUES_MAX", 3000)
    assert len(decoded([payload])[0]["lines"]) == 300


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"card": 1, "voucher": "x"}, "card and voucher are of one oneof"),
        ({"kind": "NOPE"}, "NOPE"),
        ({"unknown": 1}, "unknown"),
        ({"packed": [1, None]}, "is not a value of the message shop.Order"),
        (5, "not a struct"),
    ],
)
def test_values_that_are_none_of_the_message_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        ProtobufWriter(SCHEMA, "Order").encode_values(pa.array([value]))


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ('syntax = "proto3"; message A { A next = 1; }', "", "contains itself"),
        ('syntax = "proto3"; message A { map<string, B> m = 1; } message B { A a = 1; }', "", "contains itself"),
        ('syntax = "proto3"; message A {}', "", "has no fields"),
        ('syntax = "proto3"; enum E { Z = 0; }', "", "no message"),
        (EVERY, "Order.Missing", "no message 'Order.Missing'"),
        (
            'syntax = "proto3"; message M0 { int32 x = 1; }'
            + "".join(f"message M{n + 1} {{ M{n} a = 1; M{n} b = 2; }}" for n in range(20)),
            "M20",
            "more than 10,000 columns",
        ),
    ],
)
def test_schemas_without_columns_are_refused(text: str, message: str, reason: str) -> None:
    schema = RegisteredSchema(text, "PROTOBUF", message=message)
    with pytest.raises(InvalidSchema, match=reason):
        make_columns(schema, schema)
