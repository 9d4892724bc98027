"""The active controller, as its own broker's handlers see it.

Zone: deterministic. Every method passes its outcome to `done` in a later turn, exactly once: a value, or an ApiError
(NOT_CONTROLLER when the term ends before the work is done). Requests are handled in the order of their arrival, changes
in the store in between; registrations and deaths of brokers go before everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ottla.cluster.controller.brokers import BrokerChanges
from ottla.cluster.controller.deletions import TopicDeletions
from ottla.cluster.controller.feature_updates import update_features
from ottla.cluster.controller.leaders import ElectionOutcomes, ElectionType, LeaderElections
from ottla.cluster.controller.moves import PartitionMoves
from ottla.cluster.controller.partition_state_store import PartitionStateStore
from ottla.cluster.controller.pending_requests import PendingRequest, PendingRequests
from ottla.cluster.controller.proposals import Proposals
from ottla.cluster.controller.queue import WorkQueue, client_error_of, not_controller_error
from ottla.cluster.controller.topic_changes import TopicChanges
from ottla.cluster.features.feature_levels import FeatureUpdate, FinalizedFeatures
from ottla.cluster.image import ClusterImage, TopicImage
from ottla.cluster.producer_ids import BLOCK_SIZE
from ottla.cluster.store.layout import (
    BROKER_IDS,
    FEATURE,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
    TOPICS,
    BlockNode,
    BrokenNode,
    decode_block,
    encode_block,
    encode_feature,
)
from ottla.cluster.store.workflow import Workflow, contain_defects, run_workflow
from ottla.cluster.topics import TopicSpec
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Node, Op
from ottla.types import TopicPartition
from ottla.wire.messages import AlterPartitionRequest, AlterPartitionResponse

# Blocks of producer ids for brokers (KIP-730). No id is allocated twice.

_TRIES: Final = 10
"""Attempts to allocate a block, each of which may lose a race with brokers that write the node themselves."""


def allocate_block(core: PartitionStateStore, broker: int, broker_epoch: int) -> Workflow[tuple[int, int]]:
    """Allocate the next block for a broker: (first id, size). Raises ApiError or Failure."""
    known = core.context.brokers.get(broker)
    if known is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker} is not registered")
    if known.epoch != broker_epoch:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker} has epoch {known.epoch}, not {broker_epoch}")
    for _ in range(_TRIES):
        node = yield from core.read_node(PRODUCER_ID_BLOCK)
        start = _block_start(node)
        content = encode_block(BlockNode(broker, start, start + BLOCK_SIZE - 1))
        path = PRODUCER_ID_BLOCK
        op = Op("create", path, content) if node is None else Op("put", path, content, node.version)
        try:
            yield from core.write_multi("producer ids", [op])
        except Failure as failure:
            if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                raise
            # Another broker wrote the node, or this write succeeded and its response was lost. In either case the next
            # attempt begins after the block that the node has now: ids may be skipped, but are never used twice.
        else:
            return start, BLOCK_SIZE
    raise ApiError(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "other brokers allocated producer ids at the same time; try again"
    )


def _block_start(node: Node | None) -> int:
    if node is None or not node.data:
        return 0
    try:
        start = decode_block(PRODUCER_ID_BLOCK, node.data).end + 1
    except BrokenNode as broken:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(broken)) from None
    if start > 2**63 - 1 - BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "there are no producer ids left")
    return start


__all__ = ["Controller", "ControllerResponse", "ElectionOutcomes", "ElectionType", "OngoingReassignment"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
ControllerResponse = Callable[["T | ApiError"], None]
"""Receives the outcome of a request, once, in a later turn."""

FIRST_REBALANCE_MS: Final = 5000
"""Delay from the start of a term to its first automatic rebalance, as in Kafka."""
PATIENCE_MS: Final = 1000
"""How long a response waits for brokers to receive the decision; it is already stored."""


class OngoingReassignment(NamedTuple):
    """A partition whose replicas are being moved: all replicas during the move, those being added, those removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class Controller:
    """One term as controller. `ControllerElector` creates one per won election and closes it when the term is lost."""

    def __init__(
        self, core: PartitionStateStore, queue: WorkQueue, later: Callable[[Callable[[], None]], None]
    ) -> None:
        self._core = core
        self._context = core.context
        self._queue = queue
        self._requests = PendingRequests(core.purgatory, later)
        self._leaders = LeaderElections(core)
        self._moves = PartitionMoves(core, queue)
        self._deletions = TopicDeletions(core, queue)
        self._brokers = BrokerChanges(core, queue, self._leaders, self._moves, self._deletions)
        self._topics = TopicChanges(core, queue, self._leaders, lambda: self.image)
        self._proposals = Proposals(core, self._moves)
        self.is_settled = False
        """Whether the start-up work is done and the own broker has applied its updates."""

    @property
    def epoch(self) -> int:
        """The controller epoch of this term."""
        return self._core.term.epoch

    @property
    def image(self) -> ClusterImage:
        """Live brokers and all topics as the controller knows them. Topics' settings are not kept here."""
        return self._context.cluster_image(self._core.term.node_id, self._core.config().topic_defaults)

    @property
    def is_idle(self) -> bool:
        """Whether the controller has nothing to decide just now."""
        return self._queue.is_idle

    # -- term ------------------------------------------------------------------------------------------------------

    def begin_term(self) -> None:
        """Begin the term: read the state of the cluster, elect missing leaders, update all brokers."""
        self._queue.submit_change("start of term", self._start_term, urgent=True)

    def refresh_all(self) -> None:
        """Read everything that is watched again, because an interruption of the session has removed the watches."""
        self._brokers.on_brokers_changed()
        for notice in (self._topics_changed, self._deletions_changed, self._isr_changed, self._log_dirs_changed):
            notice()
        self._moves_by_hand()
        self._elections_by_hand()
        self._queue.submit_change("all topics changed", self._topics.refresh_topics)

    def end_term(self) -> None:
        """End the term: nothing is written or sent any more, and pending requests fail with NOT_CONTROLLER."""
        self._core.closed = True
        self._queue.close_queue()
        self._core.channels.close_channels()
        self._requests.answer_all(not_controller_error())

    def _start_term(self) -> Workflow[None]:
        core = self._core
        logger.info("controller: this broker is the controller with epoch %d", core.term.epoch)
        # 1. Notifications that are older than this read are void: steps 2 and 3 read the newest state anyway.
        yield from self._forget_notifications()
        # 2. Brokers before topics: the list of live brokers has to arrive before any leadership among them.
        numbers = yield from core.read_children(BROKER_IDS, self._brokers.on_brokers_changed)
        for broker in (
            yield from self._brokers.read_registrations(sorted(int(name) for name in numbers if name.isdecimal()))
        ):
            self._context.put_broker(broker)
            core.channels.open_channel(broker.node_id, self._brokers)
        core.channels.send_brokers(first=True)
        # 3. Topics, then the deletions among them, so that no leader is elected for a topic that is being deleted.
        names = yield from core.read_children(TOPICS, self._topics_changed)
        yield from self._topics.read_topics(names)
        yield from self._deletions.read_marks(self._deletions_changed)
        tps = [tp for tp, _ in self._context.live_partitions()]
        # 4. Restarts that the last controller did not notice, then leaders and ISR members that are offline.
        yield from self._leaders.handle_restarts(tps)
        yield from self._leaders.elect_missing(tps)
        self._context.is_new = False
        self._context.changed_at.clear()
        # 5. All states to all replicas: the last controller may have died before it sent them.
        yield from core.each_chunk(tps, core.channels.send_leaders)
        # 6. Moves and elections that are under way, or were requested through the store.
        yield from self._moves.read_requested_moves(self._moves_by_hand)
        yield from self._moves.continue_moves(list(self._context.moving))
        yield from self._leaders.read_requested_elections(self._elections_by_hand)
        # 7. Periodic work. The term is settled when this broker, like all others, has received the states.
        self._run_after(FIRST_REBALANCE_MS, self._queue_rebalance)
        self._run_after(core.config().unclean_leader_election_interval_ms, self._queue_unclean_retry)
        core.channels.call_when_sent([core.term.node_id], self._mark_settled)
        logger.info(
            "controller: read %d brokers, %d topics, %d partitions", len(numbers), len(self._context.topics), len(tps)
        )

    def _mark_settled(self) -> None:
        self.is_settled = True

    def _forget_notifications(self) -> Workflow[None]:
        """Delete old notifications, and create /feature for tools that expect it."""
        for path, on_change in ((ISR_CHANGES, self._isr_changed), (LOG_DIR_EVENTS, self._log_dirs_changed)):
            names = yield from self._core.read_children(path, on_change)
            yield from self._core.delete_nodes([f"{path}/{name}" for name in names])
        if (yield from self._core.read_node(FEATURE)) is None:
            yield from self._core.try_write("controller", [Op("create", FEATURE, encode_feature())])

    # -- changes in the store --------------------------------------------------------------------------------------

    def _topics_changed(self) -> None:
        self._queue.submit_change("topics changed", lambda: self._topics.read_topic_list(self._topics_changed))

    def _deletions_changed(self) -> None:
        self._queue.submit_change("deletions changed", lambda: self._deletions.read_marks(self._deletions_changed))

    def _isr_changed(self) -> None:
        self._queue.submit_change("ISR notifications", lambda: self._proposals.read_isr_changes(self._isr_changed))

    def _log_dirs_changed(self) -> None:
        self._queue.submit_change("log directories", lambda: self._brokers.read_log_dir_events(self._log_dirs_changed))

    def _moves_by_hand(self) -> None:
        self._queue.submit_change("moves by hand", lambda: self._moves.read_requested_moves(self._moves_by_hand))

    def _elections_by_hand(self) -> None:
        self._queue.submit_change(
            "elections by hand", lambda: self._leaders.read_requested_elections(self._elections_by_hand)
        )

    def on_settings_changed(self, topic: str | None) -> None:
        """Retry elections after settings of a topic, or (None) of brokers, changed: unclean ones may be allowed now."""
        if topic is None or topic in self._context.topics:
            self._queue.submit_change("settings changed", self._leaders.retry_unclean)

    # -- periodic work ---------------------------------------------------------------------------------------------

    def _run_after(self, ms: int, action: Callable[[], None]) -> None:
        self._core.purgatory.look_after(ms, action)

    def _queue_rebalance(self) -> None:
        if self._core.closed:
            return
        config = self._core.config()
        if config.auto_leader_rebalance_enable:
            self._queue.submit_change("rebalance", self._leaders.rebalance_leaders)
        self._run_after(config.leader_imbalance_check_interval_seconds * 1000, self._queue_rebalance)

    def _queue_unclean_retry(self) -> None:
        if not self._core.closed:
            self._queue.submit_change("unclean elections", self._leaders.retry_unclean)
            self._run_after(self._core.config().unclean_leader_election_interval_ms, self._queue_unclean_retry)

    # -- topics ----------------------------------------------------------------------------------------------------

    def create_topic(
        self, spec: TopicSpec, validate_only: bool, timeout_ms: int, done: ControllerResponse[TopicImage]
    ) -> None:
        """Create a topic. Answered when its leaders have received it; REQUEST_TIMED_OUT if that takes too long.

        `validate_only`: the answer is the topic that would be created. Settings that `spec` lacks have the broker's
        defaults.
        """
        asked = self._requests.add_request(done, timeout_ms)

        def plan() -> Workflow[TopicImage]:
            yield from ()  # planning does not read the store; it is a workflow only to run in the order of the queue
            return self._topics.plan_topic(spec)

        def planned(outcome: TopicImage | ApiError) -> None:
            if isinstance(outcome, ApiError) or validate_only:
                asked(outcome)
                return
            # The name is reserved in the queue; the writes run beside it, so that a slow creation delays no other work.
            self._context.creating[outcome.name] = None
            creation = contain_defects(f"create topic {outcome.name}", lambda: self._topics.create_topic(outcome))
            run_workflow(self._core.store, creation, lambda made: self._on_created(made, asked))

        self._queue.submit_request(f"create topic {spec.name}", plan, planned)

    def _on_created(self, outcome: TopicImage | Failure | ApiError, asked: PendingRequest) -> None:
        """Answer a creation that has ended.

        Waits for the leaders to receive the topic, and for this broker, which the client is likely to ask next.
        """
        if isinstance(outcome, Failure):
            asked(client_error_of(outcome))
        elif isinstance(outcome, ApiError):
            # A creation runs outside the queue, which therefore has not noticed the end of the term.
            if outcome.code is ErrorCode.NOT_CONTROLLER:
                self._brokers.on_stale_controller_epoch()
            asked(outcome)
        else:
            leaders = dict.fromkeys(partition.replicas[0] for partition in outcome.partitions)
            brokers = sorted({**leaders, self._core.term.node_id: None})
            self._core.channels.call_when_sent(brokers, lambda: asked(outcome))

    def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None,
        validate_only: bool,
        timeout_ms: int,
        done: ControllerResponse[TopicImage],
    ) -> None:
        """Bring a topic to `count` partitions; answered like `create_topic`."""
        asked = self._requests.add_request(done, timeout_ms)
        self._queue.submit_request(
            f"grow topic {name}",
            lambda: self._topics.grow_topic(name, count, assignments, validate_only),
            asked if validate_only else lambda outcome: self._on_created(outcome, asked),
        )

    def delete_topic(self, name: str, timeout_ms: int, done: ControllerResponse[None]) -> None:
        """Delete a topic. Answered when it is gone, or, if a replica's broker is down, when all live brokers know."""
        asked = self._requests.add_request(done, timeout_ms)

        def marked(outcome: ApiError | None) -> None:
            if outcome is None:
                self._deletions.wait_for_deletion(name, asked)
            else:
                asked(outcome)

        self._queue.submit_request(f"delete topic {name}", lambda: self._deletions.mark_topic(name), marked)

    # -- partitions ------------------------------------------------------------------------------------------------

    def alter_partition(
        self, request: AlterPartitionRequest, version: int, done: ControllerResponse[AlterPartitionResponse]
    ) -> None:
        """Decide a leader's ISR proposals (KIP-497, KIP-841, KIP-903). Errors are part of the response."""
        self._queue.submit_request(
            "alter partitions",
            lambda: self._proposals.alter_partitions(request, version),
            self._requests.add_request(done),
        )

    def elect_leaders(
        self,
        kind: ElectionType,
        partitions: Sequence[TopicPartition] | None,
        done: ControllerResponse[ElectionOutcomes],
        *,
        only_needed: bool = False,
    ) -> None:
        """Elect preferred leaders, or unclean ones for partitions without a leader. `partitions` None: all
        partitions.

        The answer has an outcome per partition, None for success. With `partitions` None, or `only_needed`, it
        leaves out partitions that need no election.
        """
        asked = self._requests.add_request(done)
        self._queue.submit_request(
            "elect leaders",
            lambda: self._leaders.elect_leaders(kind, partitions, only_needed=only_needed or partitions is None),
            lambda outcome: self._answer_when_known(list(self._context.brokers) if outcome else [], outcome, asked),
        )

    def all_partitions(self) -> Iterator[TopicPartition]:
        """Iterate over all partitions, topic by topic. Topics may change during the iteration."""
        for name in list(self._context.topics):
            topic = self._context.topics.get(name)
            if topic is not None and name not in self._context.deleting:
                yield from [TopicPartition(name, number) for number in topic.partitions]

    def moving_partitions(self) -> list[TopicPartition]:
        """The partitions whose replicas are being moved."""
        return list(self._context.moving)

    def alter_reassignments(
        self,
        targets: Mapping[TopicPartition, tuple[int, ...] | None],
        allow_factor_change: bool,
        done: ControllerResponse[ElectionOutcomes],
    ) -> None:
        """Begin to move partitions to these replicas; None cancels a move (KIP-455). Answered when it is stored."""
        self._queue.submit_request(
            "move partitions",
            lambda: self._moves.alter_moves(targets, allow_factor_change),
            self._requests.add_request(done),
        )

    def list_reassignments(
        self,
        partitions: Sequence[TopicPartition] | None,
        done: ControllerResponse[dict[TopicPartition, OngoingReassignment]],
    ) -> None:
        """List the moves that are under way, among these partitions or (None) all."""

        def found() -> Workflow[dict[TopicPartition, OngoingReassignment]]:
            yield from ()  # as above: only the order matters
            wanted = self._context.moving if partitions is None else dict.fromkeys(partitions)
            moves = {tp: self._context.find_partition(tp) for tp in wanted if tp in self._context.moving}
            return {
                tp: OngoingReassignment(partition.replicas, partition.adding, partition.removing)
                for tp, partition in moves.items()
                if partition is not None
            }

        self._queue.submit_request("list moves", found, self._requests.add_request(done))

    # -- brokers ---------------------------------------------------------------------------------------------------

    def controlled_shutdown(
        self, broker: int, broker_epoch: int | None, done: ControllerResponse[list[TopicPartition]]
    ) -> None:
        """Move the leaderships of a broker that wants to stop. The answer names the partitions that it still leads.

        Answered when the new leaders know. `broker_epoch` None: not in the request (versions 0 and 1).
        Errors: STALE_BROKER_EPOCH, BROKER_NOT_AVAILABLE.
        """
        asked = self._requests.add_request(done)

        def moved(outcome: tuple[list[TopicPartition], list[int]] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                asked(outcome)
            else:
                remaining, leaders = outcome
                self._answer_when_known(leaders, remaining, asked)

        self._queue.submit_request(
            f"shut down broker {broker}", lambda: self._brokers.shut_down(broker, broker_epoch), moved
        )

    def _answer_when_known(self, brokers: Sequence[int], outcome: Any, asked: PendingRequest) -> None:
        """Answer when these brokers know, but after PATIENCE_MS at the latest: one of them may hang."""
        if isinstance(outcome, ApiError):
            asked(outcome)
            return
        owed = [outcome]

        def send_response() -> None:
            if owed:  # the later of the two calls finds the list empty, and keeps no outcome alive until then
                asked(owed.pop())

        self._core.channels.call_when_sent(brokers, send_response)
        self._core.purgatory.continue_after(PATIENCE_MS, send_response)

    def allocate_producer_ids(self, broker: int, broker_epoch: int, done: ControllerResponse[tuple[int, int]]) -> None:
        """Allocate a block of ids: (first, size). Errors: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH."""
        self._queue.submit_request(
            "producer ids", lambda: allocate_block(self._core, broker, broker_epoch), self._requests.add_request(done)
        )

    def update_features(
        self,
        updates: Sequence[FeatureUpdate],
        validate_only: bool,
        timeout_ms: int,
        done: ControllerResponse[FinalizedFeatures],
    ) -> None:
        """Finalize levels of features, all or none. Answered when they are stored. Errors: `update_features`."""
        self._queue.submit_request(
            "update features",
            lambda: update_features(self._core, updates, validate_only),
            self._requests.add_request(done, timeout_ms),
        )
