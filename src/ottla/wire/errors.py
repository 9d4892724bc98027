"""Exceptions of encoding and decoding.

Zone: pure. Errors in bytes or versions only; Kafka's error codes are in `ottla.errors`.
"""

from __future__ import annotations

from typing import NoReturn


class MalformedMessage(Exception):
    """The bytes are not a message of the claimed API and version: truncated, a length out of range, null where null
    is not allowed, invalid UTF-8, over a limit. The rest of the stream is unusable: close the connection."""


class UnknownVersion(Exception):
    """A message has no such version. Raised before any byte is read or written."""


class FieldNotInVersion(Exception):
    """A request has a value that its version cannot encode and that must not be dropped (KIP-482's "not ignorable"
    fields). Choose a newer version, or leave the field at its default."""


class ImpossibleLength(ValueError):
    """A defect of the caller: a length below 0 was to be encoded. It would look like another length or like null, and
    the reader could not decode the rest of the message."""


def refuse_length(length: int) -> NoReturn:
    """Raise ImpossibleLength."""
    raise ImpossibleLength(f"cannot encode a length of {length}")


def fail(field: str, why: object = "bad length or null") -> NoReturn:
    """Raise MalformedMessage about one field; `why` is a text, or the length that was found."""
    raise MalformedMessage(f"{field}: {why if isinstance(why, str) else f'impossible length {why}'}")
