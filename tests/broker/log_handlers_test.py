"""Log requests over the wire: offsets by time and epoch, DeleteRecords, log directories, producers.

Zone: real.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from tests.ignoring import NoCoordinators, ignore

from ottla.broker.assembly.foundation import lay_foundation
from ottla.broker.assembly.replication import build_replicas
from ottla.broker.log_dir_handlers import LogDirHandlers
from ottla.broker.log_handlers import LogHandlers
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.record.batch import Record, encode_batch
from ottla.replication.control import ControlFence
from ottla.replication.epoch_handlers import EpochHandlers
from ottla.replication.leaders import NoLeaders
from ottla.replication.partition.replica_state import PartitionState
from ottla.requests import Context, handlers_of
from ottla.seams import World
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DiskOperation, DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.world import SECOND, Timeline
from ottla.types import TopicPartition
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.messages import (
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)


class Asker(NamedTuple):
    """A connection."""

    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    host: str = "127.0.0.1"


class Place(NamedTuple):
    """An ordered answer on it."""

    peer: Asker


class Nobody:
    """The network of a broker that is alone."""

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done, lane: str = "") -> None:
        raise AssertionError("there is no other broker")


class Logs:
    """Two partitions of a topic `t`, led in epoch 3, on a simulated disk."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        drive = Drive("data")
        process = Machine(1, self.timeline, Streams(1), [drive]).boot_process()
        self.faults = DriveFaults()
        self.clock = process.clock
        disks, workers = [SimDisk(drive, self.faults, process)], SimWorkers(process)
        world = World(process.clock, process.entropy, disks, Nobody(), workers)
        base = lay_foundation(replace(BrokerConfig(), node_id=1), world, ignore, ignore)
        base.logs.load_logs(lambda _: TopicConfig())
        self.hosted = base.hosted
        config = TopicConfig(message_timestamp_after_max_ms=2**62)
        fence = ControlFence(1, None, ignore)
        self.replicas = build_replicas(base, fence, lambda _: config, NoCoordinators(), ignore)
        for index in (0, 1):
            self.lead(index, 3)
        epochs = EpochHandlers(self.hosted, NoLeaders(), self.replicas.removals, lambda _: True)
        log_dirs = LogDirHandlers(base.logs, self.replicas.moves)
        handlers = LogHandlers(self.hosted, Purgatory(self.clock), self.clock), log_dirs, epochs
        self.log_dirs = log_dirs
        self.handlers = {d.api_key: (d, handler) for each in handlers for d, handler in handlers_of(each)}

    def lead(self, index: int, epoch: int) -> None:
        """Make this broker the leader of a partition of `t`."""
        state = PartitionState(1, epoch, (1,), epoch, (1,), is_new=True)
        tp = TopicPartition("t", index)
        assert self.replicas.apply({tp: (bytes(range(16)), state)}, 1, self.clock.now()) == {tp: ErrorCode.NONE}

    def append(self, *timestamps: int, partition: int = 0, producer_id: int = -1) -> None:
        """One batch, a record per timestamp."""
        part = self.hosted.find_partition("t", partition)
        sequence = 0 if producer_id >= 0 else -1
        records = [Record(offset, stamp, None, b"v") for offset, stamp in enumerate(timestamps)]
        batch = encode_batch(records, producer_id=producer_id, producer_epoch=sequence, base_sequence=sequence)
        part.leader_role.append(memoryview(batch), 1, self.clock.now())

    def ask(self, request, version: int):
        """A request over the wire and its answer."""
        api = next(api for api in API_TABLE.values() if isinstance(request, api.request))
        declaration, handler = self.handlers[api.key]
        assert declaration.min_version <= version <= declaration.max_version
        received, _ = decode(api.request, version, memoryview(bytearray(encode_bytes(request, version))))
        box = []
        context = Context(api.key, version, 1, "test", Place(Asker()), lambda _, response: box.append(response))
        try:
            response = handler(context, received)
        except ApiError as error:
            return error
        if response is not None:
            box.append(response)
        self.timeline.run_until(self.timeline.now_ns + 10 * SECOND)
        (response,) = box
        answer, _ = decode(api.response, version, memoryview(bytearray(encode_bytes(response, version))))
        return answer

    def offset(self, timestamp: int, version: int = 11, partition: int = 0, epoch: int = -1, isolation: int = 0):
        """ListOffsets for one partition."""
        one = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[one])
        answer = self.ask(ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic]), version)
        return answer if isinstance(answer, ApiError) else answer.topics[0].partitions[0]

    def old(self, timestamp: int, count: int) -> list[int]:
        """ListOffsets 0 for partition 0."""
        one = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=count)
        topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[one])
        return self.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 0).topics[0].partitions[0].old_style_offsets


