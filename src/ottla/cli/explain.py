"""Errors for people: one line with cause and next step, and an exit code that scripts can rely on.

Zone: pure. The mapping only; printing and exiting is in `main`.
"""

from __future__ import annotations

from ottla.client.errors import (
    ClientError,
    ConfigError,
    DeadlineError,
    RefusedError,
    RequestTimeoutError,
    UsageError,
)
from ottla.errors import ErrorCode

_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.LOG_DIR_NOT_FOUND,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    }
)
_NOT_ALLOWED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
    }
)


def exit_code(error: Exception) -> int | None:
    """1 error, 2 usage, 3 not found, 4 not allowed, 5 out of time; None for what no user can cause (a bug)."""
    if isinstance(error, DeadlineError) and isinstance(error.last, RefusedError):
        inner = exit_code(error.last)
        return inner if inner in (3, 4) else 5
    if isinstance(error, RefusedError):
        return 3 if error.code in _NOT_FOUND else 4 if error.code in _NOT_ALLOWED else 1
    if isinstance(error, ConfigError | UsageError):
        return 2
    if isinstance(error, DeadlineError | RequestTimeoutError):
        return 5
    return 1 if isinstance(error, ClientError | OSError) else None


def explain(error: Exception) -> str:
    """The line for the user, without a final full stop."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return str(error).rstrip(".")
