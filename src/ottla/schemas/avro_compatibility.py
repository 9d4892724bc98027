"""Whether an Avro schema can read what another one wrote: schema resolution of the Avro specification 1.12, decided as
Java's SchemaCompatibility decides it.

Zone: pure. Two nodes are compared once: recursive types end, and types that are used often cost once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ottla.schemas.avro import AvroSchema, type_of
from ottla.schemas.avro_rules import PRIMITIVES
from ottla.schemas.errors import Incompatibility, InvalidSchema

MAX_COMPARISONS: Final = 100_000
"""Maximum number of pairs of nodes; two unions of a thousand branches have a million."""
PROMOTED: Final = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "bytes": ("string",),
    "string": ("bytes",),
}
"""Types of a writer that a reader's type reads besides its own."""


def find_avro_incompatibilities(reader: AvroSchema, writer: AvroSchema) -> list[Incompatibility]:
    """All reasons why `reader` cannot read what `writer` wrote; none: it can. Raises InvalidSchema: too complex."""
    return list(_Comparison(reader, writer).compare(reader.root, writer.root, ""))


class _Comparison:
    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader = reader
        self._writer = writer
        self._seen: dict[tuple[int, int], list[Incompatibility] | None] = {}
        """Pairs of complex types by identity; None: being compared, and taken for compatible meanwhile."""
        self._count = 0

    def compare(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]:
        self._count += 1
        if self._count > MAX_COMPARISONS:
            raise InvalidSchema(f"comparing the schemas takes more than {MAX_COMPARISONS:,} steps")
        reader, writer = self._reader.resolve(reader), self._writer.resolve(writer)
        if type_of(reader) in PRIMITIVES and type_of(writer) in PRIMITIVES:
            return list(_find_type_mismatch(reader, writer, path))
        pair = id(reader), id(writer)
        if pair not in self._seen:
            self._seen[pair] = None
            self._seen[pair] = list(self._compare_complex(reader, writer, path))
        return self._seen[pair] or []

    def _compare_complex(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        kind, other = type_of(reader), type_of(writer)
        if other == "union":  # 1. each branch that may have been written can be read
            for at, branch in enumerate(writer):
                if found := self.compare(reader, branch, path):
                    yield from [_missing_branch(at, branch, path)] if kind == "union" else found
        elif kind == "union":  # 2. one branch reads it
            if all(self.compare(branch, writer, path) for branch in reader):
                yield _missing_branch(None, writer, path)
        elif kind != other:  # 3. different types, of which some are promoted
            yield from _find_type_mismatch(reader, writer, path)
        elif kind in ("array", "map"):  # 4. equal types
            member = "items" if kind == "array" else "values"
            yield from self.compare(reader[member], writer[member], f"{path}/{member}")
        elif kind in ("record", "enum", "fixed"):
            yield from _find_name_mismatch(reader, writer, path)
            parts = {"record": self._compare_records, "enum": _compare_enums, "fixed": _compare_fixed}
            yield from parts[kind](reader, writer, path)

    def _compare_records(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        written = {field["name"]: field for field in writer["fields"]}
        for at, field in enumerate(reader["fields"]):
            names = (field["name"], *field.get("aliases", ()))
            source = next((written[name] for name in names if name in written), None)
            here = f"{path}/fields/{at}"
            if source is not None:
                yield from self.compare(field["type"], source["type"], f"{here}/type")
            elif not self._has_default(field):
                yield Incompatibility(
                    "READER_FIELD_MISSING_DEFAULT_VALUE",
                    here,
                    f"The field {field['name']!r} at path {here!r} in the reader's schema has no default value and is "
                    "missing in the writer's schema",
                )

    def _has_default(self, field: Any) -> bool:
        kind = self._reader.resolve(field["type"])
        return "default" in field or (type_of(kind) == "enum" and "default" in kind)


def _find_type_mismatch(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    kind, other = type_of(reader), type_of(writer)
    if kind != other and other not in PROMOTED.get(kind, ()):
        text = f"The type (path {path or '/'!r}) of a field in the reader's schema is {kind}, in the writer's {other}"
        yield Incompatibility("TYPE_MISMATCH", path or "/", text)


def _find_name_mismatch(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    if not has_name(reader, writer["name"]):
        text = f"The name of the type (path {path or '/'!r}) is {reader['name']!r}, in the writer's {writer['name']!r}"
        yield Incompatibility("NAME_MISMATCH", f"{path}/name", text)


def _compare_enums(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    known = set(reader["symbols"])
    missing = [symbol for symbol in writer["symbols"] if symbol not in known]
    if missing and "default" not in reader:
        text = f"The reader's enum lacks symbols of the writer's at path {path or '/'!r}: {', '.join(missing[:10])}"
        yield Incompatibility("MISSING_ENUM_SYMBOLS", f"{path}/symbols", text)


def _compare_fixed(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    if reader["size"] != writer["size"]:
        text = (
            f"The size of the fixed type at path {path or '/'!r} is {reader['size']}, in the writer's {writer['size']}"
        )
        yield Incompatibility("FIXED_SIZE_MISMATCH", f"{path}/size", text)


def _missing_branch(at: int | None, branch: Any, path: str) -> Incompatibility:
    here = path if at is None else f"{path}/{at}"
    text = f"The union at path {here or '/'!r} of the reader's schema lacks a type that reads {_describe(branch)}"
    return Incompatibility("MISSING_UNION_BRANCH", here or "/", text)


def _describe(node: Any) -> str:
    if isinstance(node, dict):
        return str(node.get("name", node["type"]))
    return "a union" if isinstance(node, list) else str(node)


def has_name(reader: Any, written: str) -> bool:
    """Whether a reader's named type reads a writer's of that name: equal without namespaces, or the full name is an
    alias of the reader's."""
    namespace = reader["name"].rpartition(".")[0]
    aliases = {name if "." in name or not namespace else f"{namespace}.{name}" for name in reader.get("aliases", ())}
    return bool(reader["name"].rpartition(".")[2] == written.rpartition(".")[2] or written in aliases)