@pytest.fixture
def logs() -> Logs:
    return Logs()


# -- ListOffsets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 12))
def test_ends_of_the_log(logs, version):
    logs.append(10, 20, 30)
    end, start = logs.offset(-1, version), logs.offset(-2, version)
    assert (end.error_code, end.offset) == (0, 3)
    assert (start.error_code, start.offset) == (0, 0)
    if version >= 4:
        assert (end.leader_epoch, start.leader_epoch) == (3, 3)


def test_offsets_by_time(logs):
    logs.append(10, 20)
    logs.append(30, 25)
    assert [logs.offset(stamp).offset for stamp in (0, 10, 15, 20, 21, 26, 30, 31)] == [0, 0, 1, 1, 2, 2, 2, -1]
    found = logs.offset(15)
    assert (found.timestamp, found.leader_epoch) == (20, 3)
    newest = logs.offset(-3)
    assert (newest.offset, newest.timestamp) == (2, 30)
    assert logs.offset(-3, partition=1).offset == -1
    assert logs.offset(-4).offset == 0
    assert (logs.offset(-5).offset, logs.offset(-6).offset) == (-1, -1)


@pytest.mark.parametrize(("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10), (-9, 11), (-(2**63), 11)])
def test_a_special_time_that_the_version_does_not_know(logs, timestamp, version):
    assert logs.offset(timestamp, version).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_version_0_lists_segment_starts(logs):
    logs.append(10, 20)
    log = logs.hosted.find_partition("t", 0).log
    log.roll_segment()
    logs.append(30)

    assert logs.old(-1, 10) == [3, 2, 0]
    assert logs.old(-1, 1) == [3]
    assert logs.old(-2, 10) == [0]
    assert logs.old(25, 10) == [0]
    assert logs.old(-1, -5) == []
    assert logs.old(-1, 2**31 - 1) == [3, 2, 0]
    assert logs.old(2**45, 10) == [3, 2, 0], "the log end is as old as now"
    assert logs.old(2**45, 1) == [3]
    assert logs.old(logs.clock.now().wall_ms - 1, 10) == [2, 0]
    assert logs.old(5, 10) == []


def test_version_0_goes_back_from_the_newest_place_that_is_old_enough(logs):
    logs.append(50)
    log = logs.hosted.find_partition("t", 0).log
    log.roll_segment()
    logs.append(20)
    log.roll_segment()
    assert logs.old(30, 10) == [1, 0], "an older segment with a later record counts as older, as in Kafka"
    assert logs.old(2**45, 10) == [2, 1, 0], "an empty segment begins at the log end"


def test_version_0_returns_consumers_committed_offsets_only(logs):
    logs.append(10, 20)
    partition = logs.hosted.find_partition("t", 0)
    partition.log.roll_segment()
    logs.append(30)
    partition.high_watermark = 1
    assert logs.old(-1, 10) == [1, 0]
    assert logs.old(2**45, 10) == [1, 0]
    assert logs.old(-2, 10) == [0]


def test_questions_about_partitions_that_cannot_be_answered(logs):
    assert logs.offset(-1, partition=7).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert logs.offset(-1, partition=-1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert logs.offset(-1, epoch=2).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert logs.offset(-1, epoch=4).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert logs.offset(-1, epoch=3).error_code == 0
    assert isinstance(logs.offset(-1, isolation=7), ApiError)
    assert logs.offset(-1, isolation=1).error_code == 0
    one = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[one, one])
    answer = logs.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), 5)
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2


