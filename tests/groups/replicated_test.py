"""Groups whose topic has a second replica: commits wait for it, shards come and go with leadership."""

from __future__ import annotations

from typing import Any

import pytest
from tests.groups.requests_test import Hall

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import PartitionState
from ottla.wire.messages import (
    HeartbeatRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)

TOPIC = "__consumer_offsets"


class Listener(list):
    """A controller that records requests and never answers."""

    def propose_isr(self, partition: Partition, proposal: object) -> None:
        self.append(proposal)


class Contact:
    def __init__(self) -> None:
        self.used_ns = self.previous_ns = -1
        self.is_requested = True

    def on_replaced(self) -> None:
        pass


class Led(Hall):
    """One partition of `__consumer_offsets`, whose leader the test decides."""

    def __init__(self, **settings: str) -> None:
        super().__init__(offsets_topic_num_partitions="1", **settings)
        found = self.node.broker.hosted.find_partition(TOPIC, 0)
        assert found is not None
        self.partition = found

    def turn(self, action: Any) -> None:
        self.node.process.post_turn(0, "turn", lambda: (action(), self.node.broker.end_turn()))
        self.node.pass_ms(0)

    def tell(self, leader: int, isr: tuple[int, ...] = (1, 2)) -> None:
        """Have the controller announce a leader, in the next leader epoch."""
        partition = self.partition
        partition._isr_changes = Listener()
        epoch = partition.leader_epoch + 1
        state = PartitionState(leader, epoch, isr, partition.partition_epoch + 1, (1, 2))
        become = partition.make_leader if leader == partition.node_id else partition.make_follower
        self.turn(lambda: become(state, self.node.process.clock.now()))

    def replicate(self) -> None:
        """Broker 2 fetches all records."""
        now = self.node.process.clock.now()
        end = self.partition.log.end_offset
        self.turn(lambda: self.partition.note_fetch(2, 1, self.partition.leader_epoch, end, -1, 0, now, Contact()))

    def commits(self, offset: int) -> Any:
        part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
        return self.send(OffsetCommitRequest(group_id="g", topics=[topic]), 9)

    def fetches(self) -> Any:
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        return self.send(OffsetFetchRequest(group_id="g", topics=[topic]), 7)


@pytest.fixture
def led() -> Led:
    led = Led()
    led.tell(1)
    led.replicate()
    led.node.pass_ms(100)
    return led


def code(led: Led, place: Any) -> ErrorCode:
    return ErrorCode(led.node.answer(place).topics[0].partitions[0].error_code)


def test_a_commit_is_answered_when_every_replica_in_sync_has_it(led: Led):
    waiting, reading = led.commits(5), led.fetches()
    led.node.pass_ms(1000)
    assert not waiting.answered
    assert not reading.answered, "nobody reads what may be lost yet"
    led.replicate()
    assert waiting.answered
    assert reading.answered
    assert code(led, waiting) is ErrorCode.NONE
    assert led.node.answer(reading).topics[0].partitions[0].committed_offset == 5


def test_a_commit_that_no_replica_fetches_times_out():
    led = Led(offsets_commit_timeout_ms="2000")
    led.tell(1)
    led.replicate()
    led.node.pass_ms(100)
    waiting = led.commits(5)
    led.node.pass_ms(1999)
    assert not waiting.answered
    led.node.pass_ms(2)
    assert code(led, waiting) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_heartbeats_do_not_wait(led: Led):
    joined = led.joined()
    waiting = led.send(
        HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id), 4
    )
    assert waiting.answered


def test_waiting_requests_get_not_coordinator_when_another_broker_leads(led: Led):
    member = led.joined().member_id
    commit, read = led.commits(5), led.fetches()
    assert led.node.answer(commit).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    waiting = led.join(member=member)
    assert waiting.answered, "alone, it need not wait"
    late = led.join(version=3)
    led.tell(2)
    assert led.node.answer(late).error_code == ErrorCode.NOT_COORDINATOR
    assert led.node.answer(read).error_code in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)
    beat = HeartbeatRequest(group_id="g", generation_id=2, member_id=member)
    assert led.ask(beat, 4).error_code == ErrorCode.NOT_COORDINATOR, "the image still says that this broker leads"
    assert led.ask(ListGroupsRequest(), 5).groups == []


def test_a_new_leader_answers_once_the_loaded_offsets_are_committed(led: Led):
    first = led.commits(5)
    led.replicate()
    assert code(led, first) is ErrorCode.NONE
    second = led.commits(6)
    led.tell(2)
    assert code(led, second) is ErrorCode.NOT_COORDINATOR
    led.tell(1)
    led.node.pass_ms(100)
    reading = led.fetches()
    assert not reading.answered
    led.replicate()
    assert led.node.answer(reading).topics[0].partitions[0].committed_offset == 6, "it survived in this log"


def test_a_loading_shard_answers_coordinator_load_in_progress(led: Led):
    for at in range(20):
        led.commits(at)
    led.replicate()
    led.tell(2)
    led.tell(1)
    listed = led.ask(ListGroupsRequest(), 5)
    assert (listed.error_code, listed.groups) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [])
    assert led.node.answer(led.fetches()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    led.node.pass_ms(100)
    assert [group.group_id for group in led.ask(ListGroupsRequest(), 5).groups] == ["g"]


def test_heartbeats_succeed_while_the_group_is_loading(led: Led):
    """As Kafka does. aiokafka, for example, never recovers from COORDINATOR_LOAD_IN_PROGRESS in a heartbeat."""
    for at in range(20):
        led.commits(at)
    led.replicate()
    led.tell(2)
    led.tell(1)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="somebody")
    assert led.node.answer(led.fetches()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert led.ask(beat, 4).error_code == ErrorCode.NONE
    led.node.pass_ms(100)
    assert led.ask(beat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_too_few_replicas_refuse_a_commit_before_it_is_written(led: Led):
    led.tell(1, isr=(1,))
    led.node.pass_ms(100)
    end = led.partition.log.end_offset
    led.partition.apply_config(TopicConfig(min_insync_replicas=2))
    assert code(led, led.commits(5)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert led.partition.log.end_offset == end
