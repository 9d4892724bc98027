"""Reads the metrics of a push: OTLP's MetricsData, as protobuf, of which only numbers are taken.

Zone: pure. Everything is bounded: bytes after decompression, points, and the length and number of labels. Histograms
and summaries are left out. Runs in a worker process, except for small pushes.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, NamedTuple

from ottla.record.compression import decompress

EXPANDED_MAX: Final = 4 * 1024 * 1024
"""Most bytes of a push after decompression."""
POINTS_MAX: Final = 200
"""Most numbers of a push; the others are left out."""
LABELS_MAX: Final = 8
TEXT_MAX: Final = 200
"""Most characters of a name or of a value of a label."""
_DELTA: Final = 1
_double: Final = Struct("<d").unpack_from
_int64: Final = Struct("<q").unpack_from
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadPush(ValueError):
    """The bytes are not OTLP metrics."""


class Point(NamedTuple):
    """One number."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    is_delta: bool
    """Whether it adds to what was pushed before."""


def read_push(compression_type: int, data: bytes) -> list[Point]:
    """The numbers of a push. Raises BadPush, or CorruptRecord if it cannot be decompressed within the bound."""
    content = bytes(decompress(compression_type, data, EXPANDED_MAX)) if compression_type else data
    points: list[Point] = []
    for metric in _metrics_of(memoryview(content)):
        for point in _points_of(metric):
            points.append(point)
            if len(points) >= POINTS_MAX:
                return points
    return points


def _metrics_of(data: memoryview) -> Iterator[memoryview]:
    for resource in _children(data, 1):
        for scope in _children(resource, 2):
            yield from _children(scope, 2)


def _points_of(metric: memoryview) -> Iterator[Point]:
    fields = list(_fields_of(metric))
    name = next((_text(value) for number, value in fields if number == 1), "")
    if not name:
        return
    for number, value in fields:
        # 5: gauge, 7: sum.
        if number in (5, 7) and isinstance(value, memoryview):
            inner = list(_fields_of(value))
            is_delta = number == 7 and (2, _DELTA) in inner
            for field, point in inner:
                if field == 1 and isinstance(point, memoryview):
                    yield from _point_of(name, point, is_delta)


def _point_of(name: str, data: memoryview, is_delta: bool) -> Iterator[Point]:
    labels: list[tuple[str, str]] = []
    found: float | None = None
    for number, value in _fields_of(data):
        if number == 4 and isinstance(value, bytes):
            found = float(_double(value)[0])
        elif number == 6 and isinstance(value, bytes):
            found = float(_int64(value)[0])
        elif number == 7 and isinstance(value, memoryview) and len(labels) < LABELS_MAX:
            labels.append(_label_of(value))
    if found is not None:
        yield Point(name, tuple(sorted(labels)), found, is_delta)


def _label_of(data: memoryview) -> tuple[str, str]:
    key = value = ""
    for number, field in _fields_of(data):
        if number == 1:
            key = _text(field)
        elif number == 2 and isinstance(field, memoryview):
            value = next((_text(each) for _, each in _fields_of(field)), "")
    return key, value


def _text(value: Any) -> str:
    if isinstance(value, memoryview):
        return bytes(value[: 4 * TEXT_MAX]).decode(errors="replace")[:TEXT_MAX]
    return str(value)[:TEXT_MAX] if isinstance(value, int) else ""


def _children(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, value in _fields_of(data):
        if number == wanted:
            if not isinstance(value, memoryview):
                raise BadPush(f"field {number} is not a message")
            yield value


def _fields_of(data: memoryview) -> Iterator[tuple[int, int | bytes | memoryview]]:
    """(number, value) of each field: an int, 8 or 4 bytes, or a view of a string or message. Raises BadPush."""
    pos = 0
    while pos < len(data):
        key, pos = _read_varint(data, pos)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, pos = _read_varint(data, pos)
            yield number, value
            continue
        if kind == _BYTES:
            size, pos = _read_varint(data, pos)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise BadPush(f"unknown wire type {kind}")
        if size > len(data) - pos:
            raise BadPush("a field is longer than its message")
        piece = data[pos : pos + size]
        pos += size
        yield number, piece if kind == _BYTES else bytes(piece)


def _read_varint(data: memoryview, pos: int) -> tuple[int, int]:
    found = shift = 0
    while pos < len(data) and shift < 70:
        octet = data[pos]
        pos += 1
        found |= (octet & 127) << shift
        if octet < 128:
            return found, pos
        shift += 7
    raise BadPush("a number has no end")
