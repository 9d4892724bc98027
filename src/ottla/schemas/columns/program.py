"""The program of an Avro schema: steps that read one record, and the columns that they fill.

Zone: pure. Columns are numbered as they are met: those of a record's fields follow the record's own, those of an
array's items follow the array's. So a part of a schema has a range of columns. A branch of a union that is not written
gets a null in each of its columns; the items of an array are not touched, because there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ottla.schemas.avro import AvroSchema, type_of
from ottla.schemas.decoding import refuse_empty_items
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import MAX_DEPTH

MAX_COLUMNS: Final = 10_000


class Step(IntEnum):
    """What a step does. Its row in the code: step, column, an argument, and the address of another step."""

    END = 0
    NULL = 1
    BOOLEAN = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    BYTES = 7
    FIXED = 8
    """The argument is the size."""
    ENUM = 9
    """The argument is the number of symbols."""
    STRUCT = 10
    UNION = 11
    """The argument is the number of branches; their addresses are in `branches` from the address on."""
    FILL = 12
    """Nulls into the columns from the column to before the argument."""
    JUMP = 13
    OPEN = 14
    """A list begins."""
    BLOCK = 15
    """Reads the number of the next items of a list. Without any it ends: its row is added, and the address is next."""
    ITEM = 16
    """An item ends. The address is next if its block has another one, or else the argument, its BLOCK."""
    STRING = 17
    """Bytes that are UTF-8."""


@dataclass(slots=True)
class Column:
    """A column."""

    name: str
    kind: str
    """An Avro type: of a primitive, `record`, `array`, `map`, `enum`, `fixed`, or `union` of several branches."""
    node: Any
    """The schema's node."""
    end: int = 0
    """The number of the column after this one's parts."""
    parts: list[int] = field(default_factory=list)
    """Fields, items, key and value, or branches."""


@dataclass(slots=True)
class Program:
    """Steps and columns of a schema."""

    code: list[tuple[int, int, int, int]] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)

    @property
    def has_lists(self) -> bool:
        """Whether columns can have another number of rows than there are records."""
        return any(each.kind in ("array", "map") for each in self.columns)


_PRIMITIVES: Final = {
    "null": Step.NULL,
    "boolean": Step.BOOLEAN,
    "int": Step.INT,
    "long": Step.LONG,
    "float": Step.FLOAT,
    "double": Step.DOUBLE,
    "bytes": Step.BYTES,
    "string": Step.STRING,
}


def compile_program(schema: AvroSchema) -> Program:
    """The program of a schema. Raises InvalidSchema for a recursive one, and for one of too many columns or levels."""
    refuse_empty_items(schema)
    compiler = _Compiler(schema)
    compiler.add_part("", schema.root, ())
    compiler.add_step(Step.END)
    return compiler.program


