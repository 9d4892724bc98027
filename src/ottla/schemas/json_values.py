"""Compatibility of the keywords of JSON Schema that look at one value: types, enums, bounds, patterns.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ottla.schemas.errors import Incompatibility

_ALL_TYPES: Final = frozenset(("null", "boolean", "object", "array", "number", "string"))
UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
TYPES_OF: Final = {
    "maximum": "number", "exclusiveMaximum": "number", "minimum": "number", "exclusiveMinimum": "number",
    "multipleOf": "number", "maxLength": "string", "minLength": "string", "pattern": "string",
    "maxItems": "array", "minItems": "array", "maxProperties": "object", "minProperties": "object",
}  # fmt: skip
"""The type of the values that a keyword judges; it accepts all others."""


def find_value_reasons(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    """Reasons why a value that `writer` accepts may be refused by `reader`."""
    yield from _find_type_reasons(reader, writer, path)
    yield from _find_enum_reasons(reader, writer, path)
    for keyword, kind in TYPES_OF.items():
        if keyword in reader and accepts_type(writer, kind):
            yield from _find_bound_reasons(keyword, reader[keyword], writer.get(keyword), path)


def types_of(schema: Any) -> frozenset[str]:
    """The types that a schema accepts by its keyword `type`."""
    named = schema.get("type")
    if named is None:
        return _ALL_TYPES
    return frozenset((named,) if isinstance(named, str) else named)


def accepts_type(schema: Any, kind: str) -> bool:
    """Whether a schema accepts values of a type; an integer is a number."""
    types = types_of(schema)
    return kind in types or (kind == "number" and "integer" in types)


def _find_type_reasons(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    accepted, written = types_of(reader), types_of(writer)
    extra = {kind for kind in written - accepted if not (kind == "integer" and "number" in accepted)}
    if extra:
        is_narrower = accepted & written or ("integer" in accepted and "number" in written)
        name = "TYPE_NARROWED" if is_narrower else "TYPE_CHANGED"
        yield Incompatibility(name, path, f"not accepted any more: {', '.join(sorted(extra))}")


def _find_enum_reasons(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    accepted, written = _values_of(reader), _values_of(writer)
    if accepted is None:
        return
    if written is None:
        yield Incompatibility("ENUM_ARRAY_ADDED", f"{path}/enum", "only some values are accepted now")
    elif missing := [value for value in written if not any(_is_same(value, each) for each in accepted)]:
        kept = len(missing) < len(written)
        name = "ENUM_ARRAY_NARROWED" if kept else "ENUM_ARRAY_CHANGED"
        yield Incompatibility(name, f"{path}/enum", f"{len(missing)} values are not accepted any more")


def _values_of(schema: Any) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _find_bound_reasons(keyword: str, accepted: Any, written: Any, path: str) -> Iterator[Incompatibility]:
    name = "".join(f"_{each}" if each.isupper() else each for each in keyword).upper()
    here = f"{path}/{keyword}"
    if written is None:
        if not _accepts_all(keyword, accepted):
            yield Incompatibility(f"{name}_ADDED", here, f"{accepted!r} was added")
    elif isinstance(accepted, bool) or isinstance(written, bool) or keyword == "pattern":
        if accepted != written:  # draft 4: exclusiveMaximum and exclusiveMinimum are true or false
            yield Incompatibility(f"{name}_CHANGED", here, f"{written!r} became {accepted!r}")
    elif keyword in UPPER and accepted < written:
        yield Incompatibility(f"{name}_DECREASED", here, f"{written!r} became {accepted!r}")
    elif keyword in LOWER and accepted > written:
        yield Incompatibility(f"{name}_INCREASED", here, f"{written!r} became {accepted!r}")
    elif keyword == "multipleOf" and written % accepted:
        kind = "EXPANDED" if accepted % written == 0 else "CHANGED"
        yield Incompatibility(f"{name}_{kind}", here, f"{written!r} became {accepted!r}")


def _accepts_all(keyword: str, accepted: Any) -> bool:
    return accepted is False or (keyword in ("minLength", "minItems", "minProperties") and accepted == 0)
