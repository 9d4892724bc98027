"""The consumer for programs with threads.

Zone: real. Checks which calls are allowed, and in which order. `fetch_positions` reads, `coordinator` is the side of
the group.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.consumer.committer import Offsets, OnCommit
from ottla.client.consumer.coordinator import CLOSE_S, ConsumerCoordinator
from ottla.client.consumer.fetch_positions import FetchPositions
from ottla.client.consumer.prefetched_records import PrefetchedRecords
from ottla.client.consumer.rebalances import Listener, OnPartitions
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.consumer.settings import ConsumerConfig, Setting, topic_names
from ottla.client.consumer.waker import Waker
from ottla.client.errors import DeadlineError, RefusedError, UsageError, WakeupError
from ottla.client.metadata import TopicView
from ottla.client.positions import GroupMetadata, OffsetAndMetadata, checked_position
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.renamed import renamed_argument, warn_renamed
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.fetching.batches import Fetched

T = TypeVar("T")
_SLICE_MS = 100
"""How long to wait at most in one call while positions are unknown."""


class Consumer:
    """Reads topics, alone or in a group. For one thread at a time; only `wakeup` may be called from other threads.

    with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "billing"}) as consumer:
        consumer.subscribe(["orders"])
        while True:
            for record in consumer.poll(1.0): ...

    Every call raises UsageError after `close`, in a forked child process, and while another thread is in a call;
    WakeupError if `wakeup` ended it.
    """

    def __init__(self, settings: Mapping[str, Setting]) -> None:
        """settings: by Kafka's keys. Raises ConfigError; connects to nothing yet."""
        self.config = ConsumerConfig.from_mapping(settings)
        self._guard = _SingleThreadGuard()
        self._cluster = Cluster(self.config.client)
        # After the cluster, which raises for a wrong address: the sockets of the waker would stay open.
        self._wake = Waker()
        self._coordinator = ConsumerCoordinator(self._cluster, self.config, self._wake)
        self._reader = self._coordinator.reader
        self._polling = _PollLoop(self._cluster, self._reader, self._coordinator, self._wake)
        self._ahead = PrefetchedRecords()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- which partitions ----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str],
        *,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Share these topics with the group, or all topics whose whole name matches a compiled pattern. `poll`
        joins.

        The callbacks run inside `poll` and `close`: on_revoked before partitions are assigned to other members,
        when positions can still be committed; on_lost (on_revoked if it is not given) when other members have them
        already; on_assigned at the end of every rebalance, with the added partitions. `poll` raises the error of
        a callback when the rebalance is done."""
        with self._guard:
            wanted = topics if isinstance(topics, re.Pattern) else topic_names(topics)
            if self._coordinator.subscription is None and self._reader.assigned_partitions:
                raise UsageError("this consumer has a manual assignment", "Call unsubscribe first")
            if self.config.group_id is None:
                raise UsageError("subscribe needs a group, but group.id is not set", "Set group.id, or use assign")
            if not wanted:
                self.unsubscribe()
                return
            self._ahead.give_back_to(self._reader)
            listener = Listener(on_assigned, on_revoked, on_lost or on_revoked)
            self._coordinator.subscribe_topics(wanted, listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group; known positions stay."""
        with self._guard:
            if self._coordinator.subscription is not None:
                raise UsageError("this consumer has a subscription", "Call unsubscribe first")
            self._ahead.give_back_to(self._reader)
            self._reader.assign_partitions(dict.fromkeys(TopicPartition(*tp) for tp in partitions))

    def unsubscribe(self) -> None:
        """Leave the group, and stop reading."""
        with self._guard:
            deadline = self._cluster.deadline()
            self._ahead.give_back_to(self._reader)
            self._coordinator.leave_group(deadline)

    def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern the topics with assigned partitions."""
        with self._guard:
            subscription = self._coordinator.subscription
            if isinstance(subscription, re.Pattern):
                return {tp.topic for tp in self._reader.assigned_partitions}
            return set(subscription or ())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned at present."""
        with self._guard:
            return set(self._reader.assigned_partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """`poll` leaves these out until `resume`, or until they are revoked and assigned again."""
        with self._guard:
            self._ahead.give_back_to(self._reader)
            self._reader.pause_partitions(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these again."""
        with self._guard:
            self._reader.resume_partitions(partitions)

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        with self._guard:
            return set(self._reader.paused_partitions)

    # -- reading -------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0.0) -> list[ConsumerRecord]:
        """The next records, at most `max.poll.records`; waits up to `timeout_s` for some.

        Also keeps the membership alive: call it at least every `max.poll.interval.ms`. Raises RefusedError
        (OFFSET_OUT_OF_RANGE under `auto.offset.reset` none, no permission, a fenced instance …),
        LogTruncatedError, DeserializationError, CorruptBatchError; DeadlineError if no read succeeded for
        `default.api.timeout.ms`. The position does not pass a record that was not returned."""
        with self._guard:
            # Records of an abandoned iteration come first, but not before a rebalance, which may take their partitions.
            if self._ahead and not self.has_news():
                return self._ahead.take_all()
            self._ahead.give_back_to(self._reader)
            records = self._polling.read_until(timeout_s, self._reader.read_records)
            for each in self.config.interceptor_classes if records else ():
                if hasattr(each, "on_consume"):
                    records = each.on_consume(records)
            return records

    def poll_table(self, timeout_s: float = 0.0, *, headers: bool = False, max_bytes: int | None = None) -> pa.Table:
        """As `poll`, but returns an Arrow table of whole fetches: topic, partition, offset, timestamp (ms),
        timestamp_type, key, value, headers (null unless `headers`). The limit is `fetch.max.bytes` per broker, not
        `max.poll.records`. max_bytes: of records after decompression, or one batch; the rest is for the next call."""
        from ottla.client.consumer.arrow_tables import table_of  # noqa: PLC0415 - Arrow is slow to import

        check = self.config.client.check_crcs
        with self._guard:
            self._ahead.give_back_to(self._reader)
            found: list[Fetched] = self._polling.read_until(timeout_s, self._reader.read_batches)
            decoded = table_of(found, check_crcs=check, headers=headers, max_bytes=max_bytes)
            self._reader.put_back(decoded.rest)
            return decoded.table

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Endless records. Records that an iteration does not reach count as not read; the next call returns them."""
        while True:
            self._ahead.put_records(self.poll(1.0))
            yield from self._ahead.iterator

    def wakeup(self) -> None:
        """End the waiting call, or the next one that waits, with WakeupError. For any thread or signal handler."""
        self._polling.request_wakeup()

    # -- positions -----------------------------------------------------------------------------------------------------

    @renamed_argument("where", "tp")
    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue from this offset; OffsetAndMetadata has the epoch of the record before it checked (KIP-320)."""
        with self._guard:
            self._ahead.give_back_to(self._reader)
            to = checked_position(tp, offset)
            self._reader.seek_partition(tp, to.offset, to.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue from the first offset of these partitions, or of all; it is looked up when it is needed."""
        with self._guard:
            self._ahead.give_back_to(self._reader)
            self._reader.seek_to_start(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue after the last offset (the last stable one under read_committed)."""
        with self._guard:
            self._ahead.give_back_to(self._reader)
            self._reader.seek_to_end(partitions)

    @renamed_argument("where", "tp")
    def position(self, tp: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record, looked up if it is unknown. Raises DeadlineError."""
        with self._guard:
            deadline = self._cluster.deadline(timeout_s)
            ahead = self._ahead.remaining_positions()
            while (found := ahead.get(tp) or self._reader.position_of(tp)) is None:
                self._polling.check_wakeup()
                self._reader.find_positions(deadline, tp)
                if deadline.expired and self._reader.position_of(tp) is None:
                    raise DeadlineError(f"the position of {tp} was not found in time", "Check that its leader is alive")
            return found.offset

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All known positions, for `commit` and for a transaction's `send_offsets_to_transaction`."""
        with self._guard:
            return self._reader.known_positions() | self._ahead.remaining_positions()

    @renamed_argument("where", "tp")
    def lag(self, tp: TopicPartition) -> int | None:
        """Number of records between the position and the end that the last fetch reported; None before a fetch."""
        with self._guard:
            known, position, ahead = (
                self._reader.lag_of(tp),
                self._reader.position_of(tp),
                self._ahead.remaining_positions(),
            )
            more = position.offset - ahead[tp].offset if position is not None and tp in ahead else 0
            return None if known is None else known + more

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each. Raises ClientError."""
        with self._guard:
            return self._reader.start_offsets(partitions, self._cluster.deadline(timeout_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record (the last stable offset under read_committed). Raises ClientError."""
        with self._guard:
            return self._reader.end_offsets(partitions, self._cluster.deadline(timeout_s))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time in ms since 1970; None: all records are older. Raises ClientError."""
        with self._guard:
            return self._reader.offsets_for_times(timestamps, self._cluster.deadline(timeout_s))

    def partitions_for_topic(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic. Raises RefusedError."""
        with self._guard:
            view = self._cluster.topic(topic, self._cluster.deadline(timeout_s))
            return [TopicPartition(topic, number) for number in view.partitions]

    def partitions_for(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The old name of `partitions_for_topic`."""
        warn_renamed("Consumer.partitions_for", "partitions_for_topic")
        return self.partitions_for_topic(topic, timeout_s)

    def list_topics(self, timeout_s: float | None = None) -> list[str]:
        """All visible topics; internal ones only if `exclude.internal.topics` is off. Raises ClientError."""
        with self._guard:
            view = self._cluster.refresh(None, self._cluster.deadline(timeout_s))
            internal = not self.config.exclude_internal_topics
            return sorted(
                n for n, each in view.topics.items() if isinstance(each, TopicView) and (internal or not each.internal)
            )

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets, or the positions after the returned records. Waits up to `default.api.timeout.ms`.

        Raises CommitFailedError if other members have the partitions, or may get them in a rebalance that `poll`
        has to complete. Retriable errors are retried."""
        with self._guard:
            self._coordinator.commit_now(self._offsets_to_commit(offsets), self._cluster.deadline())

    def commit_async(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, callback: OnCommit | None = None
    ) -> None:
        """Commit once, without waiting. A later call runs the callback with the offsets, and an error or None.

        After an error with `retriable` set another commit may succeed."""
        with self._guard:
            self._coordinator.commit_async(self._offsets_to_commit(offsets), callback)

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed positions of the group; None for a partition without one. Raises ClientError."""
        with self._guard:
            return self._coordinator.committed_positions(partitions, self._cluster.deadline(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """For `send_offsets_to_transaction`. Raises CommitFailedError if it subscribed but is not in the group."""
        with self._guard:
            return self._coordinator.group_metadata()

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Ask the group for a rebalance; the next `poll` joins again (KIP-568)."""
        with self._guard:
            self._coordinator.request_rejoin(reason)

    def has_news(self) -> bool:
        """Whether the group has an event for the next `poll`: a rebalance, an error. Counts as a poll for the
        group."""
        with self._guard:
            return self._coordinator.has_events()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Commit if `enable.auto.commit`, call on_revoked, leave the group (static members stay), close. Idempotent.

        Raises UsageError in another thread or process. Raises an error of the last commit or of a callback after
        everything is closed."""
        if self._guard.closed:
            return
        with self._guard:
            deadline = Deadline.after_ms(timeout_s * 1000)
            try:
                self._ahead.give_back_to(self._reader)
                self._coordinator.leave_group(deadline)
            finally:
                # Before the rest is closed: a callback that failed must not leave a consumer that looks open.
                self._guard.closed = True
                self._coordinator.close_group(deadline)
                self._reader.stop_fetching()
                self._cluster.close()
                self._wake.close_sockets()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _offsets_to_commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None) -> Offsets:
        self._coordinator.need_committer()  # raises UsageError before the offsets are looked at
        if offsets is None:
            return self._reader.known_positions() | self._ahead.remaining_positions()
        return {TopicPartition(*tp): checked_position(tp, each) for tp, each in offsets.items()}


class _SingleThreadGuard:
    """A context manager around every call, against calls from two threads, from a forked process, and after `close`.

    Calls of the same thread may nest (callbacks).
    """

    __slots__ = ("_depth", "_owner", "_process", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._process = os.getpid()
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        """Enter a call. Raises UsageError."""
        if os.getpid() != self._process:
            raise UsageError("this consumer was made before the process forked", "Make a new one in the child process")
        if self.closed:
            raise UsageError("this consumer is closed", "Make a new one")
        # The check finds mistakes and is not a lock: two threads at the same moment may both pass.
        me = threading.get_ident()
        if self._owner not in (0, me):
            raise UsageError(
                "another thread is using this consumer",
                "Use one consumer per thread; only wakeup may be called by other threads",
            )
        self._owner = me
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0


class _PollLoop:
    """The waiting of a poll: wakeups, what is due for the group, and one read after the other."""

    __slots__ = ("_cluster", "_coordinator", "_reader", "_wake", "_woken")

    def __init__(self, cluster: Cluster, reader: FetchPositions, coordinator: ConsumerCoordinator, wake: Waker) -> None:
        self._cluster = cluster
        self._reader = reader
        self._coordinator = coordinator
        self._wake = wake
        self._woken = False

    def request_wakeup(self) -> None:
        """Have the waiting call raise WakeupError, or the next one that waits. For any thread or signal handler."""
        self._woken = True
        self._wake.wake_up()

    def check_wakeup(self) -> None:
        """Raise WakeupError once after each `request_wakeup`."""
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup was called", "Close the consumer, or continue polling")

    def read_until(self, timeout_s: float, read: Callable[[Deadline], list[T]]) -> list[T]:
        """Repeat `read` until it finds something or the time is over."""
        deadline = Deadline.after_ms(timeout_s * 1000)
        if self._coordinator.subscription is None and not self._reader.assigned_partitions:
            raise UsageError("this consumer has no subscription and no assignment", "Call subscribe or assign first")
        while True:
            # Clear first, check after: a wakeup between the two is seen by the check, a later one ends the wait.
            self._wake.clear_wakeups()
            self.check_wakeup()
            self._coordinator.do_due_work(deadline)
            found = self._read_once(deadline, read)
            if found or deadline.expired:
                if not found:
                    self.check_wakeup()
                return found

    def _read_once(self, deadline: Deadline, read: Callable[[Deadline], list[T]]) -> list[T]:
        try:
            self._reader.find_positions(self._cluster.deadline())
            known = len(self._reader.known_positions()) == len(self._reader.assigned_partitions)
            return read(deadline if known else deadline.within_ms(_SLICE_MS))
        except RefusedError as error:
            # A topic was deleted: have the group check its topics and assign the rest, instead of failing the poll.
            gone = error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            if not gone or not self._coordinator.request_topic_check():
                raise
            time.sleep(min(deadline.remaining_s(), _SLICE_MS / 1000))
            return []
