"""Records as text: the JSON lines that `produce --jsonl` reads back, and kcat's format strings.

Zone: pure. Bytes to text and back without loss; the JSON fields are an interface, described in docs/cli.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple, Protocol

from ottla.utf8 import decode_text, encode_text

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
Headers = tuple[tuple[str, bytes | None], ...]
_BASE64: Final = "base64"
_FIELDS: Final = ("topic", "partition", "offset", "timestamp", "headers", "key", "value")


class Shown(Protocol):
    """A record to show, from any of the readers."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...


class RecordLine(NamedTuple):
    """A record read from JSON; None for a field that the line does not have."""

    topic: str | None
    partition: int | None
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def to_json(topic: str, partition: int, record: Shown) -> dict[str, Json]:
    """The document of a record. Bytes that are UTF-8 are a string, others {"base64": …}, null is null."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "headers": headers_to_json(record.headers),
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
    }


def headers_to_json(headers: Headers) -> Json:
    """Headers in their order; a key that is not UTF-8 becomes {"base64": …}, as a value does."""
    return [{"key": bytes_to_json(encode_text(name)), "value": bytes_to_json(value)} for name, value in headers]


def bytes_to_json(content: bytes | None) -> Json:
    """Inverse of `bytes_from_json`."""
    if content is None:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(content).decode("ascii")}


def bytes_from_json(value: Parsed, field: str) -> bytes | None:
    """The bytes of a string, of {"base64": …}, or of any other document (numbers, arrays …) as compact JSON.

    Raises ValueError, naming `field`.
    """
    if value is None:
        return None
    if isinstance(value, str) and not isinstance(value, _Number):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{field} holds half of a surrogate pair, which is no text") from error
    if isinstance(value, _Object) and _is_base64(value):
        return _from_base64(value.pairs[0][1], field)
    try:
        return _compact_json(value).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} holds half of a surrogate pair, which is no text") from error


class _Number(str):
    """A JSON number as it was written, with its digits, zeros and exponent."""

    __slots__ = ()


class _Object:
    """A JSON object as it was written, with the order of its names and with repeated names."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Parsed]]) -> None:
        self.pairs = pairs

    def unique_fields(self, known: Collection[str], what: str) -> dict[str, Parsed]:
        """The values by name. Raises ValueError for names that are unknown or repeat."""
        found: dict[str, Parsed] = {}
        for name, value in self.pairs:
            if name not in known:
                raise ValueError(f"{what} has the unknown field {name!r}; the fields are {', '.join(known)}")
            if name in found:
                raise ValueError(f"{what} has the field {name!r} twice")
            found[name] = value
        return found


Parsed = str | bool | None | _Number | _Object | list["Parsed"]
ReadBytes = Callable[[Parsed, str], "bytes | None"]
"""From a JSON value, and the name of its field, to bytes."""


def _refuse_constant(name: str) -> Parsed:
    raise ValueError(f"{name} is not JSON")


# Numbers and objects stay as they were written: a value that is a document must keep its digits, the order of its
# names and repeated names, or `consume` and `produce` would change it.
_parse = json.JSONDecoder(
    object_pairs_hook=_Object, parse_float=_Number, parse_int=_Number, parse_constant=_refuse_constant
).decode


def _compact_json(value: Parsed) -> str:
    """JSON without spaces."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, _Object):
        return "{" + ",".join(f"{_compact_json(name)}:{_compact_json(each)}" for name, each in value.pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_compact_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def compact_json(content: bytes) -> str:
    """The document that the bytes are, without the spaces between its parts. Raises ValueError if it is not one, and
    for null and `{"base64": …}`, which mean no value and other bytes where a record is JSON.
    """
    try:
        parsed = _parse(content.decode("utf-8"))
        text = _compact_json(parsed)
        text.encode("utf-8")  # an escape may be half of a surrogate pair
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if parsed is None or _is_base64(parsed):
        raise ValueError(f"{text} has another meaning in a record")
    return text


def document_from_json(value: Parsed, field: str) -> bytes | None:
    """Inverse of `compact_json`: the text of any document, also of a string. Raises ValueError, naming `field`."""
    if value is None or _is_base64(value):
        return bytes_from_json(value, field)
    try:
        return _compact_json(value).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} holds half of a surrogate pair, which is no text") from error


def _is_base64(value: Parsed) -> bool:
    return isinstance(value, _Object) and [name for name, _ in value.pairs] == [_BASE64]


def _from_base64(text: Parsed, field: str) -> bytes:
    try:
        if isinstance(text, str) and not isinstance(text, _Number):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise ValueError(f"{field} is not valid base64")


def from_json(
    line: bytes, read_key: ReadBytes = bytes_from_json, read_value: ReadBytes = bytes_from_json
) -> RecordLine:
    """The record in a line of JSON; `offset` is ignored. Raises ValueError, also for an unknown field.

    read_key, read_value: the bytes of these fields.
    """
    try:
        return _record_of(_parse(line.decode("utf-8")), read_key, read_value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error


def _record_of(parsed: Parsed, read_key: ReadBytes, read_value: ReadBytes) -> RecordLine:
    if not isinstance(parsed, _Object):
        raise ValueError("it is not a JSON object")
    document = parsed.unique_fields(_FIELDS, "the record")
    return RecordLine(
        _text_field(document, "topic"),
        _number_field(document, "partition", 2**31 - 1),
        _number_field(document, "timestamp", 2**63 - 1),
        read_key(document.get("key"), "key"),
        read_value(document.get("value"), "value"),
        _parse_headers(document.get("headers")),
    )


def _text_field(document: Mapping[str, Parsed], field: str) -> str | None:
    value = document.get(field)
    if value is not None and (not isinstance(value, str) or isinstance(value, _Number)):
        raise ValueError(f"{field} is not a string")
    return value


def _number_field(document: Mapping[str, Parsed], field: str, largest: int) -> int | None:
    """A whole number; -1, which is Kafka's "unknown", counts as not given."""
    value = document.get(field)
    if value is None or (isinstance(value, _Number) and value == "-1"):
        return None
    is_whole = isinstance(value, _Number) and re.fullmatch("[0-9]{1,19}", value) is not None
    if not is_whole or not 0 <= (number := int(str(value))) <= largest:
        raise ValueError(f"{field} is not a whole number from 0 to {largest}")
    return number


