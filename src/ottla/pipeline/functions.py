"""Users' functions for steps, over records or over Arrow batches, and how they are called.

Zone: pure. A function that raises fails its record, not the batch: the result has the rows made and the rows that
failed. `routing` decides about their topics.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.errors import BadOutput, NullField, RecordTooLarge
from ottla.retry import headers as trails

Headers = tuple[tuple[str, bytes | None], ...]
Bytes = bytes | str | None

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
ROWS_TYPE: Final = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE)])
ERROR: Final = "_error"
_OVERHEAD: Final = 90
"""Upper bound of the bytes of a batch with one record, beside its key, value and headers."""


class _Same(enum.Enum):
    SAME = "same"


SAME: Final = _Same.SAME


class Record(NamedTuple):
    """A record for a step's function: at every attempt with the origin of the first one."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    headers: Headers
    """The application's own headers."""
    attempt: int
    """The number of the attempt, from 1."""


class Out(NamedTuple):
    """A record that a step makes; by default with the key and headers of its input. Text is written as UTF-8."""

    value: Bytes
    key: Bytes | _Same = SAME
    headers: Iterable[tuple[str, Bytes]] | _Same = SAME


RowResult = Bytes | Out | Sequence["Bytes | Out"]


class Limits(NamedTuple):
    """The limits of the records that a step makes."""

    max_bytes: int = 1_000_000
    required: tuple[str, ...] = ()
    """Which of key and value must not be null."""


class Failed(NamedTuple):
    """An input row that failed."""

    row: int
    error: Exception


class Applied(NamedTuple):
    """The result of a batch."""

    made: list[pa.RecordBatch]
    """The rows made, of ROWS_TYPE."""
    failed: list[Failed]


@dataclass(frozen=True)
class RowFunction:
    """A step's function over single records; see `map_rows`."""

    function: Callable[[Record], RowResult]

    def apply(self, batch: pa.RecordBatch, limits: Limits, levels: Mapping[str, int]) -> Applied:
        """Call it for every row of a batch of the source. `levels`: the retry level of each topic."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        headers: list[list[tuple[str, bytes | None]]] = []
        failed: list[Failed] = []
        for row, record in enumerate(records_of(batch, levels)):
            try:
                made = [_record_fields(each, record) for each in _results_of(self.function(record))]
                for one in made:
                    _check_limits(one, limits)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - any error of a user's function fails its record
                failed.append(Failed(row, error))
            else:
                # Only now, when all results of the record are valid: a failed record must not leave a part of its
                # output.
                for key, value, own in made:
                    keys.append(key)
                    values.append(value)
                    headers.append(list(own))
        return Applied([_make_rows(keys, values, headers)] if keys else [], failed)


@dataclass(frozen=True)
class BatchFunction:
    """A step's function over Arrow record batches; see `map_batches`."""

    function: Callable[[pa.RecordBatch], Any]

    def apply(self, batch: pa.RecordBatch, limits: Limits, levels: Mapping[str, int]) -> Applied:  # noqa: ARG002
        """Call it for a batch; after an error call it for halves, until the failing rows are found."""
        made: list[pa.RecordBatch] = []
        failed: list[Failed] = []
        parts = [(0, batch)]
        while parts:
            first, part = parts.pop()
            try:
                rows, wrong = self._call_function(part, limits)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - as above
                # One row: it is the cause. More: try both halves, the first one next, so that rows keep their order.
                if part.num_rows == 1:
                    failed.append(Failed(first, error))
                else:
                    half = part.num_rows // 2
                    parts += [(first + half, part.slice(half)), (first, part.slice(0, half))]
            else:
                made.append(rows)
                failed += [Failed(first + row, error) for row, error in wrong]
        return Applied([rows for rows in made if rows.num_rows], failed)

    def _call_function(self, part: pa.RecordBatch, limits: Limits) -> tuple[pa.RecordBatch, list[Failed]]:
        found = _to_batch(self.function(part))
        wrong: list[Failed] = []
        if ERROR in found.schema.names:
            if found.num_rows != part.num_rows:
                raise BadOutput(f"{found.num_rows} rows with {ERROR} for {part.num_rows}: there must be one for each")
            reasons = reasons_of(found.column(ERROR))
            wrong = [Failed(row, StepSaid(reason)) for row, reason in reasons.items()]
            # Failed rows leave before the limits are checked: a row that is marked need not be valid.
            found = found.filter(pa.array([row not in reasons for row in range(found.num_rows)], pa.bool_()))
        rows = to_rows(found)
        if (problem := next(iter(problems_of(rows, limits).values()), None)) is not None:
            raise problem
        return rows, wrong


