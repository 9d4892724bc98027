"""All transactions that this broker coordinates: their shards, producer ids, and the markers to write.

Zone: deterministic. Finds the shard of a transactional id, fetches producer ids and sends markers; decides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Final, Protocol

from ottla.broker_client import BrokerClient
from ottla.coordinator.coordinator import Coordinator
from ottla.coordinator.shard_runtime import RuntimeContext, ShardRuntime, ShardState
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.purgatory.timing_wheel import Timer
from ottla.record.control import Marker
from ottla.replication.marker_handlers import TransactionEnd, WriteHere
from ottla.replication.partition.partition import Partition
from ottla.seams import Done, Failure
from ottla.transactions.commands import (
    EndTransaction,
    InitProducerId,
    ListTransactions,
    Markers,
    MarkersWritten,
    ResumeMarkers,
    TransactionCommand,
)
from ottla.transactions.machine import Policy, TransactionMachine
from ottla.transactions.markers import HAS_IT, RETRY_MIN_MS, MarkerBatch, MarkerQueue, PartitionsMarked
from ottla.transactions.state import BUMPED, Transaction
from ottla.types import TopicPartition
from ottla.wire.messages.end_txn import WriteTxnMarkersResponse

TOPIC: Final = "__transaction_state"
MARKERS_VERSION: Final = 2
OLD_MARKERS_VERSION: Final = 1
"""The version of WriteTxnMarkers without transaction versions."""
MARKERS_LANE: Final = "transaction markers"
FEW_PARTITIONS: Final = 4
"""A transaction with at most this many partitions, all led here, has its markers written without the queue …"""
FEW_ENDS: Final = 50
"""… if fewer than this many transactions ended before it in the same turn."""
_NS_PER_MS: Final = 1_000_000
_logger = logging.getLogger(__name__)
_new = tuple.__new__  # a third of the time of the classes' own


class IdSource(Protocol):
    """The source of producer ids."""

    def take_producer_id(self, done: Done[int]) -> None:
        """Pass an unused id to `done`, possibly within this call."""
        ...


class ClusterView(Protocol):
    """The view of the cluster that transactions need."""

    def index_of(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` of a transactional id; -1 when the topic does not exist."""
        ...

    def is_to_lead(self, index: int) -> bool:
        """Whether the cluster expects this broker to lead a partition of `__transaction_state`."""
        ...

    def epoch_of(self, index: int) -> int:
        """The leader epoch of a partition of `__transaction_state` that is led here."""
        ...

    def leader_of(self, tp: TopicPartition) -> int | None:
        """The broker that leads a partition; None while there is no leader. Raises KeyError for a deleted partition."""
        ...


class OneTransaction(TransactionCommand, Protocol):
    """A command about one transactional id."""

    @property
    def transactional_id(self) -> str:
        """The transactional id; its shard handles the command."""
        ...


