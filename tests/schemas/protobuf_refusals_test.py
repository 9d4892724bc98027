"""Texts and descriptors that are not Protobuf schemas: each is refused with a reason that names the place.

Zone: pure.
"""

from __future__ import annotations

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import MAX_BYTES
from ottla.schemas.protobuf.parser import MAX_LEVELS
from ottla.schemas.protobuf.schema import ProtobufSchema


def message(body: str, syntax: str = "proto3") -> str:
    return f'syntax = "{syntax}"; message M {{ {body} }}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('edition = "2023"; message M {}', "editions are not supported"),
        ('syntax = "proto4";', "syntax 'proto4' is not supported"),
        ("message M {", "is expected, not the end of the text"),
        ("message {}", "a name is expected, not '{'"),
        ("messages M {}", "message, enum, import"),
        ("{", "message, enum, import"),
        ("message M {}\n\n  $", r"line 3: '\$' is not expected"),
        ("/* never closed", "not '/'"),
        ('import "a.proto"; import "a.proto";', "is imported twice"),
        ('import "../../etc/passwd";', "has no reference"),
        ('import "google/protobuf/internal.proto";', "has no reference"),
        ("import a;", "the name of a file is expected"),
        ('import "a\n.proto";', "is not expected"),
        ("package a; package b;", "two packages"),
        ("package .a;", "does not begin with a dot"),
        ("option map_entry = ;", "a value is expected"),
        ("option java_package = 5;", "is not a value of the option java_package"),
        ("option optimize_for = FAST;", "is not a value of the option optimize_for"),
        ("option (a = 5;", r"'\)' is expected"),
        ("option (a) = { b: [ };", r"'\]' is expected, not '}'"),
        ("option (a) = { b: 1", "is expected, not the end"),
        ("message M {} message M {}", "M is defined twice"),
        ("message M {} enum M { A = 0; }", "M is defined twice"),
        ("message M { M.N n = 1; }", "begins with optional, required or repeated"),
        ("\ud800", "surrogate"),
        ("message M {}" + " " * MAX_BYTES, "characters; at most"),
        ("message " + "m" * 501 + " {}", "more than 500 characters"),
        ("package " + ".".join(["p" * 100] * 6) + ";", "more than 500 characters"),
        ("".join(f"message {'m' * 100} {{" for _ in range(6)) + "}" * 6, "more than 500 characters"),
        ("message M {" * 5_000 + "}" * 5_000, f"nested more than {MAX_LEVELS} levels"),
        ("option (a) = " + "{" * 100_000, "is expected, not the end"),
        ("service S { rpc A (E) returns (M); } enum E { X = 0; } message M {}", "E is an enum, where a message is"),
        ("service S { rpc A (X) returns (X); }", "'X', used in S, is not defined"),
        ("service S { message }", "rpc or option is expected"),
        ("extend X { optional int32 a = 1; }", "'X', used in the file, is not defined"),
        ("message M {} extend M { optional int32 a = 1; }", "number 1 of the file.a is not for extensions of M"),
        ("message M { extensions 1; } extend M { required int32 a = 1; }", "is a required extension"),
        ("message M { extensions 1; } extend M { map<int32, int32> a = 1; }", "a map is not an extension"),
    ],
)  # fmt: skip
def test_bad_files_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        ProtobufSchema(text)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("int32 a = 1; int32 b = 1;", r"M\.b has the number 1 of a"),
        ("int32 a = 1; string a = 2;", "two fields with the name a"),
        ("int32 a = 0;", "0 is out of range"),
        ("int32 a = -1;", "-1 is out of range"),
        ("int32 a = 536870912;", "536870912 is out of range"),
        ("int32 a = 99999999999999999999999999999999999;", "is not a number"),
        ("int32 a = 18999; int32 b = 19000;", "19000 of M.b is reserved: 19000 to 19999"),
        ("int32 a = 19999;", "19999 of M.a is reserved"),
        ("int32 a = 1x;", "a letter follows the number 1"),
        ("int32 a = 089;", "089 is not a number"),
        ("int32 a = 1.5;", "the number of a field is expected"),
        ("int32 a;", "'=' is expected"),
        ("int32 a = 1", "';' is expected"),
        ("Unknown a = 1;", "the type 'Unknown', used in M, is not defined"),
        ("M.Unknown a = 1;", "is not defined"),
        (".M.Unknown a = 1;", "is not defined"),
        ("required int32 a = 1;", "proto3 has no required fields"),
        ("repeated group A = 1 {}", "groups are not supported"),
        ("int32 a = 1 [default = 5];", "proto3 has no defaults"),
        ("int32 a = 1 [packed = 5];", "is not a value of the option packed"),
        ("int32 a = 1 [];", "the name of an option is expected"),
        ("extensions 100 to 200;", "has extensions, which proto3 does not have"),
        ("reserved 5; int32 a = 5;", "the number 5 of M.a is reserved"),
        ("reserved 5 to 7; int32 a = 4; int32 b = 7;", "the number 7 of M.b is reserved"),
        ("reserved 5 to max; int32 a = 100000;", "is reserved"),
        ('reserved "a"; int32 a = 5;', "the name a is reserved"),
        ("reserved 5 to 7, 7;", "ranges of M overlap at 7"),
        ("reserved 7 to 5;", "a range ends at 5, before its begin"),
        ("reserved a;", "a number is expected"),
        ("oneof o {}", "the oneof o of M has no fields"),
        ("oneof o { repeated int32 a = 1; }", "a field of a oneof has no label"),
        ("oneof o { map<int32, int32> a = 1; }", "is in no oneof"),
        ("oneof o { oneof p { int32 a = 1; } }", "is expected"),
        ("repeated map<int32, int32> a = 1;", "a field of type map has no label"),
        ("map<float, int32> a = 1;", "the keys of M.AEntry are not"),
        ("map<M, int32> a = 1;", "the keys of M.AEntry are not"),
        ("map<bytes, int32> a = 1;", "the keys of M.AEntry are not"),
        ("map<int32, map<int32, int32>> a = 1;", "is expected, not '<'"),
        ("map<int32> a = 1;", "',' is expected"),
        ("map<int32, int32> a = 1; message AEntry {}", "M.AEntry is defined twice"),
        ("option map_entry = true;", "map_entry is not for texts"),
        ("enum E {}", "the enum M.E has no values"),
        ("enum E { A = 1; }", "first value of the enum M.E is not 0"),
        ("enum E { A = 0; B = 0; }", "M.E.B has the number 0 of A; allow_alias"),
        ("enum E { A = 0; A = 1; }", "two values of enums have the name M.A"),
        ("enum E { A = 0; } enum F { A = 0; }", "two values of enums have the name M.A"),
        ("enum E { A = 2147483648; }", "is out of range"),
        ("enum E { A = 0 [default = 1, packed]; }", "'=' is expected"),
        ("enum E { A = 0; reserved 0; }", "the number 0 of M.E.A is reserved"),
        ("string a = 1 [json_name = 5];", "a string is expected"),
        (r'string a = 1 [json_name = "\q"];', "unknown escape"),
        (r'string a = 1 [json_name = "\ud800"];', "without a character"),
        ("".join(f"int32 a{each} = {each + 20_000};" for each in range(40_000)) + " E e = 1;", "'E', used in M"),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_bad_messages_are_refused(body: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        ProtobufSchema(message(body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("int32 a = 1;", "begins with optional, required or repeated"),
        ("optional group A = 1 { optional int32 b = 2; }", "groups are not supported"),
        ("optional int32 a = 1 [default = 'x'];", "is not a default of the field a"),
        ("optional int32 a = 1 [default = 2147483648];", "is not a default"),
        ("optional uint32 a = 1 [default = -1];", "is not a default"),
        ("optional bool a = 1 [default = 1];", "is not a default"),
        ("optional int32 a = 1 [default = 1, default = 1];", "has two defaults"),
        ("repeated int32 a = 1 [default = 1];", "has a default, but not one value"),
        ("optional M a = 1 [default = x];", "has a default, but not one value"),
        ("extensions 5 to 7; optional int32 a = 6;", "the number 6 of M.a is for extensions"),
        ("extensions 5 to 7; reserved 7 to 9;", "ranges of M overlap at 7"),
    ],
)
def test_bad_messages_of_proto2_are_refused(body: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        ProtobufSchema(message(body, "proto2"))


def test_descriptors_are_checked_by_the_same_rules() -> None:
    def refuse(reason: str, file: FileDescriptorProto) -> None:
        with pytest.raises(InvalidSchema, match=reason):
            ProtobufSchema(base64.b64encode(file.SerializeToString()).decode())

    refuse("syntax 'editions' is not supported", FileDescriptorProto(syntax="editions", package="p"))
    deep = FileDescriptorProto(package="p")
    below = deep.message_type.add(name="M")
    for _ in range(MAX_LEVELS):
        below = below.nested_type.add(name="M")
    refuse("nested more than", deep)
    group = FileDescriptorProto()
    group.message_type.add(name="M").field.add(name="a", number=1, label=1, type=10, type_name=".M")
    refuse("M.a is a group", group)
    entry = FileDescriptorProto()
    entry.message_type.add(name="M").options.map_entry = True
    refuse("M is no entry of a map", entry)
    untyped = FileDescriptorProto()
    untyped.message_type.add(name="M").field.add(name="a", number=1, label=1)
    refuse("M.a has no type", untyped)
    outside = FileDescriptorProto()
    outside.message_type.add(name="M").field.add(name="a", number=1, label=1, type=5, oneof_index=3)
    refuse("unknown oneof", outside)
    refuse("public import is not among", FileDescriptorProto(package="p", public_dependency=[4]))
    refuse("runtime of Protobuf refuses", FileDescriptorProto(package="a-b"))


def test_large_schemas_are_parsed_in_time() -> None:
    """An enum and a message that take most of the text; recursive messages and long comments cost nothing."""
    values = "".join(f"V{each}={each};" for each in range(60_000))
    assert len(ProtobufSchema(f'syntax = "proto3"; enum E {{ {values} }}').file.enum_type[0].value) == 60_000
    fields = "".join(f"M a{each}={each + 1};" for each in range(3_000))
    assert len(ProtobufSchema(message(fields)).file.message_type[0].field) == 3_000
    ProtobufSchema("/*" + "*" * 500_000 + "*/" + "//" + "/" * 400_000)
    with pytest.raises(InvalidSchema, match="runtime of Protobuf refuses"):
        ProtobufSchema(message("".join(f"M a{each}={each + 20_000};" for each in range(10_000))))
