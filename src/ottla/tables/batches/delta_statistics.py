"""Least and greatest values of a file's columns, as Delta's log has them: readers skip files by them.

Zone: pure. The source is the footer of the Parquet file. Bounds may be wider than the values, and are never narrower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_COUNT: Final = "delta.dataSkippingNumIndexedCols"
_NAMED: Final = "delta.dataSkippingStatsColumns"
_DEFAULT_COUNT: Final = 32
_MOST_CHARACTERS: Final = 32
"""Of a text, as Spark writes them."""
_MOST_DIGITS: Final = 15
"""Of a decimal that a JSON number of double precision holds."""
_LAST: Final = "\U0010ffff"


class _Column(NamedTuple):
    path: tuple[str, ...]
    kind: pa.DataType
    is_repeated: bool
    """Within a list or a map, which have no statistics."""


class _Bounds(NamedTuple):
    low: Any
    high: Any


def file_statistics(footer: pq.FileMetaData, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of a file, for the columns that the table's properties name: the first 32 by default."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number, column in enumerate(_columns_of(pa.struct(list(footer.schema.to_arrow_schema())))):
        if column.is_repeated or not _is_indexed(number, column.path, properties):
            continue
        groups = [footer.row_group(each).column(number).statistics for each in range(footer.num_row_groups)]
        if not groups or not all(each is not None and each.has_null_count for each in groups):
            continue
        _put_value(found["nullCount"], column.path, sum(each.null_count for each in groups))
        bounds = _bounds_of([each for each in groups if each.num_values], column.kind)
        if bounds.low is not None:
            _put_value(found["minValues"], column.path, bounds.low)
        if bounds.high is not None:
            _put_value(found["maxValues"], column.path, bounds.high)
    return found


def _columns_of(kind: pa.DataType, path: tuple[str, ...] = (), *, is_repeated: bool = False) -> Iterator[_Column]:
    """The columns of a Parquet file, in its order."""
    if not kind.num_fields:
        yield _Column(path, kind, is_repeated)
        return
    within = is_repeated or not pa.types.is_struct(kind)
    for each in (kind.field(at) for at in range(kind.num_fields)):
        yield from _columns_of(each.type, (*path, each.name), is_repeated=within)


def _is_indexed(number: int, path: tuple[str, ...], properties: Mapping[str, Any]) -> bool:
    if named := properties.get(_NAMED):
        wanted = {each.strip(" `") for each in str(named).split(",")}
        return any(".".join(path[:depth]) in wanted for depth in range(1, len(path) + 1))
    count = int(properties.get(_COUNT, _DEFAULT_COUNT))
    return count < 0 or number < count


def _put_value(found: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        found = found.setdefault(part, {})
    found[path[-1]] = value


def _bounds_of(groups: list[Any], kind: pa.DataType) -> _Bounds:
    make = _maker_of(kind)
    # Without a value in any group, or with a group that does not know its bounds (texts of several KiB), there is none.
    if make is None or not groups or not all(each.has_min_max for each in groups):
        return _Bounds(None, None)
    return make(min(each.min for each in groups), max(each.max for each in groups))


def _maker_of(kind: pa.DataType) -> Callable[[Any, Any], _Bounds] | None:
    # Floating-point numbers have none: NaN, which readers take for the greatest one, is not in Parquet's bounds.
    if pa.types.is_integer(kind):
        return _Bounds
    if pa.types.is_string(kind):
        return _bounds_of_texts
    if pa.types.is_date(kind):
        return _bounds_of_dates
    if pa.types.is_timestamp(kind):
        return _bounds_in_utc if kind.tz else _bounds_without_zone
    return _bounds_of_decimals if pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS else None


def _bounds_of_texts(low: str, high: str) -> _Bounds:
    return _Bounds(low[:_MOST_CHARACTERS], _greatest_text(high))


def _greatest_text(text: str) -> str | None:
    """A short text that is not less than a text; None if there is none."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    begin = text[:_MOST_CHARACTERS].rstrip(_LAST)
    if not begin:
        return None
    following = ord(begin[-1]) + 1
    # There are no characters with the numbers of surrogates.
    return begin[:-1] + chr(0xE000 if following == 0xD800 else following)


def _bounds_of_dates(low: date, high: date) -> _Bounds:
    return _Bounds(low.isoformat(), high.isoformat())


def _bounds_in_utc(low: datetime, high: datetime) -> _Bounds:
    return _Bounds(
        *(None if each is None else f"{each.replace(' ', 'T')}Z" for each in _bounds_without_zone(low, high))
    )


def _bounds_without_zone(low: datetime, high: datetime) -> _Bounds:
    """In milliseconds, as Delta's log has them: the greatest value is rounded up."""
    rest = -high.microsecond % 1000
    try:
        last = _millis_text(high + timedelta(microseconds=rest))
    except OverflowError:  # in the last millisecond of the year 9999
        last = None
    return _Bounds(_millis_text(low), last)


def _millis_text(time: datetime) -> str:
    return time.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")


def _bounds_of_decimals(low: Any, high: Any) -> _Bounds:
    return _Bounds(float(low), float(high))
