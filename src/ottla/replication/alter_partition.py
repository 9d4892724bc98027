"""Sends the ISR proposals of this broker's leaders to the controller, and repeats them until it decides (KIP-497).

Zone: deterministic. The partition chooses the ISR and interprets the answer; the fence knows the controller. One
request is in flight at a time; it carries all proposals that wait when it is sent, one per partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ottla.broker_client import BrokerClient
from ottla.changes import changes_state
from ottla.errors import ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.purgatory.timing_wheel import Timer
from ottla.replication.control import NO_CONTROLLER, ControlFence
from ottla.replication.partition.leader_role import LeaderRole
from ottla.replication.partition.replica_state import IsrOutcome, IsrProposal
from ottla.seams import Failure
from ottla.wire.messages import AlterPartitionRequest, AlterPartitionResponse

RETRY_MS: Final = 50
"""Pause between an attempt without a decision and the next one (Kafka's value)."""
LANE: Final = "alter-partition"
"""A connection of its own: on a shared one, proposals would wait for requests such as CreateTopics that take long."""
VERSION: Final = 3
DEFINITE: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
"""Results for a partition that a repeated request would not change."""

_Key = tuple[bytes, int]
_logger = logging.getLogger(__name__)


class _Item(NamedTuple):
    leader: LeaderRole
    proposal: IsrProposal


class AlterPartitionChannel:
    """Implements `IsrChannel` for all partitions of a broker."""

    def __init__(
        self,
        fence: ControlFence,
        peers: BrokerClient,
        purgatory: Purgatory,
        later: Callable[[Callable[[], None]], None],
        timeout_ms: int,
    ) -> None:
        """`timeout_ms`: controller.socket.timeout.ms, how long to wait for an answer."""
        self._fence = fence
        self._peers = peers
        self._purgatory = purgatory
        self._later = later
        self._timeout_ms = timeout_ms
        self._items: dict[_Key, _Item] = {}
        """Proposals without an answer, one per partition; in flight or not yet sent."""
        self._sent: dict[_Key, _Item] = {}
        self._attempt = 0
        """Number of the newest request; answers to earlier ones are ignored."""
        self._in_flight = False
        self._planned = False
        self._pause: Timer | None = None
        self._complaint = ""
        """The failure that was logged last, so that retries do not repeat it."""

    def __len__(self) -> int:
        return len(self._items)

    def propose_isr(self, leader: LeaderRole, proposal: IsrProposal) -> None:
        """Ask the controller for another ISR. Replaces an unanswered proposal of the same partition.

        The older proposal was made in a state that the partition has left; its outcome is OPERATION_NOT_ATTEMPTED,
        which the partition ignores because it has another proposal by now.
        """
        key = (leader.replica.topic_id, leader.replica.tp.partition)
        older = self._items.get(key)
        if older is not None:
            self._report_outcome(older, IsrOutcome(older.proposal, ErrorCode.OPERATION_NOT_ATTEMPTED))
        self._items[key] = _Item(leader, proposal)
        self._schedule_send()

    def _schedule_send(self) -> None:
        """Send at the end of this turn, so that all proposals of the turn travel in one request."""
        if not self._planned and not self._in_flight and self._pause is None:
            self._planned = True
            self._later(self._send_proposals)

    def _send_proposals(self) -> None:
        self._planned = False
        if not self._items or self._in_flight:
            return
        # No controller has sent an order yet, so its id is not known.
        if self._fence.controller_id == NO_CONTROLLER:
            self._retry_later()
            return
        # All open proposals, also those that were sent before: the answer to an abandoned request is ignored.
        self._send_request(dict(self._items))

    @changes_state
    def _send_request(self, sent: dict[_Key, _Item]) -> None:
        self._in_flight = True
        self._attempt += 1
        attempt = self._attempt
        self._sent = sent
        request = _build_request(self._fence, sent)
        controller = self._fence.controller_id
        self._peers.send_request(
            controller, request, VERSION, self._timeout_ms, lambda answer: self._on_response(attempt, answer), LANE
        )

    def on_new_controller(self) -> None:
        """Send all open proposals to a new controller at once.

        The old one may have carried them out; the partition epoch in the new controller's answer shows whether it has.
        """
        # The response of the old controller, if it still comes, belongs to an earlier attempt and is ignored, so
        # nothing waits for it.
        self._in_flight = False
        self._attempt += 1
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._items:
            self._schedule_send()

    def _retry_later(self) -> None:
        self._pause = self._purgatory.look_after(RETRY_MS, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._send_proposals()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _on_response(self, attempt: int, answer: AlterPartitionResponse | Failure) -> None:
        # 1. The controller has changed since (`on_new_controller`), and the new one has been asked the same.
        if attempt != self._attempt:
            return
        self._in_flight = False
        sent, self._sent = self._sent, {}
        # 2. No answer, or an error of the whole request (it is not the controller, or has not registered this broker
        #    yet): nothing is decided, so the same proposals are sent again.
        if isinstance(answer, Failure) or answer.error_code:
            why = str(answer) if isinstance(answer, Failure) else ErrorCode(answer.error_code).name
            self._log_once(f"ISR changes were not accepted by controller {self._fence.controller_id}: {why}")
            self._retry_later()
            return
        # 3. Decisions go to their partitions. If some are missing, these and all newer proposals wait for the pause.
        self._complaint = ""
        undecided = self._apply_decisions(sent, answer)
        if undecided:
            self._retry_later()
        elif self._items:
            self._schedule_send()

    def _log_once(self, complaint: str) -> None:
        """Log a failure once, not at each retry."""
        if complaint != self._complaint:
            self._complaint = complaint
            _logger.info("%s; retrying every %d ms", complaint, RETRY_MS)

    def _apply_decisions(self, sent: dict[_Key, _Item], answer: AlterPartitionResponse) -> bool:
        """Report decisions to their partitions. Returns whether a proposal in `sent` is still undecided."""
        for topic in answer.topics:
            for row in topic.partitions:
                key = (topic.topic_id, row.partition_index)
                item = sent.get(key)
                if item is None or row.error_code not in DEFINITE:
                    continue
                del sent[key]
                # `propose_isr` may have replaced the proposal while it was in flight; then this decision is obsolete.
                if self._items.get(key) is item:
                    del self._items[key]
                    self._report_outcome(item, _outcome_of(item.proposal, row))
        return any(self._items.get(key) is item for key, item in sent.items())

    def _report_outcome(self, item: _Item, outcome: IsrOutcome) -> None:
        # In a later turn, as `IsrChannel` promises: the caller of `propose_isr` may be in the middle of a change of the
        # same partition.
        self._later(lambda: item.leader.on_alter_partition_response(outcome))


def _build_request(fence: ControlFence, items: dict[_Key, _Item]) -> AlterPartitionRequest:
    topics: dict[bytes, AlterPartitionRequest.TopicData] = {}
    for (topic_id, index), (_, proposal) in items.items():
        data = AlterPartitionRequest.PartitionData(partition_index=index, leader_epoch=proposal.leader_epoch)
        data.partition_epoch = proposal.partition_epoch
        data.new_isr_with_epochs = _isr_members(fence, zip(proposal.isr, proposal.broker_epochs, strict=True))
        topic = topics.setdefault(topic_id, AlterPartitionRequest.TopicData(topic_id=topic_id))
        topic.partitions.append(data)
    return AlterPartitionRequest(broker_id=fence.node_id, broker_epoch=fence.broker_epoch, topics=list(topics.values()))


def _isr_members(fence: ControlFence, members: Iterable[tuple[int, int]]) -> list[AlterPartitionRequest.BrokerState]:
    """The proposed ISR with broker epochs; this broker's own is its current one, not the one of the proposal."""
    state = AlterPartitionRequest.BrokerState
    return [
        state(broker_id=each, broker_epoch=fence.broker_epoch if each == fence.node_id else epoch)
        for each, epoch in members
    ]


def _outcome_of(proposal: IsrProposal, row: AlterPartitionResponse.PartitionData) -> IsrOutcome:
    error = ErrorCode(row.error_code)
    if error:
        return IsrOutcome(proposal, error)
    return IsrOutcome(proposal, error, tuple(row.isr), row.leader_epoch, row.partition_epoch)
