"""Protobuf schemas: which texts are ones, and which descriptors they mean.

Zone: pure. protoc is not needed: the runtime's own descriptors are shown as texts, and parsed again.
"""

from __future__ import annotations

import base64
import sys
from importlib import import_module

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.schemas.protobuf_text import SCALARS, render_file

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.formats import parse_schema
from ottla.schemas.protobuf import schema as schemas
from ottla.schemas.protobuf.parser import parse_proto
from ottla.schemas.protobuf.schema import ProtobufSchema

KNOWN = ["any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type",
         "wrappers"]  # fmt: skip


def message(body: str, syntax: str = "proto3") -> str:
    return f'syntax = "{syntax}"; message M {{ {body} }}'


def field_of(body: str, syntax: str = "proto3") -> FieldDescriptorProto:
    return ProtobufSchema(message(body, syntax)).file.message_type[0].field[0]


# -- descriptors -------------------------------------------------------------------------------------------------------


def without_features(file: FileDescriptorProto) -> FileDescriptorProto:
    """A descriptor without what the printer of the tests does not show: options that are messages, and JSON names."""
    left = [file]
    while left:
        each = left.pop()
        for field, value in each.ListFields():
            if field.message_type is None:
                continue
            if field.name == "options":
                for option, _ in value.ListFields():
                    if option.message_type is not None or option.is_extension:
                        value.ClearField(option.name)
                if not value.ListFields():
                    each.ClearField("options")
            left += value if hasattr(value, "append") else [value]
    return file


@pytest.mark.parametrize("name", KNOWN)
def test_the_files_of_the_runtime_are_parsed_to_their_own_descriptors(name: str) -> None:
    file = FileDescriptorProto()
    file.ParseFromString(import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.serialized_pb)
    without_features(file)
    parsed = parse_proto(render_file(file))
    parsed.name = file.name
    for each in parsed.DESCRIPTOR.fields_by_name:  # names of types are resolved later
        assert each in ("message_type", "extension") or getattr(parsed, each) == getattr(file, each)
    schema = ProtobufSchema(render_file(file), {})
    expected = ProtobufSchema(base64.b64encode(file.SerializeToString()).decode())
    assert schema.canonical == expected.canonical
    assert [each.name for each in schema.file.message_type] == [each.name for each in file.message_type]


IDENTIFIERS = st.sampled_from(["a", "b_c", "D", "e1", "message", "option", "syntax", "to", "max", "reserved", "f_2"])
NUMBERS = st.one_of(st.integers(1, 30), st.integers(20_000, 2**29 - 1))


@st.composite
def files(draw: st.DrawFn) -> FileDescriptorProto:
    """A file with messages, enums, maps and oneofs, that keeps the rules."""
    is_proto3 = draw(st.booleans())
    file = FileDescriptorProto(syntax="proto3" if is_proto3 else "", package=draw(st.sampled_from(["", "p", "p.q.r"])))
    enum = file.enum_type.add(name="Kind")
    enum.value.add(name="ZERO", number=0)
    for number in draw(st.lists(st.integers(-(2**31), 2**31 - 1), unique=True, max_size=3)):
        if number:
            enum.value.add(name=f"V{number}".replace("-", "_"), number=number)
    left = [file.message_type.add(name=f"M{at}") for at in range(draw(st.integers(1, 3)))]
    while left:
        each = left.pop()
        _draw_fields(draw, each, is_proto3, file.package)
        if len(file.SerializeToString()) < 1_000 and draw(st.booleans()):
            left.append(each.nested_type.add(name="Inner"))
    return file


def _draw_fields(draw: st.DrawFn, made: object, is_proto3: bool, package: str) -> None:
    numbers = draw(st.lists(NUMBERS, unique=True, max_size=6))
    names = draw(st.lists(IDENTIFIERS, unique=True, min_size=len(numbers), max_size=len(numbers)))
    prefix = f".{package}." if package else "."
    for name, number in zip(names, numbers, strict=True):
        field = made.field.add(
            name=name, number=number, label=draw(st.sampled_from([1, 3] if is_proto3 else [1, 2, 3]))
        )
        kind = draw(st.sampled_from([*SCALARS, 11, 14]))
        field.type = kind
        if kind in (11, 14):
            field.type_name = prefix + ("M0" if kind == 11 else "Kind")
        if is_proto3 and field.label == 1 and draw(st.booleans()):
            field.proto3_optional = True
        if draw(st.booleans()):
            field.options.deprecated = draw(st.booleans())
    if is_proto3:
        for field in made.field:
            if field.proto3_optional:
                field.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name="_" + field.name)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(files())
def test_random_files_are_parsed_to_their_own_descriptors(file: FileDescriptorProto) -> None:
    text = render_file(file)
    expected = ProtobufSchema(base64.b64encode(file.SerializeToString()).decode())
    parsed = ProtobufSchema(text)
    assert parsed.file == expected.file
    assert ProtobufSchema(parsed.serialize()).canonical == parsed.canonical == expected.canonical