class StepSaid(Exception):
    """A row that a step itself marked as failed, in the column `_error`."""


def map_rows(function: Callable[[Record], RowResult]) -> RowFunction:
    """Make a step of a function that is called for every record.

    It returns the value of the record to write (bytes or text; the key and headers are kept), an `Out`, a list of
    these, or None for no record. An exception fails only this record: it is retried, or becomes a dead letter.
    """
    return RowFunction(function)


def map_batches(function: Callable[[pa.RecordBatch], Any]) -> BatchFunction:
    """Make a step of a function over Arrow record batches with the columns of the source.

    It returns a RecordBatch, a Table or a mapping of arrays with `value`, and `key` and `headers` if there are any.
    With a column `_error` (null or false: no error) it must return one row for each input row, and rows with an error
    fail. After an exception it is called again for smaller parts of the batch, until the failing rows are found, so
    that it must not have side effects.
    """
    return BatchFunction(function)


# -- rows in -----------------------------------------------------------------------------------------------------------


def records_of(batch: pa.RecordBatch, levels: Mapping[str, int]) -> Iterator[Record]:
    """The records of a batch of the source, with the origin of their first attempt."""
    names = batch.schema.names
    columns = [batch.column(names.index(name)) for name in ("key", "value", "topic", "partition", "offset")]
    times = batch.column(names.index("timestamp")).cast(pa.int64())
    headers = batch.column(names.index("headers"))
    lists = (*(column.to_pylist() for column in columns), times.to_pylist(), headers.to_pylist())
    for key, value, topic, partition, offset, micros, own in zip(*lists, strict=True):
        found = headers_of(own) if own else ()
        level = levels.get(topic, 0)
        # Headers count only in retry topics: in the source they may come from another program's retries.
        first = (trails.read_trail(found).origin if level else None) or trails.Origin(
            topic, partition, offset, (micros or 0) // 1000
        )
        where = (first.topic, first.partition, first.offset, first.timestamp)
        yield Record(key, value, *where, trails.without_trail(found) if found else (), level + 1)


def with_null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with null instead of empty headers, as the source makes it (see `queries`)."""
    at = batch.schema.get_field_index("headers")
    column = batch.column(at)
    shown = pc.if_else(pc.equal(pc.list_value_length(column), 0), pa.scalar(None, column.type), column)
    return batch.set_column(at, batch.schema.field(at), shown)


def headers_of(found: Iterable[Mapping[str, Any]] | None) -> Headers:
    """Headers from Arrow's rows."""
    return tuple((each["key"], each["value"]) for each in found or ())


# -- rows out ----------------------------------------------------------------------------------------------------------


def _results_of(result: Any) -> Sequence[Any]:
    if result is None:
        return ()
    return result if isinstance(result, list) else (result,)


def _record_fields(result: Any, record: Record) -> tuple[bytes | None, bytes | None, Headers]:
    if not isinstance(result, Out):
        if not isinstance(result, bytes | bytearray | memoryview | str):
            raise BadOutput(
                f"the step returned {type(result).__name__}: return bytes, str, Out, a list of these, or None"
            )
        return record.key, _to_bytes(result, "value"), record.headers
    key = record.key if isinstance(result.key, _Same) else _to_bytes(result.key, "key")
    if isinstance(result.headers, _Same):
        return key, _to_bytes(result.value, "value"), record.headers
    return key, _to_bytes(result.value, "value"), tuple(_header_fields(each) for each in result.headers)


def _header_fields(pair: Any) -> tuple[str, bytes | None]:
    if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
        raise BadOutput(f"the header {pair!r:.100} is not a pair of a name and a value")
    return pair[0], _to_bytes(pair[1], f"header {pair[0]}")


def _to_bytes(given: Any, what: str) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, bytearray | memoryview):
        return bytes(given)
    raise BadOutput(f"the {what} is {type(given).__name__}: it must be bytes, str or None")


