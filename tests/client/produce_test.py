"""Sending batches: retries, order, sequence numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import (
    Appended,
    Cluster,
    ConnectionLostError,
    Identity,
    MalformedReplyError,
    RefusedError,
    RequestTimeoutError,
    Sender,
    TopicPartition,
    UnreachableError,
    UnsupportedVersionError,
    UsageError,
)
from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.wire.apis import ApiKey
from ottla.wire.messages import InitProducerIdResponse, ProduceResponse

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
BATCH = encode_batch([Record(0, 0, None, b"x")])


class Log:
    """A broker that answers Produce with the next of `errors`, else appends."""

    def __init__(self, broker) -> None:
        self.broker = broker
        self.batches: dict[int, list[bytes]] = {}
        self.errors: list[int | None] = []
        broker.topics = {"t": 2}
        broker.on[ApiKey.PRODUCE] = self.produce
        broker.on[ApiKey.INIT_PRODUCER_ID] = lambda request: request.reply(
            InitProducerIdResponse(producer_id=len(broker.asked(ApiKey.INIT_PRODUCER_ID)), producer_epoch=0)
        )

    def produce(self, request):
        error = self.errors.pop(0) if self.errors else 0
        if error is None:
            return None
        message = request.message()
        parts = [part for topic in message.topic_data for part in topic.partition_data]
        results = []
        for part in parts:
            log = self.batches.setdefault(part.index, [])
            results.append(
                ProduceResponse.PartitionProduceResponse(index=part.index, error_code=error, base_offset=len(log))
            )
            if not error:
                log.append(bytes(part.records))
        if message.acks == 0:
            return b""
        topic = message.topic_data[0]
        answer = ProduceResponse.TopicProduceResponse(
            name=topic.name, topic_id=topic.topic_id, partition_responses=results
        )
        return request.reply(ProduceResponse(responses=[answer]))


@pytest.fixture
def log(broker) -> Log:
    return Log(broker)


def test_a_batch_per_partition_in_one_request(log, cluster) -> None:
    results = Sender(cluster).send({T1: BATCH, T0: BATCH})
    assert list(results) == [T1, T0]
    assert all(isinstance(result, Appended) and result.base_offset == 0 for result in results.values())
    assert len(log.broker.asked(ApiKey.PRODUCE)) == 1
    assert log.batches == {0: [bytes(BATCH)], 1: [bytes(BATCH)]}


def test_requests_stay_below_max_request_size(log, config) -> None:
    with Cluster(config(max_request_size=len(BATCH) + 10)) as cluster:
        Sender(cluster).send({T0: BATCH, T1: BATCH})
        assert len(log.broker.asked(ApiKey.PRODUCE)) == 2
        with pytest.raises(UsageError, match=r"larger than max\.request\.size"):
            Sender(cluster).send({T0: encode_batch([Record(0, 0, None, bytes(100))])})


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_retriable_errors_are_retried_with_fresh_metadata(log, cluster, code: ErrorCode) -> None:
    log.errors = [code, code]
    assert Sender(cluster).send({T0: BATCH}) == {T0: Appended(0, -1, -1)}
    assert len(log.broker.asked(ApiKey.METADATA)) == 3


def test_a_lost_connection_is_retried(log, cluster) -> None:
    log.errors = [None]
    assert Sender(cluster).send({T0: BATCH}) == {T0: Appended(0, -1, -1)}


def test_errors_that_last_are_the_result_when_time_is_up(log, config) -> None:
    log.errors = [None] * 1_000
    with Cluster(config(delivery_timeout_ms=1_000)) as cluster:
        result = Sender(cluster).send({T0: BATCH})[T0]
    # Which error it is depends on the state of the connection at that moment.
    assert isinstance(result, ConnectionLostError | RequestTimeoutError | UnreachableError)


def test_the_last_error_is_the_result_when_metadata_is_unavailable(log, config) -> None:
    log.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1_000
    metadata = log.broker.on[ApiKey.METADATA]
    log.broker.on[ApiKey.METADATA] = lambda request: None if log.broker.asked(ApiKey.PRODUCE) else metadata(request)
    with Cluster(config(delivery_timeout_ms=1_000)) as cluster:
        result = Sender(cluster).send({T0: BATCH})[T0]
    assert isinstance(result, RefusedError)
    assert result.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_refusal_is_the_result_of_its_partition(log, cluster) -> None:
    log.errors = [ErrorCode.MESSAGE_TOO_LARGE]
    result = Sender(cluster).send({T0: BATCH})[T0]
    assert isinstance(result, RefusedError)
    assert result.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in result.next_step
    assert len(log.broker.asked(ApiKey.PRODUCE)) == 1


def test_a_duplicate_is_a_success(log, cluster) -> None:
    log.errors = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    assert Sender(cluster).send({T0: BATCH})[T0] == Appended(-1, -1, -1)


def test_an_unknown_topic_or_partition_is_final(log, cluster) -> None:
    results = Sender(cluster).send({TopicPartition("t", 9): BATCH, TopicPartition("u", 0): BATCH, T0: BATCH})
    codes = [getattr(result, "code", None) for result in results.values()]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None]


def test_a_response_about_another_partition_is_malformed(log, cluster) -> None:
    for index, says in ((1, "answered for t-1, which was not requested"), (None, "has no result for t-0")):
        part = [] if index is None else [ProduceResponse.PartitionProduceResponse(index=index)]
        answer = ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(name="t", partition_responses=part)])
        log.broker.versions[ApiKey.PRODUCE] = (3, 9)
        log.broker.on[ApiKey.PRODUCE] = lambda request, answer=answer: request.reply(answer)
        with pytest.raises(MalformedReplyError, match=says):
            Sender(cluster).send({T0: BATCH})


def test_a_broker_too_old_for_these_batches(log, cluster) -> None:
    log.broker.versions[ApiKey.PRODUCE] = (0, 2)
    with pytest.raises(UnsupportedVersionError, match="needs version 3"):
        Sender(cluster).send({T0: BATCH})


def test_acks_0_waits_for_nothing(log, config) -> None:
    with Cluster(config(acks="0", enable_idempotence=False)) as cluster:
        assert Sender(cluster).send({T0: BATCH}) == {T0: Appended(-1, -1, -1)}
        # The next answer on that connection belongs to the next request, so no answer was left unread.
        cluster.refresh()
    assert log.batches == {0: [bytes(BATCH)]}


@pytest.mark.slow
@given(st.lists(st.integers(1, 2**31 - 1), max_size=10))
def test_sequences_continue_without_a_gap_and_wrap(counts: list[int]) -> None:
    identity = Identity(1, 0)
    expected = 0
    for count in counts:
        assert identity.take_sequence(T0, count) == expected
        expected = (expected + count) % 2**31
    assert identity.take_sequence(T1, 5) == 0, "each partition counts for itself"
