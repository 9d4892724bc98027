"""Records as text: the JSON lines that `produce --jsonl` reads back, and kcat's format strings.

Zone: pure. Bytes to text and back without loss; the JSON fields are an interface, described in docs/cli.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from ottla.utf8 import decode_text, encode_text

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
Headers = tuple[tuple[str, bytes | None], ...]
_BASE64: Final = "base64"


class Shown(Protocol):
    """A record that is shown, whoever has read it."""

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
    """A record read from JSON; None where the line does not say."""

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
    """Headers in their order; a key that is no UTF-8 is shown as a value that is none."""
    return [{"key": bytes_to_json(encode_text(name)), "value": bytes_to_json(value)} for name, value in headers]


def bytes_to_json(content: bytes | None) -> Json:
    """Inverse of `bytes_from_json`."""
    if content is None:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(content).decode("ascii")}


def bytes_from_json(value: Json, field: str) -> bytes | None:
    """The bytes of a string, of {"base64": …}, or of any other document (numbers, arrays …) as compact JSON.

    Raises ValueError, naming `field`.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"{field} holds half of a surrogate pair, which is no text") from error
    if isinstance(value, dict) and list(value) == [_BASE64]:
        return _from_base64(value[_BASE64], field)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _from_base64(text: Json, field: str) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise ValueError(f"{field} is not valid base64")


def from_json(line: bytes) -> RecordLine:
    """The record in a line of JSON; unknown fields are ignored, `offset` too. Raises ValueError."""
    try:
        document = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return RecordLine(
        _text(document, "topic"),
        _number(document, "partition", 2**31 - 1),
        _number(document, "timestamp", 2**63 - 1),
        bytes_from_json(document.get("key"), "key"),
        bytes_from_json(document.get("value"), "value"),
        _headers(document.get("headers")),
    )


def _text(document: Mapping[str, Json], field: str) -> str | None:
    value = document.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field} is not a string")
    return value


def _number(document: Mapping[str, Json], field: str, largest: int) -> int | None:
    """A whole number; -1, Kafka's "unknown", counts as not given."""
    value = document.get(field)
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise ValueError(f"{field} is not a whole number from 0 to {largest}")
    return value


def _headers(value: Json) -> Headers:
    """`[{"key": …, "value": …}]`, or the shorter `{"key": value}` for keys that do not repeat."""
    if value is None:
        return ()
    if isinstance(value, dict):
        return tuple((name, bytes_from_json(content, f"header {name}")) for name, content in value.items())
    headers: list[tuple[str, bytes | None]] = []
    for item in value if isinstance(value, list) else [None]:
        name = _header_key(item.get("key")) if isinstance(item, dict) else None
        if not isinstance(item, dict) or name is None:
            raise ValueError('headers is not a list of {"key": …, "value": …}')
        headers.append((name, bytes_from_json(item.get("value"), f"header {name}")))
    return tuple(headers)


def _header_key(value: Json) -> str | None:
    if isinstance(value, dict) and list(value) == [_BASE64]:
        return decode_text(_from_base64(value[_BASE64], "a header's key"))
    return value if isinstance(value, str) else None


class Placed(NamedTuple):
    """A record and where it is."""

    topic: str
    partition: int
    record: Shown


Piece = Callable[[Placed], bytes]

_ESCAPES: Mapping[str, Piece] = {
    "s": lambda at: at.record.value or b"",
    "S": lambda at: _length(at.record.value),
    "R": lambda at: _packed_length(at.record.value),
    "k": lambda at: at.record.key or b"",
    "K": lambda at: _length(at.record.key),
    "t": lambda at: at.topic.encode(),
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
    pieces = [_piece(match) for match in _TOKEN.finditer(text)]

    def render(placed: Placed) -> bytes:
        return b"".join(piece(placed) for piece in pieces)

    return render


def _piece(match: re.Match[str]) -> Piece:
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
        constant = literal.encode()
    return lambda _: constant


def _length(content: bytes | None) -> bytes:
    """-1 stands for null."""
    return b"%d" % (-1 if content is None else len(content))


def _packed_length(content: bytes | None) -> bytes:
    return (-1 if content is None else len(content)).to_bytes(4, "big", signed=True)


def _header_list(headers: Headers) -> bytes:
    return b",".join(encode_text(name) + b"=" + (b"NULL" if value is None else value) for name, value in headers)


_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")


def for_terminal(content: bytes) -> bytes:
    """`content` with control characters shown as \\xHH, so that a record cannot steer the terminal."""
    return _CONTROL_BYTES.sub(lambda match: b"\\x%02x" % match[0][0], content)
