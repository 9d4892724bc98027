"""The queue of markers: grouped by broker, sent again until every partition has them."""

from __future__ import annotations

import pytest

from ottla.errors import ErrorCode
from ottla.transactions.commands import Markers
from ottla.transactions.markers import IN_FLIGHT, PARTITIONS_PER_REQUEST, MarkerBatch, MarkerQueue, PartitionsMarked
from ottla.transactions.state import ProducerIdentity
from ottla.types import TopicPartition
from ottla.wire.messages.end_txn import WriteTxnMarkersResponse

MS = 1_000_000
T0, T1, T2, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2), TopicPartition("u", 0)


class Leaders(dict):
    """The leaders of partitions; a partition that is missing is deleted."""

    def __call__(self, tp: TopicPartition) -> int | None:
        return self[tp]


def markers(name: str, producer_id: int, *partitions: TopicPartition, epoch: int = 1, commit: bool = True) -> Markers:
    return Markers(name, ProducerIdentity(producer_id, epoch), commit, 7, 2, partitions)


def answer(batch: MarkerBatch, **codes: ErrorCode) -> WriteTxnMarkersResponse:
    """NONE for all partitions except those named as `t_1=…`."""
    response = WriteTxnMarkersResponse()
    for marker in batch.request.markers:
        result = WriteTxnMarkersResponse.WritableTxnMarkerResult(producer_id=marker.producer_id)
        for topic in marker.topics:
            parts = [
                WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult(
                    partition_index=index, error_code=codes.get(f"{topic.name}_{index}", ErrorCode.NONE)
                )
                for index in topic.partition_indexes
            ]
            result.topics.append(
                WriteTxnMarkersResponse.WritableTxnMarkerTopicResult(name=topic.name, partitions=parts)
            )
        response.markers.append(result)
    return response


def sent(batch: MarkerBatch) -> list[tuple[int, str, list[int]]]:
    return [
        (marker.producer_id, topic.name, list(topic.partition_indexes))
        for marker in batch.request.markers
        for topic in marker.topics
    ]


@pytest.fixture
def leaders() -> Leaders:
    return Leaders({T0: 1, T1: 2, T2: 1, U0: 2})


@pytest.fixture
def queue(leaders: Leaders) -> MarkerQueue:
    return MarkerQueue(leaders)


def test_markers_are_gathered_by_broker(queue: MarkerQueue) -> None:
    queue.add_markers(markers("a", 1000, T0, T1, U0))
    queue.add_markers(markers("b", 1001, T0, T2, commit=False))
    batches, gone = queue.drain_due_markers(0)
    assert not gone
    assert {batch.node: sent(batch) for batch in batches} == {
        1: [(1000, "t", [0]), (1001, "t", [0, 2])],
        2: [(1000, "t", [1]), (1000, "u", [0])],
    }
    first, second = batches[0].request.markers
    assert (first.producer_epoch, first.transaction_result, first.coordinator_epoch) == (1, True, 7)
    assert (first.transaction_version, second.transaction_result) == (2, False)
    assert queue.drain_due_markers(0) == ([], []), "everything is on its way"


def test_each_partition_is_acknowledged_once(queue: MarkerQueue) -> None:
    mine = markers("a", 1000, T0, T1)
    queue.add_markers(mine)
    queue.add_markers(mine)
    (one, two), _ = queue.drain_due_markers(0)
    assert queue.on_marker_response(one, answer(one), 0) == [PartitionsMarked(mine, (T0,))]
    queue.mark_written(PartitionsMarked(mine, (T0,)))
    assert queue.on_marker_response(two, answer(two), 0) == [PartitionsMarked(mine, (T1,))]
    assert len(queue) == 1
    queue.mark_written(PartitionsMarked(mine, (T1,)))
    assert len(queue) == 0


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_refused_marker_is_written_again_wherever_its_partition_is_led_then(
    queue: MarkerQueue, leaders: Leaders, code: ErrorCode
) -> None:
    mine = markers("a", 1000, T0, T2)
    queue.add_markers(mine)
    (batch,), _ = queue.drain_due_markers(0)
    assert queue.on_marker_response(batch, answer(batch, t_2=code), 0) == [PartitionsMarked(mine, (T0,))]
    leaders[T2] = 3
    assert queue.drain_due_markers(0) == ([], [])
    assert queue.next_deadline() == 20 * MS
    (again,), _ = queue.drain_due_markers(20 * MS)
    assert (again.node, sent(again)) == (3, [(1000, "t", [2])])


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION],
)
def test_a_partition_with_a_later_epoch_does_not_hold_up_its_transaction(queue: MarkerQueue, code: ErrorCode) -> None:
    """KAFKA-19999: otherwise the transaction would be ending for ever."""
    mine = markers("a", 1000, T0)
    queue.add_markers(mine)
    (batch,), _ = queue.drain_due_markers(0)
    assert queue.on_marker_response(batch, answer(batch, t_0=code), 0) == [PartitionsMarked(mine, (T0,))]


def test_a_missing_response_and_an_incomplete_one(queue: MarkerQueue) -> None:
    mine = markers("a", 1000, T0, T2)
    queue.add_markers(mine)
    (batch,), _ = queue.drain_due_markers(0)
    assert queue.on_marker_response(batch, None, 0) == []
    (batch,), _ = queue.drain_due_markers(20 * MS)
    half = answer(batch)
    del half.markers[0].topics[0].partitions[1]
    assert queue.on_marker_response(batch, half, 20 * MS) == [PartitionsMarked(mine, (T0,))]
    assert queue.next_deadline() == 60 * MS, "the second wait is longer"


