"""The producer against brokers that answer wrongly, late or not at all: an error or a retry, never silence."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.client import (
    DeadlineError,
    MalformedReplyError,
    Producer,
    RefusedError,
    RequestTimeoutError,
    UnsupportedVersionError,
)
from ottla.errors import ErrorCode
from ottla.record.batch import header_at, records_of
from ottla.wire.apis import ApiKey
from ottla.wire.messages import InitProducerIdResponse, ProduceResponse


class Leader:
    """Answers Produce with the items of `script`, then without errors. Keeps appended records."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.script: list[Callable[[Any, ProduceResponse], bytes | None]] = []
        self.appended: list[tuple[int, int, bytes | None]] = []
        """(producer epoch, sequence, value)"""
        self.ids = 0
        broker.topics = {"t": 2}
        broker.on[ApiKey.PRODUCE] = self.produce
        broker.on[ApiKey.INIT_PRODUCER_ID] = self.init

    def init(self, request: Any) -> bytes | None:
        self.ids += 1
        return bytes(request.reply(InitProducerIdResponse(producer_id=self.ids, producer_epoch=0)))

    def produce(self, request: Any) -> bytes | None:
        message = request.message()
        answer = ProduceResponse()
        for topic in message.topic_data:
            parts = [ProduceResponse.PartitionProduceResponse(index=part.index) for part in topic.partition_data]
            answer.responses.append(
                ProduceResponse.TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=parts
                )
            )
        if self.script:
            return self.script.pop(0)(request, answer)
        for topic in message.topic_data:
            for part in topic.partition_data:
                header = header_at(part.records)
                for at, record in enumerate(records_of(part.records, max_bytes=10**6)):
                    self.appended.append((header.producer_epoch, header.base_sequence + at, record.value))
        return bytes(request.reply(answer))


@pytest.fixture
def leader(broker: Any) -> Leader:
    return Leader(broker)


@pytest.fixture
def producer(broker: Any) -> Iterator[Callable[..., Producer]]:
    made: list[Producer] = []

    def make(**keys: Any) -> Producer:
        quick = {"linger.ms": 0, "retry.backoff.ms": 1, "retry.backoff.max.ms": 2}
        again = {"reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 2, "bootstrap.servers": broker.bootstrap}
        made.append(Producer({**quick, **again, **{key.replace("_", "."): value for key, value in keys.items()}}))
        return made[-1]

    yield make
    for one in made:
        one.close(0)


def refusing(code: ErrorCode) -> Callable[[Any, ProduceResponse], bytes | None]:
    def send_response(request: Any, response: ProduceResponse) -> bytes | None:
        for topic in response.responses:
            for part in topic.partition_responses:
                part.error_code = code
        return bytes(request.reply(response))

    return send_response


def hang_up(_request: Any, _response: ProduceResponse) -> bytes | None:
    return None


def another_partition(request: Any, response: ProduceResponse) -> bytes | None:
    response.responses[0].partition_responses[0].index = 9
    return bytes(request.reply(response))


def nothing_at_all(request: Any, _response: ProduceResponse) -> bytes | None:
    return bytes(request.reply(ProduceResponse()))


def half_of_it(request: Any, response: ProduceResponse) -> bytes | None:
    whole = bytes(request.reply(response))
    return (len(whole) - 6).to_bytes(4, "big") + whole[4:-2]


def wrong_correlation(request: Any, response: ProduceResponse) -> bytes | None:
    whole = bytearray(request.reply(response))
    whole[4:8] = b"\x7f\0\0\1"
    return bytes(whole)


def impossible_size(_request: Any, _response: ProduceResponse) -> bytes | None:
    return b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CORRUPT_MESSAGE]
)
def test_retriable_errors_are_retried(leader: Leader, producer: Callable[..., Producer], code: ErrorCode) -> None:
    leader.script = [refusing(code), hang_up, refusing(code)]
    one = producer()
    one.send("t", b"v", partition=0).result(180)
    assert leader.appended == [(0, 0, b"v")]
    assert one.metrics()["record-retry-total"] == 3


def test_retries_are_counted(leader: Leader, producer: Callable[..., Producer]) -> None:
    leader.script = [refusing(ErrorCode.NOT_ENOUGH_REPLICAS)] * 9
    error = producer(retries=2).send("t", b"v").exception(20)
    assert isinstance(error, RefusedError)
    assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(leader.script) == 6


