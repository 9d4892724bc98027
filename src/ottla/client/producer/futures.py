"""What a caller holds of a record that is on its way.

Zone: real. Waiting for a batch and reading its outcome; nothing is decided here.
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


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int
    """-1 with acks=0, and for a repeated record whose place its broker no longer knows."""
    timestamp: int
    """Milliseconds since 1970: the producer's, or the broker's where the topic stamps records at append."""


class PartitionRows(NamedTuple):
    """Rows of a table in one partition. Records of others may lie between them."""

    rows: int
    first_offset: int
    """-1 where the broker does not say (acks=0)."""
    last_offset: int


class TableMetadata(NamedTuple):
    """Where the rows of a table are."""

    topic: str
    rows: int
    partitions: dict[int, PartitionRows]
    """By partition, ascending."""


class ProducerLock:
    """The lock under which a producer's state changes, and the word that something changed."""

    __slots__ = ("_changed", "_waiting", "lock", "owner", "process")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._waiting = 0
        self.owner = 0
        """The sender's thread."""
        self.process = os.getpid()

    def check_caller(self, what: str) -> None:
        """Raises UsageError in the sender's thread, which must not wait for itself, and in a forked process."""
        if threading.get_ident() == self.owner:
            raise UsageError(f"{what} would wait for ever in a callback", "Wait in a thread of your own")
        self.check_process()

    def check_process(self) -> None:
        """Raises UsageError in a process that was forked from the producer's."""
        if os.getpid() != self.process:
            raise UsageError("this producer belongs to the process that forked", "Make a producer after the fork")

    def wait(self, holds: Callable[[], bool], timeout: float | None) -> bool:
        """Wait, with the lock held, until something holds; False when `timeout` seconds are over."""
        self._waiting += 1
        try:
            return self._changed.wait_for(holds, None if timeout is None else bounded_s(timeout))
        finally:
            self._waiting -= 1

    def notify(self) -> None:
        """Something has changed, with the lock held: who waits looks again. Most of the time nobody does."""
        if self._waiting:
            self._changed.notify_all()


class SendFuture:
    """The outcome of one `send`, in the future. Safe to use from any thread."""

    __slots__ = ("_batch", "_index", "_shared", "_stamp")

    def __init__(self, shared: ProducerLock, batch: ProducerBatch, index: int, stamp: int) -> None:
        self._shared = shared
        self._batch = batch
        self._index = index
        self._stamp = stamp

    def done(self) -> bool:
        """Whether it is decided."""
        return self._batch.leaf(self._index)[0].done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, as durable as `acks` asked for; waits for it.

        timeout: seconds, None: until it is decided, at the latest after `delivery.timeout.ms`. Raises the ClientError
        for which it failed, DeadlineError when `timeout` is over first (the record is still on its way then), and
        UsageError in a callback, if it is not decided yet.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        batch, index = self._batch.leaf(self._index)
        return metadata_of(batch, index, self._stamp)

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Why it failed, None when it did not; otherwise as `result`."""
        if not self.done():
            self._shared.check_caller("waiting for a record")
            with self._shared.lock:
                decided = self._shared.wait(self.done, timeout)
            if not decided:
                raise DeadlineError(f"a record for {self._batch.tp} is still on its way after {timeout} s")
        return self._batch.leaf(self._index)[0].error

    def add_done_callback(self, call: Callable[[SendFuture], object]) -> None:
        """`call` is called with this future when it is decided: at once here, or later in the sender's thread."""
        with self._shared.lock:
            batch, index = self._batch.leaf(self._index)
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
    """From now until a point of the monotonic clock, never negative."""
    return max(0.0, until - time.monotonic())


class TableFuture:
    """The outcome of one `send_table`, in the future. Safe to use from any thread."""

    __slots__ = ("_batches", "_shared", "_topic")

    def __init__(self, shared: ProducerLock, topic: str, batches: Sequence[ProducerBatch]) -> None:
        self._shared = shared
        self._topic = topic
        self._batches = batches

    @property
    def rows(self) -> int:
        """Rows that were accepted."""
        return sum(batch.count for batch in self._batches)

    def done(self) -> bool:
        """Whether every row is decided."""
        return all(batch.decided for batch in self._batches)

    def result(self, timeout: float | None = None) -> TableMetadata:
        """Where the rows are; waits for all of them, at the latest until `delivery.timeout.ms`.

        timeout: seconds. Raises the first ClientError for which rows failed (`appended` says which are in the log all
        the same), DeadlineError when `timeout` is over first, UsageError in a callback.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return self.appended()

    def exception(self, timeout: float | None = None) -> ClientError | None:
        """Why the first rows failed that did, None when none did; otherwise as `result`."""
        until = None if timeout is None else time.monotonic() + bounded_s(timeout)
        for batch in self._batches:
            if batch.decided:
                continue
            self._shared.check_caller("waiting for a table")
            left = None if until is None else seconds_left(until)
            with self._shared.lock:
                decided = self._shared.wait(lambda batch=batch: batch.decided, left)  # type: ignore[misc]  # its default
            if not decided:
                raise DeadlineError(f"rows for {batch.tp} are still on their way after {timeout} s")
        return next((leaf.error for leaf in self._leaves() if leaf.error is not None), None)

    def appended(self) -> TableMetadata:
        """The rows that are known to be in the log so far."""
        found: dict[int, PartitionRows] = {}
        for leaf in self._leaves():
            if leaf.done and leaf.error is None:
                last = leaf.base_offset + leaf.count - 1 if leaf.base_offset >= 0 else NO_OFFSET
                before = found.get(leaf.tp.partition, PartitionRows(0, leaf.base_offset, last))
                found[leaf.tp.partition] = PartitionRows(before.rows + leaf.count, before.first_offset, last)
        return TableMetadata(self._topic, sum(each.rows for each in found.values()), dict(sorted(found.items())))

    def _leaves(self) -> Iterator[ProducerBatch]:
        for batch in self._batches:
            yield from batch.leaves()
