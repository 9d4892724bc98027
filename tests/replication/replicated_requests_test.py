"""Produce, ListOffsets, OffsetForLeaderEpoch and DeleteRecords where there are other replicas."""

from __future__ import annotations

import pytest
from tests.replication.replica_fetch_test import DEBUGGING_CONSUMER, ReplicaSession, other_peer, with_neighbour

from ottla.errors import ErrorCode
from ottla.wire.messages import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)


def produced(node, place):
    """The answer for the one partition."""
    return node.answer(place).responses[0].partition_responses[0]


def test_acks_all_waits_for_the_isr_and_then_no_longer_than_its_time(node) -> None:
    node.send_state(1, (1, 2))
    waiting = node.send(node.produce_request("t", b"a", acks=-1), 9)
    node.pass_ms(999)
    assert not waiting.answered
    node.pass_ms(10)
    assert produced(node, waiting).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert node.produce("t", b"b", acks=1).base_offset == 1


def test_a_duplicate_is_acknowledged_when_its_original_is_committed(node) -> None:
    node.send_state(1, (1, 2))
    identity = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    first = node.send(node.produce_request("t", b"a", acks=-1, **identity), 9, peer=other_peer(node))
    again = node.send(node.produce_request("t", b"a", acks=-1, **identity), 9, peer=other_peer(node))
    assert (first.answered, again.answered) == (False, False)
    node.replicate("t", 1)
    assert [produced(node, each).base_offset for each in (first, again)] == [0, 0]
    assert node.partition().log.end_offset == 1


def test_a_duplicate_of_a_forgotten_batch_is_acknowledged_when_that_is_committed(node) -> None:
    """Five batches are remembered, after a restart one; producers take DUPLICATE_SEQUENCE_NUMBER for success."""
    node.send_state(1, (1, 2))
    for sequence in range(7):
        node.produce("t", b"%d" % sequence, acks=1, producer_id=5, producer_epoch=0, base_sequence=sequence)
    node.replicate("t", 1)

    def again(sequence: int, acks: int) -> int:
        request = node.produce_request(
            "t", b"%d" % sequence, acks=acks, producer_id=5, producer_epoch=0, base_sequence=sequence
        )
        return produced(node, node.send(request, 9)).error_code

    assert node.partition().high_watermark == 1
    assert again(1, acks=-1) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert again(1, acks=1) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    node.replicate("t", 2)
    assert again(1, acks=-1) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert node.partition().log.end_offset == 7


def test_leadership_loss_ends_a_waiting_produce(node) -> None:
    with_neighbour(node)
    node.send_state(1, (1, 2))
    waiting = node.send(node.produce_request("t", b"a", acks=-1), 10)
    partition = node.send_state(2, (1, 2))
    assert waiting.answered
    answer = node.answer(waiting)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (2, partition.leader_epoch)
    assert [(each.node_id, each.host, each.port) for each in answer.node_endpoints] == [(2, "there", 9093)]


@pytest.mark.parametrize("version", [7, 9, 10, 13])
def test_a_follower_names_the_leader_to_producers_that_understand(node, version: int) -> None:
    with_neighbour(node)
    node.send_state(2, (1, 2))
    request = node.produce_request("t", b"a", acks=1)
    request.topic_data[0].topic_id = node.topic_id("t")
    answer = node.ask(request, version)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert row.current_leader.leader_id == (2 if version >= 10 else -1)
    assert [each.node_id for each in answer.node_endpoints] == ([2] if version >= 10 else [])


def test_an_isr_below_min_insync_replicas_ends_the_wait(node) -> None:
    node.create("safe", min_insync_replicas="2")
    node.send_state(1, (1, 2), name="safe")
    waiting = node.send(node.produce_request("safe", b"a", acks=-1), 9)
    assert not waiting.answered
    partition = node.partition("safe")
    state = partition.leader_role.in_sync
    node.send_state(1, (1,), name="safe")
    assert state.isr == (1,)
    assert produced(node, waiting).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert node.produce("safe", b"b", acks=-1).error_code == ErrorCode.NOT_ENOUGH_REPLICAS


# -- ListOffsets -------------------------------------------------------------------------------------------------------


def offsets(node, timestamp: int, version: int = 7, replica_id: int = -1, epoch: int = -1):
    one = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[one])
    answer = node.ask(ListOffsetsRequest(replica_id=replica_id, topics=[topic]), version)
    row = answer.topics[0].partitions[0]
    return ErrorCode(row.error_code), row.offset