@given(st.text(alphabet="aM{}();=\"'/*,.<>[]-0129 \n\\x\0"))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        schema = ProtobufSchema("message M { " + text)
    except InvalidSchema:
        return
    assert schema.file.message_type[0].name == "M"


@given(st.binary(max_size=80))
def test_any_descriptor_is_a_schema_or_refused(content: bytes) -> None:
    try:
        ProtobufSchema(base64.b64encode(content).decode() or "AA==")
    except InvalidSchema:
        return


# -- what texts mean ---------------------------------------------------------------------------------------------------


def test_a_file_with_everything() -> None:
    file = ProtobufSchema(
        """// a comment
        syntax = 'proto3'; /* another ** one */ package shop.orders;
        import "google/protobuf/timestamp.proto"; import public "google/protobuf/any.proto";
        option java_package = "com" ".shop"; option optimize_for = SPEED; option (my.option).part = { a: [1, <b: 2>] };
        message Order {
          option deprecated = true;
          optional int32 id = 1 [json_name = "orderId", (mine) = -1.5e3];
          map<string, Line> lines = 2;
          oneof payment { option (x) = inf; string card = 3; Order.Cash cash = 0x4; }
          message Cash { google.protobuf.Timestamp at = 1; Kind kind = 2; }
          message Line {};
          enum Kind { option allow_alias = true; NONE = 0; COINS = 1 [deprecated = true]; EURO = 01;
            reserved -5 to -1; reserved "OLD"; }
          reserved 5, 7 to 9, 1000 to max; reserved "name", 'other';
        }
        service Orders { option deprecated = true;
          rpc Get (Order) returns (stream Order.Line) { option deprecated = true; };
          rpc Put (stream .shop.orders.Order) returns (Order); }
        ;"""
    ).file
    order = file.message_type[0]
    assert (file.package, file.dependency[0]) == ("shop.orders", "google/protobuf/timestamp.proto")
    assert (list(file.public_dependency), file.options.java_package) == ([1], "com.shop")
    assert [(each.name, each.number, each.type_name) for each in order.field] == [
        ("id", 1, ""),
        ("lines", 2, ".shop.orders.Order.LinesEntry"),
        ("card", 3, ""),
        ("cash", 4, ".shop.orders.Order.Cash"),
    ]
    assert [each.name for each in order.oneof_decl] == ["payment", "_id"]
    assert (order.field[0].oneof_index, order.field[0].proto3_optional, order.field[0].json_name) == (
        1,
        True,
        "orderId",
    )
    assert [each.name for each in order.nested_type] == ["LinesEntry", "Cash", "Line"]
    assert [(each.start, each.end) for each in order.reserved_range] == [(5, 6), (7, 10), (1000, 2**29)]
    assert [each.number for each in order.enum_type[0].value] == [0, 1, 1]
    methods = file.service[0].method
    assert [each.output_type for each in methods] == [".shop.orders.Order.Line", ".shop.orders.Order"]
    assert [(each.client_streaming, each.server_streaming) for each in methods] == [(False, True), (True, False)]
    kept = file.options.uninterpreted_option[0]
    assert [(each.name_part, each.is_extension) for each in kept.name] == [("my.option", True), ("part", False)]
    assert kept.aggregate_value == "a : [ 1 , < b : 2 > ]"


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("optional int32 a = 1 [default = -0x10];", "-16"),
        ("optional uint64 a = 1 [default = 18446744073709551615];", "18446744073709551615"),
        ("optional double a = 1 [default = 1e3];", "1000"),
        ("optional float a = 1 [default = -1.5];", "-1.5"),
        ("optional double a = 1 [default = -inf];", "-inf"),
        ("optional double a = 1 [default = nan];", "nan"),
        ("optional bool a = 1 [default = true];", "true"),
        (r"""optional string a = 1 [default = "a\n\x41" 'b"'];""", 'a\nAb"'),
        (r'optional bytes a = 1 [default = "\377\\\x01ä"];', r"\377\\\001\344"),
        ("optional E a = 1 [default = B]; enum E { A = 0; B = 1; }", "B"),
    ],
)
def test_defaults_have_the_form_of_descriptors(declaration: str, expected: str) -> None:
    assert field_of(declaration, "proto2").default_value == expected


def test_names_are_found_from_the_inside_outwards() -> None:
    text = """syntax = "proto3"; package a.b;
        message M { message N { M m = 1; N n = 2; a.b.M.O o = 3; b.P p = 4; message M {} } message O {} }
        message P {}"""
    fields = ProtobufSchema(text).file.message_type[0].nested_type[0].field
    assert [each.type_name for each in fields] == [".a.b.M.N.M", ".a.b.M.N", ".a.b.M.O", ".a.b.P"]


def test_the_first_part_of_a_name_decides() -> None:
    text = """syntax = "proto3"; package a; message M { message a {} a.N n = 1; } message N {}"""
    with pytest.raises(InvalidSchema, match=r"'a\.N', used in a\.M, is not defined"):
        ProtobufSchema(text)


