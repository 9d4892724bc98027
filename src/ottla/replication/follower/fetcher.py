"""A follower's loop: one request at a time to one leader broker, for all partitions that it leads and we follow.

Zone: deterministic. When to ask, what to do with each partition's answer, and when a partition has to wait. Positions
come from the logs; what the leader knows already is the session's knowledge; who is followed is the manager's decision.

Every partition begins in its leader epoch with the position and epoch of its last record; a leader whose log has
something else there answers where both part, and nothing else: so a log is cut before the first append (KIP-595). To a
leader of before Fetch v12 the same question goes by OffsetForLeaderEpoch first.

Fetching an offset acknowledges all below it. So with flush.messages the next request waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.timing_wheel import Timer
from ottla.replication.follower.fetcher_context import FetcherContext
from ottla.replication.follower.follower_session import SESSION_ERRORS, FollowerSession, Key
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
"""From this version of Fetch on the answer says where logs part."""
IMPATIENCE_MS: Final = 10
"""How long a partition just added waits behind a request that is under way. After an election the new leader commits
nothing before its followers have fetched from it, and the request before may wait half a second for records."""
LANES: Final = 4
"""Connections of one fetcher at most."""
THROTTLE_LOOK_MS: Final = 100
"""How often it is looked whether throttled partitions may go on."""
_logger = logging.getLogger(__name__)


class ReplicaFetcher:
    """Fetches from one leader broker."""

    def __init__(self, world: FetcherContext, leader: int, lane: str) -> None:
        """`lane` names the connection it uses, for itself alone; it has others to get past itself."""
        self.leader = leader
        self._world = world
        self._idle_lanes = [lane, *(f"{lane}-past-{number}" for number in range(1, LANES))]
        """On which no request is under way, given up or not."""
        settings = world.settings
        self._version = settings.version
        limits = Limits(world.fence.node_id, settings.wait_max_ms, settings.min_bytes, settings.response_max_bytes)
        self._encode = encode_replica_fetch(settings.version, limits)
        self._decode = decode_replica_fetch(settings.version)
        self._timeout_ms = max(settings.socket_timeout_ms, settings.wait_max_ms)
        self._session = FollowerSession()
        self._followed: dict[Key, PartitionFetchState] = {}
        self._unsettled: dict[Key, PartitionFetchState] = {}
        """Whose logs may part from the leader's: to be asked by OffsetForLeaderEpoch before the first fetch."""
        self._unsynced: dict[Key, PartitionFetchState] = {}
        """What they have is not durable yet: the next request waits for it."""
        self._held: dict[Key, PartitionFetchState] = {}
        """Those that the throttle keeps waiting."""
        self._throttle_timer: Timer | None = None
        self._in_flight = False
        self._hears = False
        """Whether the leader answered the last request."""
        self._attempt = 0
        """Number of the newest request: an answer to an earlier one, which was given up, is passed over."""
        self._impatient: Timer | None = None
        self._planned = False
        self._pause: Timer | None = None
        self._backoff = Backoff(settings.backoff_ms)

    def __len__(self) -> int:
        return len(self._followed)

    @property
    def max_lag(self) -> int:
        """Records that the partition furthest behind lacks."""
        return max((each.lag for each in self._followed.values()), default=0)

    # -- who is followed -----------------------------------------------------------------------------------------------

    def key_of(self, partition: Partition) -> Key:
        """How a partition is named towards the leader."""
        return (partition.topic_id if self._version >= FIRST_WITH_IDS else partition.tp.topic), partition.tp.partition

    def add(self, partition: Partition) -> None:
        """Follow a partition in its present leader epoch, from the end of its log."""
        key = self.key_of(partition)
        self.remove_partition(partition)
        following = PartitionFetchState(partition, key, Backoff(self._world.settings.backoff_ms))
        self._followed[key] = following
        if self._version < DIVERGENCE_VERSION and partition.log.epochs.latest >= 0:
            self._unsettled[key] = following
        else:
            self._want(following)
        self._hurry()

    def remove_partition(self, partition: Partition) -> None:
        """Follow it no more; what is under way for it will be passed over."""
        key = self.key_of(partition)
        following = self._followed.pop(key, None)
        if following is None:
            return
        following.stop_waiting()
        for table in (self._unsettled, self._unsynced, self._held):
            table.pop(key, None)
        self._session.drop(key)
        self._plan()

    def on_synced(self, partition: Partition) -> None:
        """A flush of its log has ended."""
        following = self._unsynced.get(self.key_of(partition))
        if following is not None and not following.must_sync:
            del self._unsynced[following.key]
            self._plan()

    def _follows(self, following: PartitionFetchState) -> bool:
        """Whether that is still so: a completion asks this first."""
        return self._followed.get(following.key) is following

    def _want(self, following: PartitionFetchState) -> None:
        """Ask for it with the next request, from where it is now."""
        if self._must_hold(following):
            self._hold_partition(following)
            return
        self._session.want(following.row(self._world.settings.max_bytes))
        if following.must_sync and self._world.safeguards.follower_sync_before_ack:
            self._unsynced[following.key] = following

    def _give_up(self, following: PartitionFetchState, why: str) -> None:
        _logger.info("%s is fetched from broker %d no more: %s", following.partition.tp, self.leader, why)
        self.remove_partition(following.partition)
        self._world.gave_up(following.partition)

    def _delay(self, following: PartitionFetchState, why: object) -> None:
        """Something is wrong with it; look again in a while."""
        self._session.drop(following.key)
        wait_ms = following.backoff.next_ms()
        _logger.debug("%s from broker %d: %s; again in %d ms", following.partition.tp, self.leader, why, wait_ms)
        following.stop_waiting()
        following.timer = self._world.purgatory.look_after(wait_ms, lambda: self._retry_partition(following))

    def _retry_partition(self, following: PartitionFetchState) -> None:
        if self._follows(following):
            following.timer = None
            if following.key not in self._unsettled:
                self._want(following)
            if following.backoff.is_young:
                self._hurry()
            else:
                self._plan()

    # -- asking at once ------------------------------------------------------------------------------------------------

    def _hurry(self) -> None:
        """Something new is to be asked, as just after an election: soon, whatever was waited for."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._backoff.reset()
        if not self._in_flight:
            self._plan()
        elif self._impatient is None:
            self._impatient = self._world.purgatory.after(IMPATIENCE_MS, self._get_past)

    def _get_past(self) -> None:
        """Give the request under way up for one on another connection, in a session of its own.

        When all are busy, there have just been so many hurries: then the next answer is waited for.
        """
        self._impatient = None
        if self._in_flight and self._idle_lanes and not self._unsettled:
            self._in_flight = False
            self._attempt += 1
            self._session.on_lost()
            self._plan()

    # -- asking --------------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Ask when this turn's input is through, unless something is to be waited for."""
        if not (self._planned or self._in_flight or self._pause is not None):
            self._planned = True
            self._world.later(self._send_fetch)

    def _send_fetch(self) -> None:
        self._planned = False
        if self._in_flight or self._pause is not None or self._unsynced:
            return
        unsettled = [each for each in self._unsettled.values() if each.timer is None]
        if unsettled:
            self._settle(unsettled)
        elif len(self._session):
            self._fetch()

    def _fetch(self) -> None:
        world = self._world
        ask = self._session.next_ask()
        head = world.peers.head(ApiKey.FETCH, self._version)
        body = self._encode(world.fence.broker_epoch, ask.session_id, ask.epoch, ask.wanted, ask.forgotten)
        self._in_flight = True
        self._attempt += 1
        attempt, lane = self._attempt, self._idle_lanes.pop(0)

        def on_response(answer: memoryview | Failure) -> None:
            self._idle_lanes.append(lane)
            self._idle_lanes.sort()
            if attempt == self._attempt:
                self._on_fetch_response(answer)

        world.peers.send(self.leader, head + body, self._timeout_ms, on_response, lane)

    def _on_fetch_response(self, answer: memoryview | Failure) -> None:
        self._in_flight = False
        if self._impatient is not None:
            self._impatient.cancel()
            self._impatient = None
        if self._hears is isinstance(answer, Failure):
            self._hears = not self._hears
            self._world.heard(self.leader, self._hears)
        if isinstance(answer, Failure):
            self._retry(answer)
            return
        try:
            read = self._decode(answer, response_body_pos(ApiKey.FETCH, self._version, answer))
        except MalformedMessage as error:
            self._retry(error)
            return
        self._session.on_response(read.error, read.session_id)
        if read.error and read.error not in SESSION_ERRORS:
            self._retry(f"error {read.error}")
        else:
            self._take_response(read)

    def _retry(self, why: object) -> None:
        """The leader did not answer, or not so that it can be understood."""
        self._session.on_lost()
        wait_ms = self._backoff.next_ms()
        _logger.info("fetch from broker %d: %s; again in %d ms", self.leader, why, wait_ms)
        self._pause = self._world.purgatory.look_after(wait_ms, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._plan()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _take_response(self, answer: Answer) -> None:
        self._backoff.reset()
        for row in answer.rows:
            following = self._followed.get(row[:2])
            # A partition that was given another epoch meanwhile has not been asked for in it yet.
            if following is not None and self._session.knows(following.key):
                self._take_row(following, row)
        self._plan()

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
        """Append, then take the high watermark: never one of records that are not here. Raises ApiError."""
        partition = following.partition
        before = partition.log.end_offset
        if len(records):
            end = partition.append_as_follower(records, following.leader_epoch)
            if not self._world.throttle.idle and self._world.throttle.applies(partition.tp):
                self._world.throttle.record(len(records), self._world.clock.now().mono_ns)
            if end == before:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{len(records)} bytes without a whole batch")
        partition.take_from_leader(high_watermark, log_start)
        following.lag = max(0, high_watermark - partition.log.end_offset)
        following.backoff.reset()
        self._want(following)

    def _cut_partition(self, following: PartitionFetchState, leader_epoch: int, leader_end: int) -> None:
        """The logs part: cut ours, and compare again from there. Raises ApiError."""
        partition = following.partition
        log = partition.log
        before = (log.end_offset, log.epochs.latest)
        cut = where_to_cut(
            leader_epoch, leader_end, log.epochs.end_offset_for, log.end_offset, partition.high_watermark
        )
        self._truncate_partition(following, cut.offset)
        if (log.end_offset, log.epochs.latest) == before:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"epoch {leader_epoch} ends at {leader_end}: nothing to cut")
        self._want(following)

    def _truncate_partition(self, following: PartitionFetchState, offset: int) -> None:
        partition = following.partition
        if offset < partition.log.end_offset:
            level = logging.WARNING if offset < partition.high_watermark else logging.INFO
            _logger.log(
                level,
                "%s is cut from offset %d to %d (high watermark %d), broker %d leads in epoch %d",
                *(partition.tp, partition.log.end_offset, offset, partition.high_watermark),
                *(self.leader, following.leader_epoch),
            )
        partition.truncate_to(offset)

    def _on_failed(self, following: PartitionFetchState, refusal: ApiError) -> None:
        """An answer could not be taken over."""
        if refusal.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.remove_partition(following.partition)
        elif refusal.code is ErrorCode.RECORD_LIST_TOO_LARGE or following.partition.log.offline is not None:
            self._give_up(following, str(refusal))
        else:
            _logger.warning("%s from broker %d: %s", following.partition.tp, self.leader, refusal)
            self._delay(following, refusal)

    def _on_refused(self, following: PartitionFetchState, error: int) -> None:
        """The leader has nothing but an error for a partition."""
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(following)
        elif error == ErrorCode.FENCED_LEADER_EPOCH:
            self._give_up(following, f"epoch {following.leader_epoch} is over")
        else:
            self._delay(following, f"error {error}")

    # -- positions that have to be found out ---------------------------------------------------------------------------

    def _settle(self, unsettled: list[PartitionFetchState]) -> None:
        """Ask a leader of before Fetch v12 where its epochs ended; no fetch before that."""
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
                self._retry(answers)
                return
            for each in unsettled:
                if self._follows(each):
                    self._on_settled(each, answers.get(each.partition.tp))
            self._plan()

        self._world.questions.epoch_ends(self.leader, questions, on_response)

    def _on_settled(self, following: PartitionFetchState, found: OffsetResult | None) -> None:
        if found is None or found.error:
            self._not_found(following, found)
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
            self._want(following)

    def _not_found(self, following: PartitionFetchState, found: OffsetResult | None) -> None:
        if found is not None and found.error is ErrorCode.FENCED_LEADER_EPOCH:
            self._give_up(following, f"epoch {following.leader_epoch} is over")
        else:
            self._delay(following, "no answer" if found is None else found.error.name)

    def _out_of_range(self, following: PartitionFetchState) -> None:
        """The leader has not this offset: it is behind (an unclean election), or has deleted so far.

        Meanwhile the partition is not asked for.
        """
        self._session.drop(following.key)
        tp, epoch = following.partition.tp, following.leader_epoch
        question = OffsetQuery(tp, epoch, epoch)

        def on_response(answers: OffsetResults | Failure) -> None:
            found = None if isinstance(answers, Failure) else answers.get(tp)
            if self._follows(following):
                self._take_leader_end(following, question, found)

        self._world.questions.epoch_ends(self.leader, [question], on_response)

    def _take_leader_end(
        self, following: PartitionFetchState, question: OffsetQuery, found: OffsetResult | None
    ) -> None:
        if found is None or found.error or found.offset < 0:
            self._not_found(following, found)
        elif found.offset < following.partition.log.end_offset:
            self._move_partition(following, lambda: self._truncate_partition(following, found.offset))
        else:
            self._ask_log_start(following, question)

    def _ask_log_start(self, following: PartitionFetchState, question: OffsetQuery) -> None:
        def on_response(answers: OffsetResults | Failure) -> None:
            found = None if isinstance(answers, Failure) else answers.get(question.tp)
            if self._follows(following):
                self._take_log_start(following, found)

        self._world.questions.log_start(self.leader, question, on_response)

    def _take_log_start(self, following: PartitionFetchState, found: OffsetResult | None) -> None:
        partition = following.partition
        if found is None or found.error or found.offset < 0:
            self._not_found(following, found)
        elif found.offset > partition.log.end_offset:
            _logger.warning(
                "%s ends at %d, broker %d begins at %d: it begins there anew",
                *(partition.tp, partition.log.end_offset, self.leader, found.offset),
            )
            self._move_partition(following, lambda: partition.restart_at(found.offset))
        else:
            self._delay(following, "out of range, though it is within by now")

    def _move_partition(self, following: PartitionFetchState, action: Callable[[], None]) -> None:
        """Change a log's end, then fetch from there."""
        try:
            action()
        except ApiError as refusal:
            self._on_failed(following, refusal.as_value())
        else:
            self._want(following)
        self._plan()

    # -- throttle ------------------------------------------------------------------------------------------------------

    def _must_hold(self, following: PartitionFetchState) -> bool:
        """Whether the throttle keeps it: a replica that has caught up never waits."""
        throttle = self._world.throttle
        if throttle.idle or following.lag == 0 or not throttle.applies(following.partition.tp):
            return False
        return throttle.exceeded(self._world.clock.now().mono_ns)

    def _hold_partition(self, following: PartitionFetchState) -> None:
        self._session.drop(following.key)
        self._held[following.key] = following
        if self._throttle_timer is None:
            self._throttle_timer = self._world.purgatory.after(THROTTLE_LOOK_MS, self._look_at_throttle)

    def _look_at_throttle(self) -> None:
        self._throttle_timer = None
        held, self._held = self._held, {}
        for each in held.values():
            self._want(each)
        self._plan()
