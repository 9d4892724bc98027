"""Forms in which `consume` shows the bytes of keys and values, and in which `produce` reads them.

Zone: pure. Bytes to text and back. Numbers are big-endian, as Kafka's serializers write them.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

Convert = Callable[[bytes], bytes]


def _quote_start(text: bytes) -> str:
    return repr(text[:40].decode(errors="backslashreplace"))


def _integer_format(size: int, *, signed: bool = True) -> tuple[Convert, Convert]:
    def show(content: bytes) -> bytes:
        if len(content) != size:
            raise ValueError(f"{len(content)} bytes are not an integer of {size}")
        return b"%d" % int.from_bytes(content, "big", signed=signed)

    def read(text: bytes) -> bytes:
        try:
            # Longer texts would cost time, and no integer of eight bytes has that many digits.
            return int(text if len(text) <= 40 else b"").to_bytes(size, "big", signed=signed)
        except (ValueError, OverflowError):
            raise ValueError(f"{_quote_start(text)} is not an integer of {size} bytes") from None

    return show, read


def _float_format(code: str) -> tuple[Convert, Convert]:
    form = struct.Struct(f">{code}")

    def show(content: bytes) -> bytes:
        if len(content) != form.size:
            raise ValueError(f"{len(content)} bytes are not a float of {form.size}")
        return repr(form.unpack(content)[0]).encode()

    def read(text: bytes) -> bytes:
        try:
            return form.pack(float(text))
        except (ValueError, OverflowError):
            raise ValueError(f"{_quote_start(text)} is not a float of {form.size} bytes") from None

    return show, read


_show_long, _read_long = _integer_format(8)


def _show_time(content: bytes) -> bytes:
    number = int(_show_long(content))
    try:
        moment = datetime.fromtimestamp(number // 1000, UTC).replace(microsecond=number % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        raise ValueError(f"{number} ms since 1970 are no date") from None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


def _read_time(text: bytes) -> bytes:
    try:
        moment = datetime.fromisoformat(text[:80].decode())
    except ValueError:
        return _read_long(text)
    # A time without a zone is UTC, as Kafka's tools read it; this machine's zone would make scripts differ.
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _read_long(b"%d" % round(moment.timestamp() * 1000))


def _read_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        raise ValueError("it is not hexadecimal") from None


def _read_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        raise ValueError("it is not base64") from None


_FORMATS: Final[Mapping[str, tuple[Convert, Convert]]] = {
    "text": (lambda content: content, lambda text: text),
    "hex": (lambda content: content.hex().encode(), _read_hex),
    "base64": (base64.b64encode, _read_base64),
    "int16": _integer_format(2),
    "int32": _integer_format(4),
    "int64": (_show_long, _read_long),
    "uint32": _integer_format(4, signed=False),
    "uint64": _integer_format(8, signed=False),
    "float32": _float_format("f"),
    "float64": _float_format("d"),
    "timestamp": (_show_time, _read_time),
}
FORMAT_NAMES: Final = tuple(_FORMATS)
"""The names of the formats; the first one leaves bytes as they are. timestamp: ms since 1970 in 8 bytes, as a date."""


def format_bytes(name: str) -> Convert:
    """A function from the bytes of a key or value to text; it raises ValueError for bytes of another form."""
    return _FORMATS[name][0]


def parse_bytes(name: str) -> Convert:
    """A function from text to the bytes of a key or value; it raises ValueError for another text."""
    return _FORMATS[name][1]
