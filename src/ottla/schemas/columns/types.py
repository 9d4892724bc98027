"""The Arrow types of Avro schemas, and defaults as values of these types.

Zone: pure. Logical types become Arrow's: dates, times, timestamps (UTC or local), decimals of up to 38 digits, uuids as
text. A union of null and one type is that type; one of several types is a struct `member0`, `member1` … of which one is
set, as spark-avro reads it. A logical type that is not known, or not one of its node's type, is left out, as the Avro
specification says.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from ottla.schemas.avro import AvroSchema, type_of
from ottla.schemas.errors import InvalidSchema

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_MAX_DIGITS: Final = 38


def arrow_type(schema: AvroSchema, node: Any, above: tuple[int, ...] = ()) -> pa.DataType:
    """The type of a node of a schema. above: identities of the records that it is in.

    Raises InvalidSchema for a record that contains itself.
    """
    node = schema.resolve(node)
    kind = type_of(node)
    if kind in _PRIMITIVES:
        return decimal_type(node) or _LOGICAL.get((kind, logical_type(node)), _PRIMITIVES[kind])
    if id(node) in above:
        raise InvalidSchema(f"{node['name']} contains itself: such schemas have no columns")
    return _NESTED[kind](schema, node, (*above, id(node)))


def members_of(schema: AvroSchema, node: Any) -> list[Any]:
    """The types besides null of a resolved node: those of a union, or itself."""
    branches = node if isinstance(node, list) else [node]
    return [each for each in branches if schema.resolve(each) != "null"]


def logical_type(node: Any) -> str:
    """The name of a node's logical type; empty: it has none."""
    return str(node.get("logicalType", "")) if isinstance(node, dict) else ""


def decimal_type(node: Any) -> pa.DataType | None:
    """The type of a decimal that Arrow and Spark have; None: the node is none."""
    if logical_type(node) != "decimal" or type_of(node) not in ("bytes", "fixed"):
        return None
    precision, scale = node.get("precision", 0), node.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return None
    return pa.decimal128(precision, scale) if 1 <= precision <= _MAX_DIGITS else None


def _record_type(schema: AvroSchema, node: Any, above: tuple[int, ...]) -> pa.DataType:
    return pa.struct([(each["name"], arrow_type(schema, each["type"], above)) for each in node["fields"]])


def _array_type(schema: AvroSchema, node: Any, above: tuple[int, ...]) -> pa.DataType:
    return pa.list_(arrow_type(schema, node["items"], above))


def _map_type(schema: AvroSchema, node: Any, above: tuple[int, ...]) -> pa.DataType:
    return pa.map_(pa.string(), arrow_type(schema, node["values"], above))


def _union_type(schema: AvroSchema, node: Any, above: tuple[int, ...]) -> pa.DataType:
    types = [arrow_type(schema, each, above) for each in members_of(schema, node)]
    return types[0] if len(types) == 1 else pa.struct([(f"member{at}", each) for at, each in enumerate(types)])


_NESTED: Final[dict[str, Callable[[AvroSchema, Any, tuple[int, ...]], pa.DataType]]] = {
    "record": _record_type,
    "array": _array_type,
    "map": _map_type,
    "union": _union_type,
}


# -- defaults ----------------------------------------------------------------------------------------------------------


def default_of(schema: AvroSchema, node: Any, default: Any) -> pa.Scalar:
    """The JSON value of a default as a value of the node's type. Raises InvalidSchema."""
    kind = arrow_type(schema, node)
    try:
        return pa.scalar(_default_value(schema, node, default), kind)
    except (TypeError, KeyError, ValueError, AttributeError, ArithmeticError) as error:
        raise InvalidSchema(f"{default!r:.100} is not a default of its type: {error}") from error


def _default_value(schema: AvroSchema, node: Any, default: Any) -> Any:
    """The value as Arrow takes it."""
    node = schema.resolve(node)
    return _DEFAULTS.get(type_of(node), _as_it_is)(schema, node, default)


def _as_it_is(_: AvroSchema, __: Any, default: Any) -> Any:
    return default


def _bytes_default(_: AvroSchema, node: Any, default: Any) -> Any:
    content = default.encode("latin-1")
    kind = decimal_type(node)
    if kind is None:
        return content
    return Decimal(int.from_bytes(content, signed=True)).scaleb(-kind.scale, Context(prec=_MAX_DIGITS))


def _record_default(schema: AvroSchema, node: Any, default: Any) -> Any:
    # A field that the default leaves out has its own.
    values = {each["name"]: default.get(each["name"], each.get("default")) for each in node["fields"]}
    return {each["name"]: _default_value(schema, each["type"], values[each["name"]]) for each in node["fields"]}


def _array_default(schema: AvroSchema, node: Any, default: Any) -> Any:
    return [_default_value(schema, node["items"], each) for each in default]


def _map_default(schema: AvroSchema, node: Any, default: Any) -> Any:
    return [(key, _default_value(schema, node["values"], each)) for key, each in default.items()]


def _union_default(schema: AvroSchema, node: Any, default: Any) -> Any:
    """The value of the first type that it is one of."""
    members = members_of(schema, node)
    if default is None:
        return None
    at = next((at for at, each in enumerate(members) if _fits(schema.resolve(each), default)), None)
    if at is None:
        raise ValueError("it is of none of the union's types")
    value = _default_value(schema, members[at], default)
    if len(members) == 1:
        return value
    return {f"member{each}": value if each == at else None for each in range(len(members))}


def _fits(node: Any, default: Any) -> bool:
    types: dict[str, tuple[type, ...]] = {
        "boolean": (bool,), "int": (int,), "long": (int,), "float": (int, float), "double": (int, float),
        "bytes": (str,), "fixed": (str,), "string": (str,), "enum": (str,), "array": (list,),
    }  # fmt: skip
    kind = type_of(node)
    if isinstance(default, bool) or kind == "boolean":
        return isinstance(default, bool) and kind == "boolean"
    return isinstance(default, types.get(kind, (dict,)))


_DEFAULTS: Final[dict[str, Callable[[AvroSchema, Any, Any], Any]]] = {
    "bytes": _bytes_default,
    "fixed": _bytes_default,
    "record": _record_default,
    "array": _array_default,
    "map": _map_default,
    "union": _union_default,
}
