"""A model of brokers that records all batches, and a producer's core that is connected to it.

Zone: real.
"""

from __future__ import annotations

import random
from collections import deque

from ottla.client import ConnectionLostError, TopicPartition
from ottla.client.metadata import ClusterView, NodeView, PartitionView, TopicView
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.core import BatchResponse, ProduceCall, ProducerCore
from ottla.client.producer.partition_queue import ProducerId
from ottla.errors import ErrorCode
from ottla.record.batch import header_at, records_of

LOST = ConnectionLostError("cut")
PARTITIONS = 3
NODES = 2


def view(leaders: list[int]) -> ClusterView:
    parts = {n: PartitionView(n, leader, 0, (0,), (0,), (), ErrorCode.NONE) for n, leader in enumerate(leaders)}
    nodes = {n: NodeView(n, "h", 1 + n, None) for n in range(NODES)}
    return ClusterView("c", 0, nodes, {"t": TopicView("t", b"\1" * 16, False, parts)})


class Log:
    """One partition of a broker: KIP-98's rules, computed from the bytes alone."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.writers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = {}

    def append(self, data: bytes) -> BatchResponse:
        header = header_at(memoryview(data))
        values = [record.value or b"" for record in records_of(memoryview(data), max_bytes=10**6)]
        if header.producer_id >= 0:
            epoch, last = self.writers.get(header.producer_id, (header.producer_epoch, deque(maxlen=5)))
            if header.producer_epoch < epoch:
                return BatchResponse(ErrorCode.INVALID_PRODUCER_EPOCH)
            if header.producer_epoch > epoch:
                if header.base_sequence != 0:
                    return BatchResponse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
                last = deque(maxlen=5)
            for first, final, offset in last:
                if (first, final) == (header.base_sequence, header.last_sequence):
                    return BatchResponse(ErrorCode.NONE, offset)
            due = (last[-1][1] + 1) & 0x7FFF_FFFF if last else 0
            if header.base_sequence != due:
                return BatchResponse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            last.append((header.base_sequence, header.last_sequence, len(self.records)))
            self.writers[header.producer_id] = (header.producer_epoch, last)
        self.records += values
        return BatchResponse(ErrorCode.NONE, len(self.records) - len(values))


class World:
    """A core, the logs, and unanswered requests; `chance` decides their fate."""

    def __init__(self, chance: random.Random, **keys: object) -> None:
        self.chance = chance
        config = ProducerConfig.from_mapping({"batch.size": 300, "linger.ms": 0, **keys})  # type: ignore[dict-item]
        self.core = ProducerCore(config, chance.random, chance.randrange)
        self.now = 0.0
        self.leaders = [n % NODES for n in range(PARTITIONS)]
        self.logs = {TopicPartition("t", n): Log() for n in range(PARTITIONS)}
        self.wires: dict[int, deque[tuple[ProduceCall, list[bytes]]]] = {n: deque() for n in range(NODES)}
        self.sent: dict[bytes, tuple[ProducerBatch, int, TopicPartition]] = {}
        self.ids = 0
        self.too_large = 10**9
        self.core.metadata.request_topic("t", 0.0)
        self.work()

    def work(self) -> None:
        work = self.core.next_work(self.now, set(range(NODES)))
        for call in work.calls:
            self.wires[call.node].append((call, [bytes(batch.encode_batch()) for batch in call.batches]))
        if work.topics is not None:
            self.core.on_metadata(self.now, view(self.leaders))
        if work.producer_id:
            self.ids += 1
            self.core.on_producer_id(ProducerId(self.ids, 0))
        if work.topics is not None or work.producer_id:
            self.work()

    def send(self, partition: int | None, size: int = 10) -> bool:
        value = b"%d:" % len(self.sent) + bytes(size)
        topic = self.core.metadata.known_topic("t")
        assert topic is not None
        batch = self.core.place_record(topic, partition, 1_000 + len(self.sent), None, value, (), self.now)
        if batch is not None:
            self.sent[value] = (batch, batch.count - 1, batch.tp)
        return batch is not None

    def hold(self, *waits: float) -> list[tuple[ProduceCall, list[bytes]]]:
        """Sends one batch per value to partition 0, and lets time pass after each; broker 0 has received them."""
        for wait in waits:
            self.send(0)
            self.work()
            self.now += wait
        return [self.wires[0].popleft() for _ in waits]

    def tell_leader(self, node: int) -> None:
        """Sets the leader of partition 0 (-1: none), and gives the producer the new metadata."""
        self.leaders[0] = node
        self.core.on_metadata(self.now, view(self.leaders))

    def arrive(
        self, node: int, refuse: ErrorCode = ErrorCode.NONE, *, answered: bool = True, carried: bool = True
    ) -> None:
        """Lets the oldest request of a node arrive, or loses it or its answer."""
        call, data = self.wires[node].popleft()
        answers = []
        if carried:
            answers = [self.take(node, *one, refuse) for one in zip(call.batches, data, strict=True)]
        if answered and carried:
            self.core.on_produced(self.now, call, answers)
        else:
            self.core.on_lost(self.now, call, LOST)

    def take(self, node: int, batch: ProducerBatch, data: bytes, refuse: ErrorCode) -> BatchResponse:
        if self.leaders[batch.tp.partition] != node:
            return BatchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if len(data) > self.too_large:
            return BatchResponse(ErrorCode.MESSAGE_TOO_LARGE)
        if refuse is ErrorCode.REQUEST_TIMED_OUT:
            found = self.logs[batch.tp].append(data)
            return found if found.code is not ErrorCode.NONE else BatchResponse(refuse)
        return self.logs[batch.tp].append(data) if refuse is ErrorCode.NONE else BatchResponse(refuse)

    def cut(self, node: int) -> None:
        """Breaks a connection: some unanswered requests still arrive, but have no answer."""
        arrives = self.chance.randrange(len(self.wires[node]) + 1)
        while self.wires[node]:
            self.arrive(node, answered=False, carried=arrives > 0)
            arrives -= 1

    def settle(self) -> None:
        """Ends all faults, and lets the producer finish."""
        for _ in range(2_000):
            self.work()
            if not self.core.accumulator.incomplete and not any(self.wires.values()):
                return
            for node in self.wires:
                if self.wires[node]:
                    self.arrive(node)
            self.now += 0.05
        raise AssertionError("it does not come to an end")

    def check(self, *, ordered: bool = True, once: bool = True) -> None:
        self.too_large = 10**9
        before = len(self.sent)
        for partition in range(PARTITIONS):
            self.send(partition)
        self.settle()
        assert all(self.sent[value][0].error is None for value in list(self.sent)[before:]), "it has not recovered"
        self.check_logs(ordered=ordered, once=once)

    def check_logs(self, *, ordered: bool, once: bool) -> None:
        for tp, log in self.logs.items():
            mine = {value: spot for value, spot in self.sent.items() if spot[2] == tp}
            assert set(log.records) <= set(mine)
            good = []
            for value, (batch, index, _) in mine.items():
                leaf, at = batch.leaf_of(index)
                assert leaf.done
                if leaf.error is None:
                    good.append(value)
                    assert log.records[leaf.base_offset + at] == value
            assert not once or len(log.records) == len(set(log.records))
            found = list(dict.fromkeys(log.records))
            order = {value: at for at, value in enumerate(self.sent)}
            assert set(good) <= set(found)
            assert not ordered or found == sorted(found, key=order.__getitem__)
        assert self.core.accumulator.used == 0
        assert not any(self.core.in_flight.values())