def headers_from_json(text: str) -> Headers:
    """The headers in a JSON document: a list, or an object of names and values. Raises ValueError."""
    try:
        return _parse_headers(_parse(text))
    except RecursionError:
        raise ValueError("the headers are nested too deeply") from None


def _parse_headers(value: Parsed) -> Headers:
    """`[{"key": …, "value": …}]`, or the shorter `{"key": value}`."""
    if value is None:
        return ()
    if isinstance(value, _Object):
        return tuple(_parse_header(name, content) for name, content in value.pairs)
    headers: list[tuple[str, bytes | None]] = []
    for item in value if isinstance(value, list) else [None]:
        fields = item.unique_fields(("key", "value"), "a header") if isinstance(item, _Object) else {}
        name = _header_key(fields.get("key"))
        if name is None:
            raise ValueError('headers is not a list of {"key": …, "value": …}')
        headers.append(_parse_header(name, fields.get("value")))
    return tuple(headers)


def _header_key(value: Parsed) -> str | None:
    if isinstance(value, _Object) and _is_base64(value):
        return decode_text(_from_base64(value.pairs[0][1], "a header's key"))
    return value if isinstance(value, str) and not isinstance(value, _Number) else None


def _parse_header(name: str, content: Parsed) -> tuple[str, bytes | None]:
    try:
        encode_text(name)
    except UnicodeEncodeError as error:
        raise ValueError("the name of a header holds half of a surrogate pair, which is no text") from error
    return name, bytes_from_json(content, f"header {name}")


class Placed(NamedTuple):
    """A record and where it is."""

    topic: str
    partition: int
    record: Shown


Piece = Callable[[Placed], bytes]

_ESCAPES: Mapping[str, Piece] = {
    "s": lambda at: at.record.value or b"",
    "S": lambda at: _length_text(at.record.value),
    "R": lambda at: _packed_length(at.record.value),
    "k": lambda at: at.record.key or b"",
    "K": lambda at: _length_text(at.record.key),
    "t": lambda at: encode_text(at.topic),
    "p": lambda at: b"%d" % at.partition,
    "o": lambda at: b"%d" % at.record.offset,
    "T": lambda at: b"%d" % at.record.timestamp,
    "h": lambda at: _header_list(at.record.headers),
    "%": lambda _: b"%",
}
"""kcat's: value, its length, its length as 4 bytes; key, its length; topic, partition, offset, timestamp, headers."""

_TOKEN = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|([^%\\]+)", re.DOTALL)
_CONTROLS: Mapping[str, bytes] = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def compile_format(text: str) -> Piece:
    """A function that renders a record as kcat would with `-f text`. Raises ValueError for an unknown escape."""
    pieces = [_make_piece(match) for match in _TOKEN.finditer(text)]

    def render(placed: Placed) -> bytes:
        return b"".join(piece(placed) for piece in pieces)

    return render


def _make_piece(match: re.Match[str]) -> Piece:
    percent, hexadecimal, backslash, literal = match.groups()
    if percent is not None:
        if percent not in _ESCAPES or not percent:
            known = " ".join(f"%{name}" for name in _ESCAPES)
            raise ValueError(f"%{percent} is not a field of --format: use {known}")
        return _ESCAPES[percent]
    if hexadecimal is not None:
        constant = bytes.fromhex(hexadecimal)
    elif backslash is not None:
        if backslash not in _CONTROLS:
            raise ValueError(f"\\{backslash} is not known in --format: use \\n \\r \\t \\0 \\\\ \\xHH")
        constant = _CONTROLS[backslash]
    else:
        constant = encode_text(literal)
    return lambda _: constant


def _length_text(content: bytes | None) -> bytes:
    """The length as text; -1 for null."""
    return b"%d" % (-1 if content is None else len(content))


def _packed_length(content: bytes | None) -> bytes:
    return (-1 if content is None else len(content)).to_bytes(4, "big", signed=True)


def _header_list(headers: Headers) -> bytes:
    return b",".join(encode_text(name) + b"=" + (b"NULL" if value is None else value) for name, value in headers)