def _check_limits(made: tuple[bytes | None, bytes | None, Headers], limits: Limits) -> None:
    key, value, headers = made
    size = len(key or b"") + len(value or b"") + sum(len(n.encode()) + len(v or b"") + 10 for n, v in headers)
    if size + _OVERHEAD > limits.max_bytes:
        raise too_large(size, limits)
    for name, field in (("key", key), ("value", value)):
        if field is None and name in limits.required:
            raise null_field(name)


def too_large(size: int, limits: Limits) -> RecordTooLarge:
    """The error for a record of `size` bytes."""
    return RecordTooLarge(f"the record has {size} bytes, and the limit is {limits.max_bytes - _OVERHEAD}")


def null_field(name: str) -> NullField:
    """The error for a record with a null key or value that is required."""
    return NullField(f"the {name} is null, and the step requires one")


def _make_rows(keys: Sequence[Any], values: Sequence[Any], headers: Sequence[Any]) -> pa.RecordBatch:
    pairs = [[{"key": name, "value": value} for name, value in own] for own in headers]
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(pairs, HEADERS_TYPE)]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_TYPE)


def rows_of(keys: Sequence[Any], values: Sequence[Any], headers: Sequence[Headers]) -> pa.RecordBatch:
    """Rows of ROWS_TYPE from Python values."""
    return _make_rows(keys, values, headers)


def _to_batch(found: Any) -> pa.RecordBatch:
    """The result of a batch function as one record batch. Raises BadOutput."""
    if isinstance(found, pa.Table):
        # One batch, because problems are reported by the number of the row in it.
        batches = found.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=found.schema)
    if isinstance(found, pa.RecordBatch):
        return found
    if isinstance(found, Mapping):
        return pa.RecordBatch.from_pydict({str(name): column for name, column in found.items()})
    raise BadOutput(f"the step returned {type(found).__name__}: return a RecordBatch, a Table or a mapping of arrays")


def to_rows(found: pa.RecordBatch) -> pa.RecordBatch:
    """The columns to write, as ROWS_TYPE. Raises BadOutput."""
    names = found.schema.names
    if "value" not in names:
        raise BadOutput(f"there is no column `value` among {', '.join(names)}")
    arrays = []
    for field in ROWS_TYPE:
        column = found.column(names.index(field.name)) if field.name in names else pa.nulls(found.num_rows, field.type)
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise BadOutput(f"the column `{field.name}` is {column.type}: it must be {field.type}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS_TYPE)


def without_null_lists(rows: pa.RecordBatch) -> list[pa.Array]:
    """Columns of ROWS_TYPE with empty instead of null headers: the sink treats them alike, and null ones are slow in
    Spark (see `queries`)."""
    *others, headers = rows.columns
    return [*others, _fill_null_lists(headers) if headers.null_count else headers]


def _fill_null_lists(lists: pa.ListArray) -> pa.ListArray:
    """Empty lists instead of null ones. Null lists have length 0 already, unless they were built by hand."""
    if pc.any(pc.and_(lists.is_null(), pc.not_equal(np.diff(lists.offsets), 0))).as_py():
        return pc.coalesce(lists, pa.scalar([], lists.type))
    return pa.ListArray.from_arrays(lists.offsets, lists.values, type=lists.type)


def problems_of(rows: pa.RecordBatch, limits: Limits) -> dict[int, Exception]:
    """Rows that must not be written, and why."""
    sizes = pc.add(
        pc.fill_null(pc.binary_length(rows.column(0)), 0).cast(pa.int64()),
        pc.fill_null(pc.binary_length(rows.column(1)), 0).cast(pa.int64()),
    )
    large = pc.indices_nonzero(pc.greater(sizes, limits.max_bytes - _OVERHEAD)).to_pylist()
    found: dict[int, Exception] = {row: too_large(sizes[row].as_py(), limits) for row in large}
    for number, name in ((0, "key"), (1, "value")):
        column = rows.column(number)
        if name in limits.required and column.null_count:
            found |= {row: null_field(name) for row in pc.indices_nonzero(column.is_null()).to_pylist()}
    return found


def reasons_of(column: pa.Array) -> dict[int, str]:
    """The rows that a column `_error` (text, or true and false) marks, and why. Raises BadOutput."""
    if pa.types.is_boolean(column.type):
        return {row: "marked by the step" for row, wrong in enumerate(column.to_pylist()) if wrong}
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_null(column.type):
        return {row: reason for row, reason in enumerate(column.to_pylist()) if reason is not None}
    raise BadOutput(f"the column {ERROR} is {column.type}: it must be string or boolean")
