"""Updates that brokers have not received yet. One request at a time per broker is sent until the broker answers it.

Zone: deterministic. A channel remembers *which* partitions have to be sent to its broker, not their states: a request
is built from what the controller knows when it is sent. So a slow broker costs one entry per partition however often
that changes, and receives only the newest state. A channel belongs to one registration of its broker: the next
registration gets another channel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ottla.broker_client import BrokerClient
from ottla.changes import changes_state
from ottla.cluster.controller.context import NOT_STORED, ControllerContext
from ottla.cluster.controller.requests import (
    LEADER_AND_ISR_VERSION,
    LEADER_DURING_DELETE,
    STOP_REPLICA_VERSION,
    UPDATE_METADATA_VERSION,
    Leadership,
    RequestSender,
    StopOrder,
    UpdatedPartition,
    between_brokers,
    leader_and_isr,
    stop_replica,
    update_metadata,
)
from ottla.config.broker import BrokerConfig
from ottla.errors import ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Failure, Network
from ottla.types import TopicPartition
from ottla.wire.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)

logger = logging.getLogger(__name__)

LANE: Final = "controller"
BATCH: Final = 250
"""Partitions per request: a few milliseconds of work for either side."""
RETRY_MS: Final = 100
"""Delay before a request is sent again."""

PartitionErrors = dict[TopicPartition, ErrorCode]


class ResponseListener(Protocol):
    """Receives the responses of brokers."""

    def on_leader_and_isr_response(self, broker: int, errors: PartitionErrors) -> None:
        """Handle a response to LeaderAndIsr, with an error code for each partition."""
        ...

    def on_stop_replica_response(self, broker: int, errors: PartitionErrors) -> None:
        """Handle a response to StopReplica with deletion, with an error code for each partition."""
        ...

    def on_stale_controller_epoch(self) -> None:
        """Handle STALE_CONTROLLER_EPOCH: a broker knows a newer controller."""
        ...


class _Due(NamedTuple):
    """An update to send, with its number.

    `flag`: the partition is new (leaders), or the replica is to be deleted (stops).
    """

    mark: int
    flag: bool = False
    topic_id: bytes = b""
    """The id of a topic that is being deleted, for its metadata; else empty."""


class _Sending(NamedTuple):
    request: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
    version: int
    due: dict[TopicPartition, _Due]
    kind: str


_LEADERS: Final = "leaders"
_STOPS: Final = "stops"
_METADATA: Final = "metadata"


class BrokerChannel:
    """The updates for one registration of one broker."""

    def __init__(self, broker: int, broker_epoch: int, channels: BrokerChannels, listener: ResponseListener) -> None:
        self.broker = broker
        self.broker_epoch = broker_epoch
        self.closed = False
        self._all = channels
        self._listener = listener
        self._due: dict[str, dict[TopicPartition, _Due]] = {_LEADERS: {}, _STOPS: {}, _METADATA: {}}
        self._brokers_first = True
        self._brokers_mark = 0
        """Mark of the list of live brokers that has to be sent; 0: it was sent."""
        self._sending: _Sending | None = None
        self._waiting_to_retry = False
        self._complained = False
        self._waiters: list[tuple[int, Callable[[], None]]] = []

    # -- what is due -------------------------------------------------------------------------------------------

    def add_brokers(self, mark: int, first: bool) -> None:
        """Add the list of live brokers. `first`: before anything else, because a leader may be among the new ones."""
        self._brokers_mark = self._brokers_mark or mark
        self._brokers_first = self._brokers_first or first

    def add_leader(self, mark: int, tp: TopicPartition, is_new: bool) -> None:
        """Add a LeaderAndIsr update of a partition; it replaces a stop that does not delete."""
        due = self._due[_LEADERS]
        before = due.get(tp)
        due[tp] = _Due(mark, is_new) if before is None else before._replace(flag=before.flag or is_new)
        # A stop without deletion is void now. A deletion stays and is sent first: the new replica starts empty.
        stop = self._due[_STOPS].get(tp)
        if stop is not None and not stop.flag:
            del self._due[_STOPS][tp]

    def add_stop(self, mark: int, tp: TopicPartition, delete: bool) -> None:
        """Add a replica to stop; it replaces a LeaderAndIsr update."""
        due = self._due[_STOPS]
        before = due.get(tp)
        due[tp] = _Due(mark, delete) if before is None else before._replace(flag=before.flag or delete)
        self._due[_LEADERS].pop(tp, None)

    def add_metadata(self, mark: int, tp: TopicPartition, deleted: bytes) -> None:
        """Add the state of a partition for Metadata. `deleted`: the id of its topic if that is being deleted."""
        due = self._due[_METADATA]
        before = due.get(tp)
        # The older mark stays, so that callers that wait for it are called only after this newer state is sent.
        due[tp] = _Due(mark if before is None else before.mark, topic_id=deleted)

    def call_when_sent(self, mark: int, done: Callable[[], None]) -> None:
        """Call `done` when the broker has answered everything up to `mark`, or is gone and never will answer."""
        self._waiters.append((mark, done))

    # -- sending -----------------------------------------------------------------------------------------------

    @changes_state
    def send_next(self) -> None:
        """Send the next request, unless one is in flight."""
        if self.closed or self._sending is not None or self._waiting_to_retry:
            return
        while self._sending is None:
            kind = self._next_kind()
            if kind is None:
                self._call_waiters()
                return
            self._sending = self._build_request(kind)
        sending = self._sending
        self._all.peers.send_request(
            self.broker,
            sending.request,
            sending.version,
            self._all.config().controller_socket_timeout_ms,
            lambda answer: self._on_response(sending, answer),
            LANE,
        )

    def _next_kind(self) -> str | None:
        """The kind of the next request, in this order.

        1. The list of live brokers when it is urgent: a leader in a later request may be one of the new brokers.
        2. Stops. A stop and a LeaderAndIsr update of one partition are both due only if the stop deletes.
        3. Leaders. 4. Metadata, which can wait the longest.
        """
        if self._brokers_mark and self._brokers_first:
            return _METADATA
        for kind in (_STOPS, _LEADERS, _METADATA):
            if self._due[kind]:
                return kind
        return _METADATA if self._brokers_mark else None

    def _build_request(self, kind: str) -> _Sending | None:
        """Build the next request of a kind; None when no partition that was due exists any more."""
        due = self._due[kind]
        # An urgent list of brokers is sent alone: thousands of partitions would delay it.
        hurry = kind == _METADATA and self._brokers_first and bool(self._brokers_mark)
        taken = {} if hurry else {tp: due[tp] for tp in list(due)[:BATCH]}
        for tp in taken:
            del due[tp]
        # The newest state of each partition is read now, not when it was added.
        sender = RequestSender(self._all.node_id, self._all.controller_epoch, self.broker_epoch)
        if kind == _STOPS:
            stops = [self._stop_partition(tp, each) for tp, each in taken.items()]
            return _Sending(stop_replica(sender, stops), STOP_REPLICA_VERSION, taken, kind)
        context = self._all.context
        if kind == _LEADERS:
            states = [state for tp, each in taken.items() if (state := self._leadership_of(tp, each)) is not None]
            if not states:
                return None
            request = leader_and_isr(sender, states, context.brokers, self._all.config().inter_broker_listener)
            return _Sending(request, LEADER_AND_ISR_VERSION, taken, kind)
        # The list of brokers is part of every UpdateMetadata, so that any metadata request delivers it.
        shown = [view for tp, each in taken.items() if (view := self._metadata_of(tp, each)) is not None]
        if not shown and not self._brokers_mark:
            return None
        # The list itself is an update of the request, so that a failure sends it again.
        if self._brokers_mark:
            taken[_BROKERS] = _Due(self._brokers_mark, self._brokers_first)
        self._brokers_mark, self._brokers_first = 0, False
        return _Sending(update_metadata(sender, shown, context.brokers), UPDATE_METADATA_VERSION, taken, kind)

    def _leadership_of(self, tp: TopicPartition, due: _Due) -> Leadership | None:
        topic = self._all.context.topics.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        if topic is None or partition is None or partition.state_version == NOT_STORED:
            return None
        if self.broker not in partition.replicas:
            return None
        return Leadership(tp, topic.topic_id, partition, due.flag or self.broker in partition.adding)

    def _metadata_of(self, tp: TopicPartition, due: _Due) -> UpdatedPartition | None:
        if due.topic_id:
            return UpdatedPartition(tp, due.topic_id, None, ())
        context = self._all.context
        topic = context.topics.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        if topic is None or partition is None or partition.state_version == NOT_STORED:
            return None
        online = context.online_replicas(tp, partition.replicas)
        return UpdatedPartition(
            tp, topic.topic_id, partition, tuple(each for each in partition.replicas if each not in online)
        )

    def _stop_partition(self, tp: TopicPartition, due: _Due) -> StopOrder:
        partition = self._all.context.find_partition(tp)
        deleting = partition is None or tp.topic in self._all.context.deleting
        return StopOrder(
            tp, LEADER_DURING_DELETE if deleting or partition is None else partition.leader_epoch, due.flag
        )

    # -- answers -----------------------------------------------------------------------------------------------

    def _on_response(self, sending: _Sending, answer: Any) -> None:
        if self.closed:
            return
        # 1. No response, or 2. a refusal: all updates of the request are due again. 3. Per partition results.
        self._sending = None
        if isinstance(answer, Failure):
            self._retry_update(sending, str(answer))
        elif answer.error_code == ErrorCode.STALE_CONTROLLER_EPOCH:
            self._listener.on_stale_controller_epoch()
            self._retry_update(sending, "it knows a newer controller")
        elif answer.error_code:
            self._retry_update(sending, f"error {answer.error_code}")
        else:
            self._complained = False
            self._report_response(sending, answer)
            self._call_waiters()
            self.send_next()

    def _retry_update(self, sending: _Sending, why: str) -> None:
        """Put back the updates that were not replaced meanwhile, and send them again after a delay."""
        if not self._complained:
            self._complained = True
            logger.info("controller: broker %d did not accept %s: %s; sending again", self.broker, sending.kind, why)
        due = self._due[sending.kind]
        for tp, each in sending.due.items():
            if tp is _BROKERS:
                self.add_brokers(each.mark, each.flag)
            # A leader update is dropped if its replica has been stopped since.
            elif sending.kind != _LEADERS or tp not in self._due[_STOPS]:
                later = due.get(tp, each)
                due[tp] = later._replace(mark=each.mark, flag=each.flag or later.flag)
        self._waiting_to_retry = True
        self._all.purgatory.look_after(RETRY_MS, self._end_retry_wait)

    def _end_retry_wait(self) -> None:
        self._waiting_to_retry = False
        self.send_next()

    def _report_response(self, sending: _Sending, answer: Any) -> None:
        if sending.kind == _LEADERS:
            self._listener.on_leader_and_isr_response(self.broker, _leader_errors(sending.request, answer))
        elif sending.kind == _STOPS:
            deleted = {tp: each for tp, each in sending.due.items() if each.flag}
            errors = {tp: code for tp, code in _stop_errors(answer).items() if tp in deleted}
            if errors:
                self._listener.on_stop_replica_response(self.broker, errors)

    def _call_waiters(self) -> None:
        if not self._waiters:
            return
        # A waiter is called when its mark is older than every update that is still due.
        marks = [each.mark for due in self._due.values() for each in due.values()]
        marks += [self._brokers_mark] if self._brokers_mark else []
        oldest = min(marks, default=None)
        ready = [done for mark, done in self._waiters if oldest is None or mark < oldest]
        self._waiters = [] if oldest is None else [each for each in self._waiters if each[0] >= oldest]
        for done in ready:
            done()

    def close_channel(self) -> None:
        """Close the channel when the broker, or this registration of it, is gone. All waiters are called."""
        self.closed = True
        told, self._waiters = self._waiters, []
        for _, done in told:
            done()


_BROKERS: Final = TopicPartition("", -1)
"""Key of the list of live brokers among the updates of a request."""


def _leader_errors(request: Any, answer: LeaderAndIsrResponse) -> PartitionErrors:
    names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
    return {
        TopicPartition(names[topic.topic_id], each.partition_index): _error_code(each.error_code)
        for topic in answer.topics
        if topic.topic_id in names
        for each in topic.partition_errors
    }


def _stop_errors(answer: StopReplicaResponse) -> PartitionErrors:
    return {
        TopicPartition(each.topic_name, each.partition_index): _error_code(each.error_code)
        for each in answer.partition_errors
    }


def _error_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class BrokerChannels:
    """The channels to all live brokers."""

    def __init__(
        self,
        node_id: int,
        controller_epoch: int,
        context: ControllerContext,
        peers: BrokerClient,
        network: Network,
        purgatory: Purgatory,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self.node_id = node_id
        self.controller_epoch = controller_epoch
        self.context = context
        self.peers = peers
        self.purgatory = purgatory
        self.config = config
        self._network = network
        self._channels: dict[int, BrokerChannel] = {}
        self._mark = 0

    # -- brokers -----------------------------------------------------------------------------------------------

    def open_channel(self, broker: int, listener: ResponseListener) -> None:
        """Open a channel to a broker that is in the context; `listener` receives its responses.

        Closes the channel of an earlier registration.
        """
        # Responses to an earlier registration must not count for this one, so each has its own channel.
        self.close_channel(broker)
        self.locate_broker(broker)
        self._channels[broker] = BrokerChannel(broker, self.context.brokers[broker].epoch, self, listener)
        # Sorted, so that simulated runs do not depend on the order of registrations.
        self._channels = dict(sorted(self._channels.items()))

    def locate_broker(self, broker: int) -> None:
        """Give the network the address that a broker has registered."""
        endpoint = between_brokers(self.context.brokers[broker], self.config().inter_broker_listener)
        self._network.set_address(broker, endpoint.host, endpoint.port)

    def close_channel(self, broker: int) -> None:
        """Close the channel to a broker that is gone."""
        channel = self._channels.pop(broker, None)
        if channel is not None:
            channel.close_channel()

    def close_channels(self) -> None:
        """Close all channels at the end of the term."""
        for broker in list(self._channels):
            self.close_channel(broker)

    # -- updates to send ---------------------------------------------------------------------------------------

    def send_leaders(
        self, tps: Iterable[TopicPartition], brokers: Sequence[int] | None = None, is_new: bool = False
    ) -> None:
        """Send LeaderAndIsr of these partitions to their replicas (among `brokers`), and their metadata to all."""
        tps = list(tps)
        mark = self._next_mark()
        for tp in tps:
            partition = self.context.find_partition(tp)
            for replica in () if partition is None else partition.replicas:
                if replica in self._channels and (brokers is None or replica in brokers):
                    self._channels[replica].add_leader(mark, tp, is_new)
        self.send_metadata(tps)

    def send_metadata(self, tps: Iterable[TopicPartition], brokers: Sequence[int] | None = None) -> None:
        """Send UpdateMetadata of these partitions to these brokers, or to all."""
        tps = list(tps)
        mark = self._next_mark()
        for broker, channel in self._channels.items():
            if brokers is None or broker in brokers:
                for tp in tps:
                    channel.add_metadata(mark, tp, self._deleted_id(tp))
        self.send_all()

    def _deleted_id(self, tp: TopicPartition) -> bytes:
        return self.context.topics[tp.topic].topic_id if tp.topic in self.context.deleting else b""

    def send_brokers(self, first: bool) -> None:
        """Send the list of live brokers to all brokers; `first`: before anything else that is due."""
        mark = self._next_mark()
        for channel in self._channels.values():
            channel.add_brokers(mark, first)
        self.send_all()

    def send_stops(self, broker: int, tps: Iterable[TopicPartition], delete: bool) -> None:
        """Send StopReplica to one broker."""
        channel = self._channels.get(broker)
        if channel is not None:
            mark = self._next_mark()
            for tp in tps:
                channel.add_stop(mark, tp, delete)
        self.send_all()

    def call_when_sent(self, brokers: Iterable[int], done: Callable[[], None]) -> None:
        """Call `done` in a later turn, when these brokers have answered everything that is due now, or are gone."""
        waiting = [self._channels[broker] for broker in brokers if broker in self._channels]
        left = len(waiting)

        def one() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.purgatory.continue_after(0, done)

        for channel in waiting:
            channel.call_when_sent(self._mark, one)
        if not waiting:
            self.purgatory.continue_after(0, done)
        self.send_all()

    def _next_mark(self) -> int:
        self._mark += 1
        return self._mark

    def send_all(self) -> None:
        """Send the next request of every channel that has none in flight."""
        for channel in list(self._channels.values()):
            channel.send_next()