def test_a_lost_producer_state_is_restored_by_a_new_epoch(leader: Leader, producer: Callable[..., Producer]) -> None:
    one = producer()
    one.send("t", b"a", partition=0).result(180)
    leader.script = [refusing(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)]
    one.send("t", b"b", partition=0).result(180)
    one.send("t", b"c", partition=0).result(180)
    assert leader.appended == [(0, 0, b"a"), (1, 0, b"b"), (1, 1, b"c")]


def test_a_duplicate_is_a_success_without_an_offset(leader: Leader, producer: Callable[..., Producer]) -> None:
    leader.script = [refusing(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)]
    assert producer().send("t", b"v").result(180).offset == -1


@pytest.mark.parametrize("answer", [another_partition, nothing_at_all, half_of_it, wrong_correlation, impossible_size])
def test_a_malformed_answer_is_the_records_error(
    leader: Leader, producer: Callable[..., Producer], answer: Callable[[Any, ProduceResponse], bytes | None]
) -> None:
    leader.script = [answer]
    one = producer()
    assert isinstance(one.send("t", b"v", partition=0).exception(20), MalformedReplyError)
    one.send("t", b"next", partition=0).result(180)
    assert leader.appended[-1][2] == b"next"


def test_a_broker_that_never_answers_is_given_up(leader: Leader, producer: Callable[..., Producer]) -> None:
    leader.script = [lambda *_: b""] * 100
    one = producer(request_timeout_ms=50, delivery_timeout_ms=300)
    error = one.send("t", b"v").exception(20)
    # Which error it is depends on the state of the connection at that moment.
    assert isinstance(error, DeadlineError | RequestTimeoutError)
    assert "time" in str(error)


def test_metadata_without_a_leader_is_requested_again(leader: Leader, producer: Callable[..., Producer]) -> None:
    well = leader.broker.metadata
    leaderless = [True, True]

    def metadata(request: Any) -> bytes | None:
        if leaderless:
            leaderless.pop()
            return bytes(request.reply(leader.broker.metadata_of(["t"], leader=-1)))
        return bytes(well(request))

    leader.broker.on[ApiKey.METADATA] = metadata
    assert producer().send("t", b"v").result(180).offset == 0
    assert not leaderless


def test_a_broker_that_leaves_the_cluster_for_a_moment_costs_no_record(
    leader: Leader, producer: Callable[..., Producer]
) -> None:
    one = producer(metadata_max_age_ms=50)
    one.send("t", b"a", partition=0).result(180)
    asked, sent = threading.Event(), threading.Event()

    def metadata(request: Any) -> bytes | None:
        if asked.is_set():
            return bytes(leader.broker.metadata(request))
        asked.set()
        sent.wait(180)  # a batch is sent after the request whose answer has no broker
        answer = leader.broker.metadata_of(["t"], leader=-1)
        answer.brokers = []
        return bytes(request.reply(answer))

    leader.broker.on[ApiKey.METADATA] = metadata
    assert asked.wait(180)
    before = one.metrics()["request-total"]
    future = one.send("t", b"b", partition=0)
    while one.metrics()["request-total"] == before:
        pass
    sent.set()
    future.result(180)
    assert b"b" in [value for _, _, value in leader.appended]


def test_no_producer_id_is_the_records_error(leader: Leader, producer: Callable[..., Producer]) -> None:
    leader.broker.on[ApiKey.INIT_PRODUCER_ID] = lambda request: request.reply(
        InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    )
    error = producer().send("t", b"v").exception(20)
    assert isinstance(error, RefusedError)
    assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_broker_without_idempotence_is_reported_as_too_old(leader: Leader, producer: Callable[..., Producer]) -> None:
    del leader.broker.versions[ApiKey.INIT_PRODUCER_ID]
    assert isinstance(producer().send("t", b"v").exception(20), UnsupportedVersionError)
    assert producer(acks="1").send("t", b"v").result(180).offset == 0


def test_a_recreated_topic_is_written_with_its_new_id(leader: Leader, producer: Callable[..., Producer]) -> None:
    one = producer()
    one.send("t", b"a", partition=0).result(180)
    leader.script = [refusing(ErrorCode.UNKNOWN_TOPIC_ID)]
    asked = len(leader.broker.asked(ApiKey.METADATA))
    one.send("t", b"b", partition=0).result(180)
    assert len(leader.broker.asked(ApiKey.METADATA)) > asked


def test_a_service_other_than_a_broker_is_named_in_the_error(broker: Any, producer: Callable[..., Producer]) -> None:
    broker.on[ApiKey.API_VERSIONS] = lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with pytest.raises(DeadlineError, match="web server"):
        producer(max_block_ms=3000).send("t", b"v")
