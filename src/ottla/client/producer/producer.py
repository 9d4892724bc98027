"""The producer that applications use.

Zone: real. Records come in from any thread, pass interceptors, serializers and the partitioner, and go into a batch;
everything after that is the sender's thread. What is decided about batches is decided in `core`.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ottla.client.errors import ClientError, DeadlineError, PartlyAcceptedError, UsageError
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig, Serializer, renamed
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.failed_records import FailedRecord, per_batch
from ottla.client.producer.futures import ProducerLock, RecordMetadata, SendFuture, TableFuture, seconds_left
from ottla.client.producer.interceptors import Interceptor, InterceptorChain, plain_headers
from ottla.client.producer.metrics import measures
from ottla.client.producer.network.sender import Sender
from ottla.client.producer.partitioning import Partitioner, chosen_partitioner
from ottla.client.producer.record_appender import RecordAppender
from ottla.client.producer.topic_metadata import ProducedTopic
from ottla.client.producer.transactional import TransactionalProducer
from ottla.client.retry import FOREVER_S, bounded_s
from ottla.client.timestamps import Timestamp, timestamp_ms
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("ottla.client.producer")

OnDelivery = Callable[[RecordMetadata | None, ClientError | None], object]
"""Called once, in the sender's thread: where the record is, or why it is nowhere."""
_INT64 = range(2**63)


