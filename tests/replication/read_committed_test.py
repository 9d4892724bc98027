"""read_committed over the wire: records up to the last stable offset, and which of them are aborted."""

from __future__ import annotations

import pytest
from tests.replication.marker_requests_test import codes, marker, send, write
from tests.replication.markers_test import led, mark
from tests.replication.markers_test import write as put

from ottla.errors import ErrorCode
from ottla.record.batch import batches_of, records_of
from ottla.record.control import Marker
from ottla.seams import Instant
from ottla.wire.messages import DeleteRecordsRequest, ListOffsetsRequest

ABORT = Marker(False, 5)


def end(node, producer_id: int, commit: bool = True) -> None:
    assert codes(node, send(node, marker(producer_id=producer_id, commit=commit))) == [[("t", 0, 0)]]


def committed(node, offset: int = 0, **options):
    return node.fetch("t", offset, isolation_level=1, **options)


def seen(answer) -> list[bytes | None]:
    """What a consumer makes of it (KIP-98): the aborted drop out, from their first offset up to their marker."""
    content = memoryview(bytes(answer.records or b""))
    waiting = [(txn.first_offset, txn.producer_id) for txn in answer.aborted_transactions]
    assert waiting == sorted(waiting), "consumers take them in the order of first offsets"
    values: list[bytes | None] = []
    dropping: set[int] = set()
    for pos, header in batches_of(content):
        while waiting and waiting[0][0] <= header.last_offset:
            dropping.add(waiting.pop(0)[1])
        if header.is_control:
            dropping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropping):
            values += [record.value for record in records_of(content, pos, max_bytes=1 << 20)]
    return values


def listed(node, timestamp: int = -1, isolation: int = 1) -> int:
    one = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[one])
    return (
        node.ask(ListOffsetsRequest(replica_id=-1, topics=[topic], isolation_level=isolation), 7)
        .topics[0]
        .partitions[0]
        .offset
    )


def test_interleaved_transactions(node) -> None:
    """GOLDEN.md: plain records and X1, X2 interleaved, X2 commits first."""
    node.produce("t", b"plain")
    write(node, b"x1", producer_id=1)
    node.produce("t", b"plain too")
    write(node, b"x2", producer_id=2)
    write(node, b"x1 again", producer_id=1, sequence=1)
    assert seen(committed(node)) == [b"plain"]
    assert (listed(node), listed(node, isolation=0)) == (1, 5)
    end(node, 2)
    assert seen(committed(node)) == [b"plain"], "X2 is over, but comes after X1's first record"
    assert committed(node).last_stable_offset == 1
    end(node, 1)
    assert seen(committed(node)) == [b"plain", b"x1", b"plain too", b"x2", b"x1 again"]
    assert committed(node).last_stable_offset == listed(node) == 7


def test_aborted_transactions_are_in_the_order_of_first_offsets(node) -> None:
    """The transaction index has them in the order in which they ended."""
    for producer_id in (1, 2, 3):
        write(node, b"void", producer_id=producer_id)
    node.produce("t", b"plain")
    end(node, 3, commit=False)
    end(node, 1, commit=False)
    end(node, 2)
    answer = committed(node)
    assert [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions] == [(1, 0), (3, 2)]
    assert seen(answer) == [b"void", b"plain"]
    assert committed(node, 3).aborted_transactions != [], "their markers come after the requested offset"
    assert node.fetch("t", 0).aborted_transactions is None, "read_uncommitted does not need them"


def test_a_reader_waits_for_the_marker_and_is_woken_by_its_commit(node) -> None:
    node.send_state(1, (1, 2))
    write(node, b"a")
    node.replicate("t", 1)
    reader = node.send(node.fetch_request("t", 0, max_wait_ms=30_000, isolation_level=1), 12)
    node.pass_ms(100)
    ended = send(node, marker())
    node.pass_ms(100)
    assert not reader.answered, "its end is written, and not yet committed"
    node.replicate("t", 2)
    assert seen(node.answer(reader).responses[0].partitions[0]) == [b"a"]
    assert ended.answered