def test_list_offsets_is_the_leaders_and_fenced(node) -> None:
    partition = node.send_state(1, (1,))
    node.produce("t", b"a")
    assert offsets(node, -1, epoch=partition.leader_epoch) == (ErrorCode.NONE, 1)
    assert offsets(node, -1, epoch=partition.leader_epoch - 1)[0] is ErrorCode.FENCED_LEADER_EPOCH
    node.send_state(2, (1, 2))
    assert offsets(node, -1)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_leader_has_no_latest_offset_before_it_knows_the_high_watermark(node) -> None:
    """Else a consumer would go back: the offset may be below one that it received before (KIP-207)."""
    node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    node.send_state(1, (1, 2))
    assert offsets(node, -1)[0] is ErrorCode.OFFSET_NOT_AVAILABLE
    assert offsets(node, -1, version=4)[0] is ErrorCode.LEADER_NOT_AVAILABLE
    assert offsets(node, -2) == (ErrorCode.NONE, 0)
    assert offsets(node, -1, replica_id=2) == (ErrorCode.NONE, 1), "a follower gets the log end"
    node.replicate("t", 1)
    assert offsets(node, -1) == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("version", [1, 4, 7, 11])
@pytest.mark.parametrize("leader", [1, 2])
def test_a_debugging_consumer_gets_the_log_end_of_any_replica(node, leader: int, version: int) -> None:
    node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    partition = node.send_state(leader, (1, 2))
    assert partition.high_watermark == 0
    assert offsets(node, -1, version, DEBUGGING_CONSUMER) == (ErrorCode.NONE, 1)
    assert offsets(node, -2, version, DEBUGGING_CONSUMER) == (ErrorCode.NONE, 0)
    assert offsets(node, 0, version, DEBUGGING_CONSUMER) == (ErrorCode.NONE, 0), "by time"
    if version >= 4:
        earlier = partition.leader_epoch - 1
        assert offsets(node, -1, version, DEBUGGING_CONSUMER, earlier)[0] is ErrorCode.FENCED_LEADER_EPOCH


def test_a_debugging_consumer_gets_segment_starts_of_a_follower(node) -> None:
    node.produce("t", b"a")
    node.send_state(2, (1, 2))
    one = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1, max_num_offsets=9)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[one])
    for replica_id, found in ((DEBUGGING_CONSUMER, [1, 0]), (-1, []), (-3, [])):
        row = node.ask(ListOffsetsRequest(replica_id=replica_id, topics=[topic]), 0).topics[0].partitions[0]
        assert list(row.old_style_offsets) == found


# -- OffsetForLeaderEpoch ----------------------------------------------------------------------------------------------


def test_only_the_leader_answers_where_epochs_ended(node) -> None:
    partition = node.send_state(1, (1,))
    node.produce("t", b"a")

    def end_of(epoch: int, current: int = -1):
        one = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=0, leader_epoch=epoch, current_leader_epoch=current
        )
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic="t", partitions=[one])
        row = node.ask(OffsetForLeaderEpochRequest(replica_id=2, topics=[topic]), 4).topics[0].partitions[0]
        return ErrorCode(row.error_code), row.leader_epoch, row.end_offset

    epoch = partition.leader_epoch
    assert end_of(epoch, epoch) == (ErrorCode.NONE, epoch, 1)
    assert end_of(epoch + 1) == (ErrorCode.NONE, -1, -1)
    assert end_of(epoch, epoch + 1)[0] is ErrorCode.UNKNOWN_LEADER_EPOCH
    node.send_state(2, (1, 2))
    assert end_of(epoch)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- DeleteRecords -----------------------------------------------------------------------------------------------------


def trimmed(node, place):
    row = node.answer(place).topics[0].partitions[0]
    return ErrorCode(row.error_code), row.low_watermark


def trim(node, offset: int, timeout_ms: int = 1000):
    one = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[one])
    return node.send(DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms), 2)


def test_delete_records_waits_until_live_followers_have_let_go(node) -> None:
    with_neighbour(node)
    node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    session = ReplicaSession(node)
    session.fetch(0)
    session.fetch(1)
    waiting = trim(node, -1)
    assert not waiting.answered
    node.replicate("t", 1, log_start=1)
    assert waiting.answered
    assert trimmed(node, waiting) == (ErrorCode.NONE, 1)


def test_delete_records_waits_for_no_dead_follower_and_not_for_ever(node) -> None:
    node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    node.replicate("t", 1)
    assert trimmed(node, trim(node, 1)) == (ErrorCode.NONE, 1), "broker 2 is not alive"
    with_neighbour(node)
    node.produce("t", b"b", acks=1)
    node.replicate("t", 2)
    waiting = trim(node, 2)
    node.pass_ms(1005)
    assert trimmed(node, waiting)[0] is ErrorCode.REQUEST_TIMED_OUT


def test_leadership_lost_ends_a_deletion(node) -> None:
    with_neighbour(node)
    node.send_state(1, (1, 2))
    node.produce("t", b"a", acks=1)
    node.replicate("t", 1)
    waiting = trim(node, 1)
    node.send_state(2, (1, 2))
    assert trimmed(node, waiting)[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