# -- OffsetForLeaderEpoch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_where_an_epoch_ended(logs, version):
    logs.append(10, 20)
    logs.lead(0, 5)
    logs.append(30)
    partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
        topic="t", partitions=[partition(partition=0, leader_epoch=epoch) for epoch in (3, 4, 5, 6)]
    )
    other = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="no", partitions=[partition(partition=0)])
    answer = logs.ask(OffsetForLeaderEpochRequest(topics=[topic, other]), version)
    assert [one.end_offset for one in answer.topics[0].partitions] == [2, 2, 3, -1]
    if version >= 1:
        assert [one.leader_epoch for one in answer.topics[0].partitions] == [3, 3, 5, -1]
    assert answer.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- DeleteRecords ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_up_to_an_offset(logs, version):
    logs.append(10, 20, 30)
    one = DeleteRecordsRequest.DeleteRecordsPartition

    def delete(offset, topic="t"):
        asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[one(partition_index=0, offset=offset)])
        found = logs.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=1000), version).topics[0].partitions[0]
        return found.error_code, found.low_watermark

    assert delete(2) == (0, 2)
    assert delete(1) == (0, 2)
    assert delete(4) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert delete(-1) == (0, 3)
    assert delete(0, "no") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(0, "__consumer_offsets") == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    assert logs.offset(-2).offset == 3


def test_topics_without_a_cleanup_policy_let_records_be_deleted_by_offset(logs):
    """As Apache Kafka 4.4 (KIP-1161): nothing goes by itself."""
    logs.append(10)
    logs.replicas.apply_topic_config("t", TopicConfig(cleanup_policy=()))
    one = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[one])
    answer = logs.ask(DeleteRecordsRequest(topics=[topic]), 2)
    assert (answer.topics[0].partitions[0].error_code, logs.offset(-2).offset) == (0, 1)


def test_compacted_topics_keep_their_records(logs):
    logs.append(10)
    logs.replicas.apply_topic_config("t", TopicConfig(cleanup_policy=("compact",)))
    one = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[one])
    answer = logs.ask(DeleteRecordsRequest(topics=[topic]), 2)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION


# -- DescribeLogDirs, DescribeProducers ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_log_directories_have_sizes(logs, version):
    logs.append(10, 20)
    (everything,) = logs.ask(DescribeLogDirsRequest(topics=None), version).results
    assert everything.log_dir == "data"
    if version >= 4:  # KIP-827
        assert 0 < everything.usable_bytes <= everything.total_bytes
    sizes = {p.partition_index: p.partition_size for p in everything.topics[0].partitions}
    assert sizes == {0: logs.hosted.find_partition("t", 0).log.segments.size, 1: 0}
    asked = DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=[1, 1, 9])
    (some,) = logs.ask(DescribeLogDirsRequest(topics=[asked]), version).results
    assert [p.partition_index for p in some.topics[0].partitions] == [1]
    (none,) = logs.ask(DescribeLogDirsRequest(topics=[]), version).results
    assert none.topics == []


def test_topics_without_partitions_are_looked_up_in_several_turns(logs):
    empty = DescribeLogDirsRequest.DescribableLogDirTopic(topic="t", partitions=[])
    assert len(list(logs.log_dirs._wanted_partitions([empty] * 10_000))) >= 9


def test_a_failed_directory_is_described_with_an_error(logs):
    logs.append(10)
    logs.faults.arm_error(DiskOperation.APPEND)
    with pytest.raises(ApiError):
        logs.append(20)
    (result,) = logs.ask(DescribeLogDirsRequest(topics=None), 4).results
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_producers_are_described(logs):
    logs.append(10, 20, producer_id=77)
    topic = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 1, 9])
    first, second, third = logs.ask(DescribeProducersRequest(topics=[topic]), 0).topics[0].partitions
    (producer,) = first.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (77, 0, 1)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (20, -1)
    assert second.active_producers == []
    assert third.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
