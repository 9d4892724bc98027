"""The records that kafka-e2e-latency sends, and their comparison with those that it reads.

Zone: deterministic. The letters are an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.client.consumer.record import ConsumerRecord
from ottla.kafka_tools.options import ToolError

_RUNTIME = "java.lang.RuntimeException"
Headers = tuple[tuple[str, bytes | None], ...]


class RecordSizes(NamedTuple):
    """The sizes of a record's parts, in bytes."""

    value: int
    key: int
    """0: no key."""
    headers: int
    """The number of headers."""
    header_key: int
    header_value: int
    """-1: null."""


class TimedRecord(NamedTuple):
    """A record before it is sent."""

    key: bytes | None
    value: bytes
    headers: Headers


def make_record(sizes: RecordSizes, draw_letter: Callable[[], bytes]) -> TimedRecord:
    """A record of these sizes; each of its parts is one letter, repeated."""

    def letters(size: int) -> bytes:
        return draw_letter() * size

    return TimedRecord(
        letters(sizes.key) if sizes.key else None,
        letters(sizes.value),
        tuple(
            (letters(sizes.header_key).decode(), None if sizes.header_value < 0 else letters(sizes.header_value))
            for _ in range(sizes.headers)
        ),
    )


def check_read(sent: TimedRecord, read: Sequence[ConsumerRecord]) -> None:
    """Check that only the record that was sent was read. Raises ToolError."""
    found = read[0]
    if found.value != sent.value:
        raise _mismatch("value", found.value, sent.value)
    if sent.key is None and found.key is not None:
        raise ToolError(f"Expected null message key but received [{_shown(found.key)}]", _RUNTIME)
    if sent.key is not None and found.key is None:
        raise ToolError("Expected message key but received null", _RUNTIME)
    if found.key != sent.key:
        raise _mismatch("key", found.key, sent.key)
    _check_headers(sent.headers, found.headers)
    if len(read) != 1:
        raise ToolError(f"Only one result was expected during this test. We found [{len(read)}]", _RUNTIME)


def _check_headers(sent: Headers, read: Headers) -> None:
    if sent and not read:
        raise ToolError("Expected message headers but received none", _RUNTIME)
    if len(sent) != len(read):
        raise ToolError("Header count mismatch between sent and received messages", _RUNTIME)
    for (name, wanted), (found_name, found) in zip(sent, read, strict=True):
        if found_name != name or found != wanted:
            shown = (f"{each}:{_shown(content)}" for each, content in ((found_name, found), (name, wanted)))
            raise ToolError(
                "The message header read [{}] did not match the message header sent [{}]".format(*shown), _RUNTIME
            )


def _mismatch(part: str, found: bytes | None, sent: bytes | None) -> ToolError:
    return ToolError(
        f"The message {part} read [{_shown(found)}] did not match the message {part} sent [{_shown(sent)}]", _RUNTIME
    )


def _shown(content: bytes | None) -> str:
    return "null" if content is None else content.decode("utf-8", "replace")
