"""AlterPartition: leaders propose ISRs, the controller decides and stores them (KIP-497, KIP-841, KIP-903).

Zone: deterministic. `judge_proposal` decides about one partition; `Proposals` handles requests with many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ottla.cluster.controller.context import ControllerContext
from ottla.cluster.controller.elections import Elected
from ottla.cluster.controller.moves import PartitionMoves
from ottla.cluster.controller.partition_state_store import PartitionStateStore
from ottla.cluster.image import PartitionImage
from ottla.cluster.store.layout import ISR_CHANGES, BrokenNode, decode_partitions
from ottla.cluster.store.workflow import Workflow
from ottla.errors import ErrorCode
from ottla.seams import Node
from ottla.types import TopicPartition
from ottla.wire.messages import AlterPartitionRequest, AlterPartitionResponse

logger = logging.getLogger(__name__)

_NO_EPOCH: Final = -1
_RECOVERED: Final = 0
_TopicAnswer = AlterPartitionResponse.TopicData
_PartitionAnswer = AlterPartitionResponse.PartitionData


class Proposal(NamedTuple):
    """The ISR that a leader proposes for one partition."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int]
    """Epochs of members of `isr` as the leader knows them; members without an entry are not checked."""
    recovery_state: int = _RECOVERED


def judge_proposal(
    partition: PartitionImage,
    proposal: Proposal,
    eligible: Mapping[int, int],
) -> PartitionImage | ErrorCode:
    """The next state (the present one if nothing changes), or an error code.

    `eligible`: the brokers that may be in sync, with their epochs. The order of the checks matters:

    1. The leader knows a newer state than this controller: another broker is the controller by now.
    2. The leader is not the present one: it must stop leading before anything else about its proposal counts.
    3. The ISR is the present one. That is the answer to a repeated request, whose partition epoch is older.
    4. The proposal was made for an older state: the leader has to read the new one first.
    5. The members are invalid in themselves (INVALID_REQUEST), or 6. may not be in sync now (INELIGIBLE_REPLICA).
    """
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.state_version:
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < partition.leader_epoch or proposal.leader != partition.leader:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sorted(proposal.isr) == sorted(partition.isr):
        return partition
    if proposal.partition_epoch < partition.state_version:
        return ErrorCode.INVALID_UPDATE_VERSION
    if not _is_sound(partition, proposal):
        return ErrorCode.INVALID_REQUEST
    if any(not _may_be_in_sync(replica, proposal, eligible) for replica in proposal.isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return partition._replace(isr=proposal.isr)


def _is_sound(partition: PartitionImage, proposal: Proposal) -> bool:
    isr = proposal.isr
    return (
        proposal.recovery_state == _RECOVERED
        and proposal.leader in isr
        and len(set(isr)) == len(isr)
        and all(replica in partition.replicas for replica in isr)
    )


def _may_be_in_sync(replica: int, proposal: Proposal, eligible: Mapping[int, int]) -> bool:
    if replica not in eligible:
        return False
    told = proposal.broker_epochs.get(replica, _NO_EPOCH)
    return told in (_NO_EPOCH, eligible[replica])


class Proposals:
    """Proposals to one controller."""

    def __init__(self, core: PartitionStateStore, moves: PartitionMoves) -> None:
        self._core = core
        self._context = core.context
        self._moves = moves

    def alter_partitions(self, request: AlterPartitionRequest, version: int) -> Workflow[AlterPartitionResponse]:
        """Handle one request: store valid proposals, update all brokers, answer for each partition."""
        sender = self._context.brokers.get(request.broker_id)
        if sender is None or sender.epoch != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        proposals = dict(_decode_proposals(request, version, self._context))
        refused: dict[TopicPartition, ErrorCode] = {}

        def decide(tp: TopicPartition, partition: PartitionImage) -> Elected | None:
            outcome = judge_proposal(partition, proposals[tp], self._eligible_epochs())
            if isinstance(outcome, ErrorCode):
                refused[tp] = outcome
                return None
            refused.pop(tp, None)
            return None if outcome is partition else Elected(outcome)

        # `decide` may run again after a conflict, with a newer state; its last result counts.
        known = [tp for tp in proposals if self._exists(tp)]
        changed = yield from self._core.commit_partitions(known, decide)
        self._core.channels.send_metadata(changed)
        # Built before the moves continue: the leader expects the state that results from its proposal.
        answer = self._build_response(request, version, refused)
        yield from self._moves.continue_moves(changed)
        return answer

    def read_isr_changes(self, on_change: Callable[[], None]) -> Workflow[None]:
        """Handle /isr_change_notification: read states that leaders of older versions wrote, and update all brokers."""
        names = yield from self._core.read_children(ISR_CHANGES, on_change)
        paths = [f"{ISR_CHANGES}/{name}" for name in names]
        nodes = yield from self._core.read_nodes(paths)
        found: dict[TopicPartition, None] = {}
        for path, node in zip(paths, nodes, strict=True):
            found |= {} if node is None else dict.fromkeys(_decode_notified(path, node))
        tps = [tp for tp in found if self._exists(tp)]
        yield from self._core.refresh_states(tps)
        self._core.channels.send_metadata(tps)
        yield from self._moves.continue_moves(tps)
        # Removed last: after a crash the next controller reads the notifications again.
        yield from self._core.delete_nodes(paths)

    def _eligible_epochs(self) -> dict[int, int]:
        return {broker: self._context.brokers[broker].epoch for broker in self._context.eligible_brokers}

    def _exists(self, tp: TopicPartition) -> bool:
        return self._context.find_partition(tp) is not None and tp.topic not in self._context.deleting

    def _build_response(
        self, request: AlterPartitionRequest, version: int, refused: Mapping[TopicPartition, ErrorCode]
    ) -> AlterPartitionResponse:
        """Build the answer from the present states, before moves that may follow change them again."""
        topics = []
        for asked in request.topics:
            name = _topic_name(asked, version, self._context)
            answers = []
            for each in asked.partitions:
                tp = None if name is None else TopicPartition(name, each.partition_index)
                answers.append(self._partition_answer(each.partition_index, tp, refused, version))
            topics.append(_TopicAnswer(topic_name=asked.topic_name, topic_id=asked.topic_id, partitions=answers))
        return AlterPartitionResponse(topics=topics)

    def _partition_answer(
        self, number: int, tp: TopicPartition | None, refused: Mapping[TopicPartition, ErrorCode], version: int
    ) -> _PartitionAnswer:
        if tp is None:
            return _PartitionAnswer(partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        partition = self._context.find_partition(tp)
        if partition is None or not self._exists(tp):
            return _PartitionAnswer(partition_index=number, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if tp in refused:
            return _PartitionAnswer(partition_index=number, error_code=_code_for_version(refused[tp], version))
        return _PartitionAnswer(
            partition_index=number,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            isr=list(partition.isr),
            partition_epoch=partition.state_version,
        )


def _decode_notified(path: str, node: Node) -> list[TopicPartition]:
    try:
        return decode_partitions(path, node.data)
    except BrokenNode as broken:
        logger.warning("controller: ignoring an invalid ISR notification: %s", broken)
        return []


def _code_for_version(code: ErrorCode, version: int) -> ErrorCode:
    """Map INELIGIBLE_REPLICA, which versions before 2 do not know, to OPERATION_NOT_ATTEMPTED."""
    return ErrorCode.OPERATION_NOT_ATTEMPTED if code is ErrorCode.INELIGIBLE_REPLICA and version < 2 else code


def _topic_name(topic: AlterPartitionRequest.TopicData, version: int, context: ControllerContext) -> str | None:
    return topic.topic_name if version < 2 else context.names_by_id.get(topic.topic_id)


def _decode_proposals(
    request: AlterPartitionRequest, version: int, context: ControllerContext
) -> Mapping[TopicPartition, Proposal]:
    found = {}
    for topic in request.topics:
        name = _topic_name(topic, version, context)
        for each in topic.partitions if name is not None else ():
            states = {state.broker_id: state.broker_epoch for state in each.new_isr_with_epochs}
            isr = tuple(state.broker_id for state in each.new_isr_with_epochs) if version >= 3 else tuple(each.new_isr)
            found[TopicPartition(str(name), each.partition_index)] = Proposal(
                request.broker_id, each.leader_epoch, each.partition_epoch, isr, states, each.leader_recovery_state
            )
    return found
