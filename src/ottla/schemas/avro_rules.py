"""Rules of the Avro specification 1.12 that fastavro does not check: names, unions, fields, sizes.

Zone: pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from ottla.schemas.errors import InvalidSchema

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def check_rules(document: Any) -> None:
    """Check the JSON document of a schema. Raises InvalidSchema."""
    left = [document]
    while left:
        left.extend(_check_node(left.pop()))


def _check_node(node: Any) -> Iterator[Any]:
    """Check one node; yields those below it."""
    if isinstance(node, list):
        _check_union(node)
        yield from node
        return
    if isinstance(node, str):
        return
    _require(isinstance(node, dict), f"{node!r} is not a schema")
    kind = node.get("type")
    _require(isinstance(kind, str), f"the type of a schema is {kind!r}, not a name")
    if kind in NAMED:
        _check_names(node, kind)
    yield from _PARTS.get(kind, _no_parts)(node)


def _check_names(node: dict[str, Any], kind: str) -> None:
    name, namespace = node.get("name"), node.get("namespace")
    _require(isinstance(name, str) and _FULL_NAME.fullmatch(name), f"the name of a type {kind!r} is {name!r}")
    is_namespace = isinstance(namespace, str) and (not namespace or _FULL_NAME.fullmatch(namespace))
    _require(namespace is None or is_namespace, f"{namespace!r} is not a namespace")
    _check_aliases(node)


def _check_aliases(node: dict[str, Any]) -> None:
    aliases = node.get("aliases", [])
    _require(
        isinstance(aliases, list) and all(isinstance(each, str) for each in aliases), "aliases are a list of names"
    )


def _check_union(branches: list[Any]) -> None:
    seen = set()
    for branch in branches:
        _require(not isinstance(branch, list), "a union contains a union")
        name = branch.get("name", branch.get("type")) if isinstance(branch, dict) else branch
        _require(isinstance(name, str) and name not in seen, f"a union contains {name!r} twice")
        seen.add(name)


def _fields_of(record: dict[str, Any]) -> Iterator[Any]:
    fields, seen = record.get("fields"), set()
    if not isinstance(fields, list):
        raise InvalidSchema(f"the record {record['name']!r} has no list of fields")
    for field in fields:
        _require(isinstance(field, dict) and "type" in field, f"{field!r} is not a field")
        name = field.get("name")
        _require(isinstance(name, str) and _NAME.fullmatch(name), f"{name!r} is not the name of a field")
        _require(name not in seen, f"the record {record['name']!r} has the field {name!r} twice")
        seen.add(name)
        _check_aliases(field)
        yield field["type"]


def _items_of(array: dict[str, Any]) -> Iterator[Any]:
    _require("items" in array, "an array has no items")
    yield array["items"]


def _values_of(mapping: dict[str, Any]) -> Iterator[Any]:
    _require("values" in mapping, "a map has no values")
    yield mapping["values"]


def _symbols_of(enum: dict[str, Any]) -> Iterator[Any]:
    symbols = enum.get("symbols")
    if not isinstance(symbols, list):
        raise InvalidSchema(f"the enum {enum['name']!r} has no list of symbols")
    for symbol in symbols:
        _require(isinstance(symbol, str) and _NAME.fullmatch(symbol), f"{symbol!r} is not a symbol of an enum")
    yield from ()


def _size_of(fixed: dict[str, Any]) -> Iterator[Any]:
    size = fixed.get("size")
    _require(type(size) is int and size >= 0, f"the size of {fixed['name']!r} is {size!r}, not a whole number")
    yield from ()


def _no_parts(_: dict[str, Any]) -> Iterator[Any]:
    yield from ()


_PARTS: Final[dict[str, Callable[[dict[str, Any]], Iterator[Any]]]] = {
    "record": _fields_of,
    "error": _fields_of,
    "array": _items_of,
    "map": _values_of,
    "enum": _symbols_of,
    "fixed": _size_of,
}


def _require(holds: object, message: str) -> None:
    if not holds:
        raise InvalidSchema(message)
