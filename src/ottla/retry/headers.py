"""The headers of a failed record: how often it failed, since when, where it came from, and why.

Zone: pure. Turns headers into a `Trail` and back. Names and encodings are those of Spring for Apache Kafka
(`retry_topic-*`, `kafka_dlt-*`), so that its consumers, and consoles that support it, read ours. Headers of Kafka's
share groups (KIP-1191, `__dlq.errors.*`) and of Kafka Connect (`__connect.errors.*`) are also read. Bytes from outside
are not trusted: an unreadable header counts as missing, and its name is in `Trail.bad`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

from ottla.renamed import warn_renamed
from ottla.utf8 import decode_text, encode_text

_OLD_NAMES: Final = {
    "read": "read_trail",
    "written": "with_trail",
    "plain": "without_trail",
    "due_ms": "read_due_ms",
}
"""Until the next release."""

Headers = tuple[tuple[str, bytes | None], ...]

ATTEMPTS: Final = "attempts"
DUE: Final = "backoff-timestamp"
FIRST: Final = "original-timestamp"
PASSES: Final = "ottla_retry-passes"
REDRIVES: Final = "ottla_retry-redrives"
BACK_TO: Final = "ottla_retry-destination"
_OWN: Final = (PASSES, REDRIVES, BACK_TO)

MAX_MESSAGE_CHARS: Final = 2_000
MAX_STACK_CHARS: Final = 8_000
_MAX_INT64: Final = 2**63 - 1
_MAX_INT32: Final = 2**31 - 1


class Names(NamedTuple):
    """The prefixes of the headers' names, and whether numbers are readable text instead of Spring's bytes."""

    retry: str = "retry_topic-"
    dead: str = "kafka_dlt-"
    text: bool = False


SPRING: Final = Names()


class Origin(NamedTuple):
    """The record that failed first."""

    topic: str
    partition: int = -1
    offset: int = -1
    timestamp: int = -1
    """Milliseconds since 1970; -1 unknown."""
    timestamp_type: str = "CreateTime"
    group: str | None = None
    """The consumer group in which it failed."""


class Failure(NamedTuple):
    """The last failure."""

    kind: str
    """The full name of the exception's class, as `builtins.ValueError`."""
    message: str = ""
    cause: str | None = None
    """The full name of the class of the exception's cause."""
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class Trail:
    """The contents of a record's headers."""

    attempts: int = 1
    """The number of the next delivery, from 1: one more than there were failures."""
    due_ms: int | None = None
    """When its next delivery is due, in milliseconds since 1970."""
    first_ms: int | None = None
    """The timestamp of the record that failed first, in milliseconds since 1970."""
    origin: Origin | None = None
    failure: Failure | None = None
    passes: int = 0
    """How often it was forwarded after waiting; -1: the first time does not count, as it only waited for its key."""
    redrives: int = 0
    """How often it was sent back from a dead-letter topic."""
    back_to: str | None = None
    """The topic to forward it to when it is due, if that is not the origin's."""
    bad: tuple[str, ...] = ()
    """Headers that could not be read."""

    @property
    def failures(self) -> int:
        """How often it failed."""
        return max(0, self.attempts - 1)


def failure_of(error: BaseException | str, stack: str | None = None) -> Failure:
    """The failure of an exception, or of a reason in words, whose kind is then the text before a colon."""
    if isinstance(error, str):
        kind, colon, rest = error.partition(": ")
        return Failure(kind, rest, stack=stack) if colon else Failure(error, error, stack=stack)
    # As in a traceback: the error of `raise … from`, else the one that was being handled.
    cause = error.__cause__ or error.__context__
    return Failure(_full_name(error), str(error), _full_name(cause) if cause is not None else None, stack)


def _full_name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


# -- writing -----------------------------------------------------------------------------------------------------------


def with_trail(headers: Iterable[tuple[str, bytes | None]], trail: Trail, names: Names = SPRING) -> Headers:
    """The application's headers, unchanged, with the trail instead of an earlier one."""
    return (*without_trail(headers, names), *_trail_headers(trail, names))


def without_trail(headers: Iterable[tuple[str, bytes | None]], names: Names = SPRING) -> Headers:
    """The application's own headers: all but those of a trail."""
    ours = _all_names(names)
    return tuple(each for each in headers if each[0] not in ours)


def is_ours(name: str, names: Names = SPRING) -> bool:
    """Whether a header of this name is one of a trail."""
    return name in _all_names(names)


