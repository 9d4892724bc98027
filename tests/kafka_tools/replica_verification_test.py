"""kafka-replica-verification: the comparison, brokers that answer as they should not, and its end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from tests.client.conftest import Request, ScriptedBroker
from tests.messagesets import kept_set

from ottla.client import ClientConfig, Cluster, MalformedReplyError, Producer
from ottla.errors import ErrorCode
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.kafka_tools.options import ToolError
from ottla.kafka_tools.tools.partitions.replica_batches import (
    DifferentOffsets,
    ReplicaBatches,
    Verification,
    read_batches,
)
from ottla.kafka_tools.tools.partitions.replica_fetches import ReplicaFetches
from ottla.record.batch import Record, encode_batch, patch_offset_and_epoch
from ottla.record.errors import CorruptRecord
from ottla.server.embedded import EmbeddedBroker
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FetchRequest, FetchResponse, ListOffsetsResponse, MetadataResponse

NAME = "kafka-replica-verification"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = {T0: (1, 2)}


def batch(offset: int, *values: bytes) -> bytes:
    content = bytearray(encode_batch([Record(number, 5, None, value) for number, value in enumerate(values)]))
    patch_offset_and_epoch(content, 0, offset, 3)
    return bytes(content)


def replica(*last_offsets: int, mark: int = 100, sums: tuple[int, ...] = ()) -> ReplicaBatches:
    found = sums or last_offsets
    return ReplicaBatches(mark, last_offsets, found, found)


# -- the comparison ----------------------------------------------------------------------------------------------------


def test_batches_of_a_response() -> None:
    first, second = batch(7, b"a", b"b"), batch(9, b"c")
    found = read_batches(9, memoryview(first + second + second[:30]))
    assert (found.high_watermark, list(found.last_offsets)) == (9, [8, 9]), "without the one that was cut off"
    assert found.checksums == found.computed
    damaged = bytearray(first)
    damaged[-1] ^= 1
    found = read_batches(9, memoryview(damaged))
    assert found.checksums != found.computed
    with pytest.raises(CorruptRecord):
        read_batches(9, memoryview(bytes(100)))


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_older_formats(magic: int) -> None:
    records = [Record(offset, 5, None, b"v") for offset in (4, 5)]
    found = read_batches(9, memoryview(bytes(kept_set(magic, 0, records))))
    assert list(found.last_offsets) == [4, 5]
    assert found.checksums == found.computed


def test_it_advances_to_the_last_batch_that_all_replicas_have() -> None:
    verification = Verification({T0: 0}, BOTH)
    assert verification.verify_round({T0: {1: replica(1, 4, 6), 2: replica(1, 4)}}) == ([], True)
    assert verification.offsets == {T0: 5}
    assert verification.lag_text() == "max lag is 95 for partition t-0 at offset 5 among 1 partitions"
    assert verification.verify_round({T0: {1: replica(6), 2: replica(6, mark=6)}}) == ([], False), "not committed"
    assert verification.verify_round({T0: {1: replica(6)}}) == ([], False), "one replica did not answer"
    assert verification.offsets == {T0: 5}
    assert verification.verify_round({}) == ([], False)
    assert verification.lag_text().startswith("max lag is -1 for partition t-0 at offset 5"), "as Kafka's tool"


def test_the_largest_lag_is_named() -> None:
    verification = Verification({T0: 0, T1: 0}, {T0: (1,), T1: (1,)})
    assert verification.lag_text() == "max lag is -1 for partition null at offset -1 among 2 partitions"
    verification.verify_round({T0: {1: replica(1, mark=2)}, T1: {1: replica(3, mark=9)}})
    assert verification.lag_text() == "max lag is 5 for partition t-1 at offset 4 among 2 partitions"


def test_replicas_that_differ() -> None:
    verification = Verification({T0: 0}, {T0: (2, 1, 3)})
    ones, other = replica(4, sums=(7,)), replica(4, sums=(8,))
    found, advanced = verification.verify_round({T0: {1: ones, 2: other, 3: ones}})
    text = "partition t-0 has unmatched checksum at offset 4; replica 1's checksum 7; replica 2's checksum 8"
    assert (found, advanced) == ([text], True)
    with pytest.raises(
        DifferentOffsets, match="partition t-0: replica 1's offset 6 doesn't match replica 3's offset 7"
    ):
        verification.verify_round({T0: {1: replica(6), 3: replica(7)}})


def test_damaged_bytes_under_an_intact_header_differ() -> None:
    intact = read_batches(9, memoryview(batch(0, b"a")))
    damaged = bytearray(batch(0, b"a"))
    damaged[-2] ^= 1
    there = read_batches(9, memoryview(damaged))
    assert intact.checksums == there.checksums
    (found,), _ = Verification({T0: 0}, BOTH).verify_round({T0: {1: intact, 2: there}})
    assert found.endswith(f"; replica 1's checksum {intact.computed[0]}; replica 2's checksum {there.computed[0]}")
    # A damaged header over intact bytes.
    header = bytearray(batch(0, b"a"))
    header[17] ^= 1
    there = read_batches(9, memoryview(header))
    assert intact.computed == there.computed
    (found,), _ = Verification({T0: 0}, BOTH).verify_round({T0: {1: intact, 2: there}})
    assert found.endswith(f"; replica 1's checksum {intact.checksums[0]}; replica 2's checksum {there.checksums[0]}")


def test_partitions_that_a_full_response_left_out_come_first() -> None:
    verification = Verification({T0: 0, T1: 0}, {T0: (1, 2), T1: (1, 2)})
    assert list(verification.order) == [T0, T1]
    verification.verify_round({T0: {1: replica(1), 2: replica()}})
    assert list(verification.order) == [T1, T0]
    verification.verify_round({})
    assert list(verification.order) == [T1, T0]


# -- fetches -----------------------------------------------------------------------------------------------------------

_Found = ListOffsetsResponse.ListOffsetsPartitionResponse
START = ListOffsetsResponse(
    topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=[_Found(offset=0)])]
)


class Scripted:
    """Brokers 0 and 1, which have the one partition of `t`, and their responses to fetches."""

    def __init__(self, stack: ExitStack, version: int) -> None:
        self.brokers = [ScriptedBroker(), ScriptedBroker()]
        self.asked: list[FetchRequest] = []
        self.warnings: list[str] = []
        metadata = self.brokers[0].metadata_of([])
        part = MetadataResponse.MetadataResponsePartition(leader_id=0, replica_nodes=[0, 1], isr_nodes=[0, 1])
        topic = MetadataResponse.MetadataResponseTopic(name="t", topic_id=b"t" * 16, partitions=[part])
        node = MetadataResponse.MetadataResponseBroker
        metadata.brokers = [node(node_id=i, host="127.0.0.1", port=each.port) for i, each in enumerate(self.brokers)]
        metadata.topics = [topic]
        for each in self.brokers:
            stack.callback(each.close)
            each.versions[ApiKey.FETCH] = (4, version)
            each.on[ApiKey.METADATA] = lambda request: request.reply(metadata)
            each.on[ApiKey.LIST_OFFSETS] = lambda request: request.reply(START)
            self.answer(each, row())
        config = {"bootstrap.servers": self.brokers[0].bootstrap, "request.timeout.ms": "300"}
        config |= {"reconnect.backoff.ms": "1", "reconnect.backoff.max.ms": "1"}
        self.cluster = stack.enter_context(Cluster(ClientConfig.from_mapping(config)))
        topics = self.cluster.refresh(None).topics.values()
        self.fetches = ReplicaFetches(self.cluster, topics, 77, 10, self.warnings.append)  # type: ignore[arg-type]

    def answer(self, broker: ScriptedBroker, *rows: FetchResponse.PartitionData, error: int = 0) -> None:
        def reply(request: Request) -> bytes:
            message = request.message()
            assert isinstance(message, FetchRequest)
            self.asked.append(message)
            topic = FetchResponse.FetchableTopicResponse(topic="t", topic_id=b"t" * 16, partitions=list(rows))
            return request.reply(FetchResponse(error_code=error, responses=[topic]))

        broker.on[ApiKey.FETCH] = reply

    def fetch(self) -> dict[int, ReplicaBatches]:
        return self.fetches.fetch_round([T0], {T0: 0}).get(T0, {})


def row(content: bytes = b"", mark: int = 5, error: int = 0, number: int = 0) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        partition_index=number, error_code=error, high_watermark=mark, records=memoryview(content)
    )


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    """Its parameter is the highest version of Fetch of both brokers."""
    with ExitStack() as stack:
        yield Scripted(stack, getattr(request, "param", 18))


@pytest.mark.parametrize(("scripted", "version"), [(at, at) for at in (4, 11, 12, 13, 15, 18)], indirect=["scripted"])
def test_every_replica_is_asked_as_a_debugging_consumer(scripted: Scripted, version: int) -> None:
    scripted.answer(scripted.brokers[1], row(batch(0, b"a"), 1))
    found = scripted.fetch()
    assert {node: list(each.last_offsets) for node, each in found.items()} == {0: [], 1: [0]}
    assert len(scripted.asked) == 2
    for request in scripted.asked:
        as_id = request.replica_id if version < 15 else request.replica_state.replica_id
        (topic,) = request.topics
        assert (as_id, request.max_wait_ms, topic.partitions[0].partition_max_bytes) == (-2, 10, 77)
        assert topic.topic == "t" if version < 13 else topic.topic_id == b"t" * 16
    assert scripted.warnings == []


def test_a_broker_that_does_not_answer(scripted: Scripted) -> None:
    silent = scripted.brokers[1]
    answers = silent.on[ApiKey.FETCH]
    silent.on[ApiKey.FETCH] = lambda _: b""
    assert [list(scripted.fetch()) for _ in range(2)] == [[0], [0]]
    (text,) = scripted.warnings
    assert text.startswith("broker 1 has no records to compare: ")
    assert "did not answer" in text
    silent.on[ApiKey.FETCH] = answers
    assert sorted(scripted.fetch()) == [0, 1]
    assert scripted.warnings[1:] == ["broker 1 answers again"]
    scripted.answer(silent, error=int(ErrorCode.UNKNOWN_SERVER_ERROR))
    assert list(scripted.fetch()) == [0]
    assert "Fetch: UNKNOWN_SERVER_ERROR" in scripted.warnings[2]


def test_a_replica_that_is_refused(scripted: Scripted) -> None:
    scripted.answer(scripted.brokers[1], row(error=int(ErrorCode.OFFSET_OUT_OF_RANGE), mark=-1))
    assert [scripted.fetch()[1].high_watermark for _ in range(2)] == [-1, -1]
    (text,) = scripted.warnings
    assert text.startswith("partition t-0 on broker 1 has no records to compare: Fetch: OFFSET_OUT_OF_RANGE")


def test_a_broker_that_sends_other_things(scripted: Scripted) -> None:
    scripted.answer(scripted.brokers[1], row(bytes(100)))
    with pytest.raises(ToolError, match="Error in processing replica 1 in partition t-0 at offset 0"):
        scripted.fetch()
    scripted.answer(scripted.brokers[1], row(number=7))
    with pytest.raises(MalformedReplyError, match="broker 1 answered for t-7, which was not requested"):
        scripted.fetch()


# -- the tool ----------------------------------------------------------------------------------------------------------


@contextmanager
def start(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "ottla.kafka_tools", NAME, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_run_and_its_end() -> None:
    with EmbeddedBroker() as broker:
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            producer.send("t", b"v")
        words = ("--broker-list", broker.bootstrap, "--topic-white-list", "t|nothing", "--time", "-2")
        with start(*words, "--report-interval-ms", "0", "--max-wait-ms", "1") as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (130, "")
        texts = [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: (.*)\n", line) for line in lines]
        lag = "max lag is 0 for partition t-0 at offset 1 among 1 partitions"
        assert [found and found[1] for found in texts] == ["verification process is started", lag, lag]
        with start(*words, "--report-interval-ms", "0", "--max-wait-ms", "1") as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(60) == 141


@pytest.mark.slow
def test_a_round_without_progress_is_followed_by_a_pause(scripted: Scripted) -> None:
    """Brokers answer errors, and records that only one of them has, at once."""
    scripted.answer(scripted.brokers[0], row(batch(0, b"a")))
    scripted.answer(scripted.brokers[1], row(error=int(ErrorCode.OFFSET_OUT_OF_RANGE), mark=-1))
    began = time.monotonic()
    words = ("--broker-list", scripted.brokers[0].bootstrap, "--report-interval-ms", "300", "--max-wait-ms", "100")
    with start(*words) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.kill()
    assert "max lag is 5 for partition t-0 at offset 0 among 1 partitions" in lines[-1]
    assert len(scripted.asked) <= 2 * ((time.monotonic() - began) / 0.1 + 2)


@pytest.mark.slow
def test_different_offsets_end_it(scripted: Scripted) -> None:
    scripted.answer(scripted.brokers[0], row(batch(0, b"a", b"b")))
    scripted.answer(scripted.brokers[1], row(batch(0, b"a")))
    with start("--broker-list", scripted.brokers[0].bootstrap) as process:
        shown, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (1, "")
    assert shown.endswith(": partition t-0: replica 0's offset 1 doesn't match replica 1's offset 0\n")


@pytest.mark.slow
def test_bytes_that_are_not_batches_end_it(scripted: Scripted) -> None:
    scripted.answer(scripted.brokers[1], row(bytes(100)))
    with start("--broker-list", scripted.brokers[0].bootstrap) as process:
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    message = "Error in processing replica 1 in partition t-0 at offset 0."
    assert error.startswith(message)
    assert f"\njava.lang.RuntimeException: {message}" in error


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--fetch-size", "0"], "--fetch-size 0: give at least 1 byte"),
        (["--fetch-size", "2147483648"], "Cannot parse argument '2147483648' of option fetch-size"),
        (["--broker-list", "x"], "Found multiple arguments for option broker-list, but you asked for only one"),
    ):
        assert run_tool(load_tool(NAME), ["--broker-list", "127.0.0.1:1", *words]) == 1
        assert capsys.readouterr().err.startswith(f"{message}\n")


@pytest.mark.slow
def test_an_expression_is_looked_at_beside_a_topic(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedBroker() as broker:
        words = ["--broker-list", broker.bootstrap, "--topics-include", "x("]
        assert run_tool(load_tool(NAME), words) == 1
        assert capsys.readouterr().err.startswith("No topics found.")
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            producer.send("t", b"v")
        assert run_tool(load_tool(NAME), words) == 1
        assert capsys.readouterr().err.startswith("x( is an invalid regex\n")