class Producer:
    """Sends records; idempotent by default. Safe to use from any thread; use it in a `with` statement, or close it.

    An accepted record is delivered, or its future fails. `linger.ms` and `batch.size` decide when batches leave,
    `delivery.timeout.ms` when they are given up. A process that forks makes its own producer after the fork.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: Partitioner | None = None,
        interceptors: Iterable[Interceptor] = (),
        on_failed: Callable[[FailedRecord], object] | None = None,
    ) -> None:
        """settings: Kafka's keys (`bootstrap.servers`, `linger.ms` …). Connects in the background.

        partitioner: chooses for records without a partition, in place of murmur2 and the sticky choice.
        on_failed: told of every record that failed for good; see `failed_records` for ones that write files or topics.
        Raises ConfigError.
        """
        for warning in renamed(settings):
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
        config = ProducerConfig.from_mapping(settings)
        self.config = config
        partitioner = chosen_partitioner(config.partitioner_class, partitioner)
        self._preparation = InterceptorChain(key_serializer, value_serializer, tuple(interceptors))
        self._prepares = self._preparation.is_needed
        self._shared = ProducerLock()
        self._lock = self._shared.lock
        self._core = ProducerCore(config, random.random, random.randrange)
        self._sender = Sender(self._core, self._shared, on_failed and per_batch(on_failed))
        self._known = self._core.book.topic
        self._accumulator = self._core.accumulator
        self._intake = RecordAppender(config, self._core, self._shared, self._sender, partitioner)
        self._transactional: TransactionalProducer | None = None
        if config.transactional_id:
            self._transactional = TransactionalProducer(
                config, self._core, self._shared, self._sender, self._intake.flush
            )
        self._simple = partitioner is None and self._transactional is None
        _producers.add(self)
        _senders.add(self._sender)
        self._sender.thread.start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        sender: Sender | None = getattr(self, "_sender", None)  # None: the settings were refused
        if sender is not None and sender.closing_at is None and self._intake.refusal is None:
            warnings.warn("a producer was not closed", ResourceWarning, source=self, stacklevel=2)
            sender.finish(time.monotonic() + FOREVER_S)

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp: Timestamp | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendFuture:
        """Accept a record; returns at once, unless metadata or memory has to be waited for, `max.block.ms` at most.

        value None is a tombstone. timestamp: milliseconds since 1970 or a datetime, now by default. Without a partition
        the key decides; without a key, load does (KIP-794). The bytes are copied before this returns.
        Raises UsageError (closed, not bytes, too large, no transaction begun …), DeadlineError when `max.block.ms` is
        over, RefusedError for a topic that is refused or a partition that does not exist: then it is not accepted, and
        a transaction is as it was before.
        """
        if self._prepares:
            asked = self._preparation.prepare_record(topic, value, key, headers, partition, timestamp, on_delivery)
            topic, value, key, headers, partition, timestamp, on_delivery = asked
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or timestamp not in _INT64:
            timestamp = timestamp_ms(timestamp)
        plain = plain_headers(headers) if headers else ()
        with self._lock:
            known = self._known(topic)
            batch = None
            if (
                known is not None
                and partition is None
                and key is None
                and self._simple
                and self._intake.refusal is None
            ):
                batch = self._core.place(known, None, timestamp, None, value, plain, time.monotonic())
            if batch is None:
                batch = self._accept(topic, partition, timestamp, key, value, plain)
            index = batch.count - 1
            if on_delivery is not None:
                batch.callbacks = batch.callbacks or []
                batch.callbacks.append((index, timestamp, on_delivery))
            wanted = self._accumulator.news and self._sender.asleep
        if wanted:
            self._sender.wake()  # without the lock, or it would wake up only to wait for that
        return SendFuture(self._shared, batch, index, timestamp)

    def send_table(self, topic: str, table: pa.Table | pa.RecordBatch) -> TableFuture:
        """Accept the rows of an Arrow table as records: quicker than `send`, for nothing is done row by row.

        Columns: `value`, and if wanted `key` (both binary or string, null: none), `headers` (list of structs of key
        and value, or a map), `partition` (integer) and `timestamp` (integer of ms, or a timestamp); nulls in the last
        two: as if not given. A partition gets its rows in their order, in batches as large as `max.request.size`, a
        quarter of `buffer.memory` and 900,000 bytes allow; they leave at once. Waits for room for each batch,
        `max.block.ms` at most. Raises as `send` when nothing was accepted (UsageError for columns that do not fit),
        PartlyAcceptedError when something was.
        """
        from ottla.client.producer.arrow_tables import TableRows, places_for, whole_batch  # noqa: PLC0415 - Arrow is slow

        self._preparation.check_columns()
        rows = TableRows(table, self.config, time.time_ns() // 1_000_000)
        partitioner = self._intake.partitioner
        with self._lock:
            known = self._topic(topic, self._until())
        rows.check_partitions(known, partitioner)
        accepted: list[ProducerBatch] = []
        try:
            for partition, plain in rows.batches(lambda count: places_for(known, count, partitioner, self._core)):
                batch = whole_batch(topic, partition, plain)
                with self._lock:
                    self._accept_whole(batch)
                self._sender.wake()
                accepted.append(batch)
        except ClientError as error:
            if not accepted:
                raise
            sent = TableFuture(self._shared, topic, accepted)
            raise PartlyAcceptedError(sent, rows.rows, error) from error
        return TableFuture(self._shared, topic, accepted)

    def flush(self, timeout: float | None = None) -> None:
        """Send what has been accepted without waiting for `linger.ms`, and wait until each record is decided, and the
        callbacks of these records have returned.

        timeout: seconds; None or infinite: for as long as it takes. Whether records failed is for their futures to say.
        Raises DeadlineError when the time is over, UsageError in a callback.
        """
        self._intake.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Accept nothing more, deliver what was accepted, and end. A transaction that is open is aborted. Idempotent.

        timeout: seconds to deliver, None for as long as it takes (`delivery.timeout.ms` at most); what is not delivered
        then fails. The abort takes `max.block.ms` at most, and is left to the coordinator (`transaction.timeout.ms`)
        when that is not enough, and with a timeout of 0. In a callback it does not wait, but what it asks for happens.
        """
        if os.getpid() != self._shared.process:
            return  # the thread and the sockets are the parent's
        until = time.monotonic() + bounded_s(FOREVER_S if timeout is None else timeout)
        inside = threading.current_thread() is self._sender.thread
        with self._lock:
            self._intake.refuse()
        if self._transactional is not None and not inside:
            self._transactional.abandon(until)
        with self._lock:
            self._intake.close(until)
        if not inside:
            self._sender.thread.join()
        if self._transactional is not None:
            self._transactional.close()

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, ascending. Waits for its metadata, `max.block.ms` at most; raises as `send`."""
        with self._lock:
            return sorted(self._topic(topic, self._until()).view.partitions)

    def metrics(self) -> dict[str, float]:
        """Kafka's names of the group producer-metrics, and their values now."""
        with self._lock:
            return measures(self._core, self._sender)

    def forked(self) -> None:
        """This process is a child of the producer's: from now on every call says so."""
        self._lock = threading.Lock()
        self._intake.forked()

    # -- transactions ----------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Take over the transactional id: a former producer of it is fenced, its open transaction aborted. Once.

        Waits `max.block.ms` at most. Raises UsageError without `transactional.id`, RefusedError, DeadlineError.
        """
        self._transactions().init()

    def begin_transaction(self) -> None:
        """Begin. Raises UsageError when the state forbids it."""
        self._transactions().begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Positions (the next offset to read) that are committed with the transaction, or not at all.

        Raises UsageError, DeadlineError; RefusedError, after which only an abort helps.
        """
        self._transactions().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Wait for every record, and commit. After DeadlineError call it again.

        Raises UsageError when a record failed, or the state forbids it: then abort. RefusedError when fenced.
        """
        self._transactions().commit()

    def abort_transaction(self) -> None:
        """Take back every record of the transaction; those on their way fail. After DeadlineError call it again."""
        self._transactions().abort()

    def transaction(self) -> TransactionContext:
        """For a `with` statement: begins, commits at its end, aborts on an error."""
        self._transactions()
        return TransactionContext(self)

    def _transactions(self) -> TransactionalProducer:
        self._shared.check_caller("a transaction's call")
        if self._transactional is None:
            raise UsageError("this producer has no transactional.id", "Set it to use transactions")
        self._intake.check_open()
        return self._transactional

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _accept(
        self,
        name: str,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> ProducerBatch:
        """The long way: wait for what is missing. Returns the batch that holds the record as its last."""
        until = self._until()
        while True:
            topic = self._topic(name, until)
            chosen = self._intake.choose(topic, partition, key, value)
            self._enter_partition(TopicPartition(name, chosen), until)
            batch = self._core.place(topic, chosen, timestamp, key, value, headers, time.monotonic())
            if batch is not None:
                self._joined(batch.tp)
                return batch
            self._wait_for_memory(until)

    def _accept_whole(self, batch: ProducerBatch) -> None:
        """The same for a batch of a table."""
        tp, until = batch.tp, self._until()
        while True:
            topic = self._topic(tp.topic, until)
            self._intake.choose(topic, tp.partition, None, None)
            self._enter_partition(tp, until)
            if self._core.place_whole(topic, batch, time.monotonic()):
                self._joined(tp)
                break
            self._wait_for_memory(until)

    def _until(self) -> float:
        return time.monotonic() + bounded_s(self.config.max_block_ms / 1000)

    def _topic(self, name: str, until: float) -> ProducedTopic:
        """The topic, its metadata waited for. Raises DeadlineError, RefusedError, UsageError."""
        known = self._intake.topic(name)
        if known is not None:
            return known
        self._shared.check_caller(f"the metadata of topic {name}")
        self._intake.request_topic(name)
        try:
            self._shared.wait(lambda: self._intake.decided(name), seconds_left(until))
            return self._intake.topic_after_wait(name)
        finally:
            self._intake.stop_asking(name)

    def _joined(self, tp: TopicPartition) -> None:
        """A record for the partition is in its batch: only now is the partition part of the transaction."""
        if self._transactional is not None:
            self._transactional.partitions.add(tp)

    def _enter_partition(self, tp: TopicPartition, until: float) -> None:
        """Make the partition part of the transaction, if there are transactions."""
        face = self._transactional
        if face is None or face.admits(tp):
            return
        self._lock.release()
        try:
            face.add(tp, until)
        finally:
            self._lock.acquire()
        self._intake.check_open()
        face.admits(tp)

    def _wait_for_memory(self, until: float) -> None:
        self._shared.check_caller("send, with buffer.memory used up,")
        accumulator = self._accumulator
        used = accumulator.used
        accumulator.memory_waiters += 1
        self._sender.nudge()
        try:
            changed = lambda: accumulator.used < used or self._intake.refusal is not None  # noqa: E731
            freed = self._shared.wait(changed, seconds_left(until))
        finally:
            accumulator.memory_waiters -= 1
        self._intake.check_open()
        if not freed:
            raise self._intake.no_room()


class TransactionContext:
    """A transaction as a `with` statement."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __enter__(self) -> Producer:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort(error)
            return
        try:
            self._producer.commit_transaction()
        except DeadlineError:
            raise  # it may be committed: to abort is not possible any more
        except ClientError as failure:
            self._abort(failure)
            raise

    def _abort(self, error: BaseException) -> None:
        try:
            self._producer.abort_transaction()
        except ClientError as failure:
            error.add_note(f"the transaction could not be aborted: {failure}")


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
_senders: weakref.WeakSet[Sender] = weakref.WeakSet()
"""A sender's thread holds it, so that it is here until it has ended, whatever became of its producer."""


def _close_at_exit() -> None:
    """Records that were accepted and not waited for are delivered before the interpreter ends, or it is said."""
    for sender in list(_senders):
        sender.finish(time.monotonic() + sender.patience_s)
        sender.thread.join()
        if sender.failed_at_end:
            _log.error("%d batches of records were not delivered when the program ended", sender.failed_at_end)


def _refuse_in_child() -> None:
    """The lock may have been held by a thread that this process does not have."""
    for producer in list(_producers):
        producer.forked()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_refuse_in_child)
