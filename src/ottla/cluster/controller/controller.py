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
from ottla.cluster.controller.channel import PartitionErrors
from ottla.cluster.controller.deletions import TopicDeletions
from ottla.cluster.controller.leaders import ElectionOutcomes, ElectionType, LeaderElections
from ottla.cluster.controller.moves import PartitionMoves
from ottla.cluster.controller.partition_state_store import PartitionStateStore
from ottla.cluster.controller.pending_requests import PendingRequest, PendingRequests
from ottla.cluster.controller.proposals import Proposals
from ottla.cluster.controller.queue import WorkQueue, as_refusal, not_controller
from ottla.cluster.controller.topic_changes import TopicChanges
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
from ottla.cluster.store.workflow import Workflow, contained, run
from ottla.cluster.topics import TopicSpec
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Node, Op
from ottla.types import TopicPartition
from ottla.wire.messages import AlterPartitionRequest, AlterPartitionResponse

# Blocks of producer ids for brokers (KIP-730). No id is allocated twice.

_TRIES: Final = 10
"""Attempts to allocate a block, each of which may lose a race with brokers that write the node themselves."""


def allocate(core: PartitionStateStore, broker: int, broker_epoch: int) -> Workflow[tuple[int, int]]:
    """Allocate the next block for a broker: (first id, size). Raises ApiError or Failure."""
    known = core.context.brokers.get(broker)
    if known is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker} is not registered")
    if known.epoch != broker_epoch:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker} has epoch {known.epoch}, not {broker_epoch}")
    for _ in range(_TRIES):
        node = yield from core.get(PRODUCER_ID_BLOCK)
        start = _start(node)
        content = encode_block(BlockNode(broker, start, start + BLOCK_SIZE - 1))
        path = PRODUCER_ID_BLOCK
        op = Op("create", path, content) if node is None else Op("put", path, content, node.version)
        try:
            yield from core.write("producer ids", [op])
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


