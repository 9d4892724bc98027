"""Compatibility of the keywords of JSON Schema that look at arrays.

Zone: pure. Drafts before 2020-12 have a list in `items` and the rest in `additionalItems`, later ones have
`prefixItems` and the rest in `items`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ottla.schemas.errors import Incompatibility
from ottla.schemas.json_objects import Compare
from ottla.schemas.json_values import accepts_type


def find_array_reasons(within: Compare, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
    """Reasons why an array that `writer` accepts may be refused by `reader`."""
    if not accepts_type(writer, "array"):
        return
    if reader.get("uniqueItems") is True and writer.get("uniqueItems") is not True:
        yield Incompatibility("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "equal items are refused now")
    (accepted, rest), (written, other) = _items_of(reader), _items_of(writer)
    for at in range(max(len(accepted), len(written))):
        here = f"{path}/items/{at}"
        own = accepted[at] if at < len(accepted) else rest
        before = written[at] if at < len(written) else other
        yield from _compare_item(within, own, before, here, is_new=at >= len(written), is_gone=at >= len(accepted))
    if not within.accepts(rest, other, f"{path}/items"):
        yield from _compare_rest(within, rest, other, path, is_tuple=bool(accepted or written))


def _compare_item(
    within: Compare, own: Any, before: Any, path: str, *, is_new: bool, is_gone: bool
) -> Iterator[Incompatibility]:
    if within.accepts(own, before, path):
        return
    if is_new:
        model = "NOT_COVERED_BY_PARTIALLY_OPEN" if isinstance(before, dict) and before else "TO_OPEN"
        yield Incompatibility(f"ITEM_ADDED_{model}_CONTENT_MODEL", path, "items that were accepted are refused")
    elif is_gone:
        model = "FROM_CLOSED" if own is False else "NOT_COVERED_BY_PARTIALLY_OPEN"
        yield Incompatibility(f"ITEM_REMOVED_{model}_CONTENT_MODEL", path, "items that were accepted are refused")
    else:
        yield from within.compare(own, before, path)


def _compare_rest(within: Compare, rest: Any, other: Any, path: str, *, is_tuple: bool) -> Iterator[Incompatibility]:
    if not is_tuple:
        yield from within.compare(rest, other, f"{path}/items")
        return
    kind = "REMOVED" if rest is False else "NARROWED"
    yield Incompatibility(f"ADDITIONAL_ITEMS_{kind}", f"{path}/additionalItems", "fewer other items are accepted")


def _items_of(schema: Any) -> tuple[list[Any], Any]:
    """The schemas of the first items, and that of all others."""
    items = schema.get("items", True)
    if "prefixItems" in schema:
        return schema["prefixItems"], items
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return [], items
