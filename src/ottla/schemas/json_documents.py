"""Python values as payloads of JSON Schema, checked with jsonschema.

Zone: pure. Nothing is fetched from a network: a `$ref` leads to a schema that was given, or the value is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from ottla.schemas.errors import InvalidPayload
from ottla.schemas.json_schema import JsonSchema
from ottla.schemas.nesting import parse_json


def json_validator(text: str, references: Mapping[str, str] | None = None) -> Callable[[Any], None]:
    """A function that raises InvalidPayload for a value that a schema refuses.

    references: texts of other schemas by the URI that it refers to them with. Raises InvalidSchema.
    """
    root = JsonSchema(text, references).root
    named = {name: parse_json(each) for name, each in (references or {}).items()}
    resources = [(name, Resource.from_contents(each, default_specification=DRAFT7)) for name, each in named.items()]
    known: Registry[Any] = Registry().with_resources(resources)
    validator = validator_for(root, default=Draft7Validator)(root, registry=known)

    def check_value(value: Any) -> None:
        try:
            error = best_match(validator.iter_errors(value))
        except (Unresolvable, RecursionError) as broken:
            raise InvalidPayload(f"the value cannot be compared with its JSON schema: {broken!r}"[:500]) from broken
        if error is not None:
            raise InvalidPayload(
                f"the value does not fit its JSON schema: {error.message[:500]} (at {error.json_path})"
            )

    return check_value


def encode_json(value: Any) -> bytes:
    """The payload of a value. Raises InvalidPayload."""
    try:
        return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"the value is not one of JSON: {type(error).__name__}: {error}") from error


def decode_json(payload: bytes) -> Any:
    """The value of a payload. Raises InvalidPayload."""
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"not JSON: {error}") from error
