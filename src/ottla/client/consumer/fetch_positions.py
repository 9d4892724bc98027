"""Positions of assigned partitions, and reading from them: the part of a consumer that talks to partition leaders.

Zone: real. Resets and validates positions, fetches, pauses; knows nothing of groups. One thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.connections.connection import Connection
from ottla.client.consumer.commits import OffsetAndMetadata
from ottla.client.consumer.record import ConsumerRecord, Decoder
from ottla.client.consumer.reset import EARLIEST_RESET, LATEST_RESET, OffsetReset, parse_reset
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.consumer.waker import Waker
from ottla.client.errors import (
    ClientError,
    DeadlineError,
    LogTruncatedError,
    RefusedError,
    UnsupportedVersionError,
    UsageError,
    refused_error,
)
from ottla.client.fetching.batches import Fetched
from ottla.client.fetching.fetch import Fetcher
from ottla.client.metadata import TopicView
from ottla.client.per_leader_requests import LeaderRequest, SentRequest, ask_leaders
from ottla.client.retry import Deadline, wall_ms
from ottla.client.timestamps import timestamp_ms
from ottla.errors import ErrorCode
from ottla.types import NO_EPOCH, TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

# Asks leaders where an epoch ended (KIP-320).

_CONSUMER = -1
"""The replica id of clients."""


class EpochEnd(NamedTuple):
    """The largest epoch of the leader's log up to the requested one, and the offset where it ended."""

    leader_epoch: int
    end_offset: int


def epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
) -> dict[TopicPartition, EpochEnd | ClientError]:
    """epochs: (requested epoch, known epoch of the leader, for fencing). EpochEnd has -1 for an unknown epoch."""

    def send(
        connection: Connection, asked: Sequence[TopicPartition]
    ) -> Iterator[SentRequest[OffsetForLeaderEpochResponse]]:
        topics: dict[str, list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]] = {}
        for tp in asked:
            epoch, current = epochs[tp]
            part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=tp.partition, current_leader_epoch=current, leader_epoch=epoch
            )
            topics.setdefault(tp.topic, []).append(part)
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=n, partitions=p) for n, p in topics.items()],
        )
        # Version 3 allows consumers without the right to the whole cluster (KIP-320): it needs only Describe on the
        # topic.
        version = connection.choose_version(ApiKey.OFFSET_FOR_LEADER_EPOCH, at_least=3)
        yield connection.send_request(request, version, OffsetForLeaderEpochResponse), asked

    question: LeaderRequest[OffsetForLeaderEpochResponse, EpochEnd] = LeaderRequest(
        "validate positions", send, _epoch_end_results
    )
    return ask_leaders(cluster, epochs, question, deadline)


def _epoch_end_results(
    answer: OffsetForLeaderEpochResponse,
) -> Iterator[tuple[TopicPartition, EpochEnd | RefusedError]]:
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.topic, part.partition)
            error = refused_error(part.error_code, f"end of an epoch of {tp}")
            yield tp, error or EpochEnd(part.leader_epoch, part.end_offset)


Committed = Callable[[list[TopicPartition], Deadline], Mapping[TopicPartition, OffsetAndMetadata | None]]
_AGAIN_S = 0.1
_ANSWER_MS: Final = 1_000
"""How long a leader may take to answer about its log, even if the poll is shorter."""


@dataclass(slots=True)
class _PartitionPosition:
    """The state of one assigned partition."""

    offset: int | None = None
    """Offset of the next record for the application; None: not known yet."""
    epoch: int = NO_EPOCH
    """Leader epoch of the last record before `offset`."""
    reset: OffsetReset | None = None
    """How to find `offset`; None: the committed position of the group, else by `auto.offset.reset`."""
    paused: bool = False
    end: int | None = None
    """The end of the readable part that the last fetch reported."""


class _Ready(NamedTuple):
    """A fetched answer whose records are being handed out."""

    fetched: Fetched
    records: Iterator[ConsumerRecord]