def test_only_what_concerns_the_bytes_that_are_sent(node) -> None:
    """Across segments, and without transactions that begin after the requested bytes."""
    node.create("small", segment_bytes="1048576", index_interval_bytes="100")
    partition = node.partition("small")
    partition.shared.verifies = False  # their coordinator is the test
    for producer_id in range(40):
        put(PartitionOf(node, partition), producer_id=producer_id)
        mark(PartitionOf(node, partition), producer_id=producer_id, marker=ABORT)
        if producer_id % 10 == 9:
            partition.log.roll_segment()
    few = node.fetch("small", 10, isolation_level=1, partition_max_bytes=300)
    assert few.aborted_transactions[0].first_offset == 10
    assert len(few.aborted_transactions) <= 4
    segment = node.fetch("small", 20, isolation_level=1)
    assert [txn.first_offset for txn in segment.aborted_transactions] == list(range(20, 40, 2))
    assert seen(segment) == []
    assert [txn.first_offset for txn in node.fetch("small", 75, isolation_level=1).aborted_transactions] == [74, 76, 78]


class PartitionOf:
    """What `put` and `mark` need of a member."""

    def __init__(self, node, partition) -> None:
        self.partition = partition
        self.clock = node.process.clock


def test_a_transaction_that_spans_segments_is_named_in_all_of_them(node) -> None:
    partition = node.partition()
    write(node, b"void", producer_id=1)
    partition.log.roll_segment()
    node.produce("t", b"plain")
    write(node, b"void", producer_id=1, sequence=1)
    partition.log.roll_segment()
    end(node, 1, commit=False)
    for offset, values in ((0, []), (1, [b"plain"]), (2, [])):
        answer = committed(node, offset)
        assert [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions] == [(1, 0)]
        assert seen(answer) == values


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_deleted_records_of_an_open_transaction_do_not_block_readers(node, version: int) -> None:
    write(node, b"a", producer_id=1)
    node.produce("t", b"b")
    one = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[one])
    assert node.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2).topics[0].partitions[0].low_watermark == 1
    assert listed(node) == 1, "an offset that can be read from"
    answer = node.fetch("t", 1, version, isolation_level=1)
    assert (answer.error_code, answer.last_stable_offset, bytes(answer.records or b"")) == (ErrorCode.NONE, 1, b"")
    end(node, 1, commit=False)
    assert seen(committed(node, 1)) == [b"b"]


def test_retention_takes_the_index_with_its_segment(node) -> None:
    partition = node.partition()
    for producer_id in range(3):
        write(node, b"void", producer_id=producer_id)
        end(node, producer_id, commit=False)
        partition.log.roll_segment()
    assert sum(path.endswith(".txnindex") for path in node.files()) == 3
    partition.log.set_start_offset(4)
    assert partition.log.delete_old_segments(Instant(0, node.process.clock.now().wall_ms)) == 2
    node.pass_ms(120_000)
    assert sum(path.endswith(".txnindex") for path in node.files()) == 1
    assert [txn.first_offset for txn in committed(node, 4).aborted_transactions] == [4]


def test_a_new_leader_knows_open_and_aborted_transactions() -> None:
    cluster = led()
    leader, follower = cluster.members.values()
    put(leader, producer_id=1)
    put(leader, producer_id=2)
    mark(leader, producer_id=1, marker=ABORT)
    follower.fetch(2)
    cluster.elect(2, isr=(2,))
    assert follower.partition.last_stable_offset == 1
    assert [each[:3] for each in follower.log.aborted_transactions(0, 3)] == [(1, 0, 2)]
    mark(follower, producer_id=2, marker=ABORT)
    assert follower.partition.last_stable_offset == 4


def test_a_marker_that_is_cut_off_ends_nothing() -> None:
    """It was never committed: a new leader has not got it, and its coordinator writes it again."""
    cluster = led()
    leader, follower = cluster.members.values()
    put(leader)
    follower.fetch(2)
    mark(leader, marker=ABORT)
    cluster.elect(2, isr=(2,))
    leader.fetch(2)
    assert leader.leo == 1
    assert leader.partition.last_stable_offset == 0
    assert leader.log.aborted_transactions(0, 1) == []
    mark(follower, marker=ABORT)
    leader.fetch(2)
    assert [each[:3] for each in leader.log.aborted_transactions(0, 2)] == [(7, 0, 1)]
