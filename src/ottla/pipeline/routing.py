"""Chooses the topics of a step's records: good ones go to its topic, failed ones to a retry topic or the dead letters.

Zone: real. Runs in Spark's Python workers, which call a `Router` with the Arrow batches of a task. The one sink of the
query writes all rows, good and failed, in one transaction when it writes exactly once.

The level of a failed record is that of the topic that it was read from, not that in its headers: so no record is tried
more often than there are levels, with any headers.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from ottla.client.retry import wall_ms
from ottla.pipeline.errors import StepFailed
from ottla.pipeline.functions import (
    ERROR,
    ROWS_TYPE,
    BatchFunction,
    Failed,
    RowFunction,
    StepSaid,
    headers_of,
    problems_of,
    reasons_of,
    rows_of,
    to_rows,
    with_null_headers,
    without_null_lists,
)
from ottla.pipeline.steps import Step
from ottla.retry import headers as trails
from ottla.retry.policy import Dead

SOURCE: Final = "_source"
"""The column with the record as it was read, for DataFrame steps."""
HEADERS: Final = "array<struct<key:string,value:binary>>"
SCHEMA: Final = f"topic string, key binary, value binary, headers {HEADERS}"
ORIGIN: Final = f"{SOURCE} struct<topic: string, partition: int, offset: bigint>"
"""The column from which the sink reads the origin of a row."""
_STAMPS: Final = ("CreateTime", "LogAppendTime")


@dataclass(frozen=True)
class Router:
    """Called by Spark with the batches of a task. `group`: the consumer group to write into origins."""

    step: Step
    group: str
    keep: bool = False
    """Whether rows keep their origin, in ORIGIN: needed if they change tasks after this."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Turn batches of the source, or of a DataFrame step, into batches of SCHEMA, with ORIGIN if it is kept.

        Raises StepFailed for a failed record without a policy.
        """
        for batch in batches:
            if batch.num_rows:
                yield from self._route_batch(batch)

    def _route_batch(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        function = self.step.function
        if isinstance(function, RowFunction | BatchFunction):
            made, failed = function.apply(with_null_headers(batch), self.step.limits, self.step.levels)
            origin = batch
            # Which output row came of which input row is unknown: a batch is of one partition, so its last row will do.
            of = [[batch.num_rows - 1] * rows.num_rows for rows in made]
        else:
            made, failed, good = self._split_failed(batch)
            of = [good]
            origin = source_rows(batch) if failed or self.keep else None
        for rows, numbers in zip(made, of, strict=False):
            yield self._with_topics(rows, [self.step.to] * rows.num_rows, origin, numbers)
        if failed:
            yield self._route_failed(origin, failed)

    def _with_topics(
        self, rows: pa.RecordBatch, topics: list[str], origin: pa.RecordBatch | None, of: list[int]
    ) -> pa.RecordBatch:
        """Rows with their topics. origin: the rows that were read; of: the number of each row's origin among them."""
        names, columns = ["topic", *ROWS_TYPE.names], [pa.array(topics, pa.string()), *without_null_lists(rows)]
        if self.keep:
            assert origin is not None
            names.append(SOURCE)
            columns.append(_origin_column(origin).take(pa.array(of, pa.int64())))
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _split_failed(self, batch: pa.RecordBatch) -> tuple[list[pa.RecordBatch], list[Failed], list[int]]:
        """The good and the failed rows of a DataFrame step: failed are rows that it marked, or that are not allowed."""
        names = batch.schema.names
        reasons: dict[int, Exception] = {}
        if ERROR in names:
            reasons = {row: StepSaid(why) for row, why in reasons_of(batch.column(names.index(ERROR))).items()}
        rows = to_rows(batch)
        # The step's own reason replaces that of the limits: it is nearer to the cause.
        reasons = {**problems_of(rows, self.step.limits), **reasons}
        good = [row for row in range(rows.num_rows) if row not in reasons]
        chosen = rows.take(pa.array(good, pa.int64())) if reasons else rows
        made = [chosen] if good else []
        return made, [Failed(row, reasons[row]) for row in sorted(reasons)], good

    def _route_failed(self, batch: pa.RecordBatch, failed: Sequence[Failed]) -> pa.RecordBatch:
        rows = batch.take(pa.array([each.row for each in failed], pa.int64()))
        columns = {name: rows.column(number) for number, name in enumerate(rows.schema.names)}
        stamps = columns["timestamp"].cast(pa.int64())
        keys, values = columns["key"].to_pylist(), columns["value"].to_pylist()
        topics: list[str] = []
        headers: list[trails.Headers] = []
        for row, (_, error) in enumerate(failed):
            place = (
                columns["topic"][row].as_py(),
                columns["partition"][row].as_py(),
                columns["offset"][row].as_py(),
                (stamps[row].as_py() or 0) // 1000,
                _STAMPS[columns["timestampType"][row].as_py() == 1],
            )
            topic, own = self._address_failed(place, headers_of(columns["headers"][row].as_py()), error)
            topics.append(topic)
            headers.append(own)
        return self._with_topics(rows_of(keys, values, headers), topics, batch, [each.row for each in failed])

    def _address_failed(
        self, place: tuple[str, int, int, int, str], found: trails.Headers, error: Exception
    ) -> tuple[str, Any]:
        """The topic and headers of a failed record. Raises StepFailed without a policy."""
        topic, policy = place[0], self.step.policy
        if policy is None:
            raise StepFailed(self.step.name, f"{topic}-{place[1]}, offset {place[2]}: {_error_text(error)}") from error
        source, level = self.step.places[topic]
        before = trails.read_trail(found)
        said = isinstance(error, StepSaid)
        failure = trails.failure_of(str(error)) if said else trails.failure_of(error, _stack_text(error))
        decision = policy.decide(self.step.base[source], level + 1, failure.kind if said else error)
        dead = isinstance(decision, Dead)
        due_ms = None if isinstance(decision, Dead) else wall_ms() + decision.delay_ms
        # The origin in the headers counts only in our retry topics: a record of the source is its own origin, also if
        # it came with headers of another program's retries.
        trail = trails.Trail(
            # The next delivery: level 0 is the first one, so a record that failed at level 0 is delivered the second
            # time.
            attempts=level + 2,
            due_ms=due_ms,
            first_ms=place[3] if before.first_ms is None else before.first_ms,
            origin=before.origin if level and before.origin else trails.Origin(*place, group=self.group),
            failure=failure,
            redrives=before.redrives,
        )
        to = decision.topic if dead else self.step.retry_topic(source, level + 1)
        return to, trails.with_trail(found, trail)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _stack_text(error: Exception) -> str:
    """The last part of the traceback, which has the place of the error."""
    return "".join(traceback.format_exception(error))[-trails.MAX_STACK_CHARS :]


def source_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a DataFrame step as they were read."""
    struct = batch.schema.field(SOURCE).type
    names = [struct.field(number).name for number in range(struct.num_fields)]
    return pa.RecordBatch.from_arrays(batch.column(batch.schema.names.index(SOURCE)).flatten(), names=names)


def _origin_column(read: pa.RecordBatch) -> pa.StructArray:
    names = ("topic", "partition", "offset")
    return pa.StructArray.from_arrays([read.column(read.schema.names.index(name)) for name in names], names=names)
