"""Fetches partitions from one leader broker, one request at a time for all partitions that this broker follows there.

Zone: deterministic. Decides when to fetch, what to do with each partition's result, and when a partition has to wait.
Positions come from the logs; the session knows what the leader knows; the manager chooses the partitions.

In each leader epoch the first fetch of a partition names the position and epoch of its last record. A leader whose log
differs there responds with the diverging epoch and no records, so the log is truncated before the first append
(KIP-595). Leaders older than Fetch v12 are asked by OffsetForLeaderEpoch first.

A fetch acknowledges all records below its offset. So with flush.messages the next request waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.timing_wheel import Timer
from ottla.replication.follower.fetcher_context import FetcherContext
from ottla.replication.follower.follower_session import SESSION_ERRORS, FollowerSession, Key
from ottla.replication.follower.held_partitions import HeldPartitions
from ottla.replication.follower.leader_requests import OffsetQuery, OffsetResult, OffsetResults
from ottla.replication.follower.partition_fetch_state import Backoff, PartitionFetchState
from ottla.replication.follower.truncation import where_to_cut
from ottla.replication.partition.partition import Partition
from ottla.seams import Failure
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import response_body_pos
from ottla.wire.hot_replica import (
    FIRST_WITH_IDS,
    Answer,
    Limits,
    Row,
    decode_replica_fetch,
    encode_replica_fetch,
)

DIVERGENCE_VERSION: Final = 12
"""From this version of Fetch on the response contains the diverging epoch."""
IMPATIENCE_MS: Final = 10
"""How long a new partition waits for the request in flight. After an election the new leader commits nothing before its
followers have fetched from it, and a long poll in flight may take half a second."""
LANES: Final = 4
"""Connections of one fetcher at most."""
_logger = logging.getLogger(__name__)


class ReplicaFetcher:
    """Fetches from one leader broker (Kafka's ReplicaFetcherThread)."""

    def __init__(self, world: FetcherContext, leader: int, lane: str) -> None:
        """`lane` names its own connection; further ones let a request overtake another that has no response yet."""
        self.leader = leader
        self._world = world
        self._idle_lanes = [lane, *(f"{lane}-past-{number}" for number in range(1, LANES))]
        """Connections without a request in flight; an abandoned request counts until its response arrives."""
        settings = world.settings
        self._version = settings.version
        limits = Limits(world.fence.node_id, settings.wait_max_ms, settings.min_bytes, settings.response_max_bytes)
        self._encode = encode_replica_fetch(settings.version, limits)
        self._decode = decode_replica_fetch(settings.version)
        self._timeout_ms = max(settings.socket_timeout_ms, settings.wait_max_ms)
        self._session = FollowerSession()
        self._followed: dict[Key, PartitionFetchState] = {}
        self._unsettled: dict[Key, PartitionFetchState] = {}
        """Partitions that need OffsetForLeaderEpoch before their first fetch, because their logs may diverge."""
        self._unsynced: dict[Key, PartitionFetchState] = {}
        """Partitions with records that are not durable yet: the next request waits for them."""
        self._held = HeldPartitions(world, self._request_partition, self._schedule_fetch)
        self._in_flight = False
        self._is_responding = False
        """Whether the leader answered the last request."""
        self._attempt = 0
        """Number of the newest request; responses to earlier ones, which were abandoned, are ignored."""
        self._impatient: Timer | None = None
        self._planned = False
        self._pause: Timer | None = None
        self._backoff = Backoff(settings.backoff_ms)

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def max_lag(self) -> int:
        """The largest lag of a followed partition, in records."""
        return max((each.lag for each in self._followed.values()), default=0)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def key_of(self, partition: Partition) -> Key:
        """The name of a partition in requests: by topic name, or by topic id from version 13 on."""
        return (partition.topic_id if self._version >= FIRST_WITH_IDS else partition.tp.topic), partition.tp.partition

    def add_partition(self, partition: Partition) -> None:
        """Follow a partition in its present leader epoch, from the end of its log."""
        key = self.key_of(partition)
        self.remove_partition(partition)
        following = PartitionFetchState(partition, key, Backoff(self._world.settings.backoff_ms))
        self._followed[key] = following
        if self._version < DIVERGENCE_VERSION and partition.log.epochs.latest >= 0:
            self._unsettled[key] = following
        else:
            self._request_partition(following)
        self._fetch_soon()

    def remove_partition(self, partition: Partition) -> None:
        """Stop following a partition; results of requests in flight are ignored for it."""
        key = self.key_of(partition)
        following = self._followed.pop(key, None)
        if following is None:
            return
        following.stop_waiting()
        for table in (self._unsettled, self._unsynced, self._held.partitions):
            table.pop(key, None)
        # Then a request, even if nothing else has changed: the leader has to forget the partition, and undurable
        # records of it do not hold the request back any more.
        self._session.drop_partition(key)
        self._schedule_fetch()

    def on_synced(self, partition: Partition) -> None:
        """Continue when a partition's records are durable, after a flush of its log has ended."""
        following = self._unsynced.get(self.key_of(partition))
        if following is not None and not following.must_sync:
            del self._unsynced[following.key]
            self._schedule_fetch()

    def _is_followed(self, following: PartitionFetchState) -> bool:
        """Whether the partition is still followed in that epoch; each completion checks this first."""
        return self._followed.get(following.key) is following

    def _request_partition(self, following: PartitionFetchState) -> None:
        """Include a partition in the next request, from its present position, unless the throttle holds it back."""
        if self._held.must_hold(following):
            self._session.drop_partition(following.key)
            self._held.hold_partition(following)
            return
        self._session.add_partition(following.request_row(self._world.settings.max_bytes))
        if following.must_sync:
            self._unsynced[following.key] = following

    def _stop_fetching(self, following: PartitionFetchState, why: str) -> None:
        _logger.info("stopped fetching %s from broker %d: %s", following.partition.tp, self.leader, why)
        self.remove_partition(following.partition)
        self._world.on_failed(following.partition)

    def _back_off(self, following: PartitionFetchState, why: object) -> None:
        """Leave a partition out of requests for a while after an error."""
        self._session.drop_partition(following.key)
        wait_ms = following.backoff.next_ms()
        _logger.debug(
            "fetching %s from broker %d: %s; retrying in %d ms", following.partition.tp, self.leader, why, wait_ms
        )
        following.stop_waiting()
        following.timer = self._world.purgatory.look_after(wait_ms, lambda: self._retry_partition(following))

    def _retry_partition(self, following: PartitionFetchState) -> None:
        if self._is_followed(following):
            following.timer = None
            if following.key not in self._unsettled:
                self._request_partition(following)
            if following.backoff.is_young:
                self._fetch_soon()
            else:
                self._schedule_fetch()

    # -- fetching soon -------------------------------------------------------------------------------------------------

    def _fetch_soon(self) -> None:
        """Send the next request soon because there is a new partition, as after an election."""
        # 1. A pause after an error of the whole request ends: the new partition may mean that the leader is back.
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._backoff.reset_wait()
        # 2. Nothing in flight: at the end of the turn. 3. A long poll in flight: after a moment, on another connection.
        if not self._in_flight:
            self._schedule_fetch()
        elif self._impatient is None:
            self._impatient = self._world.purgatory.continue_after(IMPATIENCE_MS, self._overtake_request)

    def _overtake_request(self) -> None:
        """Abandon the request in flight, and send one on another connection, in a session of its own.

        When all connections are busy with abandoned requests, the next response is waited for instead.
        """
        self._impatient = None
        # With unsettled partitions the request in flight may be OffsetForLeaderEpoch, which the next fetch needs.
        if self._in_flight and self._idle_lanes and not self._unsettled:
            self._in_flight = False
            self._attempt += 1
            self._session.on_lost()
            self._schedule_fetch()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _schedule_fetch(self) -> None:
        """Send a request at the end of this turn, unless one is in flight or a pause is on."""
        if not (self._planned or self._in_flight or self._pause is not None):
            self._planned = True
            self._world.later(self._send_fetch)

    def _send_fetch(self) -> None:
        self._planned = False
        # A partition whose records are not durable holds the request back for all: its row, which acknowledges them, is
        # among the changes that the next request contains.
        if self._in_flight or self._pause is not None or self._unsynced:
            return
        unsettled = [each for each in self._unsettled.values() if each.timer is None]
        if unsettled:
            self._ask_epoch_ends(unsettled)
        elif len(self._session):
            self._send_request()

    def _send_request(self) -> None:
        world = self._world
        ask = self._session.next_request()
        head = world.peers.request_head(ApiKey.FETCH, self._version)
        body = self._encode(world.fence.broker_epoch, ask.session_id, ask.epoch, ask.wanted, ask.forgotten)
        self._in_flight = True
        self._attempt += 1
        attempt, lane = self._attempt, self._idle_lanes.pop(0)

        def on_response(answer: memoryview | Failure) -> None:
            # Also for an abandoned request, whose connection is free only now. Sorted, so that the first connection is
            # preferred.
            self._idle_lanes.append(lane)
            # The name of the main connection is a prefix of the others', so it is the first one whenever it is idle.
            self._idle_lanes.sort()
            if attempt == self._attempt:
                self._on_fetch_response(answer)

        world.peers.send_frame(self.leader, head + body, self._timeout_ms, on_response, lane)

    def _on_fetch_response(self, answer: memoryview | Failure) -> None:
        self._in_flight = False
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None
        # Two truth values: they are equal when the leader has stopped or begun to respond.
        if self._is_responding is isinstance(answer, Failure):
            self._is_responding = not self._is_responding
            self._world.on_responding(self.leader, self._is_responding)
        if isinstance(answer, Failure):
            self._pause_and_retry(answer)
            return
        try:
            read = self._decode(answer, response_body_pos(ApiKey.FETCH, self._version, answer))
        except MalformedMessage as error:
            self._pause_and_retry(error)
            return
        self._session.on_response(read.error, read.session_id)
        if read.error and read.error not in SESSION_ERRORS:
            self._pause_and_retry(f"error {read.error}")
        else:
            self._take_response(read)

    def _pause_and_retry(self, why: object) -> None:
        """Pause, then send a full request, after no response, a malformed one, or an error of the whole request."""
        self._session.on_lost()
        wait_ms = self._backoff.next_ms()
        _logger.info("fetch from broker %d failed: %s; retrying in %d ms", self.leader, why, wait_ms)
        self._pause = self._world.purgatory.look_after(wait_ms, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._schedule_fetch()

    # -- responses -----------------------------------------------------------------------------------------------------

    def _take_response(self, answer: Answer) -> None:
        self._backoff.reset_wait()
        for row in answer.rows:
            following = self._followed.get(row[:2])
            # A partition whose leader epoch or position has changed meanwhile is not yet requested with it.
            if following is not None and self._session.leader_knows(following.key):
                self._take_row(following, row)
        self._schedule_fetch()

    def _take_row(self, following: PartitionFetchState, row: Row) -> None:
        _, _, error, high_watermark, log_start, diverging, records = row
        if error:
            self._on_refused(following, error)
            return
        try:
            if diverging is not None:
                self._cut_partition(following, *diverging)
            else:
                self._append_partition(following, records, high_watermark, log_start)
        except ApiError as refusal:
            self._on_failed(following, refusal.as_value())

    def _append_partition(
        self, following: PartitionFetchState, records: memoryview, high_watermark: int, log_start: int
    ) -> None:
        """Append, then take the high watermark, which must not pass the own log end. Raises ApiError."""
        partition = following.partition
        before = partition.log.end_offset
        if len(records):
            end = partition.follower_role.append(records, following.leader_epoch)
            if not self._world.throttle.is_idle and self._world.throttle.applies_to(partition.tp):
                self._world.throttle.record_bytes(len(records), self._world.clock.now().mono_ns)
            if end == before:
                # The same fetch again would have the same response. After an error it is repeated with a growing pause.
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{len(records)} bytes do not contain a whole batch")
        partition.follower_role.take_from_leader(high_watermark, log_start)
        # Before the next row is made: the throttle exempts a partition without a lag.
        following.lag = max(0, high_watermark - partition.log.end_offset)
        following.backoff.reset_wait()
        self._request_partition(following)

    def _cut_partition(self, following: PartitionFetchState, leader_epoch: int, leader_end: int) -> None:
        """Truncate the log where it diverges from the leader's, then compare again. Raises ApiError."""
        partition = following.partition
        log = partition.log
        before = (log.end_offset, log.epochs.latest)
        cut = where_to_cut(
            leader_epoch, leader_end, log.epochs.end_offset_for, log.end_offset, partition.high_watermark
        )
        # Whether the cut is complete does not matter here: the next fetch names the new last epoch, so the leader
        # compares again.
        self._truncate_partition(following, cut.offset)
        if (log.end_offset, log.epochs.latest) == before:
            # Otherwise the leader and this broker would exchange the same two messages for ever, without a pause.
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"epoch {leader_epoch} ends at {leader_end}: nothing to truncate")
        self._request_partition(following)

    def _truncate_partition(self, following: PartitionFetchState, offset: int) -> None:
        partition = following.partition
        if offset < partition.log.end_offset:
            level = logging.WARNING if offset < partition.high_watermark else logging.INFO
            _logger.log(
                level,
                "truncating %s from offset %d to %d (high watermark %d); broker %d leads it in epoch %d",
                *(partition.tp, partition.log.end_offset, offset, partition.high_watermark),
                *(self.leader, following.leader_epoch),
            )
        partition.follower_role.truncate_to(offset)

    def _on_failed(self, following: PartitionFetchState, refusal: ApiError) -> None:
        """Handle a result that could not be applied to the log."""
        # 1. The partition has another role or leader epoch by now.
        if refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.remove_partition(following.partition)
        # 2. It cannot succeed here. 3. Perhaps it does from the next response.
        elif refusal.code is ErrorCode.RECORD_LIST_TOO_LARGE or following.partition.log.home.offline is not None:
            self._stop_fetching(following, str(refusal))
        else:
            _logger.warning("could not append %s from broker %d: %s", following.partition.tp, self.leader, refusal)
            self._back_off(following, refusal)

    def _on_refused(self, following: PartitionFetchState, error: int) -> None:
        """Handle the leader's error for a partition. After a fenced epoch the controller sends a new state."""
        # Errors that are not named here pass: UNKNOWN_LEADER_EPOCH and NOT_LEADER_OR_FOLLOWER when the new leader has
        # received its LeaderAndIsr.
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(following)
        elif error == ErrorCode.FENCED_LEADER_EPOCH:
            self._stop_fetching(following, f"leader epoch {following.leader_epoch} is over")
        else:
            self._back_off(following, f"error {error}")

    # -- positions -----------------------------------------------------------------------------------------------------

    def _ask_epoch_ends(self, unsettled: list[PartitionFetchState]) -> None:
        """Ask a leader older than Fetch v12 where its epochs ended; the partitions are fetched after that."""
        questions = [
            OffsetQuery(each.partition.tp, each.leader_epoch, each.partition.log.epochs.latest) for each in unsettled
        ]
        self._in_flight = True
        self._attempt += 1
        attempt = self._attempt

        def on_response(answers: OffsetResults | Failure) -> None:
            if attempt != self._attempt:
                return
            self._in_flight = False
            if isinstance(answers, Failure):
                self._pause_and_retry(answers)
                return
            for each in unsettled:
                if self._is_followed(each):
                    self._on_settled(each, answers.get(each.partition.tp))
            self._schedule_fetch()

        self._world.questions.epoch_ends(self.leader, questions, on_response)

    def _on_settled(self, following: PartitionFetchState, found: OffsetResult | None) -> None:
        if found is None or found.error:
            self._on_no_position(following, found)
            return
        partition = following.partition
        log = partition.log
        cut = where_to_cut(
            found.epoch, found.offset, log.epochs.end_offset_for, log.end_offset, partition.high_watermark
        )
        try:
            self._truncate_partition(following, cut.offset)
        except ApiError as refusal:
            self._on_failed(following, refusal.as_value())
            return
        if cut.complete or log.epochs.latest < 0:
            del self._unsettled[following.key]
            self._request_partition(following)

    def _on_no_position(self, following: PartitionFetchState, found: OffsetResult | None) -> None:
        if found is not None and found.error is ErrorCode.FENCED_LEADER_EPOCH:
            self._stop_fetching(following, f"leader epoch {following.leader_epoch} is over")
        else:
            self._back_off(following, "no answer" if found is None else found.error.name)

    def _out_of_range(self, following: PartitionFetchState) -> None:
        """Find a new position when the leader does not have the fetch offset.

        Either its log is shorter (an unclean election), or it has deleted records beyond the offset. The partition is
        not fetched meanwhile.
        """
        self._session.drop_partition(following.key)
        tp, epoch = following.partition.tp, following.leader_epoch
        question = OffsetQuery(tp, epoch, epoch)

        def on_response(answers: OffsetResults | Failure) -> None:
            found = None if isinstance(answers, Failure) else answers.get(tp)
            if self._is_followed(following):
                self._take_leader_end(following, question, found)

        self._world.questions.epoch_ends(self.leader, [question], on_response)

    def _take_leader_end(
        self, following: PartitionFetchState, question: OffsetQuery, found: OffsetResult | None
    ) -> None:
        # 1. No position yet. 2. The leader's log is shorter: cut to its end. 3. It is not: perhaps it begins above this
        # log's end.
        if found is None or found.error or found.offset < 0:
            self._on_no_position(following, found)
        # The end first, as Kafka's follower does. If the leader's log is shorter, its log start cannot be the reason.
        elif found.offset < following.partition.log.end_offset:
            self._move_partition(following, lambda: self._truncate_partition(following, found.offset))
        else:
            self._ask_log_start(following, question)

    def _ask_log_start(self, following: PartitionFetchState, question: OffsetQuery) -> None:
        def on_response(answers: OffsetResults | Failure) -> None:
            found = None if isinstance(answers, Failure) else answers.get(question.tp)
            if self._is_followed(following):
                self._take_log_start(following, found)

        self._world.questions.log_start(self.leader, question, on_response)

    def _take_log_start(self, following: PartitionFetchState, found: OffsetResult | None) -> None:
        partition = following.partition
        if found is None or found.error or found.offset < 0:
            self._on_no_position(following, found)
        elif found.offset > partition.log.end_offset:
            _logger.warning(
                "%s ends at offset %d, the log of broker %d begins at %d: deleting the log and fetching from there",
                *(partition.tp, partition.log.end_offset, self.leader, found.offset),
            )
            self._move_partition(following, lambda: partition.follower_role.restart_at(found.offset))
        else:
            self._back_off(following, "the offset was out of range, but is in range by now")

    def _move_partition(self, following: PartitionFetchState, action: Callable[[], None]) -> None:
        """Change the end of a log, then fetch from there."""
        try:
            action()
        except ApiError as refusal:
            self._on_failed(following, refusal.as_value())
        else:
            self._request_partition(following)
        self._schedule_fetch()
