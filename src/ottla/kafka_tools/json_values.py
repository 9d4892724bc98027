"""Values of the JSON files that tools read, with errors in the words of Kafka's own parser.

Zone: pure.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ottla.kafka_tools.options import ToolError

JSON_MAPPING: Final = "com.fasterxml.jackson.databind.JsonMappingException"
"""The class of Kafka's exception for a value that is missing, or has a wrong type."""
INTEGER: Final = "`Integer` value"
STRING: Final = "`String` value"
OBJECT: Final = "JSON object"


def typed_value(found: object, kind: type, words: str) -> Any:
    """The value, which must be of the Python type; `words` name that type. Raises ToolError."""
    # Not isinstance: in Python true is an int.
    if type(found) is not kind:
        shown = json.dumps(found, separators=(",", ":"), ensure_ascii=False)[:100]
        raise ToolError(f"Expected {words}, received {shown}", JSON_MAPPING)
    return found


def require_fields(row: dict[str, Any], *names: str) -> None:
    """Raises ToolError for the first of the fields that is missing."""
    for name in names:
        if name not in row:
            raise ToolError(f"No such field exists: `{name}`", JSON_MAPPING)


def typed_field(row: dict[str, Any], name: str, kind: type, words: str) -> Any:
    """The value of a field, as `typed_value`. Raises ToolError, also for a field that is missing."""
    require_fields(row, name)
    return typed_value(row[name], kind, words)


def int32_value(number: int) -> int:
    """The number, which must fit in 32 bits. Raises ToolError."""
    if not -(2**31) <= number < 2**31:
        raise ToolError(f"Expected {INTEGER}, received {number}", JSON_MAPPING)
    return number
