"""How the type of a reader's schema is made of the columns of a writer's: schema resolution of the Avro specification
1.12, decided once per pair of schemas.

Zone: pure. It needs the writer's columns only: a column that may be null is one of which rows are null. Rows that a
reader's type cannot hold (a null where it has none, a type that its union lacks, a symbol that its enum lacks) are
marked while arrays are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ottla.schemas.avro import AvroSchema, type_of
from ottla.schemas.avro_compatibility import MAX_COMPARISONS, PROMOTED, has_name
from ottla.schemas.columns.program import Column, Program
from ottla.schemas.columns.types import arrow_type, default_of, members_of
from ottla.schemas.errors import InvalidSchema

NO_COLUMN: Final = -1


class Output(NamedTuple):
    """An array that is made of the writer's columns."""

    kind: str
    """The reader's type; or `default`: one value for all rows; `first`: the first of its parts that is not null."""
    node: Any
    """The reader's node, resolved."""
    type: pa.DataType
    column: int
    """The writer's column; NO_COLUMN: a default."""
    parts: tuple[Output, ...] = ()
    is_required: bool = False
    """Whether a null in the writer's column cannot be read."""
    unread: tuple[int, ...] = ()
    """Columns of types of the writer's that the reader lacks: each of their values cannot be read."""
    default: pa.Scalar | None = None


def resolve_columns(program: Program, reader: AvroSchema) -> Output:
    """The array that a reader wants. Raises InvalidSchema: the reader contains itself, or lacks a default."""
    return _Resolution(program.columns, reader).resolve(0, reader.root)


class _Resolution:
    def __init__(self, columns: list[Column], reader: AvroSchema) -> None:
        self._columns = columns
        self._reader = reader
        self._comparisons = 0

    def resolve(self, number: int, node: Any) -> Output:
        """The output of a reader's node, of a writer's column."""
        node = self._reader.resolve(node)
        kind = arrow_type(self._reader, node)
        members = members_of(self._reader, node)
        written = self._written(number)
        found = [self._find_member(self._columns[each], members) for each in written]
        unread = tuple(each for each, at in zip(written, found, strict=True) if at < 0)
        branches = node if isinstance(node, list) else [node]
        parts = [
            self._resolve_member([each for each, to in zip(written, found, strict=True) if to == at], number, member)
            for at, member in enumerate(members)
        ]
        name = "first" if len(members) == 1 else "union"
        return Output(name, node, kind, number, tuple(parts), len(members) == len(branches), unread)

    def _written(self, number: int) -> list[int]:
        """The columns of the types besides null that were written."""
        column = self._columns[number]
        return column.parts if column.kind == "union" else [number] if column.kind != "null" else []

    def _find_member(self, column: Column, members: Sequence[Any]) -> int:
        """The member that reads a column: one of its type, or else the first it is promoted to; -1: there is none."""
        self._comparisons += len(members)
        if self._comparisons > MAX_COMPARISONS:
            raise InvalidSchema(f"comparing the schemas takes more than {MAX_COMPARISONS:,} steps")
        nodes = [self._reader.resolve(each) for each in members]
        same = (at for at, each in enumerate(nodes) if _is_same(column, each))
        promoted = (at for at, each in enumerate(nodes) if column.kind in PROMOTED.get(type_of(each), ()))
        return next(same, next(promoted, -1))

    def _resolve_member(self, columns: list[int], number: int, member: Any) -> Output:
        """The output of a type that is not a union: of several columns, the one that is not null."""
        parts = tuple(self._resolve_type(each, member) for each in columns)
        if len(parts) == 1:
            return parts[0]
        node = self._reader.resolve(member)
        return Output("first", node, arrow_type(self._reader, node), number, parts)

    def _resolve_type(self, number: int, member: Any) -> Output:
        node = self._reader.resolve(member)
        kind, column = type_of(node), self._columns[number]
        parts: tuple[Output, ...] = ()
        if kind == "record":
            parts = tuple(self._resolve_field(column, each) for each in node["fields"])
        elif kind == "array":
            parts = (self.resolve(column.parts[0], node["items"]),)
        elif kind == "map":
            parts = (self.resolve(column.parts[0], "string"), self.resolve(column.parts[1], node["values"]))
        return Output(kind, node, arrow_type(self._reader, node), number, parts)

    def _resolve_field(self, column: Column, field: Any) -> Output:
        written = {self._columns[each].name: each for each in column.parts}
        for name in (field["name"], *field.get("aliases", ())):
            if name in written:
                return self.resolve(written[name], field["type"])
        node = self._reader.resolve(field["type"])
        value = field.get("default", node.get("default", field) if type_of(node) == "enum" else field)
        if value is field:
            raise InvalidSchema(f"the field {field['name']!r} was not written, and has no default")
        default = default_of(self._reader, node, value)
        return Output("default", node, default.type, NO_COLUMN, default=default)


def _is_same(column: Column, node: Any) -> bool:
    if column.kind != type_of(node):
        return False
    if column.kind == "fixed" and column.node["size"] != node["size"]:
        return False
    return column.kind not in ("record", "enum", "fixed") or has_name(node, column.node["name"])
