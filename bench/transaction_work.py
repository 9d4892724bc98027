"""Transactions of the wire-level client: one record to one partition and one offset commit, from open to committed.

Two ways: that of transaction version 2 (Produce, TxnOffsetCommit, EndTxn; KIP-890), and the one before it with
AddPartitionsToTxn and AddOffsetsToTxn, which librdkafka still uses. All brokers get the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from testbench.apache_kafka.packages import BenchError

from bench.peers import Cpu, Peer
from bench.wire import Connection, Crowd, Script
from ottla.record.batch import Record, encode_batch
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

TOPIC = "transactions"
PARTITIONS = 10
VALUE = b"x" * 100
TIMEOUT_MS = 60_000
AGAIN_S = 0.02
"""Pause of Kafka's own producer before a retry."""
# Retriable errors of a transactional producer: the broker is starting, or the last transaction is ending.
_AGAIN = (14, 15, 16, 19, 51)


@dataclass
class Producer:
    """A transactional producer, its group, and its position."""

    name: str
    partition: int
    new_way: bool
    """Transaction version 2."""
    producer_id: int = -1
    epoch: int = -1
    sequence: int = 0
    again: int = 0
    """Number of retries."""
    committed: int = 0
    taken_s: list[float] = field(default_factory=list)
    """Duration of each committed transaction."""

    # -- requests --------------------------------------------------------------------------------------------------

    def produce(self) -> tuple[ProduceRequest, int]:
        """One record."""
        batch = encode_batch(
            [Record(0, int(time.time() * 1000), None, VALUE, ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        data = ProduceRequest.PartitionProduceData(index=self.partition, records=memoryview(batch))
        topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
        request = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=30_000, topic_data=[topic])
        return request, 12 if self.new_way else 11

    def commit_offset(self) -> tuple[TxnOffsetCommitRequest, int]:
        """One position."""
        place = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=self.partition, committed_offset=self.committed, committed_leader_epoch=0
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=f"group-of-{self.name}",
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[place])],
        )
        return request, 5 if self.new_way else 4

    def add_partition(self) -> tuple[AddPartitionsToTxnRequest, int]:
        """AddPartitionsToTxn, of version 1."""
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=TOPIC, partitions=[self.partition])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        return request, 3

    def add_offsets(self) -> tuple[AddOffsetsToTxnRequest, int]:
        """AddOffsetsToTxn, of version 1."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=f"group-of-{self.name}",
        )
        return request, 3

    def end(self) -> tuple[EndTxnRequest, int]:
        """Commit."""
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=True
        )
        return request, 5 if self.new_way else 4

    # -- scripts ---------------------------------------------------------------------------------------------------

    def init(self) -> Script:
        """Find the coordinators, which creates their topics, and initialize the producer."""
        for key_type, key in ((1, self.name), (0, f"group-of-{self.name}")):
            while True:
                found = yield FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 4
                if not _must_repeat(found.coordinators[0].error_code):
                    break
                yield AGAIN_S
        while True:
            given = yield InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS), 5
            if not _must_repeat(given.error_code):
                break
            yield AGAIN_S
        self.producer_id, self.epoch = given.producer_id, given.producer_epoch

    def transaction(self) -> Script:
        """Run one transaction, from its begin to its commit."""
        began = time.perf_counter()
        if not self.new_way:
            yield from self._until_taken(self.add_partition)
        yield from self._until_taken(self.produce)
        if not self.new_way:
            yield from self._until_taken(self.add_offsets)
        yield from self._until_taken(self.commit_offset)
        ended = yield from self._until_taken(self.end)
        self.taken_s.append(time.perf_counter() - began)
        self.committed += 1
        if self.new_way:
            if (ended.producer_id, ended.producer_epoch) == (self.producer_id, self.epoch):
                raise BenchError("the broker does not know transaction version 2: the epoch has not grown")
            self.producer_id, self.epoch, self.sequence = ended.producer_id, ended.producer_epoch, 0
        else:
            self.sequence += 1

    def _until_taken(self, make) -> Script:  # type: ignore[no-untyped-def]
        while True:
            response = yield make()
            if not any(_must_repeat(code) for code in _codes(response)):
                return response
            self.again += 1
            yield AGAIN_S

    def transactions(self, until: float, pause_s: float, left: Iterator[int]) -> Script:
        """Run transactions until a time of `time.perf_counter`, or until the number is reached."""
        while time.perf_counter() < until and next(left, None) is not None:
            yield from self.transaction()
            if pause_s:
                yield pause_s


def _must_repeat(code: int) -> bool:
    """Whether to retry. Raises BenchError for fatal errors."""
    if code and code not in _AGAIN:
        raise BenchError(f"a transaction met error {code}")
    return code != 0


def _codes(response: object) -> Iterator[int]:
    """All error codes of the response to one request of a transaction."""
    name = type(response).__name__
    if name == "ProduceResponse":
        yield from (part.error_code for topic in response.responses for part in topic.partition_responses)  # type: ignore[attr-defined]
    elif name == "TxnOffsetCommitResponse":
        yield from (part.error_code for topic in response.topics for part in topic.partitions)  # type: ignore[attr-defined]
    elif name == "AddPartitionsToTxnResponse":
        for topic in response.results_by_topic_v3_and_below:  # type: ignore[attr-defined]
            yield from (part.partition_error_code for part in topic.results_by_partition)
    else:
        yield response.error_code  # type: ignore[attr-defined]


class Producers:
    """Producers of one way on one broker, each with its own connection, for all runs."""

    def __init__(self, peer: Peer, size: int, new_way: bool) -> None:
        """Ready to begin transactions."""
        self.peer = peer
        self._crowd = Crowd()
        way = "v2" if new_way else "v1"
        self._all: list[tuple[Connection, Producer]] = [
            (self._crowd.connect(peer.port), Producer(f"{way}-{size}-{at}", at % PARTITIONS, new_way))
            for at in range(size)
        ]
        self._crowd.run([(line, producer.init()) for line, producer in self._all], 120, "init of producers")

    def run(self, seconds: float, pause_s: float = 0.0, most: int | None = None) -> dict[str, float]:
        """Run all producers for that long, or that many transactions. Returns commits per second, broker CPU of each in
        µs, their median time in ms, and retries per transaction."""
        producers = [producer for _, producer in self._all]
        for producer in producers:
            producer.taken_s.clear()
            producer.again = 0
        began = time.perf_counter()
        with Cpu(self.peer.pid) as cpu:
            until, left = began + seconds, iter(count() if most is None else range(most))
            scripts = [(line, producer.transactions(until, pause_s, left)) for line, producer in self._all]
            self._crowd.run(scripts, seconds + 60, "transactions")
            took = time.perf_counter() - began
        taken = sorted(each for producer in producers for each in producer.taken_s)
        return {
            "rate": len(taken) / took,
            "cpu": cpu.seconds / len(taken) * 1e6,
            "ms": taken[len(taken) // 2] * 1e3,
            "again": sum(producer.again for producer in producers) / len(taken),
        }

    def close(self) -> None:
        """Close the connections."""
        self._crowd.close()
