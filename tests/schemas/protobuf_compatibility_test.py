"""Which Protobuf schemas read what others wrote: a table of changes with Schema Registry's names, in both directions.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.protobuf import compatibility
from ottla.schemas.protobuf.compatibility import find_protobuf_incompatibilities
from ottla.schemas.protobuf.schema import ProtobufSchema

SCALARS = ["int32", "int64", "uint32", "uint64", "bool", "sint32", "sint64", "string", "bytes", "fixed32", "sfixed32",
           "fixed64", "sfixed64", "float", "double", "E"]  # fmt: skip
ALIKE = [{"int32", "int64", "uint32", "uint64", "bool", "E"}, {"sint32", "sint64"}, {"string", "bytes"},
         {"fixed32", "sfixed32"}, {"fixed64", "sfixed64"}]  # fmt: skip


def file(body: str, syntax: str = "proto3", imports: str = "", package: str = "") -> str:
    head = "".join(f'import "{name}";' for name in imports.split())
    return f'syntax = "{syntax}"; {f"package {package};" if package else ""} {head} {body}'


def message(body: str, syntax: str = "proto3") -> str:
    return file(f"message M {{ {body} }}", syntax)


def reasons(
    reader: str, writer: str, reads: dict[str, str] | None = None, writes: dict[str, str] | None = None
) -> list[str]:
    """Kinds and paths of incompatibilities."""
    found = find_protobuf_incompatibilities(ProtobufSchema(reader, reads), ProtobufSchema(writer, writes))
    return [f"{each.kind} {each.path}" for each in found]


@pytest.mark.parametrize(
    ("one", "two", "one_reads_two", "two_reads_one"),
    [
        # Fields are known by their numbers.
        ("int32 a = 1;", "int32 b = 1;", [], []),
        ("int32 a = 1;", "int32 a = 1; int32 b = 2;", [], []),
        ("int32 a = 1;", "int32 a = 2;", [], []),
        ("reserved 1; int32 b = 2;", "int32 a = 1; int32 b = 2;", [], []),
        # Kinds of types.
        ("int32 a = 1;", "string a = 1;", ["FIELD_SCALAR_KIND_CHANGED #/M/1"], ["FIELD_SCALAR_KIND_CHANGED #/M/1"]),
        ("int32 a = 1;", "M a = 1;", ["FIELD_KIND_CHANGED #/M/1"], ["FIELD_KIND_CHANGED #/M/1"]),
        ("map<int32, M> a = 1;", "repeated M a = 1;", ["FIELD_KIND_CHANGED #/M/1"], ["FIELD_KIND_CHANGED #/M/1"]),
        ("map<int32, M> a = 1;", "int32 a = 1;", ["FIELD_KIND_CHANGED #/M/1"], ["FIELD_KIND_CHANGED #/M/1"]),
        ("map<int32, M> a = 1;", "map<int64, M> b = 1;", [], []),
        (
            "map<int32, string> a = 1;",
            "map<string, int32> a = 1;",
            ["FIELD_SCALAR_KIND_CHANGED #/M/1"] * 2,
            ["FIELD_SCALAR_KIND_CHANGED #/M/1"] * 2,
        ),
        ("map<int32, M> a = 1;", "map<int32, bool> a = 1;", ["FIELD_KIND_CHANGED #/M/1"], ["FIELD_KIND_CHANGED #/M/1"]),
        (
            "N a = 1; message N {} message O {}",
            "O a = 1; message N {} message O {}",
            ["FIELD_NAMED_TYPE_CHANGED #/M/1"],
            ["FIELD_NAMED_TYPE_CHANGED #/M/1"],
        ),
        ("N a = 1; message N {}", "M.N a = 1; message N {}", [], []),
        # Messages and enums.
        ("message N {}", "", [], ["MESSAGE_REMOVED #/M/N"]),
        ("message N {} message O {}", "message O {} message N {}", [], []),
        ("map<int32, int32> a = 1;", "", [], []),
        ("enum E { A = 0; B = 1; }", "", [], []),
        ("enum E { A = 0; B = 1; }", "enum E { A = 0; C = 1; D = 2; }", [], []),
        (
            "message N { int32 a = 1; }",
            "message N { string a = 1; }",
            ["FIELD_SCALAR_KIND_CHANGED #/M/N/1"],
            ["FIELD_SCALAR_KIND_CHANGED #/M/N/1"],
        ),
        # Labels count where both are written.
        ("optional string a = 1;", "repeated bytes a = 1;", [], []),
        ("optional M a = 1;", "repeated M a = 1;", [], []),
        (
            "optional int32 a = 1;",
            "repeated int32 a = 1;",
            ["FIELD_NUMERIC_LABEL_CHANGED #/M/1"],
            ["FIELD_NUMERIC_LABEL_CHANGED #/M/1"],
        ),
        ("int32 a = 1;", "repeated int32 a = 1;", [], []),
        ("int32 a = 1;", "optional int32 a = 1;", [], []),
        # Oneofs.
        ("int32 a = 1; oneof o { int32 b = 2; }", "int32 a = 1; int32 b = 2;", [], []),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof p { int32 a = 1; int32 b = 2; }", [], []),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; }", [], ["ONEOF_FIELD_REMOVED #/M/o/2"]),
        ("oneof o { int32 a = 1; int32 b = 2; }", "int32 c = 3;", [], []),
        ("oneof o { int32 a = 1; int32 b = 2; }", "int32 a = 1;", [], ["ONEOF_FIELD_REMOVED #/M/o/2"]),
        ("oneof o { int32 a = 1; }", "oneof o { string a = 1; }", *[["FIELD_SCALAR_KIND_CHANGED #/M/o/1"]] * 2),
        (
            "oneof o { int32 a = 1; int32 b = 2; }",
            "int32 a = 1; int32 b = 2;",
            ["MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o"],
            [],
        ),
        (
            "oneof o { int32 a = 1; int32 b = 2; }",
            "int32 a = 1; oneof o { int32 b = 2; }",
            ["FIELD_MOVED_TO_EXISTING_ONEOF #/M/o"],
            [],
        ),
        (
            "oneof o { int32 a = 1; int32 b = 2; }",
            "oneof o { int32 a = 1; } oneof p { int32 b = 2; }",
            ["FIELD_MOVED_TO_EXISTING_ONEOF #/M/o"],
            [],
        ),
        ("oneof o { int32 a = 1; int32 b = 2; }", "optional int32 a = 1; optional int32 b = 2;",
         ["MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o"], []),
    ],
)  # fmt: skip
def test_changes_of_a_message(one: str, two: str, one_reads_two: list[str], two_reads_one: list[str]) -> None:
    assert reasons(message(one), message(two)) == one_reads_two
    assert reasons(message(two), message(one)) == two_reads_one


@pytest.mark.parametrize(
    ("one", "two", "one_reads_two", "two_reads_one"),
    [
        ("required int32 a = 1;", "", ["REQUIRED_FIELD_ADDED #/M/1"], ["REQUIRED_FIELD_REMOVED #/M/1"]),
        ("optional int32 a = 1;", "", [], []),
        (
            "required int32 a = 1;",
            "optional int32 a = 1;",
            ["FIELD_NUMERIC_LABEL_CHANGED #/M/1"],
            ["FIELD_NUMERIC_LABEL_CHANGED #/M/1"],
        ),
        ("required string a = 1;", "optional string a = 1;", [], []),
        ("optional int32 a = 1;", "oneof o { int32 a = 1; }", [], []),
        ("extensions 5;", "extensions 6;", [], []),
    ],
)
def test_changes_of_a_message_of_proto2(one: str, two: str, one_reads_two: list[str], two_reads_one: list[str]) -> None:
    assert reasons(message(one, "proto2"), message(two, "proto2")) == one_reads_two
    assert reasons(message(two, "proto2"), message(one, "proto2")) == two_reads_one


@pytest.mark.parametrize("reader", SCALARS)
def test_scalars_are_read_as_others_of_their_group(reader: str) -> None:
    tail = " enum E { A = 0; }"
    for writer in SCALARS:
        is_alike = reader == writer or any({reader, writer} <= group for group in ALIKE)
        found = reasons(message(f"{reader} a = 1;" + tail), message(f"{writer} a = 1;" + tail))
        assert (found == []) == is_alike, writer


def test_changes_of_a_file() -> None:
    assert reasons(file("message M {}"), file("message M {} message N {}")) == ["MESSAGE_REMOVED #/N"]
    assert reasons(file("message M { M m = 1; }", package="p"), file("message M { M m = 1; }", package="q.r")) == []
    assert reasons(file("message M {} service S {}"), file("message M {}", "proto2")) == []
    assert reasons(file(""), file("enum E { A = 0; }")) == []


def test_types_of_imported_files_are_compared_where_they_are_used() -> None:
    def importing(field: str, package: str = "p") -> tuple[str, dict[str, str]]:
        text = file(
            f"message N {{ O o = 1; }} message O {{ {field} N n = 2; }} message Unused {{ {field} }}", package=package
        )
        return file(f"message M {{ {package}.N n = 1; map<string, {package}.O> o = 2; }}", imports="n.proto"), {
            "n.proto": text
        }

    (reader, reads), (writer, writes) = importing("int32 a = 1;"), importing("string a = 1;")
    found = ["FIELD_NAMED_TYPE_CHANGED #/M/1", "FIELD_NAMED_TYPE_CHANGED #/M/2", "FIELD_SCALAR_KIND_CHANGED #/O/1"]
    assert reasons(reader, writer, reads, writes) == found
    assert reasons(reader, reader, reads, reads) == []
    other, others = importing("int64 b = 1;", package="q")
    assert reasons(reader, other, reads, others) == []
    local = file(
        "message M { N n = 1; map<string, O> o = 2; } message N { O o = 1; } message O { string a = 1; N n = 2; }"
    )
    assert reasons(local, reader, {}, reads) == found
    assert reasons(reader, local, reads, {}) == [*found[:2], "MESSAGE_REMOVED #/N", "MESSAGE_REMOVED #/O", found[2]]


def test_long_chains_of_imported_messages_are_compared() -> None:
    def chain(last: str) -> dict[str, str]:
        links = "".join(f"message N{each} {{ N{each + 1} n = 1; }}" for each in range(5_000))
        return {"n": file(f"{links} message N5000 {{ {last} n = 1; }}", package="p")}

    text = file("message M { p.N0 n = 1; p.N4999 o = 2; }", imports="n")
    found = reasons(text, text, chain("int32"), chain("string"))
    assert found == [
        "FIELD_NAMED_TYPE_CHANGED #/M/1",
        "FIELD_NAMED_TYPE_CHANGED #/M/2",
        "FIELD_SCALAR_KIND_CHANGED #/N5000/1",
    ]
    assert reasons(text, text, chain("int32"), chain("int64")) == []


def test_schemas_that_take_too_long_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "MAX_COMPARISONS", 100)
    many = message("".join(f"int32 a{each} = {each};" for each in range(1, 102)))
    with pytest.raises(InvalidSchema, match="more than 100 steps"):
        reasons(many, many)


# -- random pairs ------------------------------------------------------------------------------------------------------


def _bodies() -> st.SearchStrategy[str]:
    kinds = st.sampled_from([*SCALARS, "M", "repeated string", "map<string, int32>", "map<int32, M>"])

    def show(numbers: list[int], drawn: list[str], oneof: int) -> Iterator[str]:
        names = [f"{kind} f{number} = {number};" for kind, number in zip(drawn, numbers, strict=True)]
        alone = [each for each in names if "<" not in each and "repeated" not in each][:oneof]
        yield from (each for each in names if each not in alone)
        yield f"oneof o {{ {' '.join(alone)} }}" if alone else ""

    numbers = st.lists(st.integers(1, 5), unique=True, max_size=5)
    return numbers.flatmap(
        lambda found: st.builds(
            lambda drawn, oneof: " ".join(show(found, drawn, oneof)) + " enum E { A = 0; B = 1; }",
            st.lists(kinds, min_size=len(found), max_size=len(found)),
            st.integers(0, 3),
        )
    )


def _fill(message: Any, depth: int = 0) -> None:
    """Set each field that is not in a oneof with a later one."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None:
            value = {field.CPPTYPE_STRING: "x", field.CPPTYPE_BOOL: True}.get(field.cpp_type, 1)
            value = value.encode() if field.type == field.TYPE_BYTES else value
            if hasattr(getattr(message, field.name), "append"):
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        elif depth < 2 and not field.message_type.GetOptions().map_entry:
            _fill(getattr(message, field.name), depth + 1)


def _class_of(schema: ProtobufSchema) -> Any:
    return GetMessageClass(schema.pool.FindMessageTypeByName("M"))


@settings(max_examples=150)
@given(_bodies(), _bodies())
def test_what_is_compatible_parses_what_was_written(one: str, two: str) -> None:
    reader, writer = ProtobufSchema(message(one)), ProtobufSchema(message(two))
    assert find_protobuf_incompatibilities(writer, writer) == []
    if find_protobuf_incompatibilities(reader, writer):
        return
    written, read = _class_of(writer)(), _class_of(reader)()
    _fill(written)
    read.ParseFromString(written.SerializeToString())
    shared = {field.number for field in written.DESCRIPTOR.fields} & {field.number for field in read.DESCRIPTOR.fields}
    before, after = ({field.number for field, _ in each.ListFields()} & shared for each in (written, read))
    assert before == after
