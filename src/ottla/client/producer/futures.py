"""Futures of sent records and tables.

Zone: real. Waits for batches and reads their outcomes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ottla.client.errors import ClientError, DeadlineError, UsageError
from ottla.client.producer.batch import ProducerBatch
from ottla.client.retry import bounded_s
from ottla.types import NO_OFFSET, NO_TIMESTAMP

_STILL_SENT = "The producer keeps sending them until delivery.timeout.ms: wait longer"


class RecordMetadata(NamedTuple):
    """The position of a record."""

    topic: str
    partition: int
    offset: int
    """-1 with acks=0, and for a duplicate whose offset the broker has forgotten."""
    timestamp: int
    """Milliseconds since 1970, set by the producer, or by the broker (`message.timestamp.type=LogAppendTime`)."""


class PartitionRows(NamedTuple):
    """Rows of a table in one partition. Records of other producers may lie between them."""

    rows: int
    first_offset: int
    """-1 if the broker does not report it (acks=0)."""
    last_offset: int


class TableMetadata(NamedTuple):
    """The positions of the rows of a table."""

    topic: str
    rows: int
    partitions: dict[int, PartitionRows]
    """By partition, ascending."""


class ProducerLock:
    """The lock of a producer's state, and the condition that the state has changed."""

    __slots__ = ("_changed", "_waiting", "lock", "owner", "process")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._waiting = 0
        self.owner = 0
        """The sender's thread."""
        self.process = os.getpid()

    def check_caller(self, what: str) -> None:
        """Raises UsageError in the sender's thread, which must not wait for itself, and in a forked child."""
        if threading.get_ident() == self.owner:
            raise UsageError(f"{what} would wait for ever in a callback", "Wait in another thread")
        self.check_process()

    def check_process(self) -> None:
        """Raises UsageError in a forked child process."""
        if os.getpid() != self.process:
            raise UsageError("this producer belongs to the parent process", "Make a new producer after the fork")

    def wait_until(self, holds: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, with the lock held, until `holds()` is true; False after `timeout` seconds."""
        # Counted so that the sender, who changes the state a thousand times a second, need not notify without waiters.
        self._waiting += 1
        try:
            return self._changed.wait_for(holds, None if timeout is None else bounded_s(timeout))
        finally:
            self._waiting -= 1

    def notify_waiters(self) -> None:
        """Wake the waiting threads, with the lock held, after a change. Usually there is none."""
        if self._waiting:
            self._changed.notify_all()


class SendFuture:
    """The future of one `send`. Safe to use from any thread."""

    __slots__ = ("_batch", "_index", "_shared", "_stamp")

    def __init__(self, shared: ProducerLock, batch: ProducerBatch, index: int, stamp: int) -> None:
        self._shared = shared
        self._batch = batch
        self._index = index
        self._stamp = stamp

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.leaf_of(self._index)[0].done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the record; returns its position in the log, with the durability that `acks` requests.

        timeout: seconds; None: until the outcome is known, at the latest after `delivery.timeout.ms`. Raises the
        ClientError of a failed record, DeadlineError after `timeout` (the record may still be delivered), and
        UsageError in a callback if the outcome is not known.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        batch, index = self._batch.leaf_of(self._index)
        return metadata_of(batch, index, self._stamp)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """The error of a failed record, else None; waits as `result` does."""
        if not self.done():
            self._shared.check_caller("waiting for a record")
            with self._shared.lock:
                decided = self._shared.wait_until(self.done, timeout)
            if not decided:
                raise DeadlineError(f"a record for {self._batch.tp} is not acknowledged after {timeout} s", _STILL_SENT)
        return self._batch.leaf_of(self._index)[0].error

    def add_done_callback(self, call: Callable[[SendFuture], object]) -> None:
        """Call `call` with this future when the outcome is known: now, or later in the sender's thread."""
        with self._shared.lock:
            # Looked up under the lock: a batch may be split between two looks, and then the record is in a half of it.
            batch, index = self._batch.leaf_of(self._index)
            if not batch.done:
                batch.callbacks = batch.callbacks or []
                batch.callbacks.append((index, self._stamp, lambda _metadata, _error: call(self)))
                return
        call(self)


def metadata_of(batch: ProducerBatch, index: int, stamp: int) -> RecordMetadata:
    """The metadata of record `index` of a batch that is in the log."""
    offset = batch.base_offset + index if batch.base_offset >= 0 else NO_OFFSET
    appended = batch.log_append_time
    tp = batch.tp
    return RecordMetadata(tp.topic, tp.partition, offset, stamp if appended == NO_TIMESTAMP else appended)


def seconds_left(until: float) -> float:
    """Seconds until a time of the monotonic clock, never negative."""
    return max(0.0, until - time.monotonic())


class TableFuture:
    """The future of one `send_table`. Safe to use from any thread."""

    __slots__ = ("_batches", "_shared", "_topic")

    def __init__(self, shared: ProducerLock, topic: str, batches: Sequence[ProducerBatch]) -> None:
        self._shared = shared
        self._topic = topic
        self._batches = batches

    @property
    def rows(self) -> int:
        """Number of accepted rows."""
        return sum(batch.count for batch in self._batches)

    def done(self) -> bool:
        """Whether the outcome of every row is known."""
        return all(batch.is_decided for batch in self._batches)

    def result(self, timeout: float | None = None) -> TableMetadata:
        """Wait for all rows, at the latest until `delivery.timeout.ms`; returns their positions.

        timeout: seconds. Raises the error of the first failed rows (`appended` has those in the log), DeadlineError
        after `timeout`, UsageError in a callback.
        """
        # One error may be raised by many futures and threads: each begins with an empty traceback.
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return self.appended()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """The error of the first failed rows, None if none failed; waits as `result` does."""
        until = None if timeout is None else time.monotonic() + bounded_s(timeout)
        for batch in self._batches:
            if batch.is_decided:
                continue
            self._shared.check_caller("waiting for a table")
            left = None if until is None else seconds_left(until)
            with self._shared.lock:
                decided = self._shared.wait_until(lambda batch=batch: batch.is_decided, left)  # type: ignore[misc]  # the default
            if not decided:
                raise DeadlineError(f"rows for {batch.tp} are not acknowledged after {timeout} s", _STILL_SENT)
        return next((leaf.error for leaf in self._leaf_batches() if leaf.error is not None), None)

    def appended(self) -> TableMetadata:
        """The rows that are known to be in the log so far."""
        found: dict[int, PartitionRows] = {}
        for leaf in self._leaf_batches():
            if leaf.done and leaf.error is None:
                # Batches of a partition are in the order of their offsets, so the first one found has the first offset.
                last = leaf.base_offset + leaf.count - 1 if leaf.base_offset >= 0 else NO_OFFSET
                before = found.get(leaf.tp.partition, PartitionRows(0, leaf.base_offset, last))
                found[leaf.tp.partition] = PartitionRows(before.rows + leaf.count, before.first_offset, last)
        return TableMetadata(self._topic, sum(each.rows for each in found.values()), dict(sorted(found.items())))

    def partly_accepted(self, rows: int, cause: ClientError) -> PartlyAcceptedError:
        """The error for a table of which only these of `rows` rows were accepted, for this reason."""
        return PartlyAcceptedError(self, rows, cause)

    def _leaf_batches(self) -> Iterator[ProducerBatch]:
        for batch in self._batches:
            yield from batch.leaf_batches()


class PartlyAcceptedError(ClientError):
    """`send_table` could not accept all rows, for the reason in `__cause__`. `sent` is the future of accepted rows."""

    def __init__(self, sent: TableFuture, rows: int, cause: ClientError) -> None:
        super().__init__(
            f"only {sent.rows} of {rows} rows were accepted, and are sent: {cause.cause}",
            "Abort the transaction if there is one, else see the rows per partition in `sent`",
        )
        self.sent = sent