class FetchPositions:
    """Reads assigned partitions. Memory: one answer per broker (`fetch.max.bytes`), the next one in socket buffers."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig, wake: Waker, committed: Committed | None) -> None:
        """committed: looks up the committed positions of the group; None without a group."""
        self._cluster = cluster
        self._admin = Admin(cluster)
        self._wake = wake
        self._committed = committed
        self._default = parse_reset(config.auto_offset_reset)
        self._decoder = Decoder(config.client.check_crcs, config.key_deserializer, config.value_deserializer)
        self._most = config.max_poll_records
        self._fetcher = Fetcher(cluster, rack=config.client_rack, wake=wake.fileno(), sessions=True)
        self._places: dict[TopicPartition, _PartitionPosition] = {}
        self._ready: deque[_Ready] = deque()

    # -- which partitions ----------------------------------------------------------------------------------------------

    @property
    def assigned_partitions(self) -> list[TopicPartition]:
        """The assigned partitions, in the order of the assignment."""
        return list(self._places)

    @property
    def paused_partitions(self) -> list[TopicPartition]:
        """The partitions that `read_records` leaves out."""
        return [tp for tp, place in self._places.items() if place.paused]

    def assign_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Replace the assignment; partitions that stay assigned keep their position, and stay paused if they are."""
        before = self._places
        self._places = {tp: before.get(tp) or _PartitionPosition() for tp in partitions}
        # Partitions that leave the assignment must not be fetched, and their fetched records must not be returned.
        for tp in before:
            if tp not in self._places:
                self._stop_partition(tp)

    def pause_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Leave them out until `resume_partitions`. Raises UsageError for a partition that is not assigned."""
        for tp in partitions:
            self._position_state(tp).paused = True
            self._stop_partition(tp)

    def resume_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Read them again. Raises UsageError."""
        for tp in partitions:
            place = self._position_state(tp)
            if place.paused:
                place.paused = False
                self._start_partition(tp, place)

    # -- positions -----------------------------------------------------------------------------------------------------

    def seek_partition(self, tp: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> None:
        """Continue from `offset`. Raises UsageError."""
        place = self._position_state(tp)
        if offset < 0:
            raise UsageError(f"offset {offset} of {tp} is negative", "Use seek_to_beginning or seek_to_end")
        self._stop_partition(tp)
        # After `_stop_partition`: records of the old position that were fetched already must not follow the seek.
        place.offset, place.epoch, place.reset = offset, epoch, None
        self._start_partition(tp, place)

    def forget_position(self, tp: TopicPartition, reset: OffsetReset) -> None:
        """Find the position by `reset` when it is needed. Raises UsageError."""
        place = self._position_state(tp)
        self._stop_partition(tp)
        place.offset, place.reset = None, reset

    def seek_to_start(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue these partitions, or all, at their first offset. Raises UsageError."""
        for tp in list(partitions) or self.assigned_partitions:
            self.forget_position(tp, EARLIEST_RESET)

    def seek_to_end(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue these partitions, or all, after their last offset. Raises UsageError."""
        for tp in list(partitions) or self.assigned_partitions:
            self.forget_position(tp, LATEST_RESET)

    def position_of(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        """The offset of the next record, if it is known. Raises UsageError."""
        place = self._position_state(tp)
        return None if place.offset is None else OffsetAndMetadata(place.offset, place.epoch)

    def known_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """All known positions: a commit commits these."""
        return {
            tp: OffsetAndMetadata(place.offset, place.epoch)
            for tp, place in self._places.items()
            if place.offset is not None
        }

    def lag_of(self, tp: TopicPartition) -> int | None:
        """Records between the position and the end (the last stable offset under read_committed) at the last fetch.

        Raises UsageError.
        """
        place = self._position_state(tp)
        return None if place.end is None or place.offset is None else max(0, place.end - place.offset)

    def find_positions(self, deadline: Deadline, only: TopicPartition | None = None) -> None:
        """Find the unknown positions. Raises ClientError; later calls retry partitions without a leader.

        RefusedError OFFSET_OUT_OF_RANGE: `auto.offset.reset` is none.
        """
        places = self._places if only is None else {only: self._position_state(only)}
        unknown = {tp: place for tp, place in places.items() if place.offset is None}
        if not unknown:
            return
        # 1. A seek to the beginning or end decides itself. 2. Else the committed position of the group. 3. Without
        # one, `auto.offset.reset`.
        asked = [tp for tp, place in unknown.items() if place.reset is None]
        if asked and self._committed is not None:
            for tp, found in self._committed(asked, deadline).items():
                if found is not None:
                    self.seek_partition(tp, found.offset, found.leader_epoch)
        self._reset_positions({tp: place for tp, place in unknown.items() if place.offset is None}, deadline)

    def _reset_positions(self, places: Mapping[TopicPartition, _PartitionPosition], deadline: Deadline) -> None:
        now = wall_ms()
        wanted: dict[TopicPartition, int] = {}
        for tp, place in places.items():
            policy = place.reset or self._default
            if policy.is_none:
                raise RefusedError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{tp}",
                    "the group has no committed position, and auto.offset.reset is none",
                )
            wanted[tp] = policy.timestamp_at(now)
        failed: ClientError | None = None
        for tp, found in self._admin.list_offsets(wanted, deadline).items() if wanted else ():
            if isinstance(found, ClientError):
                # A partition without a leader must not keep the others from starting: the next poll tries it again.
                failed = found
                continue
            offset = found.offset
            if offset < 0:  # all records are older than the timestamp
                offset = self.end_offsets([tp], deadline)[tp]
            self.seek_partition(tp, offset)
        if failed is not None and not failed.retriable:
            raise failed

    def start_offsets(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The first offsets. Raises ClientError."""
        return self.look_up_offsets(dict.fromkeys(partitions, -2), deadline)

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int | None]:
        """The first offsets at or after these times; None: all records are older. Raises ClientError, UsageError."""
        times = {tp: timestamp_ms(each) for tp, each in timestamps.items()}
        found = self.look_up_offsets(times, deadline)
        return {tp: offset if offset >= 0 else None for tp, offset in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """The end offsets, by `isolation.level`. Raises ClientError."""
        return self.look_up_offsets(dict.fromkeys(partitions, -1), deadline)

    def look_up_offsets(
        self, timestamps: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, int]:
        """The offsets that ListOffsets returns for the timestamps; -1 for none. Raises ClientError."""
        found: dict[TopicPartition, int] = {}
        for tp, each in self._admin.list_offsets(timestamps, deadline).items():
            if isinstance(each, ClientError):
                raise each
            found[tp] = each.offset
        return found

    # -- reading -------------------------------------------------------------------------------------------------------

    def read_records(self, deadline: Deadline) -> list[ConsumerRecord]:
        """The next records, at most `max.poll.records`; waits for some until `deadline` or a wakeup.

        Raises LogTruncatedError, DeserializationError, CorruptBatchError, RefusedError and others.
        """
        records = self._take_prefetched()
        if not records and (fetched := self._fetch_batches(deadline)):
            self._ready.extend(_Ready(each, self._decoder.decode_records(each)) for each in fetched)
            records = self._take_prefetched()
        return records

    def read_batches(self, deadline: Deadline) -> list[Fetched]:
        """The next fetched answers, not decoded; positions move to the offsets after them."""
        whole = []
        for ready in self._ready:
            # `read_records` may have returned the first records of this answer already.
            offset = self._places[ready.fetched.tp].offset
            assert offset is not None
            whole.append(ready.fetched._replace(fetch_offset=offset))
        self._ready.clear()
        if not whole:
            whole = self._fetch_batches(deadline)
        for fetched in whole:
            self._advance_past(fetched)
        return whole

    def put_back(self, answers: Iterable[Fetched]) -> None:
        """Keep answers for the next read; positions move back to their offsets."""
        for each in answers:
            self._places[each.tp].offset = each.fetch_offset
            self._ready.append(_Ready(each, self._decoder.decode_records(each)))

    def _advance_past(self, fetched: Fetched) -> None:
        place = self._places[fetched.tp]
        place.offset = max(place.offset or 0, fetched.next_offset)

    def _take_prefetched(self) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        while self._ready and len(records) < self._most:
            fetched, source = self._ready[0]
            place = self._places[fetched.tp]
            try:
                # `extend` keeps the records that came before an error of the iterator.
                records.extend(islice(source, self._most - len(records)))
                if len(records) < self._most:
                    self._ready.popleft()
                    self._advance_position(place, records)
                    self._advance_past(fetched)
                    continue
            except ClientError:
                # Return the records before the fault first. The next call fetches the faulty record again, and raises.
                self._advance_position(place, records)
                self._stop_partition(fetched.tp)
                self._start_partition(fetched.tp, place)
                if records:
                    return records
                raise
            self._advance_position(place, records)
        return records

    def _advance_position(self, place: _PartitionPosition, records: list[ConsumerRecord]) -> None:
        """Move the position after the last record, if that is of this partition."""
        if records and self._places.get(TopicPartition(records[-1].topic, records[-1].partition)) is place:
            place.offset, place.epoch = records[-1].offset + 1, records[-1].leader_epoch

    def _fetch_batches(self, deadline: Deadline) -> list[Fetched]:
        # Before the fetch: a new leader that lost records would answer with other records at the same offsets.
        self._validate_positions(deadline)
        if not self._fetcher.active:
            # Validate again soon if a leader has not answered about its log.
            self._wake.wait_for_wakeup(
                min(deadline.remaining_s(), _AGAIN_S) if self._fetcher.moved else deadline.remaining_s()
            )
            return []
        found = []
        for fetched in self._fetcher.poll(deadline.remaining_ms()):
            place = self._places.get(fetched.tp)
            # An answer may be for a partition that was revoked, paused or reset after the request.
            if place is None or place.paused or place.offset is None:
                continue
            if fetched.error is not None:
                self._on_failed(fetched.tp, place, fetched.error, deadline)
                continue
            # The end is kept also when no records came: the lag must show progress past markers.
            place.end = fetched.end_offset
            if fetched.records:
                found.append(fetched)
        return found

    def _on_failed(self, tp: TopicPartition, place: _PartitionPosition, error: ClientError, deadline: Deadline) -> None:
        # 1. Any error but OFFSET_OUT_OF_RANGE: raise it; the next poll continues at the same position. 2. Out of range
        # because the log was truncated: the check moves the position. 3. Out of range with a reset policy: look the
        # position up again. 4. Without one: raise.
        if not (isinstance(error, RefusedError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE):
            self._start_partition(tp, place)
            raise error
        if place.epoch != NO_EPOCH:
            self._check_partitions([tp], deadline)
        if place.offset is not None and not (policy := place.reset or self._default).is_none:
            self.forget_position(tp, policy)
        elif place.offset is not None:
            self._start_partition(tp, place)
            raise error

    # -- truncation (KIP-320) ------------------------------------------------------------------------------------------

    def _validate_positions(self, deadline: Deadline) -> None:
        """For partitions with a new leader: check that its log contains the records that were read."""
        moved = self._fetcher.moved
        doubtful = self._check_partitions([tp for tp in moved if self._places[tp].epoch != NO_EPOCH], deadline)
        for tp in moved:
            if tp not in doubtful:
                self._fetcher.hold_at(tp, self._leader_epoch(tp))

    def _check_partitions(self, partitions: list[TopicPartition], deadline: Deadline) -> set[TopicPartition]:
        """Compare positions with the leaders' logs; returns partitions whose leader did not answer."""
        epochs = {tp: (self._places[tp].epoch, self._leader_epoch(tp)) for tp in partitions}
        doubtful = set()
        try:
            # If every poll were shorter than an answer takes, no poll would ever succeed.
            enough = deadline if deadline.remaining_ms() > _ANSWER_MS else Deadline.after_ms(_ANSWER_MS)
            ends = epoch_ends(self._cluster, epochs, enough)
        except UnsupportedVersionError:  # brokers before Kafka 2.3 do not answer consumers
            return set()
        except DeadlineError:
            return set(partitions)
        for tp, found in ends.items():
            if isinstance(found, EpochEnd):
                self._compare_partition(tp, self._places[tp], found)
            elif found.retriable:
                doubtful.add(tp)
            else:
                raise found
        return doubtful

    def _compare_partition(self, tp: TopicPartition, place: _PartitionPosition, found: EpochEnd) -> None:
        assert place.offset is not None
        if found.end_offset < 0 or found.leader_epoch < 0:  # the leader has no epoch that old
            return
        # The epoch of the last record ends at or after the position: the records read are in the leader's log.
        if found.end_offset >= place.offset:
            return
        # As Java's consumer: with a reset policy it continues where the logs differ, without one it raises. The seek
        # comes before the error, so that a caller that catches it continues there as well.
        cut = LogTruncatedError(tp, place.offset, found.end_offset)
        self.seek_partition(tp, found.end_offset, found.leader_epoch)
        if self._default.is_none:
            raise cut

    def _leader_epoch(self, tp: TopicPartition) -> int:
        view = self._cluster.view.topics.get(tp.topic)
        found = view.partitions.get(tp.partition) if isinstance(view, TopicView) else None
        return NO_EPOCH if found is None else found.leader_epoch

    # -- small steps ---------------------------------------------------------------------------------------------------

    def _position_state(self, tp: TopicPartition) -> _PartitionPosition:
        place = self._places.get(tp)
        if place is None:
            raise UsageError(f"{tp} is not assigned to this consumer", "assign or subscribe, and poll, first")
        return place

    def _stop_partition(self, tp: TopicPartition) -> None:
        """Stop fetching a partition, and drop fetched records that were not handed out."""
        self._fetcher.remove(tp)
        # Their positions were not moved yet, so these records are fetched again when the partition is read again.
        self._ready = deque(each for each in self._ready if each.fetched.tp != tp)

    def _start_partition(self, tp: TopicPartition, place: _PartitionPosition) -> None:
        if place.offset is not None and not place.paused:
            self._fetcher.seek(tp, place.offset)
            # The leader may have changed: `_validate_positions` checks its log before the first fetch.
            self._fetcher.hold_at(tp, NO_EPOCH)

    def stop_fetching(self) -> None:
        """Stop fetching."""
        self._places.clear()
        self._ready.clear()
        self._fetcher.close()
