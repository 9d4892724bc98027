"""LeaderAndIsr and StopReplica: the controller's orders, carried out strictly in the order of their arrival.

Zone: deterministic. Fences orders, queues them, decodes requests and builds responses; `replica_manager` applies them.

API 4, versions 0-7: 1 is_new, 2 broker epoch (KIP-380), 3 reassignments (KIP-455), 5 topic ids (KIP-516).
API 5, versions 0-4: 1 broker epoch, 3 leader epochs (KIP-570).

An order waits for the response to the one before, and until the settings of its topics are known. It is fenced at the
head of the queue, and again after every wait. Large orders are applied a few partitions per turn. A request that the
controller sent before one that has arrived already (over a connection that it had given up) is refused: a late deletion
would hit a topic that was created since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from ottla.changes import changes_state
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.replication.partition.replica_state import PartitionState
from ottla.replication.replica_manager import ReplicaManager, StopOrder
from ottla.requests import Context, handles
from ottla.seams import Clock
from ottla.types import NO_EPOCH, ZERO_UUID, TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)

PARTITIONS_PER_STEP: Final = 50
"""Most partitions that one turn changes."""
CREATION: Final = 6
"""Creating a log costs as much as this number of changes: it takes twenty system calls, a millisecond."""
_IDS_FROM: Final = 5
_BROKER_EPOCH_FROM: Final = {ApiKey.LEADER_AND_ISR: 2, ApiKey.STOP_REPLICA: 1}
"""The version from which on a request contains the broker epoch that it is meant for."""
_HALF: Final = 1 << 30

Errors = dict[TopicPartition, ErrorCode]
Prepare = Callable[[Sequence[str], Callable[[], None]], None]
"""(topics, then): load the settings of these topics if they are not known, then call back once, in a later turn."""


class _Request(Protocol):
    controller_id: int
    controller_epoch: int
    broker_epoch: int


class _Order:
    """A request in the queue."""

    __slots__ = ("context", "errors", "is_looked_up", "perform", "request", "respond", "topics", "work")

    def __init__(
        self,
        context: Context,
        request: _Request,
        topics: Sequence[str],
        work: Sequence[tuple[TopicPartition, Any]],
        perform: Callable[[_Request, Mapping[TopicPartition, Any]], Errors],
        respond: Callable[[Errors], object],
    ) -> None:
        self.context = context
        self.request = request
        self.topics = topics
        """Topics whose settings have to be known first."""
        self.work = deque(work)
        self.perform = perform
        self.respond = respond
        self.errors: Errors = {}
        self.is_looked_up = False
        """Whether the store was asked for its controller."""


class ControlHandlers:
    """Queues and carries out the controller's orders."""

    def __init__(
        self,
        replicas: ReplicaManager,
        fence: ControlFence,
        clock: Clock,
        purgatory: Purgatory,
        prepare: Prepare,
        on_applied: Callable[[Sequence[TopicPartition]], None],
        on_topics_deleted: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        """`on_applied` is called with the partitions of a LeaderAndIsr after it was applied, before its response;
        `on_topics_deleted` with those that StopReplica deleted because their topics are being deleted."""
        self._on_applied = on_applied
        self._on_topics_deleted = on_topics_deleted
        self._replicas = replicas
        self._fence = fence
        self._clock = clock
        self._purgatory = purgatory
        self._prepare = prepare
        self._queue: deque[_Order] = deque()
        self._newest = (0, -1)
        """Controller epoch and correlation id of the newest order so far."""

    # -- requests ------------------------------------------------------------------------------------------------------

    @handles(ApiKey.LEADER_AND_ISR, 0, 7, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def leader_and_isr(self, context: Context, request: LeaderAndIsrRequest) -> None:
        """Apply leaders and ISRs. Errors of the request: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH."""
        states = _partition_states(request)
        topics = sorted({tp.topic for tp, _ in states})
        by_id = context.api_version >= _IDS_FROM
        ids = {tp.topic: topic_id for tp, (topic_id, _) in states}

        def respond(errors: Errors) -> LeaderAndIsrResponse:
            self._on_applied([tp for tp, _ in states])
            return _answer_by_id(errors, ids) if by_id else _answer_by_name(errors)

        self._enqueue_order(_Order(context, request, topics, states, self._lead_and_follow, respond))

    @handles(ApiKey.STOP_REPLICA, 0, 4, resource="Cluster", operation="ClusterAction", inter_broker=True)
    def stop_replica(self, context: Context, request: StopReplicaRequest) -> None:
        """Stop and delete replicas. Errors of the request: STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH."""
        orders = _stop_orders(request)
        self._enqueue_order(_Order(context, request, (), orders, self._stop_replicas, _stop_response))

    def _lead_and_follow(self, request: _Request, states: Mapping[TopicPartition, Any]) -> Errors:
        return self._replicas.apply(states, request.controller_epoch, self._clock.now())

    def _stop_replicas(self, _: _Request, orders: Mapping[TopicPartition, StopOrder]) -> Errors:
        errors = self._replicas.stop_replicas(orders)
        self._on_topics_deleted([tp for tp, order in orders.items() if order.deletes_topic and not errors[tp]])
        return errors

    # -- the queue -----------------------------------------------------------------------------------------------------

    @changes_state
    def _enqueue_order(self, order: _Order) -> None:
        self._queue.append(order)
        # Otherwise an order is ahead, in the middle of a wait; its end runs this one.
        if len(self._queue) == 1:
            self._run_orders()

    def _run_orders(self) -> None:
        """Carry out orders until one has to wait."""
        while self._queue:
            order = self._queue[0]
            # 1. An unknown controller: the metadata store is asked first, and its answer calls this method again.
            if self._awaits_lookup(order):
                return
            # 2. Fencing. 3. The settings of its topics; then `_continue_order`, which fences once more. 4. Some
            # partitions.
            if self._is_fenced(order, first=True):
                continue
            if order.topics:
                self._prepare(order.topics, self._continue_order)
                return
            if not self._step_order(order):
                return

    def _awaits_lookup(self, order: _Order) -> bool:
        """Whether the order waits until the metadata store has confirmed its controller; then `_run_orders` is
        called."""
        if order.is_looked_up or not self._fence.needs_lookup(order.request.controller_epoch):
            return False
        order.is_looked_up = True
        self._fence.look_up_epoch(self._run_orders)
        return True

    @changes_state
    def _continue_order(self) -> None:
        """Continue with the order at the head of the queue after a wait."""
        order = self._queue[0]
        if self._is_fenced(order) or self._step_order(order):
            self._run_orders()

    def _step_order(self, order: _Order) -> bool:
        """Apply as many partitions as fit into a turn. Returns whether the order is complete."""
        some: dict[TopicPartition, Any] = {}
        left = PARTITIONS_PER_STEP
        while order.work and left > 0:
            tp, what = order.work.popleft()
            some[tp] = what
            left -= 1 if self._replicas.has_log(tp) else CREATION
        order.errors.update(order.perform(order.request, some))
        # The order stays at the head of the queue, so that no other one runs between its steps.
        if order.work:
            self._purgatory.continue_after(0, self._continue_order)
            return False
        self._queue.popleft()
        order.context.send_reply(order.respond(order.errors))
        return True

    def _is_fenced(self, order: _Order, first: bool = False) -> bool:
        """Whether the order at the head of the queue is fenced; then it gets an error and leaves the queue."""
        request = order.request
        try:
            has_epoch = order.context.api_version >= _BROKER_EPOCH_FROM[ApiKey(order.context.api_key)]
            broker_epoch = request.broker_epoch if has_epoch else None
            self._fence.check_request(request.controller_id, request.controller_epoch, broker_epoch)
            # Only once: from then on the order itself is the newest one, and would be taken for a late copy.
            if first:
                self._check_order(order)
        except ApiError as error:
            self._queue.popleft()
            order.context.send_reply(error.as_value())
            return True
        return False

    def _check_order(self, order: _Order) -> None:
        """Raises ApiError STALE_CONTROLLER_EPOCH for a request that its controller sent before the newest one here.

        The correlation ids of a controller rise; they wrap around at 2^31.
        """
        epoch, number = order.request.controller_epoch, order.context.correlation_id
        newest_epoch, newest = self._newest
        # The same number is late as well: that order has been queued already.
        late = epoch == newest_epoch and newest >= 0 and (newest - number) & 0x7FFFFFFF < _HALF
        if late:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH, f"request {number} arrived after request {newest}")
        self._newest = (epoch, number)


def _partition_states(request: LeaderAndIsrRequest) -> list[tuple[TopicPartition, tuple[bytes, PartitionState]]]:
    """The state of each partition in a request of any version."""
    rows = [(each.topic_name, ZERO_UUID, each) for each in request.ungrouped_partition_states]
    rows += [
        (topic.topic_name, topic.topic_id, each) for topic in request.topic_states for each in topic.partition_states
    ]
    return [
        (TopicPartition(name, each.partition_index), (topic_id, _partition_state(each)))
        for name, topic_id, each in rows
    ]


def _partition_state(each: LeaderAndIsrRequest.LeaderAndIsrPartitionState) -> PartitionState:
    return PartitionState(
        each.leader,
        each.leader_epoch,
        tuple(each.isr),
        each.partition_epoch,
        tuple(each.replicas),
        tuple(each.adding_replicas),
        tuple(each.removing_replicas),
        each.is_new,
    )


def _answer_by_id(errors: Errors, ids: Mapping[str, bytes]) -> LeaderAndIsrResponse:
    topics: dict[bytes, LeaderAndIsrResponse.LeaderAndIsrTopicError] = {}
    for tp, code in errors.items():
        empty = LeaderAndIsrResponse.LeaderAndIsrTopicError(topic_id=ids[tp.topic])
        one = LeaderAndIsrResponse.LeaderAndIsrPartitionError(partition_index=tp.partition, error_code=code)
        topics.setdefault(ids[tp.topic], empty).partition_errors.append(one)
    return LeaderAndIsrResponse(topics=list(topics.values()))


def _answer_by_name(errors: Errors) -> LeaderAndIsrResponse:
    one = LeaderAndIsrResponse.LeaderAndIsrPartitionError
    rows = [one(topic_name=tp.topic, partition_index=tp.partition, error_code=code) for tp, code in errors.items()]
    return LeaderAndIsrResponse(partition_errors=rows)


def _stop_orders(request: StopReplicaRequest) -> list[tuple[TopicPartition, StopOrder]]:
    """The order for each partition in a request of any version. Before version 3 there are no epochs, and one flag
    for all deletions."""
    old = StopOrder(NO_EPOCH, request.delete_partitions)
    orders = [(TopicPartition(each.topic_name, each.partition_index), old) for each in request.ungrouped_partitions]
    orders += [
        (TopicPartition(topic.name, index), old) for topic in request.topics for index in topic.partition_indexes
    ]
    orders += [
        (TopicPartition(topic.topic_name, each.partition_index), StopOrder(each.leader_epoch, each.delete_partition))
        for topic in request.topic_states
        for each in topic.partition_states
    ]
    return orders


def _stop_response(errors: Errors) -> StopReplicaResponse:
    one = StopReplicaResponse.StopReplicaPartitionError
    rows = [one(topic_name=tp.topic, partition_index=tp.partition, error_code=code) for tp, code in errors.items()]
    return StopReplicaResponse(partition_errors=rows)