class Transactions:
    """Passes commands to the shards of transactional ids. Implements `TransactionEffects` for their state machines."""

    def __init__(
        self,
        tools: RuntimeContext,
        policy: Policy,
        ids: IdSource,
        peers: BrokerClient,
        around: ClusterView,
        here: tuple[int, WriteHere] | None,
        request_timeout_ms: int = 30_000,
    ) -> None:
        """`tools` have a TransactionCodec. `here`: this broker's id, and the function that writes markers to its own
        partitions; None: it gets requests like all others. `request_timeout_ms`: the time-out of requests with markers.
        """
        self.coordinator: Coordinator[TransactionMachine] = Coordinator(TOPIC, tools, self._make_machine)
        self._tools = tools
        self._policy = policy
        self._ids = ids
        self._peers = peers
        self._around = around
        self._request_timeout_ms = request_timeout_ms
        self._markers = MarkerQueue(around.leader_of)
        self.here = here
        self._at_hand: list[Markers] = []
        """Markers of small transactions of this turn. At its end they are written here, or move to the queue."""
        self._written_here: dict[str, Markers] = {}
        """By transactional id, markers that are written here without the queue, until the state machine records it."""
        self._planned = False
        self._timer: Timer | None = None
        self._timer_ns = 0

    def _make_machine(self, index: int) -> TransactionMachine:
        return TransactionMachine(self._policy, self, self._around.epoch_of(index))

    def submit_command(self, command: OneTransaction) -> None:
        """Pass a command to the shard of its transactional id.

        Its ticket gets NOT_COORDINATOR when this broker does not lead the partition, and COORDINATOR_LOAD_IN_PROGRESS
        when it is about to: clients would find no other coordinator.
        """
        index = self._around.index_of(command.transactional_id)
        runner = self.coordinator.find_shard(index)
        if runner is not None:
            runner.submit_command(command)
        elif self._around.is_to_lead(index):
            text = f"this broker is about to lead {TOPIC}-{index}"
            command.ticket(ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text))
        else:
            self.coordinator.submit_command(index, command)

    def shard_of(self, transactional_id: str) -> ShardRuntime | None:
        """The shard of a transactional id; None when it is not here."""
        return self.coordinator.find_shard(self._around.index_of(transactional_id))

    def machines(self) -> Iterator[TransactionMachine]:
        """The state machines that serve (read only)."""
        return (machine for _, machine in self.coordinator.active_shards())

    @property
    def loading_count(self) -> int:
        """The number of partitions that are loading, whose transactions are not known yet."""
        return self.coordinator.count_shards(ShardState.LOADING)

    @property
    def pending_count(self) -> int:
        """Decided transactions whose markers are not all written."""
        return len(self._markers) + len(self._at_hand) + len(self._written_here)

    def list_all(self, done: Callable[[Mapping[str, Transaction] | ApiError], None]) -> None:
        """Pass all transactions of this broker to `done`; or COORDINATOR_LOAD_IN_PROGRESS while a shard is loading, or
        the first error of a shard.
        """
        if self.loading_count:
            done(ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "transactions are being loaded"))
            return
        gather: FanIn[Mapping[str, Transaction] | ApiError] = FanIn(lambda outcomes: done(_join_outcomes(outcomes)))
        for index, _ in list(self.coordinator.active_shards()):
            self.coordinator.submit_command(index, ListTransactions(gather.new_slot()))
        gather.close_slots()

    def on_role(self, partition: Partition) -> None:
        """The role of a partition of any topic has changed. Markers of another leader epoch are dropped."""
        self.coordinator.on_role(partition)
        if partition.tp.topic == TOPIC:
            # Queued after the coordinator's own check of the role, which creates or drops the shards that `_is_ours`
            # looks at.
            self._tools.later(self._drop_foreign_markers)

    def stop_coordinator(self) -> None:
        """Refuse all waiting requests: the logs are about to be closed."""
        self.coordinator.stop_shards()
        self._drop_foreign_markers()
        if self._timer is not None:
            self._timer.cancel()

    def _drop_foreign_markers(self) -> None:
        self._markers.drop_markers(self._is_ours)
        self._at_hand = [markers for markers in self._at_hand if self._is_ours(markers)]
        self._written_here = {name: each for name, each in self._written_here.items() if self._is_ours(each)}

    def _is_ours(self, markers: Markers) -> bool:
        runner = self.coordinator.find_shard(self._around.index_of(markers.transactional_id))
        return runner is not None and runner.epoch == markers.coordinator_epoch

    # -- effects of the state machines ---------------------------------------------------------------------------------

    def take_id(self, command: InitProducerId | EndTransaction) -> None:
        """Fetch a producer id and submit the command again with it."""
        # In a later turn: the source may call back within this call, and an effect must not call into the state
        # machine.
        self._ids.take_producer_id(lambda outcome: self._tools.later(lambda: self._with_id(command, outcome)))

    def _with_id(self, command: InitProducerId | EndTransaction, outcome: int | Failure) -> None:
        if isinstance(outcome, Failure):
            text = f"no producer id is available: {outcome.message}"
            command.ticket(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text))
        else:
            # Decided from the beginning, because the state may have changed. An id that is not needed then is lost,
            # which costs nothing.
            self.submit_command(command._replace(fresh_id=outcome))

    def send_markers(self, markers: Markers) -> None:
        """Write markers until all partitions have them."""
        # Most transactions are small and local. With many ends in one turn the queue is cheaper: it batches.
        if (
            self.here is not None
            and len(markers.partitions) <= FEW_PARTITIONS
            and len(self._at_hand) < FEW_ENDS
            and markers.transactional_id not in self._markers
        ):
            if not self._at_hand:
                self._tools.later(self._write_at_hand)
            self._at_hand.append(markers)
        else:
            # What these replace is ignored from now on (`_on_written_here`).
            self._written_here.pop(markers.transactional_id, None)
            self._markers.add_markers(markers)
            self._plan_sending()

    def resume_markers(self, transactional_id: str) -> None:
        """Submit ResumeMarkers in a later turn: the state machine sends the markers that are missing."""
        self._tools.later(lambda: self.submit_command(ResumeMarkers(transactional_id, _do_nothing)))

    # -- markers -------------------------------------------------------------------------------------------------------

    def _write_at_hand(self) -> None:
        """Write the markers of small transactions to partitions of this broker. If that fails, the queue takes them."""
        at_hand, self._at_hand = self._at_hand, []
        for markers in at_hand:
            self._written_here[markers.transactional_id] = markers
            if self.here is not None and self._all_led_by(self.here[0], markers.partitions):
                self._write_here(markers, self.here[1])
            else:
                self._send_by_queue(markers)

    def _all_led_by(self, node: int, partitions: Sequence[TopicPartition]) -> bool:
        leader_of = self._around.leader_of
        try:
            for tp in partitions:
                if leader_of(tp) != node:
                    return False
        except KeyError:
            return False
        return True

    def _write_here(self, markers: Markers, write: WriteHere) -> None:
        later = self._tools.later
        places = _partition_ends(markers, markers.partitions)
        write(places, lambda codes: later(partial(self._on_written_here, markers, codes)))

    def _on_written_here(self, markers: Markers, codes: Sequence[ErrorCode]) -> None:
        if self._written_here.get(markers.transactional_id) is not markers:
            return
        for code in codes:
            # The markers that were written here are written again by the queue: their partitions recognise them.
            if code not in HAS_IT:
                self._send_by_queue(markers, RETRY_MIN_MS)
                return
        ticket = partial(self._on_noted_here, markers)
        self.submit_command(_new(MarkersWritten, (markers[0], markers[1], markers.partitions, ticket)))

    def _on_noted_here(self, markers: Markers, outcome: ApiError | None) -> None:
        if self._written_here.get(markers.transactional_id) is not markers:
            return
        if outcome is None:
            del self._written_here[markers.transactional_id]
        else:
            self._send_by_queue(markers, RETRY_MIN_MS)

    def _send_by_queue(self, markers: Markers, delay_ms: int = 0) -> None:
        del self._written_here[markers.transactional_id]
        not_before_ns = self._tools.clock.now().mono_ns + delay_ms * _NS_PER_MS if delay_ms else 0
        self._markers.add_markers(markers, not_before_ns)
        self._plan_sending()

    def _plan_sending(self) -> None:
        """Plan to send at the end of this turn, so that all markers of the turn share requests."""
        if not self._planned:
            self._planned = True
            self._tools.later(self._send_due_markers)

    def _send_due_markers(self) -> None:
        self._planned = False
        now_ns = self._tools.clock.now().mono_ns
        batches, gone = self._markers.drain_due_markers(now_ns)
        for written in gone:
            self._submit_written(written)
        for batch in batches:
            self._send_batch(batch)
        self._arm_queue_timer(now_ns)

    def _send_batch(self, batch: MarkerBatch) -> None:
        if self.here is not None and self.here[0] == batch.node:
            self.here[1](_batch_ends(batch), lambda codes: self._tools.later(lambda: self._on_written(batch, codes)))
            return
        self._peers.send_request(
            batch.node,
            batch.request,
            self._markers_version(batch),
            self._request_timeout_ms,
            lambda answer: self._on_marker_response(batch, answer),
            MARKERS_LANE,
        )

    def _markers_version(self, batch: MarkerBatch) -> int:
        # A transaction that a producer began before a downgrade keeps its version to its end.
        newest = max((marker.transaction_version for marker in batch.request.markers), default=0)
        return MARKERS_VERSION if max(newest, self._policy.version.level) >= BUMPED else OLD_MARKERS_VERSION

    def _on_marker_response(self, batch: MarkerBatch, answer: WriteTxnMarkersResponse | Failure) -> None:
        if isinstance(answer, Failure):
            _logger.info(
                "broker %d did not answer a request with markers of %d transactions, sending it again: %s",
                batch.node,
                len(batch.parts),
                answer,
            )
        response = None if isinstance(answer, Failure) else answer
        self._take_written(self._markers.on_marker_response(batch, response, self._tools.clock.now().mono_ns))

    def _on_written(self, batch: MarkerBatch, codes: Sequence[ErrorCode]) -> None:
        """Partitions of this broker have written, or refused, their markers."""
        self._take_written(self._markers.on_marker_codes(batch, codes, self._tools.clock.now().mono_ns))

    def _take_written(self, news: Sequence[PartitionsMarked]) -> None:
        for written in news:
            self._submit_written(written)
        if not self._markers.is_idle:
            self._plan_sending()

    def _submit_written(self, written: PartitionsMarked) -> None:
        markers = written.markers
        self.submit_command(
            MarkersWritten(
                markers.transactional_id,
                markers.identity,
                written.partitions,
                lambda outcome: self._on_written_applied(written, outcome),
            )
        )

    def _on_written_applied(self, written: PartitionsMarked, outcome: ApiError | None) -> None:
        if outcome is None:
            self._markers.mark_written(written)
        else:
            self._markers.put_back(written, self._tools.clock.now().mono_ns)
            self._plan_sending()

    def _arm_queue_timer(self, now_ns: int) -> None:
        """Set the timer for the queue's deadline, unless an earlier one is set. A call too many does no harm."""
        deadline_ns = self._markers.next_deadline()
        if deadline_ns is None or (self._timer is not None and self._timer_ns <= deadline_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = deadline_ns
        self._timer = self._tools.purgatory.look_after(max(1, -(-(deadline_ns - now_ns) // _NS_PER_MS)), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._plan_sending()


def _batch_ends(batch: MarkerBatch) -> Iterator[tuple[TransactionEnd, TopicPartition]]:
    """The ends to write and their partitions, in the order of the batch."""
    for markers, partitions in batch.parts:
        yield from _partition_ends(markers, partitions)


def _partition_ends(
    markers: Markers, partitions: Sequence[TopicPartition]
) -> Iterator[tuple[TransactionEnd, TopicPartition]]:
    marker = _new(Marker, (markers.commit, markers.coordinator_epoch))
    ending = _new(TransactionEnd, (*markers.identity, marker, markers.version >= BUMPED))
    return zip(repeat(ending), partitions, strict=False)


def _join_outcomes(outcomes: Sequence[Mapping[str, Transaction] | ApiError]) -> dict[str, Transaction] | ApiError:
    """The transactions of all shards, or the first error."""
    everything: dict[str, Transaction] = {}
    for outcome in outcomes:
        if isinstance(outcome, ApiError):
            return outcome
        everything.update(outcome)
    return everything


def _do_nothing(_: object) -> None:
    """A ticket whose result is not needed."""
