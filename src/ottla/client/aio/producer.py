"""The producer for asyncio programs.

Zone: real. Tasks of one loop add records. The core decides about batches, the loop sender decides when they move.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.client.aio.loop_sender import LoopSender, RoundWaiters
from ottla.client.aio.transactions import AsyncTransactionContext
from ottla.client.aio.worker import Worker, other_loop
from ottla.client.errors import ClientError, UsageError
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig, Serializer, renamed_warnings
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.failed_records import FailedRecord, for_each_record
from ottla.client.producer.futures import ProducerLock, RecordMetadata, TableFuture, TableMetadata, seconds_left
from ottla.client.producer.interceptors import Interceptor, InterceptorChain, plain_headers
from ottla.client.producer.metrics import producer_metrics
from ottla.client.producer.partitioning import Partitioner, chosen_partitioner
from ottla.client.producer.record_appender import RecordAppender, not_flushed_error
from ottla.client.producer.topic_metadata import ProducedTopic
from ottla.client.producer.transactional import TransactionalProducer
from ottla.client.retry import FOREVER_S, bounded_s
from ottla.client.timestamps import Timestamp, timestamp_ms
from ottla.record.batch import Headers
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
_INT64 = range(2**63)


class Producer:
    """Sends records; idempotent by default. For the tasks of one loop; use it in `async with`, or close it.

    An accepted record is delivered, or its future fails. If `send` is cancelled while it waits, its record is not
    accepted; a cancelled call of a transaction runs to its end first (`max.block.ms` at most), so that the state is
    known afterwards. Records that one task sends one after the other keep their order per partition.
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
        """Settings and arguments are those of the producer with threads; `on_failed`, serializers, partitioner and
        interceptors run in the loop and must not block. The first call connects. Raises ConfigError.
        """
        for warning in renamed_warnings(settings):
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
        config = ProducerConfig.from_mapping(settings)
        partitioner = chosen_partitioner(config.partitioner_class, partitioner)
        self.config = config
        self._preparation = InterceptorChain(key_serializer, value_serializer, tuple(interceptors))
        self._prepares = self._preparation.is_needed
        self._shared = ProducerLock()
        self._core = ProducerCore(config, random.random, random.randrange)
        self._lock = self._shared.lock
        self._known = self._core.metadata.known_topic
        self._accumulator = self._core.accumulator
        self._rounds = RoundWaiters()
        told = on_failed and for_each_record(on_failed)
        self._sender = LoopSender(self._core, self._shared, told, self._rounds.after_round)
        self._intake = RecordAppender(config, self._core, self._shared, self._sender, partitioner)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcomes: set[asyncio.Future[TableMetadata]] = set()
        self._line = asyncio.Lock()
        """Orders the tasks that wait for memory: first come, first served."""
        self._in_line = 0
        self._transactional: TransactionalProducer | None = None
        self._worker = Worker("ottla-transactions")
        if config.transactional_id:
            self._transactional = TransactionalProducer(
                config, self._core, self._shared, self._sender, self._intake.flush_records
            )
        self._simple = partitioner is None and self._transactional is None
        _producers.add(self)

    async def __aenter__(self) -> Producer:
        self._bind_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        sender: LoopSender | None = getattr(self, "_sender", None)  # None: __init__ raised ConfigError
        if sender is not None and self._loop is not None and not sender.is_over and self._intake.refusal is None:
            left = len(self._accumulator.incomplete)
            warnings.warn(
                f"a producer was not closed; {left} batches may be lost", ResourceWarning, source=self, stacklevel=2
            )

    # -- records -------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp: Timestamp | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Accept a record, as `send` of the producer with threads; the future has its position, or the error.

        Waits, without blocking the loop, only for metadata and for room in `buffer.memory`, `max.block.ms` at most.
        If it is cancelled while it waits, the record is not accepted; cancelling the future has no effect. Raises
        UsageError, DeadlineError, RefusedError; the record is not accepted then.
        """
        if asyncio.get_running_loop() is not self._loop:
            self._bind_loop()
        assert self._loop is not None
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        told: Any = partial(self._settle_future, future)
        if self._prepares:
            asked = self._preparation.prepare_record(topic, value, key, headers, partition, timestamp, told)
            topic, value, key, headers, partition, timestamp, told = asked
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or timestamp not in _INT64:
            timestamp = timestamp_ms(timestamp)
        plain = plain_headers(headers) if headers else ()
        if self._accumulator.news:
            await asyncio.sleep(0)  # let the sender run: a task that only sends would never yield to it
        batch: ProducerBatch | None = None
        # The fast path, for records without a key: the core alone places them. All others take `_accept_record`.
        if self._simple and partition is None and key is None and self._intake.refusal is None and not self._in_line:
            with self._lock:
                known = self._known(topic)
                if known is not None:
                    batch = self._core.place_record(known, None, timestamp, None, value, plain, time.monotonic())
        if batch is None:
            batch = await self._accept_record(_Record(topic, partition, timestamp, key, value, plain))
        batch.callbacks = batch.callbacks or []
        batch.callbacks.append((batch.count - 1, timestamp, told))
        if self._accumulator.news and self._sender.asleep:
            self._sender.wake_sender()
        return future

    async def _accept_record(self, record: _Record) -> ProducerBatch:
        found = self._offer_record(record) if not self._in_line else None
        return (
            found
            if isinstance(found, ProducerBatch)
            else await self._accept_slowly(record.topic, partial(self._offer_record, record))
        )

    async def send_and_wait(self, topic: str, value: Any = None, **options: Any) -> RecordMetadata:
        """`send` with the same options, then wait for the record's position. Also raises the error of a failure."""
        return await (await self.send(topic, value, **options))

    async def send_table(self, topic: str, table: pa.Table | pa.RecordBatch) -> asyncio.Future[TableMetadata]:
        """Accept the rows of an Arrow table, as `send_table` of the producer with threads.

        Waits for room in `buffer.memory` without blocking the loop; encoding one batch takes some milliseconds. If it
        is cancelled, the rows accepted so far are sent; in a transaction an abort takes them back. Raises as `send` if
        no row was accepted, PartlyAcceptedError if some rows were.
        """
        from ottla.client.producer.arrow_tables import TableRows, partition_choice, whole_batch  # noqa: PLC0415 - Arrow is slow

        self._bind_loop()
        self._preparation.check_columns()
        rows = TableRows(table, self.config, time.time_ns() // 1_000_000)
        partitioner = self._intake.partitioner
        known = await self._wait_for_topic(topic, self._block_deadline())
        rows.check_partitions(known, partitioner)
        accepted: list[ProducerBatch] = []
        try:
            for partition, plain in rows.encode_batches(
                lambda count: partition_choice(known, count, partitioner, self._core)
            ):
                offer = partial(self._offer_batch, whole_batch(topic, partition, plain))
                accepted.append(await self._accept_slowly(topic, offer))
                self._sender.wake_sender()
                await asyncio.sleep(0)
        except ClientError as error:
            if not accepted:
                raise
            sent = TableFuture(self._shared, topic, accepted)
            raise sent.partly_accepted(rows.rows, error) from error
        return self._table_outcome(TableFuture(self._shared, topic, accepted), accepted)

    def _table_outcome(self, sent: TableFuture, batches: list[ProducerBatch]) -> asyncio.Future[TableMetadata]:
        async def decided() -> TableMetadata:
            for batch in batches:
                await self._rounds.wait_for_batch(batch, None)
            return sent.result(0)

        task = asyncio.ensure_future(decided())
        self._outcomes.add(task)
        task.add_done_callback(self._outcomes.discard)
        if self._transactional is not None:
            task.add_done_callback(_mark_retrieved)
        return task

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as with threads
        """Send all accepted records without waiting for `linger.ms`, and wait until each one is delivered or failed.

        timeout: seconds; None: no limit. Raises DeadlineError when the time is over.
        """
        self._bind_loop()
        until = None if timeout is None else time.monotonic() + bounded_s(timeout)
        self._accumulator.flushes += 1
        try:
            self._sender.request_work()
            for batch in list(self._accumulator.incomplete):
                if not await self._rounds.wait_for_batch(batch, until):
                    raise not_flushed_error(timeout)
        finally:
            self._accumulator.flushes -= 1

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as with threads
        """Accept no more records, deliver those accepted, and end. As with threads, an open transaction is aborted.

        timeout: seconds to deliver, None for as long as it takes (`delivery.timeout.ms` at most); records that are not
        delivered then fail. Idempotent. Cancelling it does not stop it while the loop runs.
        """
        if os.getpid() != self._shared.process:
            return  # after a fork: the sockets belong to the parent process
        if self._loop is None:
            with self._shared.lock:
                self._intake.close_appender(0.0)
            self._sender.end_sending(UsageError("this producer is closed"))
            self._sender.is_over = True
            return
        self._bind_loop()
        until = time.monotonic() + bounded_s(FOREVER_S if timeout is None else timeout)
        with self._shared.lock:
            self._intake.refuse_records()
        try:
            if (face := self._transactional) is not None and face.is_open:
                await self._worker.finish_call(partial(face.abort_at_close, until))
        finally:
            with self._shared.lock:
                self._intake.close_appender(until)
        self._rounds.after_round()
        await self._rounds.wait_until(lambda: self._sender.is_over, None)
        if self._transactional is not None:
            face, self._transactional = self._transactional, None
            closed = self._worker.hand_over(face.close_connections)
            self._worker.end_thread()
            await asyncio.shield(closed)

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, ascending. Waits for its metadata, `max.block.ms` at most; raises as `send`."""
        self._bind_loop()
        return sorted((await self._wait_for_topic(topic, self._block_deadline())).view.partitions)

    def metrics(self) -> dict[str, float]:
        """Values of Kafka's metrics in the group producer-metrics, by name."""
        with self._shared.lock:
            return producer_metrics(self._core, self._sender)

    def forked(self) -> None:
        """Called after a fork in the child process: from now on every call raises UsageError."""
        self._intake.on_forked()

    # -- transactions --------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Take over the transactional id: fences an earlier producer and aborts its transaction. Call it once.

        Waits `max.block.ms` at most. Raises UsageError without `transactional.id`, RefusedError, DeadlineError.
        """
        await self._carry_out(lambda face: face.init_transactions())

    async def begin_transaction(self) -> None:
        """Begin a transaction. Raises UsageError if the state forbids it."""
        await self._carry_out(lambda face: face.begin_transaction())

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Add positions (the next offset to read), which are committed with the transaction, or not at all. Raises
        UsageError, DeadlineError; after RefusedError the transaction can only be aborted."""
        await self._carry_out(lambda face: face.send_offsets(offsets, group))

    async def commit_transaction(self) -> None:
        """Wait for every record, then commit. After DeadlineError call it again.

        Raises UsageError if a record failed or the state forbids it: then abort. RefusedError if fenced.
        """
        await self._carry_out(lambda face: face.commit_transaction())

    async def abort_transaction(self) -> None:
        """Abort: no record of the transaction counts, unsent ones fail. After DeadlineError call it again."""
        await self._carry_out(lambda face: face.abort_transaction())

    def transaction(self) -> AsyncTransactionContext[Producer]:
        """For `async with`: begins, commits at the end, aborts on an error and on a cancellation."""
        return AsyncTransactionContext(self)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun, and neither its commit nor its abort."""
        return self._transactional is not None and self._transactional.is_open

    async def _carry_out(self, call: Callable[[TransactionalProducer], R]) -> R:
        self._bind_loop()
        self._intake.check_open()
        face = self._transactional
        if face is None:
            raise UsageError("this producer has no transactional.id", "Set it to use transactions")
        return await self._worker.finish_call(lambda: call(face))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bind_loop(self) -> None:
        """Start the sender in the running loop, or check that it runs there. Raises UsageError for another loop."""
        loop = asyncio.get_running_loop()
        if self._loop is None and not self._sender.is_over:
            self._shared.check_process()
            self._loop = loop
            self._sender.start_in_loop(loop)
        elif self._loop is not loop and not self._sender.is_over:
            raise other_loop()
        elif self._loop is None:
            self._intake.check_open()

    def _block_deadline(self) -> float:
        return time.monotonic() + bounded_s(self.config.max_block_ms / 1000)

    def _offer_record(self, record: _Record, joined: int | None = None) -> Offered:
        """Try to place a record. Returns 1. the batch, whose last record it is now; 2. the partition that must join the
        transaction first; 3. None: metadata or memory is missing. joined: the partition of an earlier result 2."""
        name, partition, timestamp, key, value, headers = record
        with self._shared.lock:
            topic = self._intake.known_topic(name)
            if topic is None:
                return None
            partition = joined if joined is not None else partition
            partition = self._intake.choose_partition(topic, partition, key, value)
            if not self._admits_partition(tp := TopicPartition(name, partition)):
                return tp
            batch = self._core.place_record(topic, partition, timestamp, key, value, headers, time.monotonic())
            return self._add_to_transaction(batch) if batch is not None else None

    def _add_to_transaction(self, batch: ProducerBatch) -> ProducerBatch:
        """Add the partition to the transaction. Called after a record is in its batch, not before."""
        if self._transactional is not None:
            self._transactional.partitions.add(batch.tp)
        return batch

    def _offer_batch(self, batch: ProducerBatch, _joined: int | None = None) -> Offered:
        """As `_offer_record`, for a batch of a table."""
        tp = batch.tp
        with self._shared.lock:
            topic = self._intake.known_topic(tp.topic)
            if topic is None:
                return None
            self._intake.choose_partition(topic, tp.partition, None, None)
            if not self._admits_partition(tp):
                return tp
            return self._add_to_transaction(batch) if self._core.place_batch(topic, batch, time.monotonic()) else None

    def _admits_partition(self, tp: TopicPartition) -> bool:
        return self._transactional is None or self._transactional.admits_partition(tp)

    async def _accept_slowly(self, name: str, offer: Callable[[int | None], Offered]) -> ProducerBatch:
        """The slow path: wait for what is missing, and offer again. Raises ClientError: nothing was accepted."""
        until = self._block_deadline()
        joined: int | None = None
        await self._wait_for_topic(name, until)
        self._in_line += 1
        try:
            async with asyncio.timeout(seconds_left(until)), self._line:
                while not isinstance(found := offer(joined), ProducerBatch):
                    # Cases 2 and 3 of `_offer_record`: join the partition; wait for metadata, else for memory.
                    if found is not None:
                        joined = found.partition
                        await self._join_partition(found, until)
                    elif self._intake.known_topic(name) is None:
                        await self._wait_for_topic(name, until)
                    else:
                        await self._wait_for_memory(until)
                return found
        except TimeoutError:
            raise self._intake.no_room_error() from None
        finally:
            self._in_line -= 1

    async def _join_partition(self, tp: TopicPartition, until: float) -> None:
        """Add a partition to the transaction at the coordinator."""
        face = self._transactional
        if face is not None:
            await self._worker.finish_call(lambda: face.add_partition(tp, until))

    async def _wait_for_topic(self, name: str, until: float) -> ProducedTopic:
        """The topic; waits for its metadata. Raises DeadlineError, RefusedError, UsageError."""
        intake = self._intake
        known = intake.known_topic(name)
        if known is not None:
            return known
        intake.request_topic(name)
        try:
            await self._rounds.wait_until(lambda: intake.is_decided(name), until)
            return intake.topic_after_wait(name)
        finally:
            intake.stop_asking(name)

    async def _wait_for_memory(self, until: float) -> None:
        accumulator, intake = self._accumulator, self._intake
        used = accumulator.used
        accumulator.memory_waiters += 1
        self._sender.request_work()
        try:
            freed = await self._rounds.wait_until(lambda: accumulator.used < used or intake.refusal is not None, until)
        finally:
            accumulator.memory_waiters -= 1
        intake.check_open()
        if not freed:
            raise intake.no_room_error()

    def _settle_future(
        self, future: asyncio.Future[RecordMetadata], metadata: RecordMetadata | None, error: ClientError | None
    ) -> None:
        if future.done():  # cancelled
            return
        if metadata is not None:
            future.set_result(metadata)
        else:
            assert error is not None
            future.set_exception(error)
            if self._transactional is not None:
                _mark_retrieved(future)


Offered = ProducerBatch | TopicPartition | None


class _Record(NamedTuple):
    """A record that is not in a batch yet."""

    topic: str
    partition: int | None
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: the commit reports the error, so asyncio must not log it as never retrieved."""
    if not future.cancelled():
        future.exception()


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for producer in list(_producers):
        producer.forked()


os.register_at_fork(after_in_child=_refuse_in_child)