@cache
def _all_names(names: Names) -> frozenset[str]:
    retry = (names.retry + each for each in (ATTEMPTS, DUE, FIRST))
    return frozenset((*_OWN, *retry, *(names.dead + each for each in _DEAD_NAMES)))


_DEAD_NAMES: Final = (
    "original-topic",
    "original-partition",
    "original-offset",
    "original-timestamp",
    "original-timestamp-type",
    "original-consumer-group",
    "exception-fqcn",
    "exception-cause-fqcn",
    "exception-message",
    "exception-stacktrace",
)


def _trail_headers(trail: Trail, names: Names) -> Headers:
    found: dict[str, bytes] = {names.retry + ATTEMPTS: _encode_number(min(trail.attempts, _MAX_INT32), 4, names)}
    if trail.due_ms is not None:
        found[names.retry + DUE] = _encode_big_integer(trail.due_ms, names)
    if trail.first_ms is not None:
        found[names.retry + FIRST] = _encode_big_integer(trail.first_ms, names)
    dead: dict[str, bytes] = {}
    if trail.origin is not None:
        dead |= _origin_fields(trail.origin, names)
    if trail.failure is not None:
        dead |= _failure_fields(trail.failure)
    found |= {names.dead + short: value for short, value in dead.items()}
    for name, count in ((PASSES, trail.passes), (REDRIVES, trail.redrives)):
        if count:
            found[name] = str(count).encode()
    if trail.back_to is not None:
        found[BACK_TO] = trail.back_to.encode()
    return tuple(found.items())


def _origin_fields(origin: Origin, names: Names) -> dict[str, bytes]:
    found = {
        "original-topic": origin.topic.encode(),
        "original-partition": _encode_number(origin.partition, 4, names),
        "original-offset": _encode_number(origin.offset, 8, names),
        "original-timestamp": _encode_number(origin.timestamp, 8, names),
        "original-timestamp-type": origin.timestamp_type.encode(),
    }
    if origin.group is not None:
        found["original-consumer-group"] = encode_text(origin.group)
    return found


def _failure_fields(failure: Failure) -> dict[str, bytes]:
    found = {
        "exception-fqcn": _encode_text(failure.kind, MAX_MESSAGE_CHARS),
        "exception-message": _encode_text(failure.message, MAX_MESSAGE_CHARS),
    }
    if failure.cause is not None:
        found["exception-cause-fqcn"] = _encode_text(failure.cause, MAX_MESSAGE_CHARS)
    if failure.stack is not None:
        found["exception-stacktrace"] = _encode_text(failure.stack, MAX_STACK_CHARS)
    return found


def _encode_text(text: str, limit: int) -> bytes:
    return text[:limit].encode(errors="replace")  # an exception's text may hold half a surrogate pair


def _encode_number(value: int, size: int, names: Names) -> bytes:
    return str(value).encode() if names.text else value.to_bytes(size, "big", signed=True)


def _encode_big_integer(value: int, names: Names) -> bytes:
    """Java's BigInteger.toByteArray: the fewest bytes for the number and its sign.

    One byte more where these would look like digits (the first days of 1970, and the year 3685), which BigInteger reads
    as well.
    """
    if names.text:
        return str(value).encode()
    # The sign needs a bit of its own: 127 fits in one byte, 128 takes two.
    found = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return b"\0" + found if found.isdigit() else found


# -- reading -----------------------------------------------------------------------------------------------------------


def read_trail(headers: Iterable[tuple[str, bytes | None]], names: Names = SPRING) -> Trail:
    """Parse the headers of a record; of several with one name the last counts. Never raises."""
    said = {name: value for name, value in headers if value is not None}
    bad: list[str] = []
    trail = Trail(
        attempts=_read_count(said, names.retry + ATTEMPTS, bad, 1),
        due_ms=_read_time(said, names.retry + DUE, bad),
        first_ms=_read_time(said, names.retry + FIRST, bad),
        origin=_read_origin(said, names, bad),
        failure=_read_failure(said, names),
        passes=_read_count(said, PASSES, bad, 0, -1),
        redrives=_read_count(said, REDRIVES, bad, 0),
        back_to=_read_name(said, BACK_TO, bad),
    )
    return replace(trail, bad=tuple(bad)) if bad else trail


