"""The consumer for programs with threads.

Zone: real. Checks which calls are allowed, and in which order. `fetch_positions` reads, `group` runs the membership,
`committer` commits.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ottla.client.cluster import Cluster
from ottla.client.consumer.actions import Failed
from ottla.client.consumer.committer import Committer, Offsets, OnCommit
from ottla.client.consumer.fetch_positions import FetchPositions
from ottla.client.consumer.group import Group
from ottla.client.consumer.prefetched_records import PrefetchedRecords, first_of
from ottla.client.consumer.rebalances import Listener, OnPartitions, Rebalances, finish_with
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.consumer.settings import ConsumerConfig, Setting, topic_names
from ottla.client.consumer.single_thread_guard import SingleThreadGuard
from ottla.client.consumer.waker import Waker
from ottla.client.errors import ClientError, DeadlineError, RefusedError, UsageError, WakeupError
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
_CLOSE_S = 30.0


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
        self._guard = SingleThreadGuard()
        self._wake = Waker()
        self._woken = False
        self._cluster = Cluster(self.config.client)
        self._group_thread: Group | None = None
        self._committer = Committer(self._cluster, self.config, self._ensure_group) if self.config.group_id else None
        committed = self._committer.committed_positions if self._committer else None
        self._reader = FetchPositions(self._cluster, self.config, self._wake, committed)
        self._subscription: tuple[str, ...] | re.Pattern[str] | None = None
        self._rebalances = Rebalances(self._reader, self._ensure_group, self._auto_commit_now)
        self._ahead = PrefetchedRecords()
        self._refused = False
        """Whether the last `poll` raised a refusal of the group."""

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
            if self._subscription is None and self._reader.assigned_partitions:
                raise UsageError("this consumer has a manual assignment", "Call unsubscribe first")
            if self.config.group_id is None:
                raise UsageError("subscribe needs a group, but group.id is not set", "Set group.id, or use assign")
            if not wanted:
                self.unsubscribe()
                return
            self._give_back_records()
            self._subscription = wanted
            self._rebalances.listener = Listener(on_assigned, on_revoked, on_lost or on_revoked)
            assert self._committer is not None
            self._committer.set_subscribed(subscribed=True)
            if isinstance(wanted, re.Pattern):
                self._ensure_group().subscribe_topics((), wanted)
            else:
                self._ensure_group().subscribe_topics(wanted)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group; known positions stay."""
        with self._guard:
            if self._subscription is not None:
                raise UsageError("this consumer has a subscription", "Call unsubscribe first")
            self._give_back_records()
            self._reader.assign_partitions(dict.fromkeys(TopicPartition(*tp) for tp in partitions))

    def unsubscribe(self) -> None:
        """Leave the group, and stop reading."""
        with self._guard:
            self._leave_group()

    def subscription(self) -> set[str]:
        """The subscribed topics; for a pattern the topics with assigned partitions."""
        with self._guard:
            if isinstance(self._subscription, re.Pattern):
                return {tp.topic for tp in self._reader.assigned_partitions}
            return set(self._subscription or ())

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned at present."""
        with self._guard:
            return set(self._reader.assigned_partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """`poll` leaves these out until `resume`, or until they are revoked and assigned again."""
        with self._guard:
            self._give_back_records()
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
            if self._ahead and not self.has_news():
                return self._ahead.take_all()
            self._give_back_records()
            records = self._read_until(timeout_s, self._reader.read_records)
            for each in self.config.interceptor_classes if records else ():
                if hasattr(each, "on_consume"):
                    records = each.on_consume(records)
            return records

    def poll_table(self, timeout_s: float = 0.0, *, headers: bool = False) -> pa.Table:
        """As `poll`, but returns an Arrow table of whole fetches: topic, partition, offset, timestamp (ms),
        timestamp_type, key, value, headers (null unless `headers`). The limit is `fetch.max.bytes` per broker, not
        `max.poll.records`."""
        from ottla.client.consumer.arrow_tables import table_of  # noqa: PLC0415 - Arrow is slow to import

        check = self.config.client.check_crcs
        with self._guard:
            self._give_back_records()
            found: list[Fetched] = self._read_until(timeout_s, self._reader.read_batches)
            return table_of(found, check_crcs=check, headers=headers)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Endless records. Records that an iteration does not reach count as not read; the next call returns them."""
        while True:
            self._ahead.put_records(self.poll(1.0))
            yield from self._ahead.iterator

    def wakeup(self) -> None:
        """End the waiting call, or the next one that waits, with WakeupError. For any thread or signal handler."""
        self._woken = True
        self._wake.wake_up()

    # -- positions -----------------------------------------------------------------------------------------------------

    @renamed_argument("where", "tp")
    def seek(self, tp: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue from this offset; OffsetAndMetadata has the epoch of the record before it checked (KIP-320)."""
        with self._guard:
            self._give_back_records()
            to = checked_position(tp, offset)
            self._reader.seek_partition(tp, to.offset, to.leader_epoch)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue from the first offset of these partitions, or of all; it is looked up when it is needed."""
        with self._guard:
            self._give_back_records()
            self._reader.seek_to_start(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue after the last offset (the last stable one under read_committed)."""
        with self._guard:
            self._give_back_records()
            self._reader.seek_to_end(partitions)

    @renamed_argument("where", "tp")
    def position(self, tp: TopicPartition, timeout_s: float | None = None) -> int:
        """The offset of the next record, looked up if it is unknown. Raises DeadlineError."""
        with self._guard:
            deadline = self._deadline_for(timeout_s)
            ahead = self._ahead.remaining_positions()
            while (found := ahead.get(tp) or self._reader.position_of(tp)) is None:
                self._check_wakeup()
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
            return self._reader.start_offsets(partitions, self._deadline_for(timeout_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record (the last stable offset under read_committed). Raises ClientError."""
        with self._guard:
            return self._reader.end_offsets(partitions, self._deadline_for(timeout_s))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time in ms since 1970; None: all records are older. Raises ClientError."""
        with self._guard:
            return self._reader.offsets_for_times(timestamps, self._deadline_for(timeout_s))

    def partitions_for_topic(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The partitions of a topic. Raises RefusedError."""
        with self._guard:
            view = self._cluster.topic(topic, self._deadline_for(timeout_s))
            return [TopicPartition(topic, number) for number in view.partitions]

    def partitions_for(self, topic: str, timeout_s: float | None = None) -> list[TopicPartition]:
        """The old name of `partitions_for_topic`."""
        warn_renamed("Consumer.partitions_for", "partitions_for_topic")
        return self.partitions_for_topic(topic, timeout_s)

    def list_topics(self, timeout_s: float | None = None) -> list[str]:
        """All visible topics; internal ones only if `exclude.internal.topics` is off. Raises ClientError."""
        with self._guard:
            view = self._cluster.refresh(None, self._deadline_for(timeout_s))
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
            self._commit_now(self._offsets_to_commit(offsets), self._cluster.deadline())

    def commit_async(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, callback: OnCommit | None = None
    ) -> None:
        """Commit once, without waiting. A later call runs the callback with the offsets, and an error or None.

        After an error with `retriable` set another commit may succeed."""
        with self._guard:
            committer = self._need_group()
            committer.run_callbacks()
            committer.commit_async(self._offsets_to_commit(offsets), self._commit_callback(callback))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed positions of the group; None for a partition without one. Raises ClientError."""
        with self._guard:
            return self._need_group().committed_positions(partitions, self._deadline_for(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """For `send_offsets_to_transaction`. Raises CommitFailedError if it subscribed but is not in the group."""
        with self._guard:
            return self._need_group().group_metadata()

    def enforce_rebalance(self, reason: str = "the application asked for it") -> None:
        """Ask the group for a rebalance; the next `poll` joins again (KIP-568)."""
        with self._guard:
            if self._subscription is None:
                raise UsageError("this consumer has no subscription", "Call subscribe first")
            self._ensure_group().request_rejoin(reason)

    def has_news(self) -> bool:
        """Whether the group has an event for the next `poll`: a rebalance, an error. Counts as a poll for the
        group."""
        with self._guard:
            subscribed = self._group_thread is not None and self._subscription is not None
            return subscribed and self._ensure_group().has_events()

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Commit if `enable.auto.commit`, call on_revoked, leave the group (static members stay), close. Idempotent.

        Raises UsageError in another thread or process. Raises an error of the last commit or of a callback after
        everything is closed."""
        if self._guard.closed:
            return
        with self._guard:
            deadline = Deadline.after_ms(timeout_s * 1000)
            try:
                self._leave_group(deadline)
            finally:
                self._guard.closed = True
                if self._group_thread is not None:
                    self._group_thread.close_group(deadline)
                self._reader.stop_fetching()
                self._cluster.close()
                self._wake.close_sockets()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _ensure_group(self) -> Group:
        if self._group_thread is None:
            self._group_thread = Group(self.config, self._wake.wake_up)
        return self._group_thread

    def _need_group(self) -> Committer:
        if self._committer is None:
            raise UsageError("this consumer has no group", "Set group.id")
        return self._committer

    def _deadline_for(self, timeout_s: float | None) -> Deadline:
        return self._cluster.deadline() if timeout_s is None else Deadline.after_ms(timeout_s * 1000)

    def _check_wakeup(self) -> None:
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup was called", "Close the consumer, or continue polling")

    def _offsets_to_commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None) -> Offsets:
        self._need_group()
        if offsets is None:
            return self._reader.known_positions() | self._ahead.remaining_positions()
        return {TopicPartition(*tp): checked_position(tp, each) for tp, each in offsets.items()}

    def _commit_callback(self, callback: OnCommit | None) -> OnCommit:
        def told(offsets: Offsets, error: ClientError | None) -> None:
            if error is None:
                self._notify_interceptors(offsets)
            if callback is not None:
                callback(offsets, error)

        return told

    def _notify_interceptors(self, offsets: Offsets) -> None:
        for each in self.config.interceptor_classes:
            if hasattr(each, "on_commit"):
                each.on_commit(offsets)

    def _commit_now(self, offsets: Offsets, deadline: Deadline) -> None:
        committer = self._need_group()
        committer.commit_sync(offsets, deadline)
        committer.run_callbacks()
        self._notify_interceptors(offsets)

    def _read_until(self, timeout_s: float, read: Callable[[Deadline], list[T]]) -> list[T]:
        deadline = Deadline.after_ms(timeout_s * 1000)
        if self._subscription is None and not self._reader.assigned_partitions:
            raise UsageError("this consumer has no subscription and no assignment", "Call subscribe or assign first")
        while True:
            # Clear first, check after: a wakeup between the two is seen by the check, a later one ends the wait.
            self._wake.clear_wakeups()
            self._check_wakeup()
            self._do_due_work(deadline)
            found = self._read_once(deadline, read)
            if found or deadline.expired:
                if not found:
                    self._check_wakeup()
                return found

    def _give_back_records(self) -> None:
        """Set the positions back to the records that an iteration did not reach."""
        for tp, offset in first_of(self._ahead.take_all()).items():
            if tp in self._reader.assigned_partitions:
                self._reader.seek_partition(tp, offset)

    def _do_due_work(self, deadline: Deadline) -> None:
        """Do everything that is due except reading: callbacks of commits, rebalances, automatic commits."""
        if self._committer is not None:
            self._committer.run_callbacks()
        if self._group_thread is not None and self._subscription is not None:
            # Before the automatic commit, which is for the partitions that are left.
            self._follow_group(self._group_thread, deadline)
        if self._committer is not None and self.config.auto_commit:
            self._committer.commit_if_due(self._reader.known_positions)

    def _follow_group(self, group: Group, deadline: Deadline) -> None:
        """Handle the events of the group. Every poll raises a lasting error, after the first time with a short wait."""
        events = group.take_events()
        refused = bool(events) and isinstance(events[-1], Failed)
        if refused and self._refused:
            self._wake.wait_for_wakeup(min(deadline.remaining_s(), _SLICE_MS / 1000))
        self._refused = refused
        self._rebalances.on_events(events)

    def _read_once(self, deadline: Deadline, read: Callable[[Deadline], list[T]]) -> list[T]:
        try:
            self._reader.find_positions(self._cluster.deadline())
            known = len(self._reader.known_positions()) == len(self._reader.assigned_partitions)
            return read(deadline if known else deadline.within_ms(_SLICE_MS))
        except RefusedError as error:
            gone = error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            if not gone or self._subscription is None or self._group_thread is None:
                raise
            # A topic was deleted: have the group check its topics and assign the rest, instead of failing the poll.
            self._group_thread.request_topic_check()
            time.sleep(min(deadline.remaining_s(), _SLICE_MS / 1000))
            return []

    def _auto_commit_now(self) -> None:
        """Commit before partitions are revoked. If it fails, records are read twice: groups deliver at least once."""
        if self.config.auto_commit:
            with suppress(ClientError):
                self._commit_now(self._reader.known_positions(), self._cluster.deadline().within_ms(_CLOSE_S * 1000))

    def _leave_group(self, deadline: Deadline | None = None) -> None:
        deadline = deadline or self._cluster.deadline()
        # 1. Commit the positions; 2. wait for earlier commits; 3. call on_revoked; 4. leave, even after errors.
        self._give_back_records()
        owned = tuple(self._reader.assigned_partitions)
        subscribed, self._subscription = self._subscription is not None, None
        lost = subscribed and not self._ensure_group().is_member
        with finish_with(lambda: self._after_leaving(subscribed)):
            if owned:
                self._auto_commit_now()
            if self._committer is not None:
                self._committer.commit_sync({}, deadline)
                self._committer.run_callbacks()
            if subscribed:
                self._rebalances.give_up(owned, lost=lost)

    def _after_leaving(self, subscribed: bool) -> None:
        self._reader.assign_partitions(())
        self._rebalances.listener = Listener()
        if self._committer is not None:
            self._committer.set_subscribed(subscribed=False)
        if subscribed:
            self._ensure_group().end_subscription("the application unsubscribed")
