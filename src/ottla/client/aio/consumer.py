"""The consumer for asyncio programs: the blocking one in a thread of its own, to which calls are handed over.

Zone: real. What is special here is what a task may do and a thread may not: be cancelled while it waits for records,
stop in the middle of an iteration, and make a call while another task waits for records.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from ottla.client.aio.worker import Worker
from ottla.client.consumer import Consumer as BlockingConsumer
from ottla.client.consumer import ConsumerRecord
from ottla.client.consumer.prefetched_records import PrefetchedRecords, first_of
from ottla.client.consumer.settings import Setting
from ottla.client.errors import UsageError, WakeupError
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.renamed import renamed_argument, warn_renamed
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A function or a coroutine function; it runs in the loop."""
_SLICE_S = 1.0
"""How long the thread waits in one piece: every piece says to the group that the application is alive."""


class Consumer:
    """Reads topics, alone or in a group. For the tasks of one loop; use it in `async with`, or close it.

    async with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
        await consumer.subscribe(["orders"])
        async for record in consumer: ...

    Records that a cancelled `poll` would have given, and those that an iteration has not come to, come with the next
    call; no commit passes them over. Other calls that are cancelled are carried out all the same. Deserializers and
    interceptors run in the consumer's thread, callbacks of rebalances in the loop.
    """

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        """settings: by Kafka's keys. Raises ConfigError; connects to nothing yet."""
        self._blocking = BlockingConsumer(settings)
        self.config = self._blocking.config
        self._worker = Worker("ottla-consumer")
        self._polling = asyncio.Lock()
        self._busy = False
        """A poll is handed over and not answered."""
        self._ahead = PrefetchedRecords()
        self._woken = False
        self._telling: asyncio.Task[None] | None = None
        """The task that runs a callback of a rebalance."""
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
        """As the blocking consumer. The callbacks run in the loop, and may await calls of this consumer, but not
        `poll`, `unsubscribe` and `close`, which wait for them.
        """
        assigned, revoked, lost = (self._in_loop(each) for each in (on_assigned, on_revoked, on_lost))
        await self._afresh(
            lambda: self._blocking.subscribe(topics, on_assigned=assigned, on_revoked=revoked, on_lost=lost)
        )

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, whatever others do; positions already known stay."""
        await self._afresh(lambda: self._blocking.assign(partitions))

    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing any more."""
        self._check_not_telling("unsubscribe")
        await self._afresh(self._blocking.unsubscribe)

    async def subscription(self) -> set[str]:
        """The topics subscribed to; for a pattern those that are assigned."""
        return await self._run_call(self._blocking.subscription)

    async def assignment(self) -> set[TopicPartition]:
        """What is read at present."""
        return await self._run_call(self._blocking.assignment)

    async def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """`poll` leaves these out until `resume`, or until they are assigned anew."""
        await self._afresh(lambda: self._blocking.pause(partitions))

    async def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        await self._run_call(lambda: self._blocking.resume(partitions))

    async def paused(self) -> set[TopicPartition]:
        """What `pause` left out."""
        return await self._run_call(self._blocking.paused)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_s: float = 0.0) -> list[ConsumerRecord]:
        """The next records, `max.poll.records` at most, waiting for some until `timeout_s`; errors as the blocking one.

        Keeps the membership alive: call it, or iterate, at least every `max.poll.interval.ms`. Cancelled while it
        waits, it loses no record.
        """
        self._check_not_telling("poll")
        async with self._polling:
            if self._ahead and not await self._run_call(self._blocking.has_news):
                return self._ahead.take_all()
            self._give_back()
            return await self._until(timeout_s, self._blocking.poll, self._rewind, list)

    async def poll_table(self, timeout_s: float = 0.0, *, headers: bool = False) -> pa.Table:
        """As `poll`, as an Arrow table: see the blocking consumer."""
        self._check_not_telling("poll_table")
        async with self._polling:
            self._give_back()
            read = lambda left: self._blocking.poll_table(left, headers=headers)  # noqa: E731
            return await self._until(timeout_s, read, self._rewind_table, _empty_table)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records without end; what an iteration leaves comes with the next one, or with `poll`."""
        return self

    async def __anext__(self) -> ConsumerRecord:
        while (record := next(self._ahead.iterator, None)) is None:
            self._ahead.put_records(await self.poll(_SLICE_S))
        return record

    def wakeup(self) -> None:
        """End the call that waits, or the next one that would, with WakeupError. From any thread or signal handler."""
        self._woken = True
        self._blocking.wakeup()

    # -- positions -----------------------------------------------------------------------------------------------------

    @renamed_argument("where", "tp")
    async def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Go on from this offset; with OffsetAndMetadata, the epoch of the record before is checked (KIP-320)."""
        await self._afresh(lambda: self._blocking.seek(tp, offset))

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go to the first offset of these partitions, or of all; it is looked up when it is needed."""
        await self._afresh(lambda: self._blocking.seek_to_beginning(partitions))

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go behind the last offset (the last stable one under read_committed)."""
        await self._afresh(lambda: self._blocking.seek_to_end(partitions))

    @renamed_argument("where", "tp")
    async def position(self, tp: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record; looked up if need be. Raises DeadlineError."""
        ahead = self._ahead.positions().get(tp)
        return ahead.offset if ahead else await self._run_call(lambda: self._blocking.position(tp, timeout_s))

    async def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All positions that are known: what `commit` commits."""
        ahead = self._ahead.positions()
        return await self._run_call(self._blocking.positions) | ahead

    @renamed_argument("where", "tp")
    async def lag(self, tp: TopicPartition) -> int | None:
        """Records from the position to the end, as it was when it was fetched last; None before that."""
        ahead = self._ahead.positions().get(tp)

        def lag() -> int | None:
            known = self._blocking.lag(tp)
            more = self._blocking.position(tp) - ahead.offset if ahead else 0
            return None if known is None else known + more

        return await self._run_call(lag)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each. Raises ClientError."""
        return await self._run_call(lambda: self._blocking.beginning_offsets(partitions, timeout_s))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record (the last stable one under read_committed). Raises ClientError."""
        return await self._run_call(lambda: self._blocking.end_offsets(partitions, timeout_s))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time in ms since 1970; None: nothing is as young. Raises ClientError."""
        return await self._run_call(lambda: self._blocking.offsets_for_times(timestamps, timeout_s))

    async def partitions_for_topic(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic. Raises RefusedError."""
        return await self._run_call(lambda: self._blocking.partitions_for_topic(topic, timeout_s))

    async def partitions_for(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The old name of `partitions_for_topic`."""
        warn_renamed("Consumer.partitions_for", "partitions_for_topic")
        return await self.partitions_for_topic(topic, timeout_s)

    async def list_topics(self, timeout_s: float | None = None) -> list[str]:
        """All topics one may see, internal ones only when `exclude.internal.topics` is off. Raises ClientError."""
        return await self._run_call(lambda: self._blocking.list_topics(timeout_s))

    # -- commits -------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit these, or the positions behind what was returned, for `default.api.timeout.ms` at most.

        Raises CommitFailedError when the partitions belong to others by now.
        """
        ahead = self._ahead.positions()
        await self._run_call(
            lambda: self._blocking.commit(self._blocking.positions() | ahead if offsets is None else offsets)
        )

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where nothing. Raises ClientError."""
        return await self._run_call(lambda: self._blocking.committed(partitions, timeout_s))

    async def group_metadata(self) -> GroupMetadata:
        """For `send_offsets_to_transaction`. Raises CommitFailedError: it subscribed, and is not in the group."""
        return await self._run_call(self._blocking.group_metadata)

    async def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Have the group assigned anew, as soon as `poll` is called (KIP-568)."""
        await self._run_call(lambda: self._blocking.enforce_rebalance(reason))

    async def close(self, timeout_s: float = 30.0) -> None:
        """Commit if `enable.auto.commit`, call on_revoked, leave the group (static members stay), close. Idempotent.

        An error of the last commit or of a callback is raised when all is closed. Cancelled, it is carried out.
        """
        self._check_not_telling("close")
        if self._closed:
            return
        self._closed = True
        self._give_back()
        closed = self._start_call(lambda: self._blocking.close(timeout_s))
        closed.add_done_callback(lambda _: self._worker.close())
        await asyncio.shield(closed)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _start_call(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Hand a call over; a poll that waits makes way for it."""
        future = self._worker.hand_over(lambda: self._awake(call))
        if self._busy:
            self._blocking.wakeup()
        return future

    async def _run_call(self, call: Callable[[], R]) -> R:
        return await self._start_call(call)

    async def _afresh(self, call: Callable[[], R]) -> R:
        """A call that changes what is read next: what an iteration has not come to is forgotten before."""
        self._give_back()
        return await self._start_call(call)

    def _awake(self, call: Callable[[], R]) -> R:
        """In the thread. A wakeup that was for a poll is not for others."""
        while True:
            try:
                return call()
            except WakeupError:
                self._raise_if_woken()

    def _raise_if_woken(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup was called", "Close the consumer, or go on")

    async def _until(
        self, timeout_s: float, read: Callable[[float], R], give_back: Callable[[R], None], nothing: Callable[[], R]
    ) -> R:
        """`read` until there is something, or time is over; others' calls are made in between."""
        until = time.monotonic() + timeout_s
        while True:
            poll = _Poll(self, read, give_back, nothing, until)
            self._busy = True
            try:
                found = await self._worker.hand_over(poll.run)
            except asyncio.CancelledError:
                self._blocking.wakeup()
                poll.abandon()
                raise
            finally:
                self._busy = False
            if len(found) or time.monotonic() >= until:  # type: ignore[arg-type]  # a list or a table
                return found

    def _give_back(self) -> None:
        """What an iteration has not come to will be read again."""
        left = self._ahead.take_all()
        if left:
            self._worker.hand_over(lambda: self._rewind(left))

    def _rewind(self, records: list[ConsumerRecord]) -> None:
        """In the thread: go on at the first of these records in each partition."""
        self._go_back(first_of(records))

    def _rewind_table(self, table: pa.Table) -> None:
        first: dict[TopicPartition, int] = {}
        columns = (table.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for topic, partition, offset in zip(*columns, strict=True):
            first.setdefault(TopicPartition(topic, partition), offset)
        self._go_back(first)

    def _go_back(self, first: Mapping[TopicPartition, int]) -> None:
        assigned = self._blocking.assignment()
        for tp, offset in first.items():
            if tp in assigned:
                self._blocking.seek(tp, offset)

    def _in_loop(self, callback: OnPartitions | None) -> Callable[[list[TopicPartition]], None] | None:
        if callback is None:
            return None
        call: OnPartitions = callback

        async def tell(partitions: list[TopicPartition]) -> None:
            self._telling = asyncio.current_task()
            try:
                result = call(partitions)
                if inspect.isawaitable(result):
                    await result
            finally:
                self._telling = None

        return lambda partitions: self._worker.ask_loop(lambda: tell(partitions))

    def _check_not_telling(self, what: str) -> None:
        if self._telling is not None and asyncio.current_task() is self._telling:
            raise UsageError(f"{what} in a callback of a rebalance would wait for itself", "Call it outside")


class _Poll(Generic[R]):
    """One reading in the consumer's thread, which may be given up meanwhile."""

    def __init__(
        self,
        consumer: Consumer,
        read: Callable[[float], R],
        give_back: Callable[[R], None],
        nothing: Callable[[], R],
        until: float,
    ) -> None:
        self._consumer = consumer
        self._read = read
        self._give_back = give_back
        self._nothing = nothing
        self._until = until
        self._lock = threading.Lock()
        self._found: R | None = None
        self._abandoned = threading.Event()

    def run(self) -> R:
        """In the thread."""
        if self._abandoned.is_set():
            return self._nothing()
        try:
            found = self._read(min(_SLICE_S, max(0.0, self._until - time.monotonic())))
        except WakeupError:
            self._consumer._raise_if_woken()
            return self._nothing()
        with self._lock:
            self._found = found
            abandoned = self._abandoned.is_set()
        if abandoned:
            self._give_back(found)
        return found

    def abandon(self) -> None:
        """In the loop: nobody takes what is found."""
        with self._lock:
            self._abandoned.set()
            found = self._found
        if found is not None:
            give_back, worker = self._give_back, self._consumer._worker
            with contextlib.suppress(UsageError):  # closed meanwhile: there are no positions any more
                worker.hand_over(lambda: give_back(found))


def _empty_table() -> pa.Table:
    from ottla.client.consumer.arrow_tables import SCHEMA  # noqa: PLC0415 - Arrow is slow to import

    return SCHEMA.empty_table()
