"""Partition changes that follow a broker's registration, death, restart, controlled shutdown or failed log directory.

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
    """Follows the registrations of brokers and changes the states of their partitions.

    Implements `ResponseListener` for the channels to brokers.
    """

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
        """Partitions with a replica whose log directory failed or works again."""

    def on_brokers_changed(self) -> None:
        """Queue a check after the list of brokers, or a registration, has changed."""
        self._queue.submit_change("brokers changed", self.compare_brokers, urgent=True)

    def compare_brokers(self) -> Workflow[None]:
        """Compare the registrations with the known brokers, and act on each difference."""
        names = yield from self._core.read_children(BROKER_IDS, self.on_brokers_changed)
        present = sorted(int(name) for name in names if name.isdecimal())
        # 1. Registrations that have disappeared. They come first: their partitions have no leader.
        gone = [broker for broker in self._context.brokers if broker not in present]
        if gone:
            yield from self._on_brokers_gone(gone)
        found = yield from self.read_registrations(present)
        # 2. Brokers that died and registered again between two checks. Their new epoch is the only trace of the death.
        bounced = [broker.node_id for broker in found if self._has_bounced(broker)]
        if bounced:
            yield from self._on_brokers_gone(bounced)
        new = [broker for broker in found if broker.node_id not in self._context.brokers or broker.node_id in bounced]
        # 3. The same registration with other endpoints: the brokers learn the address, no partition changes.
        moved = [broker for broker in found if broker not in new and broker != self._context.brokers[broker.node_id]]
        for broker in moved:
            self._context.put_broker(broker)
            self._core.channels.locate_broker(broker.node_id)
            self._core.channels.send_brokers(first=True)
        # 4. New brokers last, so that they receive states which already account for the brokers that are gone.
        if new:
            yield from self._on_brokers_registered(new)

    def _has_bounced(self, broker: BrokerImage) -> bool:
        known = self._context.brokers.get(broker.node_id)
        return known is not None and known.epoch != broker.epoch

    def read_registrations(self, brokers: Sequence[int]) -> Workflow[list[BrokerImage]]:
        """Read and watch the registrations of these brokers. Leaves out those that are missing or invalid."""
        paths = [broker_path(broker) for broker in brokers]
        nodes = yield from self._core.read_nodes(paths, lambda _: self.on_brokers_changed)
        images = [_broker_image(broker, node) for broker, node in zip(brokers, nodes, strict=True) if node is not None]
        return [image for image in images if image is not None]

    # -- deaths and registrations --------------------------------------------------------------------------------

    def _on_brokers_gone(self, brokers: Sequence[int]) -> Workflow[None]:
        """Elect new leaders for the partitions of dead brokers.

        The partitions that the dead brokers led come first, because no client can write to them.
        """
        logger.info("controller: the registrations of brokers %s are gone; electing new leaders", brokers)
        tps = self._replicas_on(brokers)
        for broker in brokers:
            # Before the elections: `online_replicas` counts the brokers of the context, so a dead leader would be kept
            # as online.
            self._context.remove_broker(broker)
            self._core.channels.close_channel(broker)
        led = [tp for tp in tps if self._leader_of(tp) in brokers]
        changed = yield from self._leaders.elect_missing(led)
        first = set(led)
        changed += yield from self._leaders.elect_missing([tp for tp in tps if tp not in first])
        # The elections have sent the changed partitions. Of the others only the offline replicas have changed.
        told = set(changed)
        self._core.channels.send_brokers(first=False)
        untold = [tp for tp in tps if tp not in told]
        yield from self._core.each_chunk(untold, self._core.channels.send_metadata)
        self._deletions.on_brokers_gone(brokers)

    def _on_brokers_registered(self, brokers: Sequence[BrokerImage]) -> Workflow[None]:
        logger.info("controller: brokers %s have registered", [broker.node_id for broker in brokers])
        for broker in brokers:
            self._context.put_broker(broker)
            self._core.channels.open_channel(broker.node_id, self)
        numbers = [broker.node_id for broker in brokers]
        self._core.channels.send_brokers(first=True)
        tps = self._replicas_on(numbers)
        # Brokers that have lost records leave the ISRs first: they must not lead by the states that are sent below.
        doubtful = [broker for broker in brokers if broker.is_blank or broker.incomplete]
        if doubtful:
            yield from self._leaders.remove_lost_replicas(
                self._replicas_on([broker.node_id for broker in doubtful]), doubtful
            )
        channels = self._core.channels
        yield from self._core.each_chunk(tps, lambda chunk: channels.send_leaders(chunk, numbers))
        everything = [tp for tp, _ in self._context.live_partitions()]
        yield from self._core.each_chunk(everything, lambda chunk: channels.send_metadata(chunk, numbers))
        yield from self._leaders.elect_missing(
            [tp for tp in tps if self._leader_of(tp) == NO_LEADER or self._leader_of(tp) not in self._context.brokers]
        )
        yield from self._moves.continue_moves(tps)
        yield from self._deletions.resume_deletions(numbers)

    def _replicas_on(self, brokers: Sequence[int]) -> list[TopicPartition]:
        """Partitions with a replica on one of these brokers, without topics that are being deleted."""
        found = dict.fromkeys(tp for broker in brokers for tp in self._context.replicas_on(broker))
        return [tp for tp in found if tp.topic not in self._context.deleting]

    def _leader_of(self, tp: TopicPartition) -> int:
        partition = self._context.find_partition(tp)
        return NO_LEADER if partition is None else partition.leader

    # -- controlled shutdown -------------------------------------------------------------------------------------

    def shut_down(self, broker: int, broker_epoch: int | None) -> Workflow[tuple[list[TopicPartition], list[int]]]:
        """Move leaderships away from a broker. Returns the partitions that it still leads, and the new leaders."""
        known = self._context.brokers.get(broker)
        if known is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered")
        # The process that sent this request has ended (KIP-380). Its successor, which is starting, must keep its
        # leaderships.
        if broker_epoch is not None and broker_epoch < known.epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker} has registered again since")
        # From now on the broker neither gets leaderships nor joins ISRs, even if the request fails halfway.
        self._context.stopping[broker] = None
        tps = [tp for tp in self._replicas_on([broker]) if self._has_others(tp)]
        # A partition that has no other replica stays as it is: moving it away is impossible.
        led = [tp for tp in tps if self._leader_of(tp) == broker]
        followed = [tp for tp in tps if self._leader_of(tp) != broker]
        changed = yield from self._core.commit_partitions(led, self._decide_shutdown)
        self._core.channels.send_leaders(changed)
        leaders = list(dict.fromkeys(self._leader_of(tp) for tp in changed))
        # Leaderships have moved, which clients notice. Now the broker leaves the ISRs of partitions that it follows.
        left = yield from self._core.commit_partitions(followed, self._decide_shutdown)
        self._core.channels.send_leaders(left, [each for each in self._context.brokers if each != broker])
        # Stopping the followers ends their fetches, so that their leaders do not propose them for the ISR again.
        self._core.channels.send_stops(broker, followed, delete=False)
        return [
            tp for tp in self._replicas_on([broker]) if self._has_others(tp) and self._leader_of(tp) == broker
        ], leaders

    def _has_others(self, tp: TopicPartition) -> bool:
        partition = self._context.find_partition(tp)
        return partition is not None and len(partition.replicas) > 1

    def _decide_shutdown(self, tp: TopicPartition, partition: PartitionImage) -> Elected | None:
        return shutdown_election(
            partition, self._context.online_replicas(tp, partition.replicas), self._context.stopping
        )

    # -- log directories -----------------------------------------------------------------------------------------

    def read_log_dir_events(self, on_change: Callable[[], None]) -> Workflow[None]:
        """Handle /log_dir_event_notification: find out which replicas of the named brokers are still online."""
        names = yield from self._core.read_children(LOG_DIR_EVENTS, on_change)
        paths = [f"{LOG_DIR_EVENTS}/{name}" for name in names]
        nodes = yield from self._core.read_nodes(paths)
        for path, node in zip(paths, nodes, strict=True):
            if node is not None:
                self._ask_replicas(path, node)
        # Deleted last: if the term ends before this line, the next controller finds the events and asks again.
        yield from self._core.delete_nodes(paths)

    def _ask_replicas(self, path: str, node: Node) -> None:
        try:
            broker = decode_log_dir_event(path, node.data)
        except BrokenNode as broken:
            logger.warning("controller: ignoring an invalid log directory event: %s", broken)
            return
        # The event has no details. The broker reports failed replicas in its response to LeaderAndIsr.
        self._core.channels.send_leaders(self._replicas_on([broker]), [broker])

    def on_leader_and_isr_response(self, broker: int, errors: PartitionErrors) -> None:
        """Handle a broker's response to LeaderAndIsr, which marks replicas in failed log directories."""
        for tp, code in errors.items():
            if code not in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR):
                continue
            # Other codes say nothing about the log directory, and partitions may have been deleted meanwhile.
            known = self._context.find_partition(tp) is not None
            if known and self._context.set_offline(broker, tp, code is ErrorCode.KAFKA_STORAGE_ERROR):
                self._suspects[tp] = None
        if self._suspects:
            self._queue.submit_change("replicas went offline or came back", self._check_suspects)

    def on_stop_replica_response(self, broker: int, errors: PartitionErrors) -> None:
        """Pass a broker's response to StopReplica with deletion to the deletions of topics."""
        self._deletions.on_stop_replica_response(broker, errors)

    def on_stale_controller_epoch(self) -> None:
        """Queue a check of the epoch: a broker knows a newer controller."""
        self._queue.submit_change("a newer controller", self._core.verify_epoch, urgent=True)

    def _check_suspects(self) -> Workflow[None]:
        # Exchanged before the first wait: responses that arrive during the elections are collected for the next check.
        suspects, self._suspects = list(self._suspects), {}
        changed = set((yield from self._leaders.elect_missing(suspects)))
        self._core.channels.send_metadata([tp for tp in suspects if tp not in changed])


def _broker_image(broker: int, node: Node) -> BrokerImage | None:
    try:
        found = decode_broker(broker_path(broker), node.data)
    except BrokenNode as broken:
        logger.warning("controller: ignoring the registration of broker %d: %s", broker, broken)
        return None
    # The czxid of the registration is the broker epoch (KIP-380): each registration gets a higher one, so a changed
    # epoch shows a restart even if the node looks the same.
    return BrokerImage(broker, found.endpoints, found.rack, node.czxid, found.host, found.is_blank, found.incomplete)
