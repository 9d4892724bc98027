"""The consumer for asyncio programs: the blocking consumer in a thread of its own, which runs the calls.

Zone: real. `consumer_thread` handles what tasks can do and threads cannot: being cancelled while waiting for records,
stopping in the middle of an iteration, and making a call while another task waits for records.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from ottla.client.aio.consumer_thread import SLICE_S, ConsumerThread, OnPartitions, RebalanceCallbacks
from ottla.client.consumer import Consumer as BlockingConsumer
from ottla.client.consumer import ConsumerRecord
from ottla.client.consumer.settings import Setting
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.renamed import renamed_argument, warn_renamed
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class Consumer:
    """Reads topics, alone or in a group. For the tasks of one loop; use it in `async with`, or close it.

    async with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
        await consumer.subscribe(["orders"])
        async for record in consumer: ...

    The next call returns the records that a cancelled `poll` would have returned, and those that an iteration did not
    reach; no commit skips them. Cancelling any other call does not stop it. Deserializers and interceptors run in the
    consumer's thread, callbacks of rebalances in the loop.
    """

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        """settings: by Kafka's keys. Raises ConfigError; connects to nothing yet."""
        self._blocking = BlockingConsumer(settings)
        self.config = self._blocking.config
        self._thread = ConsumerThread(self._blocking)
        self._callbacks = RebalanceCallbacks(self._thread.worker)
        self._polling = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- which partitions ----------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """As in the blocking consumer. The callbacks run in the loop, and may await calls of this consumer except
        `poll`, `unsubscribe` and `close`, which wait for the callbacks.
        """
        assigned, revoked, lost = (self._callbacks.in_loop(each) for each in (on_assigned, on_revoked, on_lost))
        await self._thread.give_back_and_run(
            lambda: self._blocking.subscribe(topics, on_assigned=assigned, on_revoked=revoked, on_lost=lost)
        )

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group; known positions stay."""
        await self._thread.give_back_and_run(lambda: self._blocking.assign(partitions))

    async def unsubscribe(self) -> None:
        """Leave the group, and stop reading."""
        self._callbacks.check_outside("unsubscribe")
        await self._thread.give_back_and_run(self._blocking.unsubscribe)

    async def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern the topics with assigned partitions."""
        return await self._thread.run_call(self._blocking.subscription)

    async def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned at present."""
        return await self._thread.run_call(self._blocking.assignment)

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """`poll` leaves these out until `resume`, or until they are revoked and assigned again."""
        await self._thread.give_back_and_run(lambda: self._blocking.pause(partitions))

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        await self._thread.run_call(lambda: self._blocking.resume(partitions))

    async def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        return await self._thread.run_call(self._blocking.paused)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 0.0) -> list[ConsumerRecord]:
        """The next records, at most `max.poll.records`; waits up to `timeout_s`. Errors as in the blocking consumer.

        Keeps the membership alive: call it, or iterate, at least every `max.poll.interval.ms`. Cancelling it loses no
        record.
        """
        self._callbacks.check_outside("poll")
        async with self._polling:
            if self._thread.ahead and not await self._thread.run_call(self._blocking.has_news):
                return self._thread.ahead.take_all()
            self._thread.give_back_records()
            return await self._thread.poll_until(timeout_s, self._blocking.poll, self._thread.rewind_records, list)

    async def poll_table(
        self, timeout_s: float = 0.0, *, headers: bool = False, max_bytes: int | None = None
    ) -> pa.Table:
        """As `poll`, but returns an Arrow table: see the blocking consumer."""
        self._callbacks.check_outside("poll_table")
        async with self._polling:
            self._thread.give_back_records()
            read = lambda left: self._blocking.poll_table(left, headers=headers, max_bytes=max_bytes)  # noqa: E731
            return await self._thread.poll_until(timeout_s, read, self._thread.rewind_table, _empty_table)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Endless records; the next iteration or `poll` returns the records that this one did not reach."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        while (record := next(self._thread.ahead.iterator, None)) is None:
            self._thread.ahead.put_records(await self.poll(SLICE_S))
        return record

    def wakeup(self) -> None:
        """End the waiting call, or the next one that waits, with WakeupError. For any thread or signal handler."""
        self._thread.request_wakeup()

    # -- positions -----------------------------------------------------------------------------------------------------

    @renamed_argument("where", "tp")
    async def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue from this offset; OffsetAndMetadata has the epoch of the record before it checked (KIP-320)."""
        await self._thread.give_back_and_run(lambda: self._blocking.seek(tp, offset))

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue from the first offset of these partitions, or of all; it is looked up when it is needed."""
        await self._thread.give_back_and_run(lambda: self._blocking.seek_to_beginning(partitions))

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue after the last offset (the last stable one under read_committed)."""
        await self._thread.give_back_and_run(lambda: self._blocking.seek_to_end(partitions))

    @renamed_argument("where", "tp")
    async def position(self, tp: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record, looked up if it is unknown. Raises DeadlineError."""
        ahead = self._thread.ahead.remaining_positions().get(tp)
        return ahead.offset if ahead else await self._thread.run_call(lambda: self._blocking.position(tp, timeout_s))

    async def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All known positions: `commit` commits these."""
        ahead = self._thread.ahead.remaining_positions()
        return await self._thread.run_call(self._blocking.positions) | ahead

    @renamed_argument("where", "tp")
    async def lag(self, tp: TopicPartition) -> int | None:
        """Number of records between the position and the end that the last fetch reported; None before a fetch."""
        ahead = self._thread.ahead.remaining_positions().get(tp)

        def lag() -> int | None:
            known = self._blocking.lag(tp)
            more = self._blocking.position(tp) - ahead.offset if ahead else 0
            return None if known is None else known + more

        return await self._thread.run_call(lag)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each. Raises ClientError."""
        return await self._thread.run_call(lambda: self._blocking.beginning_offsets(partitions, timeout_s))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record (the last stable offset under read_committed). Raises ClientError."""
        return await self._thread.run_call(lambda: self._blocking.end_offsets(partitions, timeout_s))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time in ms since 1970; None: all records are older. Raises ClientError."""
        return await self._thread.run_call(lambda: self._blocking.offsets_for_times(timestamps, timeout_s))

    async def partitions_for_topic(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic. Raises RefusedError."""
        return await self._thread.run_call(lambda: self._blocking.partitions_for_topic(topic, timeout_s))

    async def partitions_for(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The old name of `partitions_for_topic`."""
        warn_renamed("Consumer.partitions_for", "partitions_for_topic")
        return await self.partitions_for_topic(topic, timeout_s)

    async def list_topics(self, timeout_s: float | None = None) -> list[str]:
        """All visible topics; internal ones only if `exclude.internal.topics` is off. Raises ClientError."""
        return await self._thread.run_call(lambda: self._blocking.list_topics(timeout_s))

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets, or the positions after the returned records; takes at most `default.api.timeout.ms`.

        Raises CommitFailedError if the group has assigned the partitions to other members.
        """
        ahead = self._thread.ahead.remaining_positions()
        await self._thread.run_call(
            lambda: self._blocking.commit(self._blocking.positions() | ahead if offsets is None else offsets)
        )

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed positions of the group; None for a partition without one. Raises ClientError."""
        return await self._thread.run_call(lambda: self._blocking.committed(partitions, timeout_s))

    async def group_metadata(self) -> GroupMetadata:
        """For `send_offsets_to_transaction`. Raises CommitFailedError if it subscribed but is not in the group."""
        return await self._thread.run_call(self._blocking.group_metadata)

    async def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Ask the group for a rebalance; the next `poll` joins again (KIP-568)."""
        await self._thread.run_call(lambda: self._blocking.enforce_rebalance(reason))

    async def close(self, timeout_s: float = 30.0) -> None:
        """Commit if `enable.auto.commit`, call on_revoked, leave the group (static members stay), close. Idempotent.

        Raises an error of the last commit or of a callback after everything is closed. Cancelling it does not stop it.
        """
        self._callbacks.check_outside("close")
        if self._closed:
            return
        self._closed = True
        self._thread.give_back_records()
        # The worker ends when the close has run, not when the task stops waiting for it.
        closed = self._thread.start_call(lambda: self._blocking.close(timeout_s))
        closed.add_done_callback(lambda _: self._thread.worker.end_thread())
        await asyncio.shield(closed)


def _empty_table() -> pa.Table:
    from ottla.client.consumer.arrow_tables import SCHEMA  # noqa: PLC0415 - Arrow is slow to import

    return SCHEMA.empty_table()
