"""Where the records of a step go: good ones to its topic, failed ones to a retry topic or the dead letters.

Zone: real. Runs in Spark's Python workers, which call a `Router` with the Arrow batches of a task. All rows, good and
failed, are written by the one sink of the query: in one transaction, when it writes exactly once.

The level of a failed record is that of the topic that it was read from, not what its headers say: whatever they hold,
no record is tried more often than there are levels.
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
)
from ottla.pipeline.steps import Step
from ottla.retry import headers as trails
from ottla.retry.policy import Dead

SOURCE: Final = "_source"
"""The column that holds the record as it was read, for DataFrame steps."""
SCHEMA: Final = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>"
_STAMPS: Final = ("CreateTime", "LogAppendTime")


@dataclass(frozen=True)
class Router:
    """What Spark calls with the batches of a task. `group`: the name that origins are written with."""

    step: Step
    group: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the source, or of a DataFrame step, to batches of SCHEMA. Raises StepFailed without a policy."""
        for batch in batches:
            if batch.num_rows:
                yield from self._route(batch)

    def _route(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        function = self.step.function
        if isinstance(function, RowFunction | BatchFunction):
            made, failed = function.apply(batch, self.step.limits, self.step.levels)
            origin = batch
        else:
            made, failed = self._checked(batch)
            origin = batch.column(batch.schema.names.index(SOURCE)).flatten() if failed else None
            if origin is not None:
                origin = pa.RecordBatch.from_arrays(origin, names=_fields(batch))
        for rows in made:
            yield _addressed(rows, [self.step.to] * rows.num_rows)
        if failed:
            yield self._failed(origin, failed)

    def _checked(self, batch: pa.RecordBatch) -> tuple[list[pa.RecordBatch], list[Failed]]:
        """The rows of a DataFrame step: those that it marked, and those that may not be written, have failed."""
        names = batch.schema.names
        reasons: dict[int, Exception] = {}
        if ERROR in names:
            reasons = {row: StepSaid(why) for row, why in reasons_of(batch.column(names.index(ERROR))).items()}
        rows = to_rows(batch)
        reasons = {**problems_of(rows, self.step.limits), **reasons}
        good = rows.filter(pa.array([row not in reasons for row in range(rows.num_rows)], pa.bool_()))
        return [good] if good.num_rows else [], [Failed(row, reasons[row]) for row in sorted(reasons)]

    def _failed(self, batch: pa.RecordBatch, failed: Sequence[Failed]) -> pa.RecordBatch:
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
            topic, own = self._sent(place, headers_of(columns["headers"][row].as_py()), error)
            topics.append(topic)
            headers.append(own)
        return _addressed(rows_of(keys, values, headers), topics)

    def _sent(self, place: tuple[str, int, int, int, str], found: trails.Headers, error: Exception) -> tuple[str, Any]:
        """Topic and headers of a record that failed."""
        topic, policy = place[0], self.step.policy
        if policy is None:
            raise StepFailed(self.step.name, f"{topic}-{place[1]}, offset {place[2]}: {_words(error)}") from error
        source, level = self.step.places[topic]
        before = trails.read(found)
        said = isinstance(error, StepSaid)
        failure = trails.failure_of(str(error)) if said else trails.failure_of(error, _stack(error))
        decision = policy.decide(self.step.base[source], level + 1, failure.kind if said else error)
        dead = isinstance(decision, Dead)
        due_ms = None if isinstance(decision, Dead) else wall_ms() + decision.delay_ms
        trail = trails.Trail(
            attempts=level + 2,
            due_ms=due_ms,
            first_ms=place[3] if before.first_ms is None else before.first_ms,
            origin=before.origin if level and before.origin else trails.Origin(*place, group=self.group),
            failure=failure,
            redrives=before.redrives,
        )
        to = decision.topic if dead else self.step.retry_topic(source, level + 1)
        return to, trails.written(found, trail)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _stack(error: Exception) -> str:
    """The last part of the traceback: where it was raised."""
    return "".join(traceback.format_exception(error))[-trails.MAX_STACK_CHARS :]


def _fields(batch: pa.RecordBatch) -> list[str]:
    struct = batch.schema.field(SOURCE).type
    return [struct.field(number).name for number in range(struct.num_fields)]


def _addressed(rows: pa.RecordBatch, topics: list[str]) -> pa.RecordBatch:
    names = ["topic", *ROWS_TYPE.names]
    return pa.RecordBatch.from_arrays([pa.array(topics, pa.string()), *rows.columns], names=names)
