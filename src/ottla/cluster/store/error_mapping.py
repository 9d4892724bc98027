"""Maps failures of the metadata store to Kafka's error codes.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind

T = TypeVar("T")
ErrorAnswer = Callable[["T | ApiError"], None]
"""Receives the outcome of a change, once."""


def error_of_failure(error: Failure | ApiError) -> ApiError:
    """The error that clients receive for a Failure of the store."""
    if isinstance(error, ApiError):
        return error
    if error.kind in (Kind.FULL, Kind.IO):
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata could not be written: {error}")
    if error.kind in (Kind.UNKNOWN, Kind.TIMEOUT):
        return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata store has not confirmed the change: {error}")
    if error.kind is Kind.CONFLICT:
        return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"another change was made at the same time: {error}")
    # NOT_DONE and EXPIRED. On this error a client looks for the controller, and repeats its request.
    return ApiError(ErrorCode.NOT_CONTROLLER, f"the change was not made; try again: {error}")
