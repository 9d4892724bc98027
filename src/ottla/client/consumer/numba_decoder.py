"""Decodes all records of a batch at once with numba's loops, if the extra `fast` is installed.

Zone: pure. Importing this needs numba and is slow; `record` does so when there are enough records. It decodes only
valid batches: for any other batch it returns None, and the plain decoder finds out what is wrong, and where.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np

from ottla.client.columns.columnar_numba import Ints, index_records
from ottla.record.batch import BatchHeader, Headers, read_headers
from ottla.record.errors import CorruptRecord

LEAST: Final = 48
"""Number of records from which on it is faster than the plain decoder."""
_MOST: Final = 100_000
"""The index of a batch takes 64 bytes per record."""
_INT64_MAX: Final = 2**63 - 1
_NONE: Final[Headers] = ()

Columns = tuple[Iterator[int], Iterator[int], Iterator[bytes | None], Iterator[bytes | None], Iterator[Headers]]
"""Offsets, timestamps, keys, values, headers."""


class _Rows(NamedTuple):
    """The rows that `index_records` fills in, with one entry per record."""

    delta: Ints
    ts_delta: Ints
    key: Ints
    key_size: Ints
    value: Ints
    value_size: Ints
    headers: Ints
    header_count: Ints


def columns_at_once(data: bytes, header: BatchHeader) -> Columns | None:
    """The fields of `ottla.record.batch.fields_in`, one iterator for each; None: decode this batch the plain way.

    Some iterators are endless (`itertools.repeat`): zip them with the offsets, which come first and end.
    """
    count, base = header.record_count, header.base_offset
    # Checks that the loops do not make: sizes before memory is reserved, and that all offsets fit in 64 bits.
    if not LEAST <= count <= min(_MOST, len(data)) or not 0 <= base <= header.last_offset <= _INT64_MAX:
        return None
    rows = np.empty((8, count), np.int64)
    spans = np.array([[0, len(data), count, header.last_offset_delta]], np.int64)
    if index_records(np.frombuffer(data, np.uint8), spans, rows) >= 0:
        return None
    found = _Rows(*rows)
    times = _timestamps_of(header, found.ts_delta)
    if times is None or not (found.delta[1:] > found.delta[:-1]).all():
        return None
    try:
        headers = _headers_of(data, found)
    except CorruptRecord:
        return None
    keys, values = _field_slices(data, found.key, found.key_size), _field_slices(data, found.value, found.value_size)
    return iter((found.delta + base).tolist()), times, keys, values, headers


def _timestamps_of(header: BatchHeader, deltas: Ints) -> Iterator[int] | None:
    if header.is_append_time:
        return repeat(header.max_timestamp) if abs(header.max_timestamp) <= _INT64_MAX else None
    base = header.base_timestamp
    if not -_INT64_MAX <= base + int(deltas.min()) <= base + int(deltas.max()) <= _INT64_MAX:
        return None
    times: list[int] = (deltas + base).tolist()
    return iter(times)


def _field_slices(data: bytes, at: Ints, size: Ints) -> Iterator[bytes | None]:
    """The bytes of each field; a negative size means null."""
    null = size < 0
    if null.all():
        return repeat(None)
    cuts = zip(at.tolist(), (at + size).tolist(), strict=True)
    if not null.any():
        return iter([data[begin:end] for begin, end in cuts])
    return iter([None if end < begin else data[begin:end] for begin, end in cuts])


def _headers_of(data: bytes, rows: _Rows) -> Iterator[Headers]:
    """The headers of each record. Raises CorruptRecord for an invalid key."""
    if not rows.header_count.any():
        return repeat(_NONE)
    places = zip(rows.headers.tolist(), rows.header_count.tolist(), strict=True)
    return iter([read_headers(data, at, len(data), count)[0] if count else _NONE for at, count in places])
