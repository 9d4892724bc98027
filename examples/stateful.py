"""Recipes for `transformWithState` over topics: first of an id, sessions, a join that waits, silence.

Each is a StatefulProcessor of Spark 4; docs/stateful.md shows the queries around them. State is kept by key, and left
when a timer of the key expires, so that it does not grow without end. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor


def milliseconds(time: datetime) -> int:
    """Of a timestamp as Spark hands it over: without a zone, it is one of this process."""
    return round(time.timestamp() * 1000)


def timestamp(ms: int) -> datetime:
    """The inverse."""
    return datetime.fromtimestamp(ms / 1000, UTC)


class FirstOfId(StatefulProcessor):
    """The first row of each id; those that come within `keep_ms` after its time are left out.

    Group by the id; in: time, value. Spark's own dropDuplicatesWithinWatermark does the same with one delay for all:
    here the time may depend on the row.
    """

    OUT = "id STRING, time TIMESTAMP, value STRING"

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "at BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if self._seen.exists():
            return
        first = min(rows, key=lambda row: row.time, default=None)
        if first is not None:  # all rows were too late
            at = milliseconds(first.time)
            self._seen.update((at,))
            self._handle.registerTimer(max(at + self._keep_ms, timerValues.getCurrentWatermarkInMs() + 1))
            yield Row(id=key[0], time=first.time, value=first.value)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self._seen.clear()
        return iter(())

    def close(self) -> None:
        """Nothing to close."""


class Session(NamedTuple):
    """A session that is not over, or its parts."""

    start: int
    end: int
    rows: int


def merge_sessions(sessions: Iterable[Session], gap_ms: int) -> list[Session]:
    """Join sessions that are nearer to each other than the gap, in whatever order they come."""
    found: list[Session] = []
    for each in sorted(sessions):
        if found and each.start < found[-1].end + gap_ms:
            last = found.pop()
            found.append(Session(last.start, max(last.end, each.end), last.rows + each.rows))
        else:
            found.append(each)
    return found


class Sessions(StatefulProcessor):
    """Sessions of a key: rows with less than `gap_ms` between them, emitted when the watermark is past their end.

    Group by the key; in: time. Rows may come in any order: a late one joins two sessions.
    """

    OUT = "key STRING, start TIMESTAMP, end TIMESTAMP, rows BIGINT"

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._open = handle.getListState("open", "start BIGINT, end BIGINT, rows BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        new = [Session(at, at, 1) for at in (milliseconds(row.time) for row in rows)]
        if new:
            self._keep([*(Session(*each) for each in self._open.get()), *new])
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        over, sessions = expiredTimerInfo.getExpiryTimeInMs(), [Session(*each) for each in self._open.get()]
        ended = [each for each in sessions if each.end + self._gap_ms <= over]
        self._keep([each for each in sessions if each not in ended])
        for each in ended:
            yield Row(key=key[0], start=timestamp(each.start), end=timestamp(each.end), rows=each.rows)

    def _keep(self, sessions: list[Session]) -> None:
        merged = merge_sessions(sessions, self._gap_ms)
        if not merged:
            self._open.clear()
            return
        self._open.put([tuple(each) for each in merged])
        for each in merged:  # a timer of an earlier end finds that its session is longer now
            self._handle.registerTimer(each.end + self._gap_ms)

    def close(self) -> None:
        """Nothing to close."""


class OrdersWithPayments(StatefulProcessor):
    """Each order with its payment; without one after `wait_ms`, and a payment without an order after as long.

    Group the union of both streams by the order's id; in: time, kind (`order` or `payment`), cents.
    """

    OUT = "id STRING, ordered BIGINT, paid BIGINT"

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._half = handle.getMapState("half", "kind STRING", "cents BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            other = "payment" if row.kind == "order" else "order"
            if self._half.containsKey((other,)):
                found = {row.kind: row.cents, other: self._half.getValue((other,))[0]}
                self._half.clear()
                yield Row(id=key[0], ordered=found["order"], paid=found["payment"])
            elif not self._half.containsKey((row.kind,)):  # a second order of one id is the first one again
                self._half.updateValue((row.kind,), (row.cents,))
                self._handle.registerTimer(milliseconds(row.time) + self._wait_ms)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        half = {kind: cents for (kind,), (cents,) in self._half.iterator()} if self._half.exists() else {}
        self._half.clear()
        if half:
            yield Row(id=key[0], ordered=half.get("order"), paid=half.get("payment"))

    def close(self) -> None:
        """Nothing to close."""


class Silence(StatefulProcessor):
    """A row when a key has been silent for `after_ms`, by the clock of the machine: a device that does not report.

    Group by the key; in: any row. Mode of time: ProcessingTime.
    """

    OUT = "key STRING, silent_since TIMESTAMP"

    def __init__(self, after_ms: int) -> None:
        self._after_ms = after_ms

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._last = handle.getValueState("last", "at BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        now = timerValues.getCurrentProcessingTimeInMs()
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._last.update((now,))
        self._handle.registerTimer(now + self._after_ms)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        last = self._last.get()
        self._last.clear()
        if last is not None:
            yield Row(key=key[0], silent_since=timestamp(last[0]))

    def close(self) -> None:
        """Nothing to close."""
