"""What one Produce costs, and a Fetch, a Heartbeat and a transaction, counted in Python calls: the budgets that keep
the hot paths hot; timing decides nothing."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from ottla.record.batch import Record, encode_batch
from ottla.server.embedded import DESCRIPTORS, EmbeddedBroker
from ottla.wire.apis import API_TABLE, warm_up
from ottla.wire.codec import decode, encode_bytes, warm_codec
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import (
    CreateTopicsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    ProduceRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

BUDGET = 27
"""Python calls per one-record Produce, socket to socket."""
FETCH_BUDGET = 52
"""Python calls per Fetch of one partition, of records that an index has to find."""
WIDE, WIDE_BUDGET = 400, 3
"""Partitions of a full fetch without a session, and Python calls for each of them."""
HEARTBEAT_BUDGET = 27
"""Python calls per Heartbeat."""
TRANSACTION_BUDGET = 441
"""Python calls per transaction of version 2: a record, a position, the end; two markers on the same broker."""
REQUESTS = 200
ROUNDS = 8
BY_TIME = (
    "BaseEventLoop.",
    "Handle.",
    "TimerHandle.",
    "ConnectionManager.plan_idle_time",
    "ConnectionManager._run_idle",
    "Broker.run_background",
    "LogManager.run_background",
    "BackgroundTasks.run_some",
    "BatchPositionCache.trim_older",
)
"""Calls of the loop, for its timers and in its pauses: how many depends on the time that the requests take."""


class CallCount:
    """Counts the Python calls of one thread while it is switched on."""

    def __init__(self) -> None:
        self.counting = False
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and self.counting and not frame.f_code.co_qualname.startswith(BY_TIME):
            self.calls[frame.f_code.co_qualname] += 1


def framed(key: int, version: int, request: object) -> bytes:
    frame = encode_request_header(key, version, 7, "count") + encode_bytes(request, version)
    return struct.pack(">i", len(frame)) + frame


def answer(peer: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))
    return peer.recv(size, socket.MSG_WAITALL)


def produce(acks: int, version: int, producer_id: int, sequence: int) -> bytes:
    identity = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence} if producer_id >= 0 else {}
    batch = encode_batch([Record(0, 1_700_000_000_000, None, b"x" * 100, ())], **identity)
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(batch)))
    topic = ProduceRequest.TopicProduceData(name="hot", partition_data=[data])
    return framed(0, version, ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic]))


@contextmanager
def counted(descriptors: int = DESCRIPTORS) -> Iterator[tuple[CallCount, socket.socket]]:
    """A broker whose calls are counted, and a connection to it; it has the topic `hot`."""
    count = CallCount()
    threading.setprofile(count)
    try:
        broker = EmbeddedBroker(descriptors=descriptors).start()
    finally:
        threading.setprofile(None)
    try:
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port))) as peer:
            peer.sendall(framed(19, 2, CreateTopicsRequest(topics=[creatable("hot")], timeout_ms=1000)))
            answer(peer)
            yield count, peer
    finally:
        broker.stop()


def a_round(count: CallCount, work: Callable[[int], None]) -> str:
    """Count `REQUESTS` pieces of work in several rounds and keep the cheapest; calls by name, to be shown.

    Codecs are compiled after the start (`warm_up`), and on a busy machine answers leave in more pieces and timers fall
    due in the midst of a round: neither is part of the work.
    """
    count.counting = True
    rounds: list[Counter[str]] = []
    for at in range(100):
        count.calls.clear()
        for number in range(REQUESTS):
            work(at * REQUESTS + number)
        if not any(count.calls[compiling.__qualname__] for compiling in (warm_up, warm_codec)):
            rounds.append(count.calls.copy())
        if len(rounds) == ROUNDS:
            break
    else:
        raise AssertionError("the broker never finishes its warming up")
    count.counting = False
    count.calls = min(rounds, key=Counter.total)
    return "\n".join(f"{calls / REQUESTS:6.2f} {name}" for name, calls in count.calls.most_common(60))


@pytest.mark.slow
@pytest.mark.parametrize(("acks", "version", "producer_id"), [(1, 7, -1), (-1, 7, -1), (-1, 9, 4711)])
def test_a_one_record_produce_keeps_the_budget(acks: int, version: int, producer_id: int) -> None:
    last = (0, b"")

    def work(number: int) -> None:
        nonlocal last
        peer.sendall(produce(acks, version, producer_id, number))
        last = number, answer(peer)

    with counted() as (count, peer):
        listing = a_round(count, work)
    assert struct.pack(">q", last[0]) in last[1], "the last record has the last offset"
    per_request = count.calls.total() / REQUESTS
    assert per_request <= BUDGET, f"{per_request:.1f} Python calls per request:\n{listing}"


@pytest.mark.slow
def test_a_compacted_topic_beside_it_costs_a_produce_nothing() -> None:
    def work(number: int) -> None:
        peer.sendall(produce(-1, 9, -1, number))
        answer(peer)

    compacted = creatable("keys")
    compacted.configs = [CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")]
    with counted() as (count, peer):
        peer.sendall(framed(19, 2, CreateTopicsRequest(topics=[compacted], timeout_ms=1000)))
        answer(peer)
        listing = a_round(count, work)
    assert "repar" not in listing, listing


@pytest.mark.slow
def test_a_fetch_of_older_records_keeps_its_budget() -> None:
    records = [Record(at, 1_700_000_000_000, None, b"x" * 1024, ()) for at in range(16)]
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(encode_batch(records))))
    topic = ProduceRequest.TopicProduceData(name="hot", partition_data=[data])
    full = framed(0, 7, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]))
    wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=1000, partition_max_bytes=65536)
    asked = [FetchRequest.FetchTopic(topic="hot", partitions=[wanted])]
    frame = framed(1, 11, FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=asked))

    def work(_: int) -> None:
        peer.sendall(frame)
        assert len(answer(peer)) > 48 * 1024

    with counted() as (count, peer):
        for _ in range(300):
            peer.sendall(full)
            answer(peer)
        listing = a_round(count, work)
    per_fetch = count.calls.total() / REQUESTS
    assert per_fetch <= FETCH_BUDGET, f"{per_fetch:.1f} Python calls per fetch:\n{listing}"


@pytest.mark.slow
@pytest.mark.parametrize(("version", "partitions"), [(12, WIDE), (12, 4 * WIDE), (11, 4 * WIDE)])
def test_a_full_fetch_of_many_partitions_keeps_its_budget(version: int, partitions: int) -> None:
    batch = memoryview(bytes(encode_batch([Record(0, 1_700_000_000_000, None, b"x" * 100, ())])))
    data = [ProduceRequest.PartitionProduceData(index=each, records=batch) for each in range(partitions)]
    wanted = [FetchRequest.FetchPartition(partition=each, partition_max_bytes=65536) for each in range(partitions)]
    asked = [FetchRequest.FetchTopic(topic="wide", partitions=wanted)]
    frame = framed(1, version, FetchRequest(max_wait_ms=9, min_bytes=1, max_bytes=1 << 20, topics=asked))
    with counted(4_000) as (count, peer):
        wide = creatable("wide")
        wide.num_partitions = partitions
        ask(peer, CreateTopicsRequest(topics=[wide], timeout_ms=60_000), 2)
        for at in range(0, partitions, WIDE):
            topic = ProduceRequest.TopicProduceData(name="wide", partition_data=data[at : at + WIDE])
            ask(peer, ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic]), 9)
        size = 0
        for _ in range(100):  # in the first ones codecs are compiled, and files of new logs are written
            count.calls.clear()
            count.counting = True
            peer.sendall(frame)
            size = len(answer(peer))
            count.counting = False
            if count.calls.total() / partitions <= WIDE_BUDGET:
                break
    assert size > 150 * partitions
    listing = "\n".join(f"{calls / partitions:6.2f} {name}" for name, calls in count.calls.most_common(30))
    assert count.calls.total() / partitions <= WIDE_BUDGET, listing


def until_taken(peer: socket.socket, request: Any, version: int) -> Any:
    """Ask until the coordinator is there."""
    while True:
        response = ask(peer, request, version)
        if getattr(response, "error_code", 0) not in (14, 15, 16):
            return response
        time.sleep(0.01)


def ask(peer: socket.socket, request: Any, version: int) -> Any:
    peer.sendall(framed(request.API_KEY, version, request))
    frame = answer(peer)
    pos = response_body_pos(request.API_KEY, version, frame)
    return decode(API_TABLE[request.API_KEY].response, version, frame, pos)[0]


def find(peer: socket.socket, key_type: int, name: str) -> None:
    while ask(peer, FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name]), 4).coordinators[0].error_code:
        time.sleep(0.01)


@pytest.mark.slow
def test_a_heartbeat_keeps_its_budget() -> None:
    with counted() as (count, peer):
        find(peer, 0, "g")
        join = {"group_id": "g", "session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
        protocols = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")]
        joined = until_taken(peer, JoinGroupRequest(**join, protocol_type="consumer", protocols=protocols), 3)
        assert joined.error_code == 0
        who = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
        assert ask(peer, SyncGroupRequest(**who), 3).error_code == 0
        frame = framed(HeartbeatRequest.API_KEY, 4, HeartbeatRequest(**who))

        def work(_: int) -> None:
            peer.sendall(frame)
            assert answer(peer)[-3:] == b"\0\0\0", "no error"

        listing = a_round(count, work)
    per_beat = count.calls.total() / REQUESTS
    assert per_beat <= HEARTBEAT_BUDGET, f"{per_beat:.1f} Python calls per heartbeat:\n{listing}"


@pytest.mark.slow
def test_a_small_transaction_keeps_its_budget() -> None:
    with counted() as (count, peer):
        for key_type, name in ((1, "x"), (0, "g")):
            find(peer, key_type, name)
        given = until_taken(peer, InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 5)
        producer_id = given.producer_id

        def work(number: int) -> None:
            epoch = number
            batch = encode_batch(
                [Record(0, 1_700_000_000_000, None, b"x" * 100, ())],
                producer_id=producer_id, producer_epoch=epoch, base_sequence=0, transactional=True,
            )  # fmt: skip
            data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(batch)))
            topics = [ProduceRequest.TopicProduceData(name="hot", partition_data=[data])]
            request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1000, topic_data=topics)
            assert ask(peer, request, 12).responses[0].partition_responses[0].error_code == 0
            who = {"transactional_id": "x", "producer_id": producer_id, "producer_epoch": epoch}
            commit = TxnOffsetCommitRequest
            places = [commit.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=number)]
            named = commit.TxnOffsetCommitRequestTopic(name="hot", partitions=places)
            assert ask(peer, commit(**who, group_id="g", topics=[named]), 5).topics[0].partitions[0].error_code == 0
            assert ask(peer, EndTxnRequest(**who, committed=True), 5).error_code == 0

        listing = a_round(count, work)
    per_transaction = count.calls.total() / REQUESTS
    assert per_transaction <= TRANSACTION_BUDGET, f"{per_transaction:.1f} Python calls per transaction:\n{listing}"


def creatable(name: str) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
