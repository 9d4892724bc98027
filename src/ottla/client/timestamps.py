"""Converts timestamps of callers to milliseconds since 1970.

Zone: pure.
"""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from typing import Final

from ottla.client.errors import UsageError, WrongTypeError

Timestamp = int | datetime
"""Milliseconds since 1970 as an integer of any type (also numpy's), or a datetime; a naive one is local time."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_LAST: Final = 2**63 - 1


def timestamp_ms(value: object) -> int:
    """The milliseconds; smaller digits are cut off. Raises WrongTypeError; UsageError if it is out of range.

    A float is refused: the seconds of time.time() would be taken for milliseconds in 1970.
    """
    found = (value.astimezone(UTC) - _EPOCH) // _MS if isinstance(value, datetime) else _whole_ms(value)
    if not 0 <= found <= _LAST:
        raise UsageError(f"timestamp {value} is not in milliseconds since 1970", "Use 0 to 2^63 - 1")
    return found


def _whole_ms(value: object) -> int:
    try:
        # bool is an int in Python, but True is not a timestamp.
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # TypeError: not an integer
    except TypeError:
        pass
    raise WrongTypeError(
        f"a timestamp is {type(value).__name__} ({str(value)[:40]})",
        "Give milliseconds since 1970 as an int, or a datetime",
    )