class _Compiler:
    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._depth = 0
        self.program = Program()

    def add_step(self, step: Step, column: int = 0, argument: int = 0, address: int = 0) -> int:
        """Add a step; returns its address."""
        self.program.code.append((step, column, argument, address))
        return len(self.program.code) - 1

    def add_part(self, name: str, node: Any, above: tuple[int, ...]) -> int:
        """Add columns and steps of a node; returns its column. above: identities of the records that it is in."""
        if self._depth == MAX_DEPTH:
            raise InvalidSchema(f"its types are nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        try:
            return self._add_node(name, self._schema.resolve(node), above)
        finally:
            self._depth -= 1

    def _add_node(self, name: str, node: Any, above: tuple[int, ...]) -> int:
        kind = type_of(node)
        if kind == "union":
            return self._add_union(name, node, above)
        if id(node) in above:
            raise InvalidSchema(f"{node['name']} contains itself: such schemas have no columns")
        number = self._add_column(name, kind, node)
        if kind in _PRIMITIVES:
            self.add_step(_PRIMITIVES[kind], number)
        elif kind == "fixed":
            self.add_step(Step.FIXED, number, node["size"])
        elif kind == "enum":
            self.add_step(Step.ENUM, number, len(node["symbols"]))
        elif kind == "record":
            self.add_step(Step.STRUCT, number)
            below = (*above, id(node))
            column = self.program.columns[number]
            column.parts += [self.add_part(each["name"], each["type"], below) for each in node["fields"]]
        else:
            self._add_list(number, node, above)
        self.program.columns[number].end = len(self.program.columns)
        return number

    def _add_column(self, name: str, kind: str, node: Any) -> int:
        if len(self.program.columns) == MAX_COLUMNS:
            raise InvalidSchema(f"it has more than {MAX_COLUMNS:,} columns")
        self.program.columns.append(Column(name, kind, node))
        return len(self.program.columns) - 1

    def _add_list(self, number: int, node: Any, above: tuple[int, ...]) -> None:
        """An array, or a map: OPEN, BLOCK, the steps of an item, ITEM."""
        column = self.program.columns[number]
        self.add_step(Step.OPEN, number)
        block = self.add_step(Step.BLOCK, number)
        if column.kind == "map":
            column.parts.append(self.add_part("key", "string", above))
            column.parts.append(self.add_part("value", node["values"], above))
        else:
            column.parts.append(self.add_part("item", node["items"], above))
        after = self.add_step(Step.ITEM, number, block, block + 1) + 1
        self.program.code[block] = (Step.BLOCK, number, 0, after)

    def _add_union(self, name: str, branches: list[Any], above: tuple[int, ...]) -> int:
        """A union of null and one other type is that type's column; any other one is a struct of its branches."""
        is_plain = sum(self._schema.resolve(each) != "null" for each in branches) == 1
        number = -1 if is_plain else self._add_column(name, "union", branches)
        first, table = len(self.program.columns), len(self.program.branches)
        self.program.branches += [0] * len(branches)
        self.add_step(Step.UNION, 0, len(branches), table)
        made: list[_Branch] = []
        for at, branch in enumerate(branches):
            self.program.branches[table + at] = len(self.program.code)
            written = sum(each.part >= 0 for each in made)
            made.append(self._add_branch(name if is_plain else f"member{written}", branch, number, above))
        self._complete_branches(made, first, number)
        if is_plain:
            return first
        column = self.program.columns[number]
        column.parts += [each.part for each in made if each.part >= 0]
        column.end = len(self.program.columns)
        return number

    def _add_branch(self, name: str, branch: Any, number: int, above: tuple[int, ...]) -> _Branch:
        if self._schema.resolve(branch) == "null":
            return _Branch(-1, self.add_step(Step.FILL), -1, self.add_step(Step.JUMP))
        if number < 0:  # the only one that is written: there are no others to fill
            return _Branch(self.add_part(name, branch, above), -1, -1, self.add_step(Step.JUMP))
        self.add_step(Step.STRUCT, number)
        before = self.add_step(Step.FILL)
        part = self.add_part(name, branch, above)
        return _Branch(part, before, self.add_step(Step.FILL), self.add_step(Step.JUMP))

    def _complete_branches(self, made: list[_Branch], first: int, number: int) -> None:
        """Fill in the steps whose columns and addresses are known when all branches are there."""
        code, end, last = self.program.code, len(self.program.code), len(self.program.columns)
        for each in made:
            code[each.jump] = (Step.JUMP, 0, 0, end)
            if each.part < 0:
                code[each.before] = (Step.FILL, number if number >= 0 else first, last, 0)
            elif each.before >= 0:
                code[each.before] = (Step.FILL, first, each.part, 0)
                code[each.after] = (Step.FILL, self.program.columns[each.part].end, last, 0)


class _Branch(NamedTuple):
    """A branch of a union: its column (-1: null), and the addresses of steps."""

    part: int
    before: int
    """Nulls into the columns of the branches before it."""
    after: int
    jump: int
