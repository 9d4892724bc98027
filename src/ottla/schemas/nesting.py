"""Bounds for JSON documents that come from outside: parsed schemas are walked by recursion.

Zone: pure.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ottla.schemas.errors import InvalidSchema

MAX_BYTES: Final = 1024 * 1024
"""Maximum size of a schema's text: that of a record in Kafka's default settings."""
MAX_DEPTH: Final = 100
"""Maximum nesting of a schema's JSON document."""


def parse_json(text: str) -> Any:
    """The document of a schema. Raises InvalidSchema for one that is no JSON, too large, or nested too deeply."""
    if len(text) > MAX_BYTES:
        raise InvalidSchema(f"the schema has {len(text):,} characters; at most {MAX_BYTES:,} are supported")
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InvalidSchema(f"the schema is nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from error
    _check_depth(document)
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _check_depth(document: Any) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in _children_of(node)]
        if not level:
            return
    raise InvalidSchema(f"the schema is nested more than {MAX_DEPTH} levels deep")


def _children_of(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else []


def canonical_json(document: Any) -> str:
    """The document without optional spaces, its members in their order."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
