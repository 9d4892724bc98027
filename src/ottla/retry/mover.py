"""The mover: reads retry topics, waits, and forwards each record when it is due.

Zone: real. One thread. The log is the source of truth: a record waits in its retry topic until a transaction commits
that contains both the forwarded record and the group's new position. The scheduler is only an index of the log.

If the service is killed right after a step:

    1 read        the record and its due time were read      there is no trace of it; it is read again
    2 added       the scheduler has it                       embedded: it is read again. Redis: position and entries
                                                             changed together; it waits there
    3 claimed     the scheduler has it as claimed            Redis: it is due again when the partition is taken over,
                                                             or its lease ends; the record's header has the due time
    4 begun       a transaction with records is open         the coordinator aborts it (at once when the same instance
    5 sent                                                   returns, else after transaction.timeout.ms): readers of
    6 offsets     the positions are in it as well            committed records never see it, the position is unchanged
    7 committed   the record is in its target topic          the committed position includes it; its entry in the
                                                             scheduler is dropped when the partition is opened
    8 done        the scheduler has dropped it               –

A commit without a response is repeated until there is one. A service that was wrongly declared dead belongs to an old
generation of the group: its positions are refused (KIP-447), and with them its transaction. The new owner reads the
committed positions only when no transaction about them is open (`require_stable`). No record is early: the due time in
its header is checked when it is forwarded, regardless of the scheduler.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import ClientError, CommitFailedError
from ottla.client.settings import ClientConfig
from ottla.retry.destinations import Destinations
from ottla.retry.errors import RetryError, SchedulerError, SchedulerLostError
from ottla.retry.offset_metadata import CommittedPosition, parse_position
from ottla.retry.options import ServiceOptions
from ottla.retry.policy import RETRY_PATTERN
from ottla.retry.record_cache import RecordCache
from ottla.retry.routing import Router
from ottla.retry.scheduler import Ref, Scheduler
from ottla.retry.transactional_forward import DueRecord, ForwardOutcome, TransactionalForward
from ottla.retry.window import Window
from ottla.types import TopicPartition

# Counters of a mover.

_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 150, 200, 250, 500, 1_000, 2_000, 5_000, 10_000, 60_000)


@dataclass(slots=True)
class Stats:
    """Counts since the start."""

    read: int = 0
    """Records read from retry topics; after a restart some are read again."""
    returned: int = 0
    """Forwarded to the topics they came from."""
    dead: int = 0
    """Written to dead-letter topics."""
    rewritten: int = 0
    """Written again to the end of their retry topic, so that the position's metadata stays short."""
    expired: int = 0
    """Deleted by retention while they waited."""
    aborted: int = 0
    """Transactions that were aborted, and repeated."""
    events: Counter[str] = field(default_factory=Counter)
    news: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=100))
    """Kind and text of recent events."""
    _late: Counter[int] = field(default_factory=Counter)

    def add_event(self, kind: str, text: str) -> None:
        """Record an event that an operator may want to see."""
        self.events[kind] += 1
        self.news.append((kind, text))

    def add_lateness(self, ms: Iterable[int]) -> None:
        """Count how late records were forwarded, in milliseconds."""
        for each in ms:
            self._late[next((bound for bound in _BUCKETS_MS if each <= bound), 2**31)] += 1

    def lateness_quantile_ms(self, part: float) -> int | None:
        """The upper bound of the lateness of this part of all records; None without records."""
        total = sum(self._late.values())
        seen = 0
        for bound in sorted(self._late):
            seen += self._late[bound]
            if seen >= part * total:
                return bound
        return None

    def counters_by_name(self) -> dict[str, int]:
        """The counters by name."""
        names = ("read", "returned", "dead", "rewritten", "expired", "aborted")
        return {name: getattr(self, name) for name in names}


MoverSettings = Mapping[str, str | int | bool]
Step = Callable[[str], object]
_Own = dict[str, str | int | bool]

