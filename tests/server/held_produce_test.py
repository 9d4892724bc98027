"""Produce requests that wait for a transaction coordinator delay only their own connection; over sockets."""

from __future__ import annotations

import socket

import pytest
from tests.broker.hot_path_test import answer, creatable, framed

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.server.embedded import EmbeddedBroker
from ottla.wire.codec import decode
from ottla.wire.header import response_body_pos
from ottla.wire.messages import CreateTopicsRequest, ProduceRequest, ProduceResponse

VERSION = 9


def transactional(number: int, transactional_id: str | None) -> bytes:
    """A first batch under a transactional id without a coordinator; without an id, an ordinary batch."""
    identity = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    records = [Record(0, 1_700_000_000_000, None, b"x", ())]
    batch = encode_batch(records, **(identity if transactional_id else {}))
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(batch)))
    topic = ProduceRequest.TopicProduceData(name="held", partition_data=[data])
    request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=[topic])
    return framed(0, VERSION, request)


def code(frame: bytes) -> ErrorCode:
    view = memoryview(frame)
    response, _ = decode(ProduceResponse, VERSION, view, response_body_pos(0, VERSION, view))
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


@pytest.mark.slow
def test_every_request_is_answered_in_its_turn() -> None:
    broker = EmbeddedBroker().start()
    try:
        host, _, port = broker.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=180) as peer:
            peer.sendall(framed(19, 2, CreateTopicsRequest(topics=[creatable("held")], timeout_ms=1000)))
            answer(peer)
            names = ["tx", None, "tx", "ty", None]
            peer.sendall(b"".join(transactional(number, name) for number, name in enumerate(names)))
            codes = [code(answer(peer)) for _ in names]
    finally:
        broker.stop()
    assert [found is ErrorCode.NONE for found in codes] == [name is None for name in names]
