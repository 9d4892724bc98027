"""`consume --key-format` and `--value-format`: records whose bytes are shown in another form.

Zone: real. Bytes that do not have the form stay as they are, with one note for each reason.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cli.options import print_note
from ottla.cli.reading.byte_formats import Convert, format_bytes
from ottla.cli.reading.decoded import DecodedRecord
from ottla.cli.views.record_text import Shown

_NOTES = 100
"""More reasons than these are not printed."""


def record_formatter(key_format: str, value_format: str) -> Callable[[Shown], Shown]:
    """A function that formats the key and value of a record; null stays null."""
    key_of, value_of = _tolerant("keys", key_format), _tolerant("values", value_format)

    def format_record(record: Shown) -> Shown:
        return DecodedRecord(
            record.offset, record.timestamp, key_of(record.key), value_of(record.value), record.headers
        )

    return format_record


def _tolerant(noun: str, name: str) -> Callable[[bytes | None], bytes | None]:
    convert: Convert = format_bytes(name)
    noted: set[str] = set()

    def show(content: bytes | None) -> bytes | None:
        if content is None:
            return None
        try:
            return convert(content)
        except ValueError as error:
            text = str(error)
            if text not in noted and len(noted) < _NOTES:
                noted.add(text)
                print_note(f"{noun} that are not of the format {name} are shown as they are: {text}")
            return content

    return show