AHEAD_MS: Final = 1_000
"""How long before they are due records are claimed and read."""
KEEP_MS: Final = 5_000
"""Records due within this time after they were read are cached, and not read again."""
MAX_READY: Final = 4_000
BATCH: Final = 500
_POLL_S: Final = 0.1
_REOPEN_S: Final = 0.5
_PAUSE_S: Final = 0.05


class Mover:
    """The service; call `run`, or `turn` in a loop. Use it in a `with` statement, or close it."""

    def __init__(
        self,
        settings: MoverSettings,
        scheduler: Scheduler,
        *,
        topics: Sequence[str] = (),
        group: str = ServiceOptions.group,
        instance: str = ServiceOptions.instance,
        router: Router | None = None,
        on_step: Step | None = None,
    ) -> None:
        """settings: of all clients, by Kafka's keys. topics: retry topics; none: all with the name of a retry topic.

        instance: each service of a group needs its own; a second one with the same name fences the first. on_step:
        called with the name of each step in this module's docstring. Raises ConfigError, and ClientError when the
        transactional id cannot be taken over.
        """
        self._step: Step = on_step or (lambda _name: None)
        self._scheduler = scheduler
        self._router = router or Router()
        self._windows: dict[TopicPartition, Window] = {}
        self._pending: dict[TopicPartition, float] = {}
        """Assigned partitions that are not open yet, and when to try next."""
        self._ready: list[DueRecord] = []
        """A heap of claimed records, by due time."""
        self._has_joined = False
        """Whether the group has assigned partitions to this service, which may be none."""
        self._held: set[tuple[TopicPartition, int]] = set()
        """The records in `_ready`: when a lease ends meanwhile, the same record is claimed again."""
        self._clock_ahead = _wall_ms() - _steady_ms()
        self.stats = Stats()
        own: _Own = {"isolation.level": "read_committed", "fetch.max.bytes": 16 * 2**20}
        reading: _Own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        # A static member: after a crash the same instance continues at once, without waiting for the session timeout.
        member: _Own = {"group.instance.id": f"{group}-{instance}", "session.timeout.ms": 10_000}
        member["max.poll.records"] = 2_000
        self._consumer = Consumer({"metadata.max.age.ms": 10_000, **settings, **own, **reading, **member})
        small = {"max.partition.fetch.bytes": 128 * 1024}
        self._cluster = Cluster(ClientConfig.from_mapping({**settings, **own, **small}))
        self._payloads = RecordCache(self._cluster, self._is_soon)
        destinations = Destinations(self._cluster)
        self._handover = TransactionalForward(
            settings, f"{group}-{instance}", self._router, self._payloads, destinations, self._step
        )
        self._consumer.subscribe(
            list(topics) or re.compile(RETRY_PATTERN.pattern),
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_revoked,
        )

    def __enter__(self) -> Mover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. Waiting records stay in the log."""
        try:
            self._consumer.close()
        finally:
            self._handover.close_producer()
            self._cluster.close()
            self._scheduler.close_all()

    def run(self, should_stop: Callable[[], bool], on_turn: Callable[[], object] | None = None) -> None:
        """Run turns until `should_stop` returns True. Raises RetryError when it cannot continue, and ClientError."""
        while not should_stop():
            self.turn()
            if on_turn is not None:
                on_turn()

    def turn(self, longest_s: float = _POLL_S) -> int:
        """Read new records, and forward those that are due. Returns how many were forwarded.

        Raises RetryError when it cannot continue, and ClientError.
        """
        records = self._consumer.poll(self._pause_s(longest_s))
        opened = self._open_pending()
        self._check_clock()
        self._index_records([each for each in records if TopicPartition(each.topic, each.partition) not in opened])
        self._claim_due()
        return self._forward_due()

    def _pause_s(self, longest_s: float) -> float:
        """Seconds until the next record is due, or until there is other work to do."""
        dues = [self._ready[0].due_ms] if self._ready else []
        if (claimable := self._scheduler.next_due()) is not None and len(self._ready) < MAX_READY:
            dues.append(claimable - AHEAD_MS)
        if self._pending or not self._is_all_read():
            dues.append(_wall_ms() + 20)
        return max(0.0, min([longest_s, *((due - _wall_ms()) / 1000 for due in dues)]))

    # -- partitions come and go ----------------------------------------------------------------------------------------

    def _on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._has_joined = True
        for tp in partitions:
            self._pending[tp] = 0.0

    def _on_revoked(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._pending.pop(tp, None)
            self._drop_partition(tp)

    def _drop_partition(self, tp: TopicPartition) -> None:
        self._windows.pop(tp, None)
        self._scheduler.close(tp)
        self._payloads.forget_partition(tp)
        self._drop_claimed({place for place in self._held if place[0] == tp})

    def _drop_claimed(self, places: set[tuple[TopicPartition, int]]) -> None:
        """Remove claimed records that must not be forwarded any more."""
        if not places.isdisjoint(self._held):
            self._ready = [each for each in self._ready if (each.tp, each.offset) not in places]
            heapq.heapify(self._ready)
            self._held -= places

    def _reopen_partition(self, tp: TopicPartition, why: ClientError, pause_s: float = 0.0) -> None:
        """Drop the state of a partition, which may be wrong, and open it again."""
        self.stats.add_event("reopened", f"{tp}: {why.cause}")
        self._drop_partition(tp)
        # Until it is open again there is no window to add its records to.
        self._consumer.pause([tp])
        self._pending[tp] = time.monotonic() + pause_s

    def _open_pending(self) -> set[TopicPartition]:
        """Open pending partitions. Returns those whose polled records must be ignored: reading starts elsewhere."""
        touched = set(self._pending)
        for tp, at in list(self._pending.items()):
            if time.monotonic() < at:
                continue
            try:
                self._open_partition(tp)
            except (SchedulerError, SchedulerLostError, CommitFailedError) as error:
                self._reopen_partition(tp, error, _REOPEN_S)  # if it was revoked meanwhile, the next poll reports that
                continue
            del self._pending[tp]
            self._consumer.resume([tp])
        return touched

    def _open_partition(self, tp: TopicPartition) -> None:
        place, start = self._read_position(tp)
        window = Window(place.low, place.handed)
        if window.known_end > (end := self._consumer.end_offsets([tp])[tp]):
            raise RetryError(
                f"{tp} ends at {end}, but records up to {window.known_end} were forwarded: the log was truncated",
                "Reset the group's offsets for it, and expect some records to be delivered twice",
            )
        # 1. The scheduler's state belongs to the committed position: continue after it, without the entries that were
        #    forwarded since. 2. It does not: the log is read from the position on, and the new generation is committed,
        #    so that the state is recognized next time.
        found = self._scheduler.open(tp, place.low, place.generation)
        if found is not None:
            known = [(offset, window.add_read(offset)) for offset in sorted(found.waiting)]
            self._scheduler.done([Ref(0, tp, offset) for offset, waits in known if not waits])
            window.advance_end(found.position)
        elif (generation := self._scheduler.generation(tp)) != place.generation:
            self._consumer.commit({tp: place.with_generation(generation)})
        # Retention may have deleted up to `start`: nothing before it can be read any more.
        window.advance_end(start)
        # Last: a window that is visible must know the whole position, because forwarding commits it.
        self._windows[tp] = window
        self._consumer.seek(tp, max(start, window.end))

    def _read_position(self, tp: TopicPartition) -> tuple[CommittedPosition, int]:
        """The committed position, and the start of the log."""
        start = self._consumer.beginning_offsets([tp])[tp]
        committed = self._consumer.committed([tp])[tp]
        place = CommittedPosition(start, "", [], "") if committed is None else parse_position(tp, committed)
        if place.low < start:
            self.stats.add_event("expired", f"{tp}: retention deleted waiting records from {place.low} to {start - 1}")
        return place, start

    def _is_all_read(self) -> bool:
        """Whether all partitions are read to where an earlier run forwarded; before, no position can be committed."""
        return all(window.is_ready for window in self._windows.values())

    # -- what waits ----------------------------------------------------------------------------------------------------

    def _index_records(self, records: Sequence[ConsumerRecord]) -> None:
        by_place: dict[TopicPartition, list[ConsumerRecord]] = {}
        for each in records:
            by_place.setdefault(TopicPartition(each.topic, each.partition), []).append(each)
        if records:
            self._step("read")
        positions = self._consumer.positions()
        for tp, window in list(self._windows.items()):
            position = positions[tp].offset if tp in positions else window.end
            some = by_place.get(tp, ())
            if some or position > window.end:
                self._add_records(tp, window, some, position)
        if records:
            self.stats.read += len(records)
            self._step("added")

    def _add_records(
        self, tp: TopicPartition, window: Window, records: Sequence[ConsumerRecord], position: int
    ) -> None:
        soon = _wall_ms() + KEEP_MS
        entries = []
        try:
            for record in records:
                if window.add_read(record.offset):
                    due = self._router.due_ms(record)
                    entries.append((record.offset, due))
                    if due <= soon:
                        self._payloads.keep_record(tp, record)
            window.advance_end(position)
            if entries:
                self._scheduler.add(tp, entries, window.end)
        except OverflowError as error:
            raise RetryError(
                f"{tp}: there are more than {2**26:,} offsets between the first waiting record and the end",
                "If the topic is compacted, turn compaction off: retry topics must not be compacted",
            ) from error
        except (SchedulerError, SchedulerLostError) as error:
            self._reopen_partition(tp, error)

    def _is_soon(self, tp: TopicPartition, record: ConsumerRecord) -> bool:
        """Whether a record will be claimed soon, so that it is cached."""
        window = self._windows.get(tp)
        waits = window is not None and window.is_waiting(record.offset) and (tp, record.offset) not in self._held
        return waits and self._router.due_ms(record) <= _wall_ms() + KEEP_MS

    def _claim_due(self) -> None:
        if len(self._ready) >= MAX_READY or not self._is_all_read():
            return
        until = _wall_ms() + AHEAD_MS
        refs = self._call_scheduler(lambda: self._scheduler.claim(until, MAX_READY // 2))
        refs = self._still_waiting(refs or [])
        if not refs:
            return
        self._step("claimed")
        found = self._payloads.take_records([(each.tp, each.offset) for each in refs])
        back = []
        for each in refs:
            record = found.get((each.tp, each.offset))
            # 1. The partition was dropped in this loop, when the scheduler failed: it will be opened again.
            # 2. Retention deleted the record. 3. Its header has a later time than the scheduler. 4. It is due.
            if each.tp not in self._windows:
                continue
            if record is None:
                self._on_expired(each)
            elif (due := self._router.due_ms(record)) > until:
                back.append(each._replace(due_ms=due))
            else:
                heapq.heappush(self._ready, DueRecord(due, each.tp, each.offset, record))
                self._held.add((each.tp, each.offset))
        if back:
            self._call_scheduler(lambda: self._scheduler.release(back))

    def _still_waiting(self, refs: list[Ref]) -> list[Ref]:
        """The claimed records without those that were rewritten, or forwarded by an earlier run."""
        waiting = [each for each in refs if each.tp in self._windows and self._windows[each.tp].is_waiting(each.offset)]
        if len(waiting) < len(refs):
            kept = set(waiting)
            self._call_scheduler(lambda: self._scheduler.done([each for each in refs if each not in kept]))
        return [each for each in waiting if each.tp in self._windows and (each.tp, each.offset) not in self._held]

    def _on_expired(self, ref: Ref) -> None:
        """Count a record that retention deleted, and mark it in the window, so that the position can advance."""
        self.stats.expired += 1
        self.stats.add_event("expired", f"{ref.tp} {ref.offset}: deleted by retention before it was due")
        if ref.tp in self._windows:
            self._windows[ref.tp].mark_forwarded([ref.offset])
            self._windows[ref.tp].on_committed()
        self._call_scheduler(lambda: self._scheduler.done([ref]))

    def _call_scheduler(self, call: Callable[[], list[Ref] | None]) -> list[Ref] | None:
        """Call the scheduler; after an error, open the partitions again, which restores its state from the log."""
        try:
            return call()
        except SchedulerLostError as error:
            self._reopen_partition(error.tp, error)
        except SchedulerError as error:
            for tp in list(self._windows):
                self._reopen_partition(tp, error, _REOPEN_S)
        return None

    # -- handing over --------------------------------------------------------------------------------------------------

    def _forward_due(self) -> int:
        now = _wall_ms()
        items: list[DueRecord] = []
        while self._ready and self._ready[0].due_ms <= now and len(items) < BATCH:
            items.append(heapq.heappop(self._ready))
        if not items:
            return 0
        generations = {tp: self._scheduler.generation(tp) for tp in {each.tp for each in items}}
        try:
            outcome = self._handover.forward_records(items, self._windows, generations, self._consumer.group_metadata())
        except CommitFailedError as error:  # the next poll reports which partitions are lost
            outcome = ForwardOutcome(error=error)
        if outcome.error is not None:
            self._on_aborted(items, outcome.error)
            return 0
        self._held.difference_update((each.tp, each.offset) for each in items)
        # Rewritten records have a copy at the end of the topic: forwarding the claimed original would double them.
        self._drop_claimed({(each.tp, each.offset) for each in outcome.rewritten})
        self._count_forwarded(items, outcome)
        # After the commit: a crash before this leaves entries that `_still_waiting` and `_open_partition` recognize.
        gone = [Ref(each.due_ms, each.tp, each.offset) for each in items]
        self._call_scheduler(lambda: self._scheduler.done([*gone, *outcome.rewritten]))
        self._step("done")
        return len(items)

    def _on_aborted(self, items: list[DueRecord], error: ClientError) -> None:
        self.stats.aborted += 1
        self.stats.add_event("aborted", error.cause)
        for each in items:
            heapq.heappush(self._ready, each)
        time.sleep(_PAUSE_S)  # for a rebalance of the group, or a change of leader, to finish

    def _count_forwarded(self, items: Sequence[DueRecord], outcome: ForwardOutcome) -> None:
        now = _wall_ms()
        self.stats.dead += outcome.dead
        self.stats.returned += len(items) - outcome.dead
        self.stats.rewritten += len(outcome.rewritten)
        self.stats.add_lateness(now - each.due_ms for each in items)

    def _check_clock(self) -> None:
        """Report a jump of the wall clock, because it changes which records are due."""
        ahead = _wall_ms() - _steady_ms()
        if abs(ahead - self._clock_ahead) > 2_000:
            self.stats.add_event("clock jumped", f"by {(ahead - self._clock_ahead) / 1000:+.1f} s")
        self._clock_ahead = ahead

    @property
    def waiting(self) -> int:
        """Records that were read and not forwarded yet."""
        return sum(each.waiting for each in self._windows.values())

    @property
    def is_caught_up(self) -> bool:
        """Whether the group has assigned the partitions, and all are read to where an earlier run forwarded."""
        return self._has_joined and not self._pending and self._is_all_read()

    @property
    def claimed(self) -> int:
        """The waiting records that are claimed, to be forwarded within a second."""
        return len(self._ready)

    @property
    def partitions(self) -> int:
        """How many partitions are open."""
        return len(self._windows)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000