def read_due_ms(headers: Iterable[tuple[str, bytes | None]], names: Names = SPRING) -> int | None:
    """`read(headers).due_ms`, but faster."""
    name, found = names.retry + DUE, None
    for each, value in headers:
        if each == name and value is not None:
            found = value
    return None if found is None else _read_time({name: found}, name, [])


def _read_origin(said: Mapping[str, bytes], names: Names, bad: list[str]) -> Origin | None:
    # The first dialect with a topic wins: ours, Spring's in retry topics, share groups', Connect's.
    for topic, partition, offset, timestamp, kind, group in _origin_names(names):
        name = _read_name(said, topic, bad)
        if name is not None:
            return Origin(
                name,
                _read_position(said, partition, bad),
                _read_position(said, offset, bad),
                _read_position(said, timestamp, bad),
                _read_name(said, kind, bad) or "CreateTime",
                decode_text(said[group]) if said.get(group) else None,
            )
    return None


@cache
def _origin_names(names: Names) -> tuple[tuple[str, str, str, str, str, str], ...]:
    """Names of topic, partition, offset, timestamp, its type and group, in each dialect."""
    return (
        *(
            (f"{p}topic", f"{p}partition", f"{p}offset", f"{p}timestamp", f"{p}timestamp-type", f"{p}consumer-group")
            for p in (f"{names.dead}original-", "kafka_original-")  # Spring's own names in retry topics
        ),
        *((f"{p}topic", f"{p}partition", f"{p}offset", "", "", f"{p}group") for p in (_SHARE, _CONNECT)),
    )


_SHARE: Final = "__dlq.errors."
_CONNECT: Final = "__connect.errors."


def _read_failure(said: Mapping[str, bytes], names: Names) -> Failure | None:
    for kind, message, cause, stack in (
        *(
            (f"{p}fqcn", f"{p}message", f"{p}cause-fqcn", f"{p}stacktrace")
            for p in (f"{names.dead}exception-", "kafka_exception-")
        ),
        (f"{_CONNECT}exception.class.name", f"{_CONNECT}exception.message", "", f"{_CONNECT}exception.stacktrace"),
        ("", f"{_SHARE}message", "", ""),
    ):
        if kind in said or message in said:
            words = _read_text(said, message) or ""
            return Failure(
                _read_text(said, kind) or words or "unknown", words, _read_text(said, cause), _read_text(said, stack)
            )
    return None


def _read_text(said: Mapping[str, bytes], name: str) -> str | None:
    """Text to show; bytes that are not UTF-8 are replaced."""
    found = said.get(name)
    return None if found is None else found.decode(errors="replace")


def _read_name(said: Mapping[str, bytes], name: str, bad: list[str]) -> str | None:
    """Text that is used as a name, so that it must be UTF-8 and not empty."""
    found = said.get(name)
    if found is None:
        return None
    try:
        text = found.decode()
    except UnicodeDecodeError:
        text = ""
    if not text:
        bad.append(name)
    return text or None


def _read_count(said: Mapping[str, bytes], name: str, bad: list[str], default: int, least: int | None = None) -> int:
    found = _read_integer(said, name, bad)
    if found is None:
        return default
    if not (default if least is None else least) <= found <= _MAX_INT32:
        bad.append(name)
        return default
    return found


def _read_time(said: Mapping[str, bytes], name: str, bad: list[str]) -> int | None:
    found = _read_integer(said, name, bad)
    if found is not None and not 0 <= found <= _MAX_INT64:
        bad.append(name)
        return None
    return found


def _read_position(said: Mapping[str, bytes], name: str, bad: list[str]) -> int:
    found = _read_integer(said, name, bad)
    if found is not None and not -1 <= found <= _MAX_INT64:
        bad.append(name)
        return -1
    return -1 if found is None else found


def _read_integer(said: Mapping[str, bytes], name: str, bad: list[str]) -> int | None:
    """A number in bytes or in digits. Bytes that all look like digits are digits: as bytes they would mean the year
    3685 or partition 800 million."""
    found = said.get(name)
    if found is None:
        return None
    if 1 <= len(found) <= 20 and found.removeprefix(b"-").isdigit():
        return int(found)
    if not 1 <= len(found) <= 9:  # nine: a BigInteger of 64 bits and its sign
        bad.append(name)
        return None
    return int.from_bytes(found, "big", signed=True)


def __getattr__(name: str) -> Any:
    new = _OLD_NAMES.get(name)
    if new is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.{name}", new)
    return globals()[new]