def _start(node: Node | None) -> int:
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
        self._asks = PendingRequests(core.purgatory, later)
        self._leaders = LeaderElections(core)
        self._moves = PartitionMoves(core, queue)
        self._deletions = TopicDeletions(core, queue)
        self._brokers = BrokerChanges(core, queue, self._leaders, self._moves, self._deletions)
        self._topics = TopicChanges(core, queue, self._leaders, lambda: self.image)
        self._proposals = Proposals(core, self._moves)
        core.channels.listener = self
        self.is_settled = False
        """Whether the start-up work is done and the own broker has applied its updates."""

    @property
    def epoch(self) -> int:
        """The controller epoch of this term."""
        return self._core.office.epoch

    @property
    def image(self) -> ClusterImage:
        """Live brokers and all topics as the controller knows them. Topics' settings are not kept here."""
        return self._context.image(self._core.office.node_id, self._core.config().topic_defaults)

    @property
    def idle(self) -> bool:
        """Whether the controller has nothing to decide just now."""
        return self._queue.idle

    # -- term ------------------------------------------------------------------------------------------------------

    def begin_term(self) -> None:
        """Begin the term: read the state of the cluster, elect missing leaders, update all brokers."""
        self._queue.notice("start of term", self._take_office, urgent=True)

    def look_again(self) -> None:
        """Read everything that is watched again, because an interruption of the session has removed the watches."""
        self._brokers.on_change()
        for notice in (self._topics_changed, self._deletions_changed, self._isr_changed, self._log_dirs_changed):
            notice()
        self._moves_by_hand()
        self._elections_by_hand()
        self._queue.notice("all topics changed", self._topics.look_again)

    def close(self) -> None:
        """End the term: nothing is written or sent any more, and pending requests fail with NOT_CONTROLLER."""
        self._core.closed = True
        self._queue.close()
        self._core.channels.close()
        self._asks.close(not_controller())

    def _take_office(self) -> Workflow[None]:
        core = self._core
        logger.info("controller: this broker is the controller with epoch %d", core.office.epoch)
        # 1. Notifications that are older than this read are void: steps 2 and 3 read the newest state anyway.
        yield from self._forget_notifications()
        # 2. Brokers before topics: the list of live brokers has to arrive before any leadership among them.
        numbers = yield from core.children(BROKER_IDS, self._brokers.on_change)
        for broker in (yield from self._brokers.read(sorted(int(name) for name in numbers if name.isdecimal()))):
            self._context.put_broker(broker)
            core.channels.open(broker.node_id)
        core.channels.tell_brokers(first=True)
        # 3. Topics, then the deletions among them, so that no leader is elected for a topic that is being deleted.
        names = yield from core.children(TOPICS, self._topics_changed)
        yield from self._topics.read(names)
        yield from self._deletions.noticed(self._deletions_changed)
        tps = [tp for tp, _ in self._context.living()]
        # 4. Restarts that the last controller did not notice, then leaders and ISR members that are offline.
        yield from self._leaders.renew(tps)
        yield from self._leaders.recover(tps)
        self._context.is_new = False
        self._context.changed_at.clear()
        # 5. All states to all replicas: the last controller may have died before it sent them.
        yield from core.each_chunk(tps, core.channels.tell_leaders)
        # 6. Moves and elections that are under way, or were requested through the store.
        yield from self._moves.by_hand(self._moves_by_hand)
        yield from self._moves.resume(list(self._context.moving))
        yield from self._leaders.by_hand(self._elections_by_hand)
        self._after(FIRST_REBALANCE_MS, self._rebalance)
        self._after(core.config().unclean_leader_election_interval_ms, self._retry_unclean)
        core.channels.when_told([core.office.node_id], self._settle)
        logger.info(
            "controller: read %d brokers, %d topics, %d partitions", len(numbers), len(self._context.topics), len(tps)
        )

    def _settle(self) -> None:
        self.is_settled = True

    def _forget_notifications(self) -> Workflow[None]:
        """Delete old notifications, and create /feature for tools that expect it."""
        for path, on_change in ((ISR_CHANGES, self._isr_changed), (LOG_DIR_EVENTS, self._log_dirs_changed)):
            names = yield from self._core.children(path, on_change)
            yield from self._core.remove_all([f"{path}/{name}" for name in names])
        if (yield from self._core.get(FEATURE)) is None:
            yield from self._core.attempt("controller", [Op("create", FEATURE, encode_feature())])

    # -- changes in the store --------------------------------------------------------------------------------------

    def _topics_changed(self) -> None:
        self._queue.notice("topics changed", lambda: self._topics.changed(self._topics_changed))

    def _deletions_changed(self) -> None:
        self._queue.notice("deletions changed", lambda: self._deletions.noticed(self._deletions_changed))

    def _isr_changed(self) -> None:
        self._queue.notice("ISR notifications", lambda: self._proposals.notified(self._isr_changed))

    def _log_dirs_changed(self) -> None:
        self._queue.notice("log directories", lambda: self._brokers.log_dirs_failed(self._log_dirs_changed))

    def _moves_by_hand(self) -> None:
        self._queue.notice("moves by hand", lambda: self._moves.by_hand(self._moves_by_hand))

    def _elections_by_hand(self) -> None:
        self._queue.notice("elections by hand", lambda: self._leaders.by_hand(self._elections_by_hand))

    def settings_changed(self, topic: str | None) -> None:
        """Retry elections after settings of a topic, or (None) of brokers, changed: unclean ones may be allowed now."""
        if topic is None or topic in self._context.topics:
            self._queue.notice("settings changed", self._leaders.retry_unclean)

    # -- periodic work ---------------------------------------------------------------------------------------------

    def _after(self, ms: int, action: Callable[[], None]) -> None:
        self._core.purgatory.look_after(ms, action)

    def _rebalance(self) -> None:
        if self._core.closed:
            return
        config = self._core.config()
        if config.auto_leader_rebalance_enable:
            self._queue.notice("rebalance", self._leaders.rebalance)
        self._after(config.leader_imbalance_check_interval_seconds * 1000, self._rebalance)

    def _retry_unclean(self) -> None:
        if not self._core.closed:
            self._queue.notice("unclean elections", self._leaders.retry_unclean)
            self._after(self._core.config().unclean_leader_election_interval_ms, self._retry_unclean)

    # -- responses of brokers (`channel.ResponseListener`) ---------------------------------------------------------

    def leaders_answered(self, broker: int, errors: PartitionErrors) -> None:
        """As ResponseListener."""
        self._brokers.on_leader_and_isr_response(broker, errors)

    def deletions_answered(self, broker: int, errors: PartitionErrors) -> None:
        """As ResponseListener."""
        self._deletions.on_stop_replica_response(broker, errors)

    def controller_epoch_is_stale(self) -> None:
        """As ResponseListener."""
        self._queue.notice("a newer controller", self._core.verify, urgent=True)

    # -- topics ----------------------------------------------------------------------------------------------------

    def create_topic(
        self, spec: TopicSpec, validate_only: bool, timeout_ms: int, done: ControllerResponse[TopicImage]
    ) -> None:
        """Create a topic. Answered when its leaders have received it; REQUEST_TIMED_OUT if that takes too long.

        `validate_only`: the answer is the topic that would be created. Settings that `spec` lacks have the broker's
        defaults.
        """
        asked = self._asks.new(done, timeout_ms)

        def plan() -> Workflow[TopicImage]:
            yield from ()  # planning does not read the store; it is a workflow only to run in the order of the queue
            return self._topics.plan(spec)

        def planned(outcome: TopicImage | ApiError) -> None:
            if isinstance(outcome, ApiError) or validate_only:
                asked(outcome)
                return
            self._context.creating[outcome.name] = None
            creation = contained(f"create topic {outcome.name}", lambda: self._topics.create_topic(outcome))
            run(self._core.store, creation, lambda made: self._made(made, asked))

        self._queue.submit_request(f"create topic {spec.name}", plan, planned)

    def _made(self, outcome: TopicImage | Failure | ApiError, asked: PendingRequest) -> None:
        """Answer a creation that has ended.

        Waits for the leaders to receive the topic, and for this broker, which the client is likely to ask next.
        """
        if isinstance(outcome, Failure):
            asked(as_refusal(outcome))
        elif isinstance(outcome, ApiError):
            if outcome.code is ErrorCode.NOT_CONTROLLER:
                self.controller_epoch_is_stale()
            asked(outcome)
        else:
            leaders = dict.fromkeys(partition.replicas[0] for partition in outcome.partitions)
            brokers = sorted({**leaders, self._core.office.node_id: None})
            self._core.channels.when_told(brokers, lambda: asked(outcome))

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
        asked = self._asks.new(done, timeout_ms)
        self._queue.submit_request(
            f"grow topic {name}",
            lambda: self._topics.grow(name, count, assignments, validate_only),
            asked if validate_only else lambda outcome: self._made(outcome, asked),
        )

    def delete_topic(self, name: str, timeout_ms: int, done: ControllerResponse[None]) -> None:
        """Delete a topic. Answered when it is gone, or, if a replica's broker is down, when all live brokers know."""
        asked = self._asks.new(done, timeout_ms)

        def marked(outcome: ApiError | None) -> None:
            if outcome is None:
                self._deletions.wait(name, asked)
            else:
                asked(outcome)

        self._queue.submit_request(f"delete topic {name}", lambda: self._deletions.mark(name), marked)

    # -- partitions ------------------------------------------------------------------------------------------------

    def alter_partition(
        self, request: AlterPartitionRequest, version: int, done: ControllerResponse[AlterPartitionResponse]
    ) -> None:
        """Decide a leader's ISR proposals (KIP-497, KIP-841, KIP-903). Errors are part of the response."""
        self._queue.submit_request(
            "alter partitions", lambda: self._proposals.alter_partitions(request, version), self._asks.new(done)
        )

    def elect_leaders(
        self,
        kind: ElectionType,
        partitions: Sequence[TopicPartition] | None,
        done: ControllerResponse[ElectionOutcomes],
        *,
        only_needed: bool = False,
    ) -> None:
        """Elect preferred leaders, or unclean ones for partitions without a leader. `partitions` None: all partitions.

        The answer has an outcome per partition, None for success. With `partitions` None, or `only_needed`, it leaves
        out partitions that need no election.
        """
        asked = self._asks.new(done)
        self._queue.submit_request(
            "elect leaders",
            lambda: self._leaders.elect(kind, partitions, only_needed=only_needed or partitions is None),
            lambda outcome: self._when_known(list(self._context.brokers) if outcome else [], outcome, asked),
        )

    def partitions(self) -> Iterator[TopicPartition]:
        """Iterate over all partitions, topic by topic. Topics may change during the iteration."""
        for name in list(self._context.topics):
            topic = self._context.topics.get(name)
            if topic is not None and name not in self._context.deleting:
                yield from [TopicPartition(name, number) for number in topic.partitions]

    def moving(self) -> list[TopicPartition]:
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
            "move partitions", lambda: self._moves.alter(targets, allow_factor_change), self._asks.new(done)
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
            moves = {tp: self._context.partition(tp) for tp in wanted if tp in self._context.moving}
            return {
                tp: OngoingReassignment(partition.replicas, partition.adding, partition.removing)
                for tp, partition in moves.items()
                if partition is not None
            }

        self._queue.submit_request("list moves", found, self._asks.new(done))

    # -- brokers ---------------------------------------------------------------------------------------------------

    def controlled_shutdown(
        self, broker: int, broker_epoch: int | None, done: ControllerResponse[list[TopicPartition]]
    ) -> None:
        """Move the leaderships of a broker that wants to stop. The answer names the partitions that it still leads.

        Answered when the new leaders know. `broker_epoch` None: not in the request (versions 0 and 1).
        Errors: STALE_BROKER_EPOCH, BROKER_NOT_AVAILABLE.
        """
        asked = self._asks.new(done)

        def moved(outcome: tuple[list[TopicPartition], list[int]] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                asked(outcome)
            else:
                remaining, leaders = outcome
                self._when_known(leaders, remaining, asked)

        self._queue.submit_request(
            f"shut down broker {broker}", lambda: self._brokers.shut_down(broker, broker_epoch), moved
        )

    def _when_known(self, brokers: Sequence[int], outcome: Any, asked: PendingRequest) -> None:
        """Answer when these brokers know, but after PATIENCE_MS at the latest: one of them may hang."""
        if isinstance(outcome, ApiError):
            asked(outcome)
            return
        owed = [outcome]

        def send_response() -> None:
            if owed:  # the later of the two calls finds the list empty, and keeps no outcome alive until then
                asked(owed.pop())

        self._core.channels.when_told(brokers, send_response)
        self._core.purgatory.after(PATIENCE_MS, send_response)

    def allocate_producer_ids(self, broker: int, broker_epoch: int, done: ControllerResponse[tuple[int, int]]) -> None:
        """Allocate a block of ids: (first, size). Errors: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH."""
        self._queue.submit_request(
            "producer ids", lambda: allocate(self._core, broker, broker_epoch), self._asks.new(done)
        )
