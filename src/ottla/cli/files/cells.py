"""Keys and values of records as the cells of a file, in a format that the user chooses.

Zone: pure. Bytes that do not have the format, or that could not be read back from it, become base64: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.cli.reading.byte_formats import FORMAT_NAMES, Convert, format_bytes, parse_bytes
from ottla.cli.views.record_text import Parsed, ReadBytes, bytes_from_json, compact_json, document_from_json

AUTO: Final = "auto"
JSON: Final = "json"
BASE64: Final = "base64"
CELL_FORMATS: Final = (AUTO, *FORMAT_NAMES, JSON)
"""auto: each key and value by its bytes. json: documents, not strings, without the spaces between their parts."""

ShowCell = Callable[[bytes], "str | None"]


def show_cell(name: str) -> ShowCell:
    """A function from bytes to their text in a format; None for bytes that the text would not give back."""
    if name in (AUTO, "text"):
        return _show_text
    if name == JSON:
        return _show_json
    show, parse = format_bytes(name), parse_bytes(name)
    return lambda content: _show_checked(content, show, parse)


def _show_text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _show_json(content: bytes) -> str | None:
    try:
        return compact_json(content)
    except ValueError:
        return None


def _show_checked(content: bytes, show: Convert, parse: Convert) -> str | None:
    # Read back at once: a float that is not a number has bits that its text does not have.
    try:
        text = show(content)
        return text.decode("ascii") if parse(text) == content else None
    except ValueError:
        return None


def parse_cell(name: str) -> Callable[[str], bytes]:
    """A function from the text of a cell to bytes. It raises ValueError for a text that is not of the format."""
    if name in (AUTO, "text", JSON):
        return _encode_text
    parse = parse_bytes(name)
    return lambda text: parse(_encode_text(text))


def _encode_text(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it holds half of a surrogate pair, which is no text") from None


def read_document(name: str) -> ReadBytes:
    """A function from a JSON value and the name of its field to bytes; `{"base64": …}` has them in every format."""
    if name in (AUTO, "text"):
        return bytes_from_json
    if name == JSON:
        return document_from_json
    parse = parse_cell(name)

    def read_formatted(value: Parsed, field: str) -> bytes | None:
        if not isinstance(value, str):
            return bytes_from_json(value, field)
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None

    return read_formatted
