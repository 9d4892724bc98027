"""Compatibility of the keywords of JSON Schema that look at objects.

Zone: pure. An object's content model is *open* if properties that no keyword names may have any value, *closed* if
there may be none, and *partially open* if patterns or `additionalProperties` say which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

from ottla.schemas.errors import Incompatibility
from ottla.schemas.json_values import accepts_type

_LITERAL: Final = re.compile(r"[A-Za-z0-9_-]+")


class Compare(Protocol):
    """Compares the schemas below."""

    def compare(self, reader: Any, writer: Any, path: str) -> list[Incompatibility]: ...
    def accepts(self, reader: Any, writer: Any, path: str) -> bool: ...


def find_object_reasons(within: Compare, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    """Reasons why an object that `writer` accepts may be refused by `reader`."""
    if not accepts_type(writer, "object"):
        return
    yield from _find_required_reasons(reader, writer, path)
    names = dict.fromkeys((*reader.get("properties", ()), *writer.get("properties", ())))
    for name in names:
        yield from _compare_property(within, name, reader, writer, f"{path}/properties/{name}")
    yield from _compare_additional(within, reader, writer, f"{path}/additionalProperties")
    yield from _find_dependency_reasons(within, reader, writer, path)


def schema_of_property(schema: Any, name: str) -> Any:
    """The schema that a property's value has to accept by: its own, that of a pattern, or that of all others."""
    if name in schema.get("properties", ()):
        return schema["properties"][name]
    for pattern, each in schema.get("patternProperties", {}).items():
        if _matches(pattern, name):
            return each
    return schema.get("additionalProperties", True)


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern matches. Only literal patterns are tried: a pattern of a stranger could take for ever."""
    text = pattern.removeprefix("^").removesuffix("$")
    if not _LITERAL.fullmatch(text):
        return False
    if pattern.startswith("^"):
        return name == text if pattern.endswith("$") else name.startswith(text)
    return name.endswith(text) if pattern.endswith("$") else text in name


def _find_required_reasons(reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    before = writer.get("required", ()) if isinstance(writer.get("required"), list) else ()
    for name in reader.get("required", ()) if isinstance(reader.get("required"), list) else ():
        own = reader.get("properties", {}).get(name)
        if name not in before and not (isinstance(own, dict) and "default" in own):
            known = name in writer.get("properties", ())
            kind = "REQUIRED_ATTRIBUTE_ADDED" if known else "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"
            yield Incompatibility(kind, f"{path}/required", f"{name!r} is required and has no default")


def _compare_property(within: Compare, name: str, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    accepted, written = schema_of_property(reader, name), schema_of_property(writer, name)
    if within.accepts(accepted, written, path):
        return
    if name not in writer.get("properties", ()):
        model = "NOT_COVERED_BY_PARTIALLY_OPEN" if isinstance(written, dict) and written else "TO_OPEN"
        yield Incompatibility(f"PROPERTY_ADDED_{model}_CONTENT_MODEL", path, "values that were accepted are refused")
    elif name not in reader.get("properties", ()):
        model = "FROM_CLOSED" if accepted is False else "NOT_COVERED_BY_PARTIALLY_OPEN"
        yield Incompatibility(f"PROPERTY_REMOVED_{model}_CONTENT_MODEL", path, "values that were accepted are refused")
    else:
        yield from within.compare(accepted, written, path)


def _compare_additional(within: Compare, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    accepted, written = reader.get("additionalProperties", True), writer.get("additionalProperties", True)
    if not within.accepts(accepted, written, path):
        kind = "REMOVED" if accepted is False else "NARROWED"
        yield Incompatibility(f"ADDITIONAL_PROPERTIES_{kind}", path, "fewer other properties are accepted")
    for pattern, own in reader.get("patternProperties", {}).items():
        before = writer.get("patternProperties", {}).get(pattern, written)
        if not within.accepts(own, before, path):
            yield Incompatibility("PATTERN_PROPERTIES_NARROWED", path, f"of names like {pattern!r} fewer are accepted")


def _find_dependency_reasons(within: Compare, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    before = _dependencies_of(writer)
    for name, own in _dependencies_of(reader).items():
        here, old = f"{path}/dependencies/{name}", before.get(name)
        if isinstance(own, list):
            if not isinstance(old, list):
                yield Incompatibility("DEPENDENCY_ARRAY_ADDED", here, "other properties are required with it")
            elif not set(own) <= set(old):
                yield Incompatibility("DEPENDENCY_ARRAY_EXTENDED", here, "more properties are required with it")
        elif old is None or isinstance(old, list):
            yield Incompatibility("DEPENDENCY_SCHEMA_ADDED", here, "another schema counts with it")
        else:
            yield from within.compare(own, old, here)


def _dependencies_of(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for keyword in ("dependencies", "dependentSchemas", "dependentRequired"):
        found |= schema.get(keyword, {})
    return found