def test_a_text_without_syntax_is_proto2() -> None:
    schema = ProtobufSchema(
        "message M { required int32 a = 1; extensions 100 to 199; } extend M { optional int32 b = 100; }"
    )
    assert (schema.file.syntax, schema.file.extension[0].extendee) == ("", ".M")
    assert (
        schema.canonical
        == ProtobufSchema(
            'syntax = "proto2";'
            "message M { required int32 a = 1; extensions 100 to 199; } extend M { optional int32 b = 100; }"
        ).canonical
    )


def test_spaces_comments_and_the_spelling_of_names_do_not_matter() -> None:
    one = parse_schema("PROTOBUF", 'syntax="proto3";package p;message M{N n=1;message N{}}')
    two = parse_schema(
        "PROTOBUF", "// x\nsyntax = 'proto3';\npackage p;\nmessage M {\n .p.M.N n = 0x1; message N { } /* y */ }\n"
    )
    other = parse_schema("PROTOBUF", 'syntax="proto3";package p;message M{N n=2;message N{}}')
    assert one.canonical == two.canonical != other.canonical


def test_a_descriptor_is_accepted_in_base64_and_equal_to_its_text() -> None:
    schema = ProtobufSchema(message("int32 user_id = 1; optional string b = 2;"))
    file = FileDescriptorProto()
    file.CopyFrom(schema.file)
    file.name, file.message_type[0].field[0].json_name = "other.proto", "userId"
    file.source_code_info.location.add(leading_comments="x")
    again = ProtobufSchema(base64.b64encode(file.SerializeToString()).decode())
    assert again.canonical == schema.canonical
    for bad in ("AAAA", base64.b64encode(b"\x0a\x05ab").decode(), "abc"):
        with pytest.raises(InvalidSchema, match=r"neither a \.proto text nor"):
            ProtobufSchema(bad)


# -- imports -----------------------------------------------------------------------------------------------------------

FIRST = 'syntax = "proto3"; package one; message A { int32 a = 1; }'


def importing(*names: str, body: str = "", keyword: str = "") -> str:
    return 'syntax = "proto3";' + "".join(f'import {keyword} "{name}";' for name in names) + body


def test_imports_are_references_by_name() -> None:
    text = importing("x/first.proto", body="message B { one.A a = 1; }")
    assert ProtobufSchema(text, {"x/first.proto": FIRST}).types["one.A"].proto.field[0].name == "a"
    with pytest.raises(InvalidSchema, match=r"'x/first\.proto' has no reference"):
        ProtobufSchema(text, {"first.proto": FIRST})


def test_public_imports_are_seen_by_those_who_import_the_file() -> None:
    use = importing("middle", body="message B { one.A a = 1; }")
    ProtobufSchema(use, {"middle": importing("first", keyword="public"), "first": FIRST})
    with pytest.raises(InvalidSchema, match=r"'one\.A', used in B, is not defined"):
        ProtobufSchema(use, {"middle": importing("first"), "first": FIRST})


@pytest.mark.parametrize("names", [("schema.proto",), ("a", "b"), ("a", "b", "c")])
def test_imports_that_lead_in_a_circle_are_refused(names: tuple[str, ...]) -> None:
    texts = {name: importing(names[(at + 1) % len(names)]) for at, name in enumerate(names)}
    with pytest.raises(InvalidSchema, match="imports lead in a circle"):
        ProtobufSchema(importing(names[0]), texts)


def test_confluents_files_need_no_reference() -> None:
    text = importing(
        "confluent/meta.proto", "confluent/types/decimal.proto", "confluent/type/variant.proto",
        body="message M { option (confluent.message_meta).doc = 'x'; confluent.type.Decimal d = 1; "
             "confluent.Meta m = 2; confluent.type.Variant v = 3; }",
    )  # fmt: skip
    assert len(ProtobufSchema(text).file.message_type[0].field) == 3


def test_a_file_that_two_import_is_read_once() -> None:
    references = {"first": FIRST, "left": importing("first", body="message L { one.A a = 1; }"),
                  "right": importing("first", body="message R { one.A a = 1; }")}  # fmt: skip
    ProtobufSchema(importing("left", "right", body="message B { L l = 1; R r = 2; }"), references)


def test_an_error_in_an_import_names_the_file() -> None:
    with pytest.raises(InvalidSchema, match=r"^in 'first': in 'second': line 1: "):
        ProtobufSchema(importing("first"), {"first": importing("second"), "second": "message;"})


def test_schemas_are_refused_that_are_too_large_with_their_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_CHARACTERS", 100)
    with pytest.raises(InvalidSchema, match="more than 100 characters"):
        ProtobufSchema(importing("first"), {"first": FIRST + " " * 100})


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("google.protobuf.descriptor_pool", "google.protobuf.descriptor_pb2"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidSchema, match="pip install 'protobuf>=5'"):
        ProtobufSchema(FIRST)
    assert parse_schema("AVRO", '"int"').canonical == '"int"'


def test_googles_types_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.type.money_pb2", None)
    with pytest.raises(InvalidSchema, match="pip install googleapis-common-protos"):
        ProtobufSchema(importing("google/type/money.proto"))
