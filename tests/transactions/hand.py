"""Transactional producers by hand, over the wire of a whole broker.

Zone: real.
"""

from __future__ import annotations

from typing import Any

from tests.handnode import HandNetwork, Node

from ottla.seams import Failure, Kind
from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode
from ottla.wire.header import decode_request_header
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
X = "x"
"""A transactional id."""
G = "g"
"""A group."""


class Markers:
    """The requests with markers that a broker sends, also those to itself, so that tests see them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked: list[WriteTxnMarkersRequest.WritableTxnMarker] = []
        self.held = False
        """Whether markers are lost."""
        self._network: HandNetwork = node.network
        self._call = node.network.call_broker
        node.network.call_broker = self.call_broker  # type: ignore[method-assign]
        node.pass_ms(0)  # it may have to start yet
        self._here = node.broker._coordinators.transactions.here
        node.broker._coordinators.transactions.here = None

    def leave_out(self) -> None:
        """No requests of a broker to itself, as outside of tests."""
        self.node.broker._coordinators.transactions.here = self._here

    def call_broker(self, target: int, frame: bytes, deadline_ns: int, done: Any, lane: str = "") -> None:
        header = decode_request_header(memoryview(frame))
        if header.api_key != ApiKey.WRITE_TXN_MARKERS:
            self._call(target, frame, deadline_ns, done, lane)
            return
        request, _ = decode(WriteTxnMarkersRequest, header.api_version, memoryview(frame), header.body_pos)
        self.asked += request.markers
        process = self.node.process
        if self.held:
            process.post_turn(1_000_000, "lost", process.deliver_completion, done, Failure(Kind.UNKNOWN, "lost"))
            return
        self._call(target, frame, deadline_ns, done, lane)


class Hand:
    """A broker with topic t, and a producer."""

    def __init__(self, node: Node | None = None, **settings: str) -> None:
        self.node = node or Node(SETTINGS | {key.replace("_", "."): value for key, value in settings.items()})
        self.marks = Markers(self.node)
        if node is None:
            self.node.create("t", 2)
        self.producer_id, self.epoch, self.sequence = -1, -1, 0

    def ask(self, request: object, version: int) -> Any:
        return self.node.ask(request, version)

    def restart(self) -> None:
        """The broker dies and restarts."""
        self.node.restart_without_waiting()
        self.marks = Markers(self.node)
        self.node.pass_ms(3000)
        assert self.node.broker.ready

    # -- a producer ----------------------------------------------------------------------------------------------------

    def find(self, name: str = X, kind: int = 1) -> Any:
        return self.ask(FindCoordinatorRequest(coordinator_keys=[name], key_type=kind), 4).coordinators[0]

    def init(self, version: int = 5, name: str | None = X, **more: Any) -> Any:
        fields = {"transactional_id": name, "transaction_timeout_ms": 60_000}
        answer = self.ask(InitProducerIdRequest(**(fields | more)), version)
        if not answer.error_code:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return answer

    def started(self, timeout_ms: int = 60_000) -> Hand:
        """With a producer that has its id."""
        assert self.find().error_code == 0
        self.node.pass_ms(200)
        assert self.init(transaction_timeout_ms=timeout_ms).error_code == 0
        return self

    @property
    def who(self) -> dict[str, Any]:
        return {"transactional_id": X, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def add(self, *partitions: tuple[str, int], version: int = 3, **more: Any) -> dict[tuple[str, int], int]:
        """The code of each partition."""
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        topics = [topic(name=name, partitions=[index]) for name, index in partitions or [("t", 0)]]
        old = {f"v3_and_below_{key}": value for key, value in (self.who | more).items()}
        answer = self.ask(AddPartitionsToTxnRequest(**old, v3_and_below_topics=topics), version)
        return codes_of(answer.results_by_topic_v3_and_below)

    def produce(self, *values: bytes, partition: int = 0, epoch: int | None = None, version: int = 9) -> int:
        """The code."""
        request = self.node.produce_request(
            "t",
            *values,
            partition=partition,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        request.transactional_id = X
        self.sequence += len(values)
        return self.ask(request, version).responses[0].partition_responses[0].error_code

    def add_offsets(self, version: int = 3, **more: Any) -> int:
        return self.ask(AddOffsetsToTxnRequest(**(self.who | {"group_id": G} | more)), version).error_code

    def commit_offset(self, offset: int, version: int = 3, place: tuple[str, int] = ("t", 0), **more: Any) -> int:
        part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=place[1], committed_offset=offset, committed_metadata=more.pop("metadata", "m")
        )
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(partitions=[part])
        if version >= 6:
            topic.topic_id = more.pop("topic_id", None) or self.node.topic_id(place[0])
        else:
            topic.name = place[0]
        request = TxnOffsetCommitRequest(**(self.who | {"group_id": G, "topics": [topic]} | more))
        return self.ask(request, version).topics[0].partitions[0].error_code

    def end(self, commit: bool = True, version: int = 4, **more: Any) -> Any:
        answer = self.ask(EndTxnRequest(**(self.who | {"committed": commit} | more)), version)
        if version >= 5 and not answer.error_code:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return answer

    # -- others --------------------------------------------------------------------------------------------------------

    def offset(self, stable: bool = False, place: tuple[str, int] = ("t", 0)) -> tuple[int, int]:
        """The committed offset of the group, and the error code."""
        topic = OffsetFetchRequest.OffsetFetchRequestTopics(name=place[0], partition_indexes=[place[1]])
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=G, topics=[topic])
        row = self.ask(OffsetFetchRequest(groups=[group], require_stable=stable), 8).groups[0].topics[0].partitions[0]
        return row.committed_offset, row.error_code

    def describe(self, *names: str) -> list[Any]:
        return self.ask(DescribeTransactionsRequest(transactional_ids=list(names or [X])), 0).transaction_states

    @property
    def state(self) -> str:
        return self.describe()[0].transaction_state

    def list(self, version: int = 1, **filters: Any) -> Any:
        return self.ask(ListTransactionsRequest(**filters), version)


def codes_of(topics: Any) -> dict[tuple[str, int], int]:
    """Codes by partition."""
    return {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in topics
        for row in topic.results_by_partition
    }