def test_waits_grow_up_to_a_second(queue: MarkerQueue) -> None:
    queue.add_markers(markers("a", 1000, T0))
    now, waits = 0, []
    for _ in range(12):
        (batch,), _ = queue.drain_due_markers(now)
        queue.on_marker_response(batch, None, now)
        waits.append((queue.next_deadline() - now) // MS)
        now = queue.next_deadline()
    assert waits == [20, 40, 80, 160, 320, 640] + [1000] * 6


def test_a_partition_without_a_leader_is_retried(queue: MarkerQueue, leaders: Leaders) -> None:
    leaders[T0] = None
    queue.add_markers(markers("a", 1000, T0, T1))
    (batch,), _ = queue.drain_due_markers(0)
    assert sent(batch) == [(1000, "t", [1])]
    assert queue.next_deadline() == 20 * MS
    leaders[T0] = 1
    (batch,), _ = queue.drain_due_markers(20 * MS)
    assert (sent(batch), queue.next_deadline()) == ([(1000, "t", [0])], None)


def test_a_deleted_partition_needs_no_marker(queue: MarkerQueue, leaders: Leaders) -> None:
    del leaders[T0]
    mine = markers("a", 1000, T0, T1)
    queue.add_markers(mine)
    batches, gone = queue.drain_due_markers(0)
    assert (len(batches), gone) == (1, [PartitionsMarked(mine, (T0,))])
    assert queue.drain_due_markers(0) == ([], [])


def test_a_broker_gets_few_requests_at_a_time(queue: MarkerQueue) -> None:
    under_way = []
    for number in range(IN_FLIGHT + 3):
        queue.add_markers(markers(f"x{number}", 1000 + number, T0))
        under_way += queue.drain_due_markers(0)[0]
    assert len(under_way) == IN_FLIGHT
    assert queue.next_deadline() == 20 * MS, "the next answer is waited for, unless leaders move meanwhile"
    first = under_way[0]
    queue.on_marker_response(first, answer(first), 0)
    (batch,), _ = queue.drain_due_markers(0)
    assert len(batch.request.markers) == 3, "what has gathered goes together"


def test_markers_for_a_busy_broker_are_not_walked_for_every_new_marker(leaders: Leaders) -> None:
    asked: list[TopicPartition] = []
    queue = MarkerQueue(lambda tp: asked.append(tp) or leaders(tp))
    for number in range(IN_FLIGHT + 100):
        queue.add_markers(markers(f"x{number}", 1000 + number, T0))
        queue.drain_due_markers(0)
    assert len(asked) == IN_FLIGHT + 100


def test_markers_for_a_busy_broker_move_to_the_next_leader(queue: MarkerQueue, leaders: Leaders) -> None:
    for number in range(IN_FLIGHT + 1):
        queue.add_markers(markers(f"x{number}", 1000 + number, T0))
        queue.drain_due_markers(0)
    leaders[T0] = 2
    (batch,), _ = queue.drain_due_markers(queue.next_deadline())
    assert (batch.node, sent(batch)) == (2, [(1000 + IN_FLIGHT, "t", [0])])


def test_a_request_has_a_bounded_size(queue: MarkerQueue, leaders: Leaders) -> None:
    for number in range(4):
        partitions = [TopicPartition(f"t{number}", index) for index in range(PARTITIONS_PER_REQUEST // 2)]
        leaders.update(dict.fromkeys(partitions, 1))
        queue.add_markers(markers(f"x{number}", 1000 + number, *partitions))
    batches, _ = queue.drain_due_markers(0)
    assert [len(batch.request.markers) for batch in batches] == [2, 2]


def test_written_markers_that_were_not_recorded_are_reported_again(queue: MarkerQueue) -> None:
    mine = markers("a", 1000, T0)
    queue.add_markers(mine)
    (batch,), _ = queue.drain_due_markers(0)
    (written,) = queue.on_marker_response(batch, answer(batch), 0)
    queue.put_back(written, 0)
    (batch,), _ = queue.drain_due_markers(20 * MS)
    assert queue.on_marker_response(batch, answer(batch), 20 * MS) == [written]


def test_responses_to_older_markers_are_ignored(queue: MarkerQueue) -> None:
    """Of version 0 both transactions have the same producer and epoch."""
    old = markers("a", 1000, T0)
    queue.add_markers(old)
    (late,), _ = queue.drain_due_markers(0)
    queue.drop_markers(lambda _: False)
    new = markers("a", 1000, T0)
    queue.add_markers(new)
    assert queue.on_marker_response(late, answer(late), 0) == []
    queue.mark_written(PartitionsMarked(old, (T0,)))
    queue.put_back(PartitionsMarked(old, (T0,)), 0)
    (batch,), _ = queue.drain_due_markers(0)
    assert queue.on_marker_response(batch, answer(batch), 0) == [PartitionsMarked(new, (T0,))]


def test_a_newer_coordinator_epoch_writes_all_markers_again(queue: MarkerQueue) -> None:
    old = markers("a", 1000, T0)
    queue.add_markers(old)
    queue.drain_due_markers(0)
    queue.add_markers(old._replace(coordinator_epoch=8))
    (batch,), _ = queue.drain_due_markers(0)
    assert batch.request.markers[0].coordinator_epoch == 8


def test_markers_of_the_next_transaction_replace_those_of_the_last(queue: MarkerQueue) -> None:
    queue.add_markers(markers("a", 1000, T0))
    queue.drain_due_markers(0)
    queue.add_markers(markers("a", 1000, T1, epoch=2))
    (batch,), _ = queue.drain_due_markers(0)
    assert (batch.request.markers[0].producer_epoch, len(queue)) == (2, 1)
