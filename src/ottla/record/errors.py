"""Errors for bytes that break their format.

Zone: pure. Errors for *valid* bytes that the broker refuses are in `validation`.
"""

from __future__ import annotations

from ottla.errors import ApiError, ErrorCode


class CorruptRecord(ApiError):
    """Bytes that break the format: a wrong checksum, a length past the end, a count that does not add up.

    It is an ApiError with CORRUPT_MESSAGE, so that a handler that does not catch it answers as Apache Kafka does.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class ExpandsTooFar(CorruptRecord):
    """Compressed bytes that may be valid, but expand beyond the caller's limit."""
