"""Brokers that come, go, come back, stop in order, or lose a log directory: what becomes of their partitions.

Zone: deterministic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ottla.cluster.controller.channel import PartitionErrors
from ottla.cluster.controller.deletions import TopicDeletions
from ottla.cluster.controller.elections import Elected, shutdown_election
from ottla.cluster.controller.leaders import LeaderElections
from ottla.cluster.controller.moves import PartitionMoves
from ottla.cluster.controller.partition_state_store import PartitionStateStore
from ottla.cluster.controller.queue import WorkQueue
from ottla.cluster.image import NO_LEADER, BrokerImage, PartitionImage
from ottla.cluster.store.layout import (
    BROKER_IDS,
    LOG_DIR_EVENTS,
    BrokenNode,
    broker_path,
    decode_broker,
    decode_log_dir_event,
)
from ottla.cluster.store.workflow import Workflow
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Node
from ottla.types import TopicPartition

logger = logging.getLogger(__name__)


class BrokerChanges:
    """Live brokers as the controller follows them."""

    def __init__(
        self,
        core: PartitionStateStore,
        queue: WorkQueue,
        leaders: LeaderElections,
        moves: PartitionMoves,
        deletions: TopicDeletions,
    ) -> None:
        self._core = core
        self._context = core.context
        self._queue = queue
        self._leaders = leaders
        self._moves = moves
        self._deletions = deletions
        self._suspects: dict[TopicPartition, None] = {}
        """Partitions with a replica whose log directory went out of service, or came back."""

    def on_change(self) -> None:
        """The list of brokers, or a registration, is another one."""
        self._queue.notice("brokers changed", self.changed, urgent=True)

    def changed(self) -> Workflow[None]:
        """See who is there, and act on who is new, gone, registered anew or reached elsewhere."""
        names = yield from self._core.children(BROKER_IDS, self.on_change)
        present = sorted(int(name) for name in names if name.isdecimal())
        gone = [broker for broker in self._context.brokers if broker not in present]
        if gone:
            yield from self._on_brokers_gone(gone)
        found = yield from self.read(present)
        bounced = [broker.node_id for broker in found if self._has_bounced(broker)]
        if bounced and self._core.safeguards.bounced_brokers:
            yield from self._on_brokers_gone(bounced)
        new = [broker for broker in found if broker.node_id not in self._context.brokers or broker.node_id in bounced]
        moved = [broker for broker in found if broker not in new and broker != self._context.brokers[broker.node_id]]
        for broker in moved:
            self._context.put_broker(broker)
            self._core.channels.locate(broker.node_id)
            self._core.channels.tell_brokers(first=True)
        if new:
            yield from self._came(new)

    def _has_bounced(self, broker: BrokerImage) -> bool:
        known = self._context.brokers.get(broker.node_id)
        return known is not None and known.epoch != broker.epoch

    def read(self, brokers: Sequence[int]) -> Workflow[list[BrokerImage]]:
        """The registrations that are there and can be understood, watched."""
        paths = [broker_path(broker) for broker in brokers]
        nodes = yield from self._core.get_all(paths, lambda _: self.on_change)
        images = [_image(broker, node) for broker, node in zip(brokers, nodes, strict=True) if node is not None]
        return [image for image in images if image is not None]

    # -- gone and come -----------------------------------------------------------------------------------------

    def _on_brokers_gone(self, brokers: Sequence[int]) -> Workflow[None]:
        """Partitions that they led first: nobody can write to those."""
        logger.info("brokers %s are gone", brokers)
        tps = self._replicas_on(brokers)
        for broker in brokers:
            self._context.remove_broker(broker)
            self._core.channels.shut(broker)
        led = [tp for tp in tps if self._leader(tp) in brokers]
        changed = yield from self._leaders.recover(led)
        first = set(led)
        changed += yield from self._leaders.recover([tp for tp in tps if tp not in first])
        told = set(changed)
        self._core.channels.tell_brokers(first=False)
        untold = [tp for tp in tps if tp not in told]
        yield from self._core.each_chunk(untold, self._core.channels.tell_metadata)
        self._deletions.unreachable(brokers)

    def _came(self, brokers: Sequence[BrokerImage]) -> Workflow[None]:
        logger.info("brokers %s are there", [broker.node_id for broker in brokers])
        for broker in brokers:
            self._context.put_broker(broker)
            self._core.channels.open(broker.node_id)
        numbers = [broker.node_id for broker in brokers]
        self._core.channels.tell_brokers(first=True)
        tps = self._replicas_on(numbers)
        doubtful = [broker for broker in brokers if broker.is_blank or broker.incomplete]
        if doubtful:
            yield from self._leaders.distrust(self._replicas_on([broker.node_id for broker in doubtful]), doubtful)
        channels = self._core.channels
        yield from self._core.each_chunk(tps, lambda chunk: channels.tell_leaders(chunk, numbers))
        everything = [tp for tp, _ in self._context.living()]
        yield from self._core.each_chunk(everything, lambda chunk: channels.tell_metadata(chunk, numbers))
        yield from self._leaders.recover(
            [tp for tp in tps if self._leader(tp) == NO_LEADER or self._leader(tp) not in self._context.brokers]
        )
        yield from self._moves.resume(tps)
        yield from self._deletions.resume(numbers)

    def _replicas_on(self, brokers: Sequence[int]) -> list[TopicPartition]:
        """Partitions with a replica on one of them, of topics that stay."""
        found = dict.fromkeys(tp for broker in brokers for tp in self._context.replicas_on(broker))
        return [tp for tp in found if tp.topic not in self._context.deleting]

    def _leader(self, tp: TopicPartition) -> int:
        partition = self._context.partition(tp)
        return NO_LEADER if partition is None else partition.leader

    # -- stopping in order -------------------------------------------------------------------------------------

    def shut_down(self, broker: int, broker_epoch: int | None) -> Workflow[tuple[list[TopicPartition], list[int]]]:
        """Move leaderships away from a broker; (what it still leads, brokers that lead now)."""
        known = self._context.brokers.get(broker)
        if known is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered")
        if broker_epoch is not None and broker_epoch < known.epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker} has registered anew since")
        self._context.stopping[broker] = None
        tps = [tp for tp in self._replicas_on([broker]) if self._has_others(tp)]
        led = [tp for tp in tps if self._leader(tp) == broker]
        followed = [tp for tp in tps if self._leader(tp) != broker]
        changed = yield from self._core.commit_partitions(led, self._shutdown)
        self._core.channels.tell_leaders(changed)
        leaders = list(dict.fromkeys(self._leader(tp) for tp in changed))
        left = yield from self._core.commit_partitions(followed, self._shutdown)
        self._core.channels.tell_leaders(left, [each for each in self._context.brokers if each != broker])
        self._core.channels.tell_stop(broker, followed, delete=False)
        return [
            tp for tp in self._replicas_on([broker]) if self._has_others(tp) and self._leader(tp) == broker
        ], leaders

    def _has_others(self, tp: TopicPartition) -> bool:
        partition = self._context.partition(tp)
        return partition is not None and len(partition.replicas) > 1

    def _shutdown(self, tp: TopicPartition, partition: PartitionImage) -> Elected | None:
        return shutdown_election(partition, self._context.online(tp, partition.replicas), self._context.stopping)

    # -- log directories -----------------------------------------------------------------------------------------

    def log_dirs_failed(self, on_change: Callable[[], None]) -> Workflow[None]:
        """/log_dir_event_notification: ask the brokers named there which of their replicas are still online."""
        names = yield from self._core.children(LOG_DIR_EVENTS, on_change)
        paths = [f"{LOG_DIR_EVENTS}/{name}" for name in names]
        nodes = yield from self._core.get_all(paths)
        for path, node in zip(paths, nodes, strict=True):
            if node is not None:
                self._ask_replicas(path, node)
        yield from self._core.remove_all(paths)

    def _ask_replicas(self, path: str, node: Node) -> None:
        try:
            broker = decode_log_dir_event(path, node.data)
        except BrokenNode as broken:
            logger.warning("an event of a log directory is ignored: %s", broken)
            return
        self._core.channels.tell_leaders(self._replicas_on([broker]), [broker])

    def on_leader_and_isr_response(self, broker: int, errors: PartitionErrors) -> None:
        """A broker's answer to LeaderAndIsr: replicas in a log directory out of service say so."""
        for tp, code in errors.items():
            if code not in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR):
                continue
            known = self._context.partition(tp) is not None
            if known and self._context.set_offline(broker, tp, code is ErrorCode.KAFKA_STORAGE_ERROR):
                self._suspects[tp] = None
        if self._suspects:
            self._queue.notice("replicas went offline or came back", self._check_suspects)

    def _check_suspects(self) -> Workflow[None]:
        suspects, self._suspects = list(self._suspects), {}
        changed = set((yield from self._leaders.recover(suspects)))
        self._core.channels.tell_metadata([tp for tp in suspects if tp not in changed])


def _image(broker: int, node: Node) -> BrokerImage | None:
    try:
        found = decode_broker(broker_path(broker), node.data)
    except BrokenNode as broken:
        logger.warning("broker %d is not seen: %s", broker, broken)
        return None
    return BrokerImage(broker, found.endpoints, found.rack, node.czxid, found.host, found.is_blank, found.incomplete)
