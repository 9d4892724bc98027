"""The producer for asyncio programs.

Zone: real. Records come in from tasks of one loop; what is decided about them is decided in the core, when batches move
is the loop sender's.
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

from ottla.client.aio.loop_sender import LoopSender
from ottla.client.aio.transactions import AsyncTransactionContext
from ottla.client.aio.worker import Worker, other_loop
from ottla.client.errors import ClientError, PartlyAcceptedError, UsageError
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig, Serializer, renamed
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.failed_records import FailedRecord, per_batch
from ottla.client.producer.futures import ProducerLock, RecordMetadata, TableFuture, TableMetadata, seconds_left
from ottla.client.producer.interceptors import Interceptor, InterceptorChain, plain_headers
from ottla.client.producer.metrics import measures
from ottla.client.producer.partitioning import Partitioner, chosen_partitioner
from ottla.client.producer.record_appender import RecordAppender, not_flushed
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

    An accepted record is delivered, or its future fails. `send` that is cancelled while it waits has not accepted its
    record; a call of a transaction that is cancelled is carried out first (`max.block.ms` at most), so that the state
    is known afterwards. Records that one task sends one after the other keep their order per partition.
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
        """As the producer with threads, whose settings and arguments it takes; `on_failed`, serializers, partitioner
        and interceptors run in the loop and must not block. Connects at the first call. Raises ConfigError.
        """
        for warning in renamed(settings):
            warnings.warn(warning, DeprecationWarning, stacklevel=2)
        config = ProducerConfig.from_mapping(settings)
        partitioner = chosen_partitioner(config.partitioner_class, partitioner)
        self.config = config
        self._preparation = InterceptorChain(key_serializer, value_serializer, tuple(interceptors))
        self._prepares = self._preparation.is_needed
        self._shared = ProducerLock()
        self._core = ProducerCore(config, random.random, random.randrange)
        self._lock = self._shared.lock
        self._known = self._core.book.topic
        self._accumulator = self._core.accumulator
        self._sender = LoopSender(self._core, self._shared, on_failed and per_batch(on_failed), self._after_round)
        self._intake = RecordAppender(config, self._core, self._shared, self._sender, partitioner)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[asyncio.Future[None]] = []
        """Tasks that look again after the next round."""
        self._outcomes: set[asyncio.Future[TableMetadata]] = set()
        self._line = asyncio.Lock()
        """The tasks that wait for memory: whoever came first is first."""
        self._in_line = 0
        self._transactional: TransactionalProducer | None = None
        self._worker = Worker("ottla-transactions")
        if config.transactional_id:
            self._transactional = TransactionalProducer(
                config, self._core, self._shared, self._sender, self._intake.flush
            )
        self._simple = partitioner is None and self._transactional is None
        _producers.add(self)

    async def __aenter__(self) -> Producer:
        self._bind()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        sender: LoopSender | None = getattr(self, "_sender", None)  # None: the settings were refused
        if sender is not None and self._loop is not None and not sender.over and self._intake.refusal is None:
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
        """Accept a record, as the `send` of the producer with threads; the future says where it is, or why not.

        Waits, without blocking the loop, only for metadata and for room in `buffer.memory`, `max.block.ms` at most.
        Cancelled while it waits, the record is not accepted. Cancelling the future takes nothing back.
        Raises UsageError, DeadlineError, RefusedError: then the record is not accepted.
        """
        if asyncio.get_running_loop() is not self._loop:
            self._bind()
        assert self._loop is not None
        future: asyncio.Future[RecordMetadata] = self._loop.create_future()
        told: Any = partial(self._settle, future)
        if self._prepares:
            asked = self._preparation.prepare_record(topic, value, key, headers, partition, timestamp, told)
            topic, value, key, headers, partition, timestamp, told = asked
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or timestamp not in _INT64:
            timestamp = timestamp_ms(timestamp)
        plain = plain_headers(headers) if headers else ()
        if self._accumulator.news:
            await asyncio.sleep(0)  # the sender has work: somebody who only sends would never let it
        batch: ProducerBatch | None = None
        if self._simple and partition is None and key is None and self._intake.refusal is None and not self._in_line:
            with self._lock:
                known = self._known(topic)
                if known is not None:
                    batch = self._core.place(known, None, timestamp, None, value, plain, time.monotonic())
        if batch is None:
            batch = await self._take_in(_Record(topic, partition, timestamp, key, value, plain))
        batch.callbacks = batch.callbacks or []
        batch.callbacks.append((batch.count - 1, timestamp, told))
        if self._accumulator.news and self._sender.asleep:
            self._sender.wake()
        return future

    async def _take_in(self, record: _Record) -> ProducerBatch:
        found = self._offer(record) if not self._in_line else None
        return (
            found
            if isinstance(found, ProducerBatch)
            else await self._accept(record.topic, partial(self._offer, record))
        )

    async def send_and_wait(self, topic: str, value: Any = None, **options: Any) -> RecordMetadata:
        """`send` with the same options, and wait: where the record is. Raises the error for which it failed, too."""
        return await (await self.send(topic, value, **options))

    async def send_table(self, topic: str, table: pa.Table | pa.RecordBatch) -> asyncio.Future[TableMetadata]:
        """Accept the rows of an Arrow table, as the `send_table` of the producer with threads.

        Waits for room in `buffer.memory` without blocking the loop; what is encoded in one piece takes some
        milliseconds. Cancelled, the rows accepted so far are sent; in a transaction an abort takes them back.
        Raises as `send` when nothing was accepted, PartlyAcceptedError when something was.
        """
        from ottla.client.producer.arrow_tables import TableRows, places_for, whole_batch  # noqa: PLC0415 - Arrow is slow

        self._bind()
        self._preparation.check_columns()
        rows = TableRows(table, self.config, time.time_ns() // 1_000_000)
        partitioner = self._intake.partitioner
        known = await self._topic(topic, self._until())
        rows.check_partitions(known, partitioner)
        accepted: list[ProducerBatch] = []
        try:
            for partition, plain in rows.batches(lambda count: places_for(known, count, partitioner, self._core)):
                offer = partial(self._offer_whole, whole_batch(topic, partition, plain))
                accepted.append(await self._accept(topic, offer))
                self._sender.wake()
                await asyncio.sleep(0)
        except ClientError as error:
            if not accepted:
                raise
            sent = TableFuture(self._shared, topic, accepted)
            raise PartlyAcceptedError(sent, rows.rows, error) from error
        return self._outcome(TableFuture(self._shared, topic, accepted), accepted)

    def _outcome(self, sent: TableFuture, batches: list[ProducerBatch]) -> asyncio.Future[TableMetadata]:
        async def decided() -> TableMetadata:
            for batch in batches:
                await self._decided(batch, None)
            return sent.result(0)

        task = asyncio.ensure_future(decided())
        self._outcomes.add(task)
        task.add_done_callback(self._outcomes.discard)
        if self._transactional is not None:
            task.add_done_callback(_seen)
        return task

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as with threads
        """Send what has been accepted without waiting for `linger.ms`, and wait until each record is decided.

        timeout: seconds; None: until everything is decided. Raises DeadlineError when the time is over.
        """
        self._bind()
        until = None if timeout is None else time.monotonic() + bounded_s(timeout)
        self._accumulator.flushes += 1
        try:
            self._sender.nudge()
            for batch in list(self._accumulator.incomplete):
                if not await self._decided(batch, until):
                    raise not_flushed(timeout)
        finally:
            self._accumulator.flushes -= 1

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  as with threads
        """Accept nothing more, deliver what was accepted, and end; as with threads an open transaction is aborted.

        timeout: seconds to deliver, None for as long as it takes (`delivery.timeout.ms` at most); what is not delivered
        then fails. Idempotent. Cancelled, it goes on for as long as the loop does.
        """
        if os.getpid() != self._shared.process:
            return  # the sockets are the parent's
        if self._loop is None:
            with self._shared.lock:
                self._intake.close(0.0)
            self._sender.end(UsageError("this producer is closed"))
            self._sender.over = True
            return
        self._bind()
        until = time.monotonic() + bounded_s(FOREVER_S if timeout is None else timeout)
        with self._shared.lock:
            self._intake.refuse()
        try:
            if (face := self._transactional) is not None and face.is_open:
                await self._worker.finish_call(partial(face.abandon, until))
        finally:
            with self._shared.lock:
                self._intake.close(until)
        self._after_round()
        await self._wait(lambda: self._sender.over, None)
        if self._transactional is not None:
            face, self._transactional = self._transactional, None
            closed = self._worker.hand_over(face.close)
            self._worker.close()
            await asyncio.shield(closed)

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, ascending. Waits for its metadata, `max.block.ms` at most; raises as `send`."""
        self._bind()
        return sorted((await self._topic(topic, self._until())).view.partitions)

    def metrics(self) -> dict[str, float]:
        """Kafka's names of the group producer-metrics, and their values now."""
        with self._shared.lock:
            return measures(self._core, self._sender)

    def forked(self) -> None:
        """This process is a child of the producer's: from now on every call says so."""
        self._intake.forked()

    # -- transactions --------------------------------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Take over the transactional id: a former producer of it is fenced, its open transaction aborted. Once.

        Waits `max.block.ms` at most. Raises UsageError without `transactional.id`, RefusedError, DeadlineError.
        """
        await self._carry_out(lambda face: face.init())

    async def begin_transaction(self) -> None:
        """Begin. Raises UsageError when the state forbids it."""
        await self._carry_out(lambda face: face.begin_transaction())

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Positions (the next offset to read) that are committed with the transaction, or not at all.

        Raises UsageError, DeadlineError; RefusedError, after which only an abort helps.
        """
        await self._carry_out(lambda face: face.send_offsets(offsets, group))

    async def commit_transaction(self) -> None:
        """Wait for every record, and commit. After DeadlineError call it again.

        Raises UsageError when a record failed, or the state forbids it: then abort. RefusedError when fenced.
        """
        await self._carry_out(lambda face: face.commit())

    async def abort_transaction(self) -> None:
        """Take back every record of the transaction; those on their way fail. After DeadlineError call it again."""
        await self._carry_out(lambda face: face.abort())

    def transaction(self) -> AsyncTransactionContext:
        """For an `async with` statement: begins, commits at its end, aborts on an error and on a cancellation."""
        return AsyncTransactionContext(self)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is begun, and neither a commit nor an abort of it."""
        return self._transactional is not None and self._transactional.is_open

    async def _carry_out(self, call: Callable[[TransactionalProducer], R]) -> R:
        self._bind()
        self._intake.check_open()
        face = self._transactional
        if face is None:
            raise UsageError("this producer has no transactional.id", "Set it to use transactions")
        return await self._worker.finish_call(lambda: call(face))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _bind(self) -> None:
        """Begin in the loop that runs, or make sure that it is the one. Raises UsageError."""
        loop = asyncio.get_running_loop()
        if self._loop is None and not self._sender.over:
            self._shared.check_process()
            self._loop = loop
            self._sender.start(loop)
        elif self._loop is not loop and not self._sender.over:
            raise other_loop()
        elif self._loop is None:
            self._intake.check_open()

    def _until(self) -> float:
        return time.monotonic() + bounded_s(self.config.max_block_ms / 1000)

    def _after_round(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self, holds: Callable[[], bool], until: float | None) -> bool:
        """Wait until something holds; False when a time of the monotonic clock is over first."""
        while not holds():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(None if until is None else seconds_left(until)):
                    await waiter
            except TimeoutError:
                return holds()
        return True

    async def _decided(self, batch: ProducerBatch, until: float | None) -> bool:
        return await self._wait(lambda: batch.decided, until)

    def _offer(self, record: _Record, joined: int | None = None) -> Offered:
        """The batch that took the record in as its last; or the partition that must join the transaction before; None
        when metadata or memory has to be waited for. joined: the partition that was chosen before and has joined.
        """
        name, partition, timestamp, key, value, headers = record
        with self._shared.lock:
            topic = self._intake.topic(name)
            if topic is None:
                return None
            partition = joined if joined is not None else partition
            partition = self._intake.choose(topic, partition, key, value)
            if not self._admits(tp := TopicPartition(name, partition)):
                return tp
            batch = self._core.place(topic, partition, timestamp, key, value, headers, time.monotonic())
            return self._joined(batch) if batch is not None else None

    def _joined(self, batch: ProducerBatch) -> ProducerBatch:
        """A record is in its batch: only now is the partition part of the transaction."""
        if self._transactional is not None:
            self._transactional.partitions.add(batch.tp)
        return batch

    def _offer_whole(self, batch: ProducerBatch, _joined: int | None = None) -> Offered:
        """The same for a batch of a table."""
        tp = batch.tp
        with self._shared.lock:
            topic = self._intake.topic(tp.topic)
            if topic is None:
                return None
            self._intake.choose(topic, tp.partition, None, None)
            if not self._admits(tp):
                return tp
            return self._joined(batch) if self._core.place_whole(topic, batch, time.monotonic()) else None

    def _admits(self, tp: TopicPartition) -> bool:
        return self._transactional is None or self._transactional.admits(tp)

    async def _accept(self, name: str, offer: Callable[[int | None], Offered]) -> ProducerBatch:
        """The long way: wait for what is missing, and offer again. Raises ClientError: nothing was accepted."""
        until = self._until()
        joined: int | None = None
        await self._topic(name, until)
        self._in_line += 1
        try:
            async with asyncio.timeout(seconds_left(until)), self._line:
                while not isinstance(found := offer(joined), ProducerBatch):
                    if found is not None:
                        joined = found.partition
                        await self._join(found, until)
                    elif self._intake.topic(name) is None:
                        await self._topic(name, until)
                    else:
                        await self._wait_for_memory(until)
                return found
        except TimeoutError:
            raise self._intake.no_room() from None
        finally:
            self._in_line -= 1

    async def _join(self, tp: TopicPartition, until: float) -> None:
        """Make a partition part of the transaction."""
        face = self._transactional
        if face is not None:
            await self._worker.finish_call(lambda: face.add(tp, until))

    async def _topic(self, name: str, until: float) -> ProducedTopic:
        """The topic, its metadata waited for. Raises DeadlineError, RefusedError, UsageError."""
        intake = self._intake
        known = intake.topic(name)
        if known is not None:
            return known
        intake.request_topic(name)
        try:
            await self._wait(lambda: intake.decided(name), until)
            return intake.topic_after_wait(name)
        finally:
            intake.stop_asking(name)

    async def _wait_for_memory(self, until: float) -> None:
        accumulator, intake = self._accumulator, self._intake
        used = accumulator.used
        accumulator.memory_waiters += 1
        self._sender.nudge()
        try:
            freed = await self._wait(lambda: accumulator.used < used or intake.refusal is not None, until)
        finally:
            accumulator.memory_waiters -= 1
        intake.check_open()
        if not freed:
            raise intake.no_room()

    def _settle(
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
                _seen(future)


Offered = ProducerBatch | TopicPartition | None


class _Record(NamedTuple):
    """A record on its way into a batch."""

    topic: str
    partition: int | None
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def _seen(future: asyncio.Future[Any]) -> None:
    """The end of the transaction says what failed: asyncio need not complain that nobody asked."""
    if not future.cancelled():
        future.exception()


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for producer in list(_producers):
        producer.forked()


os.register_at_fork(after_in_child=_refuse_in_child)
