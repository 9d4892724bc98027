"""The named errors of the wire.

Zone: pure. Only what bytes or versions can do wrong lives here; Kafka's error codes are in `ottla.errors`.
"""

from __future__ import annotations

from typing import NoReturn


class MalformedMessage(Exception):
    """The bytes are not a message of the claimed API and version: cut short, a length out of range, null where null
    is not allowed, invalid UTF-8, over a limit. The sender cannot be talked to any further: close the connection."""


class UnknownVersion(Exception):
    """A message has no such version. Raised before any byte is read or written."""


class FieldNotInVersion(Exception):
    """A request carries a value that its version cannot transport and that must not be dropped (KIP-482's
    "not ignorable" fields). Choose a newer version, or leave the field at its default."""


class ImpossibleLength(ValueError):
    """A defect of ours: a length below 0 was to be written. Bytes that look like another length, or like null, would
    cost the reader the whole message."""


def refuse_length(length: int) -> NoReturn:
    """Raise ImpossibleLength."""
    raise ImpossibleLength(f"a length of {length} was to be written")


def fail(field: str, why: object = "bad length or null") -> NoReturn:
    """Raise MalformedMessage about one field; `why` is a text, or the length that was found."""
    raise MalformedMessage(f"{field}: {why if isinstance(why, str) else f'impossible length {why}'}")
