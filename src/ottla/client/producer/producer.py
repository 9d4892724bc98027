"""The producer that applications use.

Zone: real. `send` may be called by any thread: interceptors, serializers and the partitioner run there, then the record
is added to a batch. The sender's thread does the rest; `core` decides about batches.
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

from ottla.client.errors import ClientError, DeadlineError, UsageError
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig, Serializer, renamed_warnings
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.failed_records import FailedRecord, for_each_record
from ottla.client.producer.futures import ProducerLock, RecordMetadata, SendFuture, TableFuture, seconds_left
from ottla.client.producer.interceptors import Interceptor, InterceptorChain, plain_headers
from ottla.client.producer.metrics import producer_metrics
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
"""Called once, in the sender's thread, with the record's position, or with its error."""
_INT64 = range(2**63)


class Producer:
    """Sends records; idempotent by default. Safe to use from any thread; use it in a `with` statement, or close it.

    An accepted record is delivered, or its future fails. `linger.ms` and `batch.size` decide when batches are sent,
    `delivery.timeout.ms` when they fail. A child process makes its own producer after a fork.
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

        partitioner: chooses partitions of records without one, instead of murmur2 and the sticky choice.
        on_failed: called for every failed record; `failed_records` has functions that write to a file or a topic.
        Raises ConfigError.
        """
        for warning in renamed_warnings(settings):
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
        config = ProducerConfig.from_mapping(settings)
        self.config = config
        partitioner = chosen_partitioner(config.partitioner_class, partitioner)
        self._preparation = InterceptorChain(key_serializer, value_serializer, tuple(interceptors))
        self._prepares = self._preparation.is_needed
        self._shared = ProducerLock()
        self._lock = self._shared.lock
        self._core = ProducerCore(config, random.random, random.randrange)
        self._sender = Sender(self._core, self._shared, on_failed and for_each_record(on_failed))
        self._known = self._core.metadata.known_topic
        self._accumulator = self._core.accumulator
        self._intake = RecordAppender(config, self._core, self._shared, self._sender, partitioner)
        self._transactional: TransactionalProducer | None = None
        if config.transactional_id:
            self._transactional = TransactionalProducer(
                config, self._core, self._shared, self._sender, self._intake.flush_records
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
        sender: Sender | None = getattr(self, "_sender", None)  # None: __init__ raised ConfigError
        if sender is not None and sender.closing_at is None and self._intake.refusal is None:
            warnings.warn("a producer was not closed", ResourceWarning, source=self, stacklevel=2)
            # The garbage collector may run this in any thread, also in one that holds the lock: `finish_by` takes none.
            sender.finish_by(time.monotonic() + FOREVER_S)

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
        """Accept a record. Returns at once, except that it waits for metadata or memory, `max.block.ms` at most.

        value None is a tombstone. timestamp: milliseconds since 1970 or a datetime; default: now. Without a partition
        the key decides, without a key the load (KIP-794). The bytes are copied before this returns.
        Raises UsageError (closed, not bytes, too large, no transaction begun …), DeadlineError after `max.block.ms`,
        RefusedError for a topic that the broker refuses or a partition that does not exist. The record is not accepted
        then, and a transaction does not change.
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
            # The usual record takes the short way: its topic is known, the sticky partition takes it, and no
            # transaction has to add the partition first. `_accept_slowly` checks and waits for everything else.
            known = self._known(topic)
            batch = None
            if (
                known is not None
                and partition is None
                and key is None
                and self._simple
                and self._intake.refusal is None
            ):
                batch = self._core.place_record(known, None, timestamp, None, value, plain, time.monotonic())
            if batch is None:
                batch = self._accept_slowly(topic, partition, timestamp, key, value, plain)
            # The lock is still held: the last record of the batch is the one that was just added.
            index = batch.count - 1
            if on_delivery is not None:
                batch.callbacks = batch.callbacks or []
                batch.callbacks.append((index, timestamp, on_delivery))
            # A wake-up is a system call. Most records need none: they join a batch that the sender knows, or it is
            # awake.
            wanted = self._accumulator.news and self._sender.asleep
        if wanted:
            self._sender.wake_sender()  # after releasing the lock, which the sender needs at once
        return SendFuture(self._shared, batch, index, timestamp)

    def send_table(self, topic: str, table: pa.Table | pa.RecordBatch) -> TableFuture:
        """Accept the rows of an Arrow table as records; faster than `send`, because no Python code runs per row.

        Columns: `value`; optional: `key` (both binary or string), `headers` (list of structs of key and value, or a
        map), `partition` (integer), `timestamp` (integer of ms, or a timestamp); null in the last two: not given. Rows
        of a partition keep their order. Batches are as large as `max.request.size`, a quarter of `buffer.memory` and
        900,000 bytes allow, and are sent at once. Waits for memory for each batch, `max.block.ms` at most. Raises as
        `send` if no row was accepted (UsageError for invalid columns), PartlyAcceptedError if some rows were.
        """
        from ottla.client.producer.arrow_tables import TableRows, partition_choice, whole_batch  # noqa: PLC0415 - Arrow is slow

        self._preparation.check_columns()
        rows = TableRows(table, self.config, time.time_ns() // 1_000_000)
        partitioner = self._intake.partitioner
        with self._lock:
            known = self._wait_for_topic(topic, self._block_deadline())
        rows.check_partitions(known, partitioner)
        accepted: list[ProducerBatch] = []
        try:
            for partition, plain in rows.encode_batches(
                lambda count: partition_choice(known, count, partitioner, self._core)
            ):
                batch = whole_batch(topic, partition, plain)
                with self._lock:
                    self._accept_whole(batch)
                self._sender.wake_sender()
                accepted.append(batch)
        except ClientError as error:
            if not accepted:
                raise
            sent = TableFuture(self._shared, topic, accepted)
            raise sent.partly_accepted(rows.rows, error) from error
        return TableFuture(self._shared, topic, accepted)

    def flush(self, timeout: float | None = None) -> None:
        """Send all accepted records without waiting for `linger.ms`, and wait until each one is delivered or failed and
        its callbacks have returned.

        timeout: seconds; None or infinite: no limit. Failed records only report their errors in their futures.
        Raises DeadlineError when the time is over, UsageError in a callback.
        """
        self._intake.flush_records(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Accept no more records, deliver those accepted, and end. Aborts an open transaction. Idempotent.

        timeout: seconds to deliver, None for as long as it takes (`delivery.timeout.ms` at most); records that are not
        delivered then fail. The abort takes at most `max.block.ms`; if that is not enough, and with a timeout of 0, the
        coordinator aborts later (`transaction.timeout.ms`). In a callback it does not wait: the sender closes later.
        """
        if os.getpid() != self._shared.process:
            return  # after a fork: thread and sockets belong to the parent process
        until = time.monotonic() + bounded_s(FOREVER_S if timeout is None else timeout)
        inside = threading.current_thread() is self._sender.thread
        with self._lock:
            # Refuse records before the abort: other threads could otherwise add to the transaction while it ends.
            self._intake.refuse_records()
        if self._transactional is not None and not inside:
            self._transactional.abort_at_close(until)
        with self._lock:
            self._intake.close_appender(until)
        if not inside:
            # A thread cannot join itself: after a close in a callback the sender ends by itself.
            self._sender.thread.join()
        if self._transactional is not None:
            self._transactional.close_connections()

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, ascending. Waits for its metadata, `max.block.ms` at most; raises as `send`."""
        with self._lock:
            return sorted(self._wait_for_topic(topic, self._block_deadline()).view.partitions)

    def metrics(self) -> dict[str, float]:
        """Values of Kafka's metrics in the group producer-metrics, by name."""
        with self._lock:
            return producer_metrics(self._core, self._sender)

    def forked(self) -> None:
        """Called after a fork in the child process: from now on every call raises UsageError."""
        self._lock = threading.Lock()
        self._intake.on_forked()

    # -- transactions ----------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Take over the transactional id: fences an earlier producer and aborts its transaction. Call it once.

        Waits `max.block.ms` at most. Raises UsageError without `transactional.id`, RefusedError, DeadlineError.
        """
        self._require_transactions().init_transactions()

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises UsageError if the state forbids it."""
        self._require_transactions().begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Add positions (the next offset to read), which are committed with the transaction, or not at all.

        Raises UsageError, DeadlineError; after RefusedError the transaction can only be aborted.
        """
        self._require_transactions().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Wait for every record, then commit. After DeadlineError call it again.

        Raises UsageError if a record failed or the state forbids it: then abort. RefusedError if fenced.
        """
        self._require_transactions().commit_transaction()

    def abort_transaction(self) -> None:
        """Abort: no record of the transaction counts, unsent ones fail. After DeadlineError call it again."""
        self._require_transactions().abort_transaction()

    def transaction(self) -> TransactionContext:
        """For a `with` statement: begins, commits at the end, aborts on an error."""
        self._require_transactions()
        return TransactionContext(self)

    def _require_transactions(self) -> TransactionalProducer:
        self._shared.check_caller("a transaction's call")
        if self._transactional is None:
            raise UsageError("this producer has no transactional.id", "Set transactional.id to use transactions")
        self._intake.check_open()
        return self._transactional

    # -- with the lock held ----------------------------------------------------------------------------------------

    def _accept_slowly(
        self,
        name: str,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> ProducerBatch:
        """The slow path: wait for what is missing. Returns the batch, whose last record it is."""
        until = self._block_deadline()
        while True:
            topic = self._wait_for_topic(name, until)
            chosen = self._intake.choose_partition(topic, partition, key, value)
            self._enter_partition(TopicPartition(name, chosen), until)
            batch = self._core.place_record(topic, chosen, timestamp, key, value, headers, time.monotonic())
            if batch is not None:
                self._add_to_transaction(batch.tp)
                return batch
            self._wait_for_memory(until)

    def _accept_whole(self, batch: ProducerBatch) -> None:
        """As `_accept_slowly`, for a batch of a table."""
        tp, until = batch.tp, self._block_deadline()
        while True:
            topic = self._wait_for_topic(tp.topic, until)
            self._intake.choose_partition(topic, tp.partition, None, None)
            self._enter_partition(tp, until)
            if self._core.place_batch(topic, batch, time.monotonic()):
                self._add_to_transaction(tp)
                break
            self._wait_for_memory(until)

    def _block_deadline(self) -> float:
        return time.monotonic() + bounded_s(self.config.max_block_ms / 1000)

    def _wait_for_topic(self, name: str, until: float) -> ProducedTopic:
        """The topic; waits for its metadata. Raises DeadlineError, RefusedError, UsageError."""
        known = self._intake.known_topic(name)
        if known is not None:
            return known
        self._shared.check_caller(f"the metadata of topic {name}")
        self._intake.request_topic(name)
        try:
            self._shared.wait_until(lambda: self._intake.is_decided(name), seconds_left(until))
            return self._intake.topic_after_wait(name)
        finally:
            self._intake.stop_asking(name)

    def _add_to_transaction(self, tp: TopicPartition) -> None:
        """Add the partition to the transaction. Called after a record is in its batch, not before."""
        if self._transactional is not None:
            self._transactional.partitions.add(tp)

    def _enter_partition(self, tp: TopicPartition, until: float) -> None:
        """Add the partition to the transaction at the coordinator, if the producer is transactional."""
        face = self._transactional
        if face is None or face.admits_partition(tp):
            return
        self._lock.release()
        try:
            face.add_partition(tp, until)
        finally:
            self._lock.acquire()
        self._intake.check_open()
        face.admits_partition(tp)

    def _wait_for_memory(self, until: float) -> None:
        self._shared.check_caller("send with a full buffer.memory")
        accumulator = self._accumulator
        used = accumulator.used
        accumulator.memory_waiters += 1
        self._sender.request_work()
        try:
            changed = lambda: accumulator.used < used or self._intake.refusal is not None  # noqa: E731
            freed = self._shared.wait_until(changed, seconds_left(until))
        finally:
            accumulator.memory_waiters -= 1
        self._intake.check_open()
        if not freed:
            raise self._intake.no_room_error()


class TransactionContext:
    """A transaction for a `with` statement."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __enter__(self) -> Producer:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort_transaction(error)
            return
        try:
            self._producer.commit_transaction()
        except DeadlineError:
            raise  # the commit may have succeeded, so an abort is not possible
        except ClientError as failure:
            self._abort_transaction(failure)
            raise

    def _abort_transaction(self, error: BaseException) -> None:
        try:
            self._producer.abort_transaction()
        except ClientError as failure:
            error.add_note(f"the transaction could not be aborted: {failure}")


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
_senders: weakref.WeakSet[Sender] = weakref.WeakSet()
"""The running senders: a sender's thread refers to it, so it stays here until it ends, also without its producer."""


def _close_at_exit() -> None:
    """Deliver accepted records before the interpreter ends, and log how many batches could not be delivered."""
    for sender in list(_senders):
        sender.finish_by(time.monotonic() + sender.patience_s)
        sender.thread.join()
        if sender.failed_at_end:
            _log.error("producer: the program ended, %d batches of records were not delivered", sender.failed_at_end)


def _refuse_in_child() -> None:
    """Disable all producers in a forked child: a thread that the child does not have may hold their locks."""
    for producer in list(_producers):
        producer.forked()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_refuse_in_child)
