"""The mover: reads retry topics, waits, and hands over each record when its time has come.

Zone: real. One thread. The log is the truth: a record stays in its retry topic until the transaction that wrote it to
where it goes was committed, and with it the group's position that says so. The scheduler is only an index of it.

What happens at each step if the service is killed right behind it:

    1 read        a record was read, its due time found      nothing is known of it; it is read again
    2 added       the scheduler knows it                     embedded: read again. Redis: position and entries moved
                                                             together; it waits there
    3 claimed     the scheduler holds it as ours             Redis: due again when the partition is taken over, or its
                                                             lease is over; the record's own header says if it is time
    4 begun       a transaction is open, records in it       the coordinator aborts it (at once when the same instance
    5 sent                                                   comes back, else after transaction.timeout.ms): readers of
    6 offsets     the positions are in it, too               committed records never see it, the position stands where
                                                             it stood
    7 committed   it is where it goes                        the committed position says so; what the scheduler still
                                                             knows of it is thrown away when the partition is opened
    8 done        the scheduler has forgotten it             –

A commit without an answer is asked for again until there is one. A service that was taken for dead and is not belongs
to a former generation of the group: its positions are refused (KIP-447), and with them its transaction. The new owner's
read of the committed positions waits for transactions that are not decided (`require_stable`). Nothing is early, for
the time in the record's header is looked at when it is handed over, whatever the scheduler said.
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
from ottla.retry.offset_metadata import CommittedPosition, read_place
from ottla.retry.policy import RETRY_PATTERN
from ottla.retry.record_cache import RecordCache
from ottla.retry.routing import Router
from ottla.retry.scheduler import Ref, Scheduler
from ottla.retry.transactional_forward import DueRecord, ForwardOutcome, TransactionalForward
from ottla.retry.window import Window
from ottla.types import TopicPartition

# What a mover has done, in numbers.

_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 150, 200, 250, 500, 1_000, 2_000, 5_000, 10_000, 60_000)


@dataclass(slots=True)
class Stats:
    """Counts since the start."""

    read: int = 0
    """Records read from retry topics; some again after a restart."""
    returned: int = 0
    """Handed back to where they came from."""
    dead: int = 0
    """Written to dead-letter topics."""
    rewritten: int = 0
    """Written to the end of their retry topic again, so that positions stay short."""
    expired: int = 0
    """Deleted by retention while they waited."""
    aborted: int = 0
    """Transactions that were done again."""
    events: Counter[str] = field(default_factory=Counter)
    news: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=100))
    """(kind, text) of what happened lately."""
    _late: Counter[int] = field(default_factory=Counter)

    def event(self, kind: str, text: str) -> None:
        """Something that somebody may want to know."""
        self.events[kind] += 1
        self.news.append((kind, text))

    def late(self, ms: Iterable[int]) -> None:
        """How late records were handed over, in milliseconds."""
        for each in ms:
            self._late[next((bound for bound in _BUCKETS_MS if each <= bound), 2**31)] += 1

    def late_ms(self, part: float) -> int | None:
        """The bound below which this part of all records was late; None: there were none."""
        total = sum(self._late.values())
        seen = 0
        for bound in sorted(self._late):
            seen += self._late[bound]
            if seen >= part * total:
                return bound
        return None

    def counts(self) -> dict[str, int]:
        """By name."""
        names = ("read", "returned", "dead", "rewritten", "expired", "aborted")
        return {name: getattr(self, name) for name in names}


MoverSettings = Mapping[str, str | int | bool]
Step = Callable[[str], object]
_Own = dict[str, str | int | bool]

AHEAD_MS: Final = 1_000
"""Records are claimed and read so long before they are due."""
KEEP_MS: Final = 5_000
"""What is due within this time when it is read is kept, and not read again."""
MAX_READY: Final = 4_000
BATCH: Final = 500
_POLL_S: Final = 0.1
_REOPEN_S: Final = 0.5
_PAUSE_S: Final = 0.05


class Mover:
    """The service; `turn` as often as possible, or `run`. Use it in a `with` statement, or close it."""

    def __init__(
        self,
        settings: MoverSettings,
        scheduler: Scheduler,
        *,
        topics: Sequence[str] = (),
        group: str = "ottla-retry",
        instance: str = "1",
        router: Router | None = None,
        on_step: Step | None = None,
    ) -> None:
        """settings: by Kafka's keys, what all clients share. topics: retry topics; none: all that are named so.

        instance: those that run beside each other in one group have one each; the second of one name ends the first.
        on_step: told of every step by its name in the head of this file. Raises ConfigError, and ClientError when the
        transactional id cannot be taken over.
        """
        self._step: Step = on_step or (lambda _name: None)
        self._scheduler = scheduler
        self._router = router or Router()
        self._windows: dict[TopicPartition, Window] = {}
        self._pending: dict[TopicPartition, float] = {}
        """Ours, but not open yet; and when to try (again)."""
        self._ready: list[DueRecord] = []
        """Claimed, by due time."""
        self._has_joined = False
        """Whether the group has given this service its partitions, which may be none."""
        self._held: set[tuple[TopicPartition, int]] = set()
        """What is in `_ready`: a lease may end while it is there, and then it is claimed once more."""
        self._clock_ahead = _wall_ms() - _steady_ms()
        self.stats = Stats()
        own: _Own = {"isolation.level": "read_committed", "fetch.max.bytes": 16 * 2**20}
        reading: _Own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        # A static member: the same instance goes on at once after a crash, nobody has to miss it first.
        member: _Own = {"group.instance.id": f"{group}-{instance}", "session.timeout.ms": 10_000}
        member["max.poll.records"] = 2_000
        self._consumer = Consumer(
            {"metadata.max.age.ms": 10_000, **settings, **own, **reading, **member, "max.poll.records": 2_000}
        )
        small = {"max.partition.fetch.bytes": 128 * 1024}
        self._cluster = Cluster(ClientConfig.from_mapping({**settings, **own, **small}))
        self._payloads = RecordCache(self._cluster, self._is_soon)
        destinations = Destinations(self._cluster)
        self._handover = TransactionalForward(
            settings, f"{group}-{instance}", self._router, self._payloads, destinations, self._step
        )
        self._consumer.subscribe(
            list(topics) or re.compile(RETRY_PATTERN.pattern),
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._revoked,
        )

    def __enter__(self) -> Mover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything. What waits, waits in the log."""
        try:
            self._consumer.close()
        finally:
            self._handover.close()
            self._cluster.close()
            self._scheduler.close_all()

    def run(self, should_stop: Callable[[], bool], on_turn: Callable[[], object] | None = None) -> None:
        """Turns until it should stop. Raises RetryError when it cannot go on, and ClientError."""
        while not should_stop():
            self.turn()
            if on_turn is not None:
                on_turn()

    def turn(self, longest_s: float = _POLL_S) -> int:
        """Read what is new, hand over what is due. Returns how many records were handed over.

        Raises RetryError when it cannot go on, and ClientError.
        """
        records = self._consumer.poll(self._pause_s(longest_s))
        opened = self._open_pending()
        self._look_at_clock()
        self._index([each for each in records if TopicPartition(each.topic, each.partition) not in opened])
        self._claim()
        return self._hand_over()

    def _pause_s(self, longest_s: float) -> float:
        """Until the next one is due."""
        dues = [self._ready[0].due_ms] if self._ready else []
        if (claimable := self._scheduler.next_due()) is not None and len(self._ready) < MAX_READY:
            dues.append(claimable - AHEAD_MS)
        if self._pending or not self._all_read():
            dues.append(_wall_ms() + 20)
        return max(0.0, min([longest_s, *((due - _wall_ms()) / 1000 for due in dues)]))

    # -- partitions come and go ----------------------------------------------------------------------------------------

    def _assigned(self, partitions: list[TopicPartition]) -> None:
        self._has_joined = True
        for tp in partitions:
            self._pending[tp] = 0.0

    def _revoked(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._pending.pop(tp, None)
            self._drop_partition(tp)

    def _drop_partition(self, tp: TopicPartition) -> None:
        self._windows.pop(tp, None)
        self._scheduler.close(tp)
        self._payloads.forget_partition(tp)
        self._let_go({place for place in self._held if place[0] == tp})

    def _let_go(self, places: set[tuple[TopicPartition, int]]) -> None:
        """These are not ours to hand over any more."""
        if not places.isdisjoint(self._held):
            self._ready = [each for each in self._ready if (each.tp, each.offset) not in places]
            heapq.heapify(self._ready)
            self._held -= places

    def _reopen(self, tp: TopicPartition, why: ClientError, pause_s: float = 0.0) -> None:
        """Begin anew with a partition: what is known of it may be wrong."""
        self.stats.event("reopened", f"{tp}: {why.cause}")
        self._drop_partition(tp)
        self._consumer.pause([tp])
        self._pending[tp] = time.monotonic() + pause_s

    def _open_pending(self) -> set[TopicPartition]:
        """Returns those that are read from elsewhere now: what was polled of them does not count."""
        touched = set(self._pending)
        for tp, at in list(self._pending.items()):
            if time.monotonic() < at:
                continue
            try:
                self._open_partition(tp)
            except (SchedulerError, SchedulerLostError, CommitFailedError) as error:
                self._reopen(tp, error, _REOPEN_S)  # if it is not ours any more, the next poll says so
                continue
            del self._pending[tp]
            self._consumer.resume([tp])
        return touched

    def _open_partition(self, tp: TopicPartition) -> None:
        place, start = self._place_partition(tp)
        window = Window(place.low, place.handed)
        if window.known_end > (end := self._consumer.end_offsets([tp])[tp]):
            raise RetryError(
                f"{tp} ends at {end}, but records up to {window.known_end} were handed over: the log was cut",
                "Reset the group's offsets for it, and expect records that come twice",
            )
        found = self._scheduler.open(tp, place.low, place.generation)
        if found is not None:
            known = [(offset, window.read(offset)) for offset in sorted(found.waiting)]
            self._scheduler.done([Ref(0, tp, offset) for offset, waits in known if not waits])
            window.passed(found.position)
        elif (generation := self._scheduler.generation(tp)) != place.generation:
            self._consumer.commit({tp: place.with_generation(generation)})
        window.passed(start)
        self._windows[tp] = window
        self._consumer.seek(tp, max(start, window.end))

    def _place_partition(self, tp: TopicPartition) -> tuple[CommittedPosition, int]:
        """What is committed, and where the log begins."""
        start = self._consumer.beginning_offsets([tp])[tp]
        committed = self._consumer.committed([tp])[tp]
        place = CommittedPosition(start, "", [], "") if committed is None else read_place(tp, committed)
        if place.low < start:
            self.stats.event("expired", f"{tp}: the log begins at {start}, records from {place.low} on waited")
        return place, start

    def _all_read(self) -> bool:
        """Whether every partition has been read as far as a former run came: else its positions cannot be said."""
        return all(window.is_ready for window in self._windows.values())

    # -- what waits ----------------------------------------------------------------------------------------------------

    def _index(self, records: Sequence[ConsumerRecord]) -> None:
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
                self._add(tp, window, some, position)
        if records:
            self.stats.read += len(records)
            self._step("added")

    def _add(self, tp: TopicPartition, window: Window, records: Sequence[ConsumerRecord], position: int) -> None:
        soon = _wall_ms() + KEEP_MS
        entries = []
        try:
            for record in records:
                if window.read(record.offset):
                    due = self._router.due_ms(record)
                    entries.append((record.offset, due))
                    if due <= soon:
                        self._payloads.keep_record(tp, record)
            window.passed(position)
            if entries:
                self._scheduler.add(tp, entries, window.end)
        except OverflowError as error:
            raise RetryError(
                f"{tp}: more than {2**26:,} offsets lie between the first record that waits and the end",
                "Is the topic compacted? Retry topics must not be",
            ) from error
        except (SchedulerError, SchedulerLostError) as error:
            self._reopen(tp, error)

    def _is_soon(self, tp: TopicPartition, record: ConsumerRecord) -> bool:
        """Whether a record will be claimed within seconds."""
        window = self._windows.get(tp)
        waits = window is not None and window.waits(record.offset) and (tp, record.offset) not in self._held
        return waits and self._router.due_ms(record) <= _wall_ms() + KEEP_MS

    def _claim(self) -> None:
        if len(self._ready) >= MAX_READY or not self._all_read():
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
            if each.tp not in self._windows:
                continue  # it will be opened again: the scheduler failed over a record before this one
            if record is None:
                self._expired(each)
            elif (due := self._router.due_ms(record)) > until:
                back.append(each._replace(due_ms=due))
            else:
                heapq.heappush(self._ready, DueRecord(due, each.tp, each.offset, record))
                self._held.add((each.tp, each.offset))
        if back:
            self._call_scheduler(lambda: self._scheduler.release(back))

    def _still_waiting(self, refs: list[Ref]) -> list[Ref]:
        """Without those that were written again, or handed over by a run before this."""
        waiting = [each for each in refs if each.tp in self._windows and self._windows[each.tp].waits(each.offset)]
        if len(waiting) < len(refs):
            kept = set(waiting)
            self._call_scheduler(lambda: self._scheduler.done([each for each in refs if each not in kept]))
        return [each for each in waiting if each.tp in self._windows and (each.tp, each.offset) not in self._held]

    def _expired(self, ref: Ref) -> None:
        """Retention was quicker. The window is told, so that the position moves on."""
        self.stats.expired += 1
        self.stats.event("expired", f"{ref.tp} {ref.offset}: deleted by retention before it was due")
        if ref.tp in self._windows:
            self._windows[ref.tp].hand([ref.offset])
            self._windows[ref.tp].settle()
        self._call_scheduler(lambda: self._scheduler.done([ref]))

    def _call_scheduler(self, call: Callable[[], list[Ref] | None]) -> list[Ref] | None:
        """Ask the scheduler; what it cannot say is found out by opening again."""
        try:
            return call()
        except SchedulerLostError as error:
            self._reopen(error.tp, error)
        except SchedulerError as error:
            for tp in list(self._windows):
                self._reopen(tp, error, _REOPEN_S)
        return None

    # -- handing over --------------------------------------------------------------------------------------------------

    def _hand_over(self) -> int:
        now = _wall_ms()
        items: list[DueRecord] = []
        while self._ready and self._ready[0].due_ms <= now and len(items) < BATCH:
            items.append(heapq.heappop(self._ready))
        if not items:
            return 0
        generations = {tp: self._scheduler.generation(tp) for tp in {each.tp for each in items}}
        try:
            outcome = self._handover.hand_over(items, self._windows, generations, self._consumer.group_metadata())
        except CommitFailedError as error:  # the next poll says which partitions are lost
            outcome = ForwardOutcome(error=error)
        if outcome.error is not None:
            self._not_handed(items, outcome.error)
            return 0
        self._held.difference_update((each.tp, each.offset) for each in items)
        self._let_go({(each.tp, each.offset) for each in outcome.rewritten})
        self._count(items, outcome)
        gone = [Ref(each.due_ms, each.tp, each.offset) for each in items]
        self._call_scheduler(lambda: self._scheduler.done([*gone, *outcome.rewritten]))
        self._step("done")
        return len(items)

    def _not_handed(self, items: list[DueRecord], error: ClientError) -> None:
        self.stats.aborted += 1
        self.stats.event("aborted", error.cause)
        for each in items:
            heapq.heappush(self._ready, each)
        time.sleep(_PAUSE_S)  # a group that is rebalancing, a leader that moves

    def _count(self, items: Sequence[DueRecord], outcome: ForwardOutcome) -> None:
        now = _wall_ms()
        self.stats.dead += outcome.dead
        self.stats.returned += len(items) - outcome.dead
        self.stats.rewritten += len(outcome.rewritten)
        self.stats.late(now - each.due_ms for each in items)

    def _look_at_clock(self) -> None:
        """Due times are of the wall clock: when it jumps, what is due jumps with it, and somebody should know."""
        ahead = _wall_ms() - _steady_ms()
        if abs(ahead - self._clock_ahead) > 2_000:
            self.stats.event("clock jumped", f"by {(ahead - self._clock_ahead) / 1000:+.1f} s")
        self._clock_ahead = ahead

    @property
    def waiting(self) -> int:
        """Records that were read and not handed over."""
        return sum(each.waiting for each in self._windows.values())

    @property
    def is_caught_up(self) -> bool:
        """Whether the group has given this service its partitions, and each is read as far as a former run came."""
        return self._has_joined and not self._pending and self._all_read()

    @property
    def claimed(self) -> int:
        """Those of them that are here, to be handed over within a second."""
        return len(self._ready)

    @property
    def partitions(self) -> int:
        """Those that are open."""
        return len(self._windows)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000
