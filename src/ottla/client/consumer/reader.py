"""Positions and what is read from them on: the part of a consumer that talks to the leaders of partitions.

Zone: real. Resetting and validating positions, fetching, pausing; groups are somebody else's. One thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from ottla.client.admin import Admin
from ottla.client.batches import Fetched
from ottla.client.cluster import Cluster
from ottla.client.consumer.commits import OffsetAndMetadata
from ottla.client.consumer.epochs import EpochEnd, epoch_ends
from ottla.client.consumer.record import ConsumerRecord, Decoder
from ottla.client.consumer.reset import Reset, parse_reset
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.consumer.wake import Wake
from ottla.client.errors import (
    ClientError,
    DeadlineError,
    LogTruncatedError,
    RefusedError,
    UnsupportedVersionError,
    UsageError,
)
from ottla.client.fetch import Fetcher
from ottla.client.metadata import TopicView
from ottla.client.retry import Deadline, wall_ms
from ottla.errors import ErrorCode
from ottla.types import NO_EPOCH, TopicPartition

Committed = Callable[[list[TopicPartition], Deadline], Mapping[TopicPartition, OffsetAndMetadata | None]]
_AGAIN_S = 0.1
_ANSWER_MS: Final = 1_000
"""A leader is given so long to tell about its log, however short a poll is."""


@dataclass(slots=True)
class _Place:
    """What is known of one assigned partition."""

    offset: int | None = None
    """Of the next record for the application; None: not known yet."""
    epoch: int = NO_EPOCH
    """Of the last record before it."""
    reset: Reset | None = None
    """How to find `offset`; None: as the group committed it, else by `auto.offset.reset`."""
    paused: bool = False
    end: int | None = None
    """Where the readable part ended when it was looked at last."""


class _Ready(NamedTuple):
    """An answer that is being handed out."""

    fetched: Fetched
    records: Iterator[ConsumerRecord]


class Reader:
    """Reads assigned partitions. Memory: one answer per broker (`fetch.max.bytes`), the next one in socket buffers."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig, wake: Wake, committed: Committed | None) -> None:
        """committed: what the group has committed; None without a group."""
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._wake = wake
        self._committed = committed
        self._default = parse_reset(config.auto_offset_reset)
        self._decoder = Decoder(config.client.check_crcs, config.key_deserializer, config.value_deserializer)
        self._most = config.max_poll_records
        self._fetcher = Fetcher(cluster, rack=config.client_rack, wake=wake.fileno(), sessions=True)
        self._places: dict[TopicPartition, _Place] = {}
        self._ready: deque[_Ready] = deque()

    # -- which partitions ----------------------------------------------------------------------------------------------

    @property
    def assigned(self) -> list[TopicPartition]:
        """In the order of the assignment."""
        return list(self._places)

    @property
    def paused(self) -> list[TopicPartition]:
        """Those that `read` leaves out."""
        return [where for where, place in self._places.items() if place.paused]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """These from now on; what was assigned before keeps its position and whether it is paused."""
        before = self._places
        self._places = {where: before.get(where) or _Place() for where in partitions}
        for where in before:
            if where not in self._places:
                self._stop(where)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Leave them out until `resume`. Raises UsageError for one that is not assigned."""
        for where in partitions:
            self._place(where).paused = True
            self._stop(where)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Read them again. Raises UsageError."""
        for where in partitions:
            place = self._place(where)
            if place.paused:
                place.paused = False
                self._start(where, place)

    # -- positions -----------------------------------------------------------------------------------------------------

    def seek(self, where: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from `offset`. Raises UsageError."""
        place = self._place(where)
        if offset < 0:
            raise UsageError(f"offset {offset} of {where} is negative", "Use seek_to_beginning or seek_to_end")
        self._stop(where)
        place.offset, place.epoch, place.reset = offset, epoch, None
        self._start(where, place)

    def forget_position(self, where: TopicPartition, reset: Reset) -> None:
        """Find the position by `reset` when it is needed. Raises UsageError."""
        place = self._place(where)
        self._stop(where)
        place.offset, place.reset = None, reset

    def position(self, where: TopicPartition) -> OffsetAndMetadata | None:
        """The next offset, if it is known. Raises UsageError."""
        place = self._place(where)
        return None if place.offset is None else OffsetAndMetadata(place.offset, place.epoch)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All that are known: what a commit commits."""
        return {
            where: OffsetAndMetadata(place.offset, place.epoch)
            for where, place in self._places.items()
            if place.offset is not None
        }

    def lag(self, where: TopicPartition) -> int | None:
        """Records between the position and the end (the last stable offset under read_committed) as it was last seen.

        Raises UsageError.
        """
        place = self._place(where)
        return None if place.end is None or place.offset is None else max(0, place.end - place.offset)

    def find_positions(self, deadline: Deadline, only: TopicPartition | None = None) -> None:
        """Find the positions that are not known. Raises ClientError; a partition without leader is tried again later.

        RefusedError OFFSET_OUT_OF_RANGE: `auto.offset.reset` is none.
        """
        places = self._places if only is None else {only: self._place(only)}
        unknown = {where: place for where, place in places.items() if place.offset is None}
        if not unknown:
            return
        asked = [where for where, place in unknown.items() if place.reset is None]
        if asked and self._committed is not None:
            for where, found in self._committed(asked, deadline).items():
                if found is not None:
                    self.seek(where, found.offset, found.leader_epoch)
        self._reset({where: place for where, place in unknown.items() if place.offset is None}, deadline)

    def _reset(self, places: Mapping[TopicPartition, _Place], deadline: Deadline) -> None:
        now = wall_ms()
        wanted: dict[TopicPartition, int] = {}
        for where, place in places.items():
            policy = place.reset or self._default
            if policy.none:
                raise RefusedError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{where}", "no position is known, and auto.offset.reset is none"
                )
            wanted[where] = policy.at(now)
        failed: ClientError | None = None
        for where, found in self._admin.list_offsets(wanted, deadline).items() if wanted else ():
            if isinstance(found, ClientError):
                failed = found
                continue
            offset = found.offset
            if offset < 0:  # nothing is as young as that
                offset = self.end_offsets([where], deadline)[where]
            self.seek(where, offset)
        if failed is not None and not failed.retriable:
            raise failed

    def end_offsets(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The ends, by `isolation.level`. Raises ClientError."""
        return self.offsets(dict.fromkeys(partitions, -1), deadline)

    def offsets(self, timestamps: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, int]:
        """What ListOffsets says; -1 where there is nothing. Raises ClientError."""
        found: dict[TopicPartition, int] = {}
        for where, each in self._admin.list_offsets(timestamps, deadline).items():
            if isinstance(each, ClientError):
                raise each
            found[where] = each.offset
        return found

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, deadline: Deadline) -> list[ConsumerRecord]:
        """The next records, `max.poll.records` at most; waits for some until `deadline` or until it is woken.

        Raises LogTruncatedError, DeserializationError, CorruptBatchError, RefusedError and others.
        """
        records = self._take()
        if not records and (fetched := self._fetch(deadline)):
            self._ready.extend(_Ready(each, self._decoder.records(each)) for each in fetched)
            records = self._take()
        return records

    def read_batches(self, deadline: Deadline) -> list[Fetched]:
        """The next answers as they are; positions go on behind them."""
        whole = [self._rest_of(each) for each in self._ready]
        self._ready.clear()
        if not whole:
            whole = self._fetch(deadline)
        for fetched in whole:
            self._moved_on(fetched)
        return whole

    def _rest_of(self, ready: _Ready) -> Fetched:
        offset = self._places[ready.fetched.where].offset
        assert offset is not None
        return ready.fetched._replace(fetch_offset=offset)

    def _moved_on(self, fetched: Fetched) -> None:
        place = self._places[fetched.where]
        place.offset = max(place.offset or 0, fetched.next_offset)

    def _take(self) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        while self._ready and len(records) < self._most:
            fetched, source = self._ready[0]
            place = self._places[fetched.where]
            try:
                # What came before an error is in the list.
                records.extend(islice(source, self._most - len(records)))
                if len(records) < self._most:
                    self._ready.popleft()
                    self._note(place, records)
                    self._moved_on(fetched)
                    continue
            except ClientError:
                # What came before it is handed out first; then it is read, and fails, again.
                self._note(place, records)
                self._stop(fetched.where)
                self._start(fetched.where, place)
                if records:
                    return records
                raise
            self._note(place, records)
        return records

    def _note(self, place: _Place, records: list[ConsumerRecord]) -> None:
        """The last record moves the position of its partition."""
        if records and self._places.get(TopicPartition(records[-1].topic, records[-1].partition)) is place:
            place.offset, place.epoch = records[-1].offset + 1, records[-1].leader_epoch

    def _fetch(self, deadline: Deadline) -> list[Fetched]:
        self._validate(deadline)
        if not self._fetcher.active:
            # A leader that did not tell about its log is asked again soon.
            self._wake.wait(min(deadline.remaining_s(), _AGAIN_S) if self._fetcher.moved else deadline.remaining_s())
            return []
        found = []
        for fetched in self._fetcher.poll(deadline.remaining_ms()):
            place = self._places.get(fetched.where)
            if place is None or place.paused or place.offset is None:
                continue
            if fetched.error is not None:
                self._failed(fetched.where, place, fetched.error, deadline)
                continue
            place.end = fetched.end_offset
            if fetched.records:
                found.append(fetched)
        return found

    def _failed(self, where: TopicPartition, place: _Place, error: ClientError, deadline: Deadline) -> None:
        if not (isinstance(error, RefusedError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE):
            self._start(where, place)
            raise error
        if place.epoch != NO_EPOCH:
            self._check([where], deadline)
        if place.offset is not None and not (policy := place.reset or self._default).none:
            self.forget_position(where, policy)
        elif place.offset is not None:
            self._start(where, place)
            raise error

    # -- truncation (KIP-320) ------------------------------------------------------------------------------------------

    def _validate(self, deadline: Deadline) -> None:
        """Where there is a new leader: does its log hold what was read?"""
        moved = self._fetcher.moved
        doubtful = self._check([where for where in moved if self._places[where].epoch != NO_EPOCH], deadline)
        for where in moved:
            if where not in doubtful:
                self._fetcher.hold_at(where, self._leader_epoch(where))

    def _check(self, partitions: list[TopicPartition], deadline: Deadline) -> set[TopicPartition]:
        """Compare with the leaders' logs; returns those whose leader did not tell."""
        epochs = {where: (self._places[where].epoch, self._leader_epoch(where)) for where in partitions}
        doubtful = set()
        try:
            # A poll may be shorter than any answer takes; then no poll would ever come further.
            enough = deadline if deadline.remaining_ms() > _ANSWER_MS else Deadline.after_ms(_ANSWER_MS)
            ends = epoch_ends(self._cluster, epochs, enough)
        except UnsupportedVersionError:  # brokers before Kafka 2.3 cannot tell consumers
            return set()
        except DeadlineError:
            return set(partitions)
        for where, found in ends.items():
            if isinstance(found, EpochEnd):
                self._compare(where, self._places[where], found)
            elif found.retriable:
                doubtful.add(where)
            else:
                raise found
        return doubtful

    def _compare(self, where: TopicPartition, place: _Place, found: EpochEnd) -> None:
        assert place.offset is not None
        if found.end_offset < 0 or found.leader_epoch < 0:  # the leader knows nothing as old as that
            return
        if found.end_offset >= place.offset:
            return
        cut = LogTruncatedError(where, place.offset, found.end_offset)
        self.seek(where, found.end_offset, found.leader_epoch)
        if self._default.none:
            raise cut

    def _leader_epoch(self, where: TopicPartition) -> int:
        view = self._cluster.view.topics.get(where.topic)
        found = view.partitions.get(where.partition) if isinstance(view, TopicView) else None
        return NO_EPOCH if found is None else found.leader_epoch

    # -- small steps ---------------------------------------------------------------------------------------------------

    def _place(self, where: TopicPartition) -> _Place:
        place = self._places.get(where)
        if place is None:
            raise UsageError(f"{where} is not assigned to this consumer", "assign or subscribe, and poll, first")
        return place

    def _stop(self, where: TopicPartition) -> None:
        """Fetch no more; what was fetched and not handed out is dropped."""
        self._fetcher.remove(where)
        self._ready = deque(each for each in self._ready if each.fetched.where != where)

    def _start(self, where: TopicPartition, place: _Place) -> None:
        if place.offset is not None and not place.paused:
            self._fetcher.seek(where, place.offset)
            # Whoever leads by now: `_validate` looks at its log first.
            self._fetcher.hold_at(where, NO_EPOCH)

    def close(self) -> None:
        """Fetch no more."""
        self._places.clear()
        self._ready.clear()
        self._fetcher.close()
