"""JSON payloads as Arrow columns of a JSON schema.

Zone: pure. Objects with `properties` are structs; others are maps if `additionalProperties` has a schema. Where a
schema leaves more than one type, contains itself, or is nested too deeply, the column is JSON text. The keywords that
say no type (`pattern`, `minimum` …) are not checked: who wrote has checked them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.schemas.columns.formats import SchemaText
from ottla.schemas.columns.program import MAX_COLUMNS
from ottla.schemas.columns.verdicts import Verdict
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.nesting import MAX_DEPTH, canonical_json

Convert = Callable[[Any], Any]
"""Makes Arrow's value of JSON's. Raises TypeError or ValueError: the value is none of the type."""
_INT64: Final = range(-(2**63), 2**63)


class JsonColumns:
    """Decodes payloads as a schema says."""

    def __init__(self, reader: JsonSchema) -> None:
        """Raises InvalidSchema: it has too many columns."""
        self._shape = shape_of(reader)

    @property
    def type(self) -> pa.DataType:
        """The type of the arrays."""
        return self._shape.type

    def decode(self, payloads: pa.Array, skipped: int = 0) -> tuple[pa.Array, npt.NDArray[np.uint8]]:
        """Decode payloads (binary), without the first `skipped` bytes of each. A null is a null.

        Returns the rows, and a Verdict for each; those that were not read are nulls.
        """
        verdicts = np.zeros(len(payloads), np.uint8)
        values = [
            None if each is None else self._decode_value(each[skipped:], row, verdicts)
            for row, each in enumerate(payloads.to_pylist())
        ]
        return pa.array(values, self.type), verdicts

    def _decode_value(self, payload: bytes, row: int, verdicts: npt.NDArray[np.uint8]) -> Any:
        try:
            value = _parse_json(payload)
        except (ValueError, RecursionError):
            verdicts[row] = Verdict.NOT_WRITTEN_WITH_IT
            return None
        try:
            return _convert(self._shape, value)
        except (TypeError, ValueError, RecursionError):
            verdicts[row] = Verdict.NOT_READABLE
            return None


def make_columns(_: SchemaText, reader: SchemaText) -> JsonColumns:
    """The decoder of a pair of schemas. Raises InvalidSchema."""
    return JsonColumns(JsonSchema(reader.text, dict(reader.references)))


class Shape(NamedTuple):
    """The column of a schema."""

    type: pa.DataType
    convert: Convert
    is_nullable: bool
    write: Convert
    """Makes JSON's value of Arrow's; raises as `convert`."""


def shape_of(schema: JsonSchema) -> Shape:
    """The column of a schema. Raises InvalidSchema: it has too many columns."""
    return _Shapes(schema).shape_of(schema.root, ())


def write_value(shape: Shape, value: Any) -> Any:
    """JSON's value of Arrow's. Raises TypeError or ValueError: it is none of the schema's type."""
    return _unless_null(shape, shape.write, value)


def _convert(shape: Shape, value: Any) -> Any:
    return _unless_null(shape, shape.convert, value)


def _unless_null(shape: Shape, change: Convert, value: Any) -> Any:
    if value is None:
        if not shape.is_nullable:
            raise ValueError("null")
        return None
    return change(value)


