"""Carries out moves of replicas (KIP-455) that clients request or an operator writes to the store.

Zone: deterministic. Which replicas are added and removed is decided in `reassignment`. A move has three steps:

1. the assignment (the topic's node) names old and new replicas, the leader epoch rises, new replicas are started;
2. all new replicas are in sync: the new state lacks the old ones, and has another leader if the old one leaves;
3. the old replicas have confirmed their deletion: the assignment names the new ones only.

Each step is in the store before the next begins, so that a later controller continues where this one stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.cluster.controller.context import ControlledTopic, assignment_node
from ottla.cluster.controller.elections import Elected, bump_epoch, reassigned_election
from ottla.cluster.controller.leaders import ElectionOutcomes
from ottla.cluster.controller.partition_state_store import PartitionStateStore
from ottla.cluster.controller.queue import WorkQueue
from ottla.cluster.controller.reassignment import (
    begin_move,
    check_in_sync,
    check_target,
    finish_move,
    is_complete,
    is_moving,
    origin_of,
    target_of,
)
from ottla.cluster.image import PartitionImage
from ottla.cluster.store.layout import (
    REASSIGN_PARTITIONS,
    BrokenNode,
    decode_reassignment,
    encode_reassignment,
    encode_topic,
    topic_path,
)
from ottla.cluster.store.workflow import Workflow
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Node, Op
from ottla.types import TopicPartition

logger = logging.getLogger(__name__)

ReassignmentTargets = Mapping[TopicPartition, "tuple[int, ...] | None"]
"""The replicas that each partition shall have; None: those before its move."""
_TRIES: Final = 10


class PartitionMoves:
    """Moves of one controller."""

    def __init__(self, core: PartitionStateStore, queue: WorkQueue) -> None:
        self._core = core
        self._context = core.context
        self._queue = queue
        self._leaving: dict[TopicPartition, tuple[int, ...]] = {}
        """Moves in their last step: the replicas that have not confirmed their deletion."""
        self._confirmed: dict[TopicPartition, None] = {}
        self._has_requests = False
        """Whether /admin/reassign_partitions exists."""

    # -- requests ------------------------------------------------------------------------------------------------

    def alter_moves(self, targets: ReassignmentTargets, allow_factor_change: bool) -> Workflow[ElectionOutcomes]:
        """Carry out AlterPartitionReassignments: begin, redirect or cancel moves. Returns an outcome per partition."""
        outcomes: ElectionOutcomes = {}
        wanted: dict[TopicPartition, tuple[int, ...]] = {}
        for tp, target in targets.items():
            try:
                wanted[tp] = self._check_move(tp, target, allow_factor_change)
            except ApiError as error:
                outcomes[tp] = error.as_value()
        # A client's request replaces what an operator wrote; otherwise the node would start the old move again.
        yield from self._remove_requested(list(wanted))
        outcomes |= yield from self._begin_moves(wanted)
        return {tp: outcomes[tp] for tp in targets}

    def _check_move(self, tp: TopicPartition, target: tuple[int, ...] | None, allow_change: bool) -> tuple[int, ...]:
        partition = self._existing_partition(tp)
        if target is None and not is_moving(partition):
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "no replicas of this partition are being moved")
        if target is None:
            target = origin_of(partition)
        else:
            check_target(partition, target, self._context.eligible_brokers, allow_change)
        check_in_sync(partition, target)
        return target

    def _existing_partition(self, tp: TopicPartition) -> PartitionImage:
        partition = self._context.find_partition(tp)
        if partition is None or tp.topic in self._context.deleting:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
        return partition

    # -- the first step ------------------------------------------------------------------------------------------

    def _begin_moves(self, targets: Mapping[TopicPartition, tuple[int, ...]]) -> Workflow[ElectionOutcomes]:
        """Store the assignments, one write per topic, and start the new replicas."""
        by_topic: dict[str, dict[int, tuple[int, ...]]] = {}
        for tp, target in targets.items():
            by_topic.setdefault(tp.topic, {})[tp.partition] = target
        outcomes: ElectionOutcomes = {}
        for name, wanted in by_topic.items():
            why = yield from self._begin_topic(name, wanted)
            outcomes |= {TopicPartition(name, number): why for number in wanted}
        return outcomes

    def _begin_topic(self, name: str, wanted: Mapping[int, tuple[int, ...]]) -> Workflow[ApiError | None]:
        topic = self._context.topics[name]
        before = {number: topic.partitions[number] for number in wanted}
        try:
            yield from self._write_assignment(topic, wanted)
        except ApiError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise
            return error.as_value()
        tps = [TopicPartition(name, number) for number in wanted]
        # A redirected move has other replicas to remove. Confirmations of the old ones must not end it.
        for tp in tps:
            self._leaving.pop(tp, None)
        changed = yield from self._core.commit_partitions(tps, self._decide_restart)
        self._core.channels.send_leaders(changed)
        self._stop_unneeded(name, before)
        yield from self.continue_moves(tps)
        return None

    def _write_assignment(self, topic: ControlledTopic, wanted: Mapping[int, tuple[int, ...]]) -> Workflow[None]:
        """Store the moves in the topic's node, then in memory. Raises ApiError when other writers keep changing it."""

        def change() -> dict[int, PartitionImage]:
            return {number: begin_move(topic.partitions[number], target) for number, target in wanted.items()}

        yield from self._put_topic(topic, change)

    def _put_topic(self, topic: ControlledTopic, change: Callable[[], dict[int, PartitionImage]]) -> Workflow[None]:
        for _ in range(_TRIES):
            after = change()
            content = encode_topic(assignment_node(topic.topic_id, {**topic.partitions, **after}))
            version = yield from self._put_node(topic, content)
            if version is not None:
                topic.node_version = version
                # Only after the write succeeded: memory must not be ahead of the store.
                for number, partition in after.items():
                    self._context.put_partition(TopicPartition(topic.name, number), partition)
                return
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the node of topic {topic.name!r} is being changed by others")

    def _put_node(self, topic: ControlledTopic, content: bytes) -> Workflow[int | None]:
        """The node's version after the write. None: another writer was faster, and `node_version` is the new one."""
        path = topic_path(topic.name)
        try:
            results = yield from self._core.write_multi(
                f"topic {topic.name}", [Op("put", path, content, topic.node_version)]
            )
        except Failure as failure:
            # The outcome may be open. The node decides: it has this content, another one (try again), or is gone.
            if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                raise
            found = yield from self._core.read_node(path)
            if found is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic is gone") from None
            if found.data == content:
                return found.version  # the write succeeded, only its response was lost
            topic.node_version = found.version
            return None
        return results[0][1]

    def _decide_restart(self, tp: TopicPartition, partition: PartitionImage) -> Elected | None:
        """The next epoch, without the replicas that a redirected move no longer needs."""
        online = self._context.online_replicas(tp, partition.replicas)
        return reassigned_election(partition, partition.replicas, online) or bump_epoch(partition)

    def _stop_unneeded(self, name: str, before: Mapping[int, PartitionImage]) -> None:
        """Delete the replicas that an earlier move was adding and this one does not include."""
        stops: dict[int, list[TopicPartition]] = {}
        for number, partition in before.items():
            tp = TopicPartition(name, number)
            present = self._context.find_partition(tp)
            for replica in partition.replicas:
                if present is not None and replica not in present.replicas and replica not in present.isr:
                    stops.setdefault(replica, []).append(tp)
        for broker in sorted(stops):
            self._core.channels.send_stops(broker, stops[broker], delete=True)

    # -- the second step -----------------------------------------------------------------------------------------

    def continue_moves(self, tps: Sequence[TopicPartition]) -> Workflow[None]:
        """Continue those of these moves whose new replicas are all in sync."""
        ready = [tp for tp in tps if self._is_ready(tp)]
        changed = yield from self._core.commit_partitions(ready, self._decide_completion)
        removing: dict[int, list[TopicPartition]] = {}
        for tp in changed:
            partition = self._context.find_partition(tp)
            assert partition is not None, f"{tp} was written just now"
            # Step 2 is stored. Step 3 begins when the removed replicas have confirmed their deletion.
            self._leaving[tp] = partition.removing
            for replica in partition.removing:
                removing.setdefault(replica, []).append(tp)
            # The leader must not add the replicas that leave to its ISR again: without them here it cannot.
            self._context.put_partition(tp, finish_move(partition))
        self._core.channels.send_leaders(changed)
        for broker in sorted(removing):
            self._core.channels.send_stops(broker, removing[broker], delete=True)
        if changed:
            confirmed = list(changed)
            self._core.channels.call_when_sent(removing, lambda: self._on_stopped(confirmed))

    def _is_ready(self, tp: TopicPartition) -> bool:
        partition = self._context.find_partition(tp)
        if partition is None or tp in self._leaving or tp not in self._context.moving:
            return False
        return is_complete(partition)

    def _decide_completion(self, tp: TopicPartition, partition: PartitionImage) -> Elected | None:
        target = target_of(partition)
        return reassigned_election(partition, target, self._context.online_replicas(tp, target))

    # -- the third step ------------------------------------------------------------------------------------------

    def _on_stopped(self, tps: Sequence[TopicPartition]) -> None:
        self._confirmed |= dict.fromkeys(tps)
        self._queue.submit_change("moves end", self._finish_moves)

    def _finish_moves(self) -> Workflow[None]:
        """Remove the old replicas from the assignments after their brokers have confirmed the deletion."""
        confirmed, self._confirmed = list(self._confirmed), {}
        tps = [tp for tp in confirmed if tp in self._leaving and self._context.find_partition(tp) is not None]
        for name in dict.fromkeys(tp.topic for tp in tps):
            topic = self._context.topics[name]
            # A topic that is being deleted keeps its assignment: all its replicas are deleted anyway.
            if name not in self._context.deleting:
                yield from self._put_topic(topic, dict)
        for tp in tps:
            self._leaving.pop(tp, None)
            logger.info("controller: the move of partition %s is complete", tp)
        self._core.channels.send_metadata(tps)
        yield from self._remove_requested([tp for tp in tps if tp not in self._context.moving])

    # -- by hand -------------------------------------------------------------------------------------------------

    def read_requested_moves(self, on_change: Callable[[], None]) -> Workflow[None]:
        """Begin the moves that an operator wrote to /admin/reassign_partitions. They leave the node as they end."""
        node = yield from self._core.read_node(REASSIGN_PARTITIONS, on_change)
        self._has_requests = node is not None
        if node is None:
            return
        targets = _decode_targets(node)
        if targets is None:
            return
        wanted, void = {}, []
        for tp, target in targets.items():
            try:
                partition = self._existing_partition(tp)
                check_target(partition, target, target, allow_factor_change=True)
                check_in_sync(partition, target)
            except ApiError as error:
                logger.warning("controller: not moving partition %s to %s: %s", tp, target, error.message)
                void.append(tp)
                continue
            # 1. A new target: begin. 2. Already under way: wait. 3. Already reached: remove the entry.
            if target_of(partition) != target:
                wanted[tp] = target
            elif tp not in self._context.moving and tp not in self._leaving:
                void.append(tp)
        outcomes = yield from self._begin_moves(wanted)
        void += [tp for tp in wanted if outcomes[tp] is not None or not self._is_under_way(tp)]
        yield from self._remove_requested(void)

    def _is_under_way(self, tp: TopicPartition) -> bool:
        return tp in self._context.moving or tp in self._leaving

    def _remove_requested(self, tps: Sequence[TopicPartition]) -> Workflow[None]:
        """Remove partitions from /admin/reassign_partitions, whose moves ended or cannot be; deletes an empty node."""
        while self._has_requests and tps:
            node = yield from self._core.read_node(REASSIGN_PARTITIONS)
            targets = {} if node is None else _decode_targets(node)
            if node is None or targets is None:
                return
            # Other entries, which may have been added meanwhile, stay; a conflict reads the node again.
            done = set(tps)
            left = {tp: target for tp, target in targets.items() if tp not in done}
            if len(left) == len(targets) and left:
                return
            path, version = REASSIGN_PARTITIONS, node.version
            op = Op("put", path, encode_reassignment(left), version) if left else Op("delete", path, version=version)
            try:
                yield from self._core.write_multi("controller", [op])
            except Failure as failure:
                if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                    raise
            else:
                self._has_requests = bool(left)


def _decode_targets(node: Node) -> dict[TopicPartition, tuple[int, ...]] | None:
    try:
        return decode_reassignment(REASSIGN_PARTITIONS, node.data)
    except BrokenNode as broken:
        logger.warning("controller: ignoring the requested moves: %s", broken)
        return None
