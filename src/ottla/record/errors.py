"""The error of bytes that are not what their format says.

Zone: pure. What the broker answers for *valid* bytes that it refuses is in `validation`.
"""

from __future__ import annotations

from ottla.errors import ApiError, ErrorCode


class CorruptRecord(ApiError):
    """Bytes that break the format: a wrong checksum, a length past the end, a count that does not add up.

    It is an ApiError with CORRUPT_MESSAGE, so that a handler which meets it answers like Apache Kafka does.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class ExpandsTooFar(CorruptRecord):
    """Compressed bytes that may be right, but are more than the caller has room for."""