class _Shapes:
    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._count = 0

    def shape_of(self, node: Any, above: tuple[int, ...]) -> Shape:
        """The column of a node. above: identities of the schemas that it is in."""
        self._count += 1
        if self._count > MAX_COLUMNS:
            raise InvalidSchema(f"it has more than {MAX_COLUMNS:,} columns")
        node = self._schema.resolve(node)
        # 1. A boolean as a schema, 2. a schema inside of itself, 3. one too deep: text, which loses nothing.
        if not isinstance(node, dict) or id(node) in above or len(above) == MAX_DEPTH:
            return _TEXT
        below = (*above, id(node))
        # With a type beside it, such a keyword only narrows that type, which decides about the column.
        for keyword in ("oneOf", "anyOf", "allOf"):
            if keyword in node and "type" not in node:
                return self._one_of(node[keyword], below)
        types = node.get("type", _types_of_values(node))
        names = [types] if isinstance(types, str) else list(types)
        rest = [each for each in names if each != "null"]
        # Two types have no common column; neither has a schema that names none.
        if len(rest) != 1:
            return _TEXT
        made = _SHAPES[rest[0]](self, node, below)
        return made._replace(is_nullable=made.is_nullable or len(rest) < len(names))

    def _one_of(self, nodes: list[Any], above: tuple[int, ...]) -> Shape:
        """The column of the only schema besides null."""
        rest = [each for each in nodes if self._schema.resolve(each) != {"type": "null"}]
        if len(rest) != 1:
            return _TEXT
        made = self.shape_of(rest[0], above)
        return made._replace(is_nullable=made.is_nullable or len(rest) < len(nodes))

    def object_shape(self, node: Any, above: tuple[int, ...]) -> Shape:
        """A struct or a map."""
        if not node.get("properties"):
            more = node.get("additionalProperties")
            return self._map_shape(more, above) if isinstance(more, dict) and more else _object_text(_TEXT)
        # Properties that the schema does not name are dropped: a struct has no place for them.
        parts = {name: self.shape_of(each, above) for name, each in node["properties"].items()}
        required = frozenset(node["required"]) if isinstance(node.get("required"), list) else frozenset()

        def convert(value: Any) -> Any:
            if not isinstance(value, dict) or not required <= value.keys():
                raise TypeError("not an object, or one that lacks a property")
            return {name: _convert(part, value[name]) if name in value else None for name, part in parts.items()}

        def write_struct(value: Any) -> Any:
            # A null that is not required is left out: a schema seldom allows null beside a type.
            written = {name for name, each in _checked(dict, value).items() if each is not None} | required
            if unknown := written - parts.keys():
                raise ValueError(f"no property {min(unknown)}")
            return {name: write_value(part, value.get(name)) for name, part in parts.items() if name in written}

        return _shape(pa.struct([(name, part.type) for name, part in parts.items()]), convert, write_struct)

    def _map_shape(self, node: Any, above: tuple[int, ...]) -> Shape:
        part = self.shape_of(node, above)

        def convert(value: Any) -> Any:
            return [(key, _convert(part, each)) for key, each in _checked(dict, value).items()]

        def write_map(value: Any) -> Any:
            return {_checked(str, key): write_value(part, each) for key, each in value}

        return _shape(pa.map_(pa.string(), part.type), convert, write_map)

    def array_shape(self, node: Any, above: tuple[int, ...]) -> Shape:
        """A list; of JSON text, if the items have no single schema."""
        items = node.get("items")
        part = self.shape_of(items, above) if isinstance(items, dict) and "prefixItems" not in node else _TEXT

        def convert(value: Any) -> Any:
            return [_convert(part, each) for each in _checked(list, value)]

        def write_list(value: Any) -> Any:
            return [write_value(part, each) for each in _checked(list, value)]

        return _shape(pa.list_(part.type), convert, write_list)


def _types_of_values(node: Any) -> list[str]:
    """The types of `enum` or `const`; `object` or `array`, if a keyword is about them."""
    if "enum" in node or "const" in node:
        return sorted({_type_of(each) for each in (node["enum"] if "enum" in node else [node["const"]])})
    return ["object"] if "properties" in node else []


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
    return names.get(type(value), "null")


def _checked(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{type(value).__name__}, not {kind.__name__}")
    return value


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or int(value) not in _INT64:
        raise ValueError("not an integer of 64 bits")
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError("not a number of 64 bits") from error


def _object_text(shape: Shape) -> Shape:
    return shape._replace(
        convert=lambda value: canonical_json(_checked(dict, value)),
        is_nullable=False,
        write=lambda value: _checked(dict, _parse_text(value)),
    )


def _shape(kind: pa.DataType, convert: Convert, write: Convert | None = None) -> Shape:
    """write: None: a value of JSON is one of Arrow's."""
    return Shape(kind, convert, False, write or convert)


def _parse_text(value: Any) -> Any:
    return _parse_json(_checked(str, value).encode())


def _parse_json(payload: bytes) -> Any:
    """Raises ValueError, RecursionError. Halves of surrogate pairs, which only escapes can make, are no text."""
    text = payload.decode()  # json.loads takes other encodings, and halves of pairs in UTF-8
    value = json.loads(text, parse_constant=_refuse_constant)
    if "\\ud" in text.lower():
        canonical_json(value).encode()
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


_TEXT: Final = Shape(pa.string(), canonical_json, True, _parse_text)
_SHAPES: Final[dict[str, Callable[[_Shapes, Any, tuple[int, ...]], Shape]]] = {
    "object": _Shapes.object_shape,
    "array": _Shapes.array_shape,
    "string": lambda *_: _shape(pa.string(), lambda value: _checked(str, value)),
    "boolean": lambda *_: _shape(pa.bool_(), lambda value: _checked(bool, value)),
    "integer": lambda *_: _shape(pa.int64(), _to_int),
    "number": lambda *_: _shape(pa.float64(), _to_float),
}
