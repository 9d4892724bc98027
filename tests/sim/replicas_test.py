"""Replicas on drives, compared.

Zone: real.
"""

from __future__ import annotations

from tests.messagesets import message

from ottla.record.batch import Record, encode_batch
from ottla.record.control import Marker, marker_batch
from ottla.sim.cluster.replicas import content_on, find_contradiction, find_difference, find_other_value, replica_on
from ottla.sim.disks.drive import Directory, Drive
from ottla.sim.disks.inode import Inode
from ottla.types import uuid_to_text

TOPIC_ID = bytes(range(16))


def batch(offset, *values):
    records = [Record(offset + at, 0, None, value.encode()) for at, value in enumerate(values)]
    return bytes(encode_batch(records, base_offset=offset))


def drive(*segments, topic_id=TOPIC_ID):
    """A drive with one log; a segment is (base offset, bytes)."""
    made = Drive("d")
    directory = made.root.names["t-0"] = Directory()
    for base, data in segments:
        inode = directory.names[f"{base:020}.log"] = Inode()
        inode.data[:] = data
    metadata = directory.names["partition.metadata"] = Inode()
    metadata.data[:] = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}\n".encode()
    return made


def copy(broker, *segments):
    found = replica_on(broker, [Drive("empty"), drive(*segments)], "t", 0, TOPIC_ID)
    assert found is not None
    return found


ONE, TWO, THREE = batch(0, "a", "b"), batch(2, "c"), batch(3, "d", "e")


def test_segments_may_differ_if_batches_do_not():
    left = copy(1, (0, ONE + TWO + THREE))
    right = copy(2, (0, ONE), (2, TWO + THREE))
    assert left.end == right.end == 5
    assert find_difference(left, right, 1 << 62) is None


def test_one_may_begin_later():
    assert find_difference(copy(1, (0, ONE + TWO + THREE)), copy(2, (2, TWO + THREE)), 1 << 62) is None


def test_other_bytes_below_the_limit_are_a_difference_and_above_it_are_not():
    left, right = copy(1, (0, ONE + TWO + THREE)), copy(2, (0, ONE + TWO + batch(3, "d", "x")))
    assert find_difference(left, right, 5) == "brokers 1 and 2 differ at (3, 4) and (3, 4)"
    assert find_difference(left, right, 3) is None


def test_messages_of_an_older_format_are_compared_below_the_limit_alone():
    same, other = message(1, None, b"a", timestamp=7), message(1, None, b"a", offset=1, timestamp=7)
    late = message(1, None, b"a", offset=1, timestamp=1 << 40)
    left, right = copy(1, (0, same + other)), copy(2, (0, same + late))
    assert [entry[:2] for entry in left.batches] == [(0, 0), (1, 1)]
    assert right.end == 2
    assert find_difference(left, right, 1) is None
    assert find_difference(left, right, 2) == "brokers 1 and 2 differ at (1, 1) and (1, 1)"


def test_a_torn_end_does_not_count():
    assert copy(1, (0, ONE + TWO[:-3])).end == 2


def test_a_log_of_another_topic_id_is_no_copy():
    assert replica_on(1, [drive((0, ONE), topic_id=bytes(16))], "t", 0, TOPIC_ID) is None
    assert copy(1).end == -1


# -- compacted ---------------------------------------------------------------------------------------------------------


def keyed(offset, text, producer=-1):
    """A batch of records: `a=1 b=` is a value and a tombstone."""
    pairs = [pair.partition("=") for pair in text.split()]
    records = [Record(offset + at, 0, key.encode(), v.encode() or None) for at, (key, _, v) in enumerate(pairs)]
    epoch = 0 if producer >= 0 else -1
    return bytes(
        encode_batch(
            records, base_offset=offset, producer_id=producer, producer_epoch=epoch, transactional=producer >= 0
        )
    )


def ends(offset, producer, commit):
    made = marker_batch(producer, 0, Marker(commit, 1), 0)
    made[:8] = offset.to_bytes(8, "big")
    return bytes(made)


def content(broker, *batches):
    found = content_on(broker, [drive((0, b"".join(batches)))], "t", 0, TOPIC_ID)
    assert found is not None
    return found


def test_copies_that_were_cleaned_otherwise_have_the_same_values():
    one = content(1, keyed(0, "a=1"), keyed(1, "b=1"), keyed(2, "a=2"), keyed(3, "b="))
    other = content(2, keyed(2, "a=2"))
    assert one.values == other.values == {b"a": b"2"}
    assert find_contradiction(one, other, 9) is None
    assert find_other_value(one, other) is None


def test_what_was_aborted_or_is_open_is_no_value():
    batches = keyed(0, "a=1"), keyed(1, "a=2", 7), ends(2, 7, False), keyed(3, "a=3", 8), keyed(4, "b=1")
    one = content(1, *batches)
    assert one.values == {b"a": b"1", b"b": b"1"}
    assert content(2, *batches, ends(5, 8, True)).values == {b"a": b"3", b"b": b"1"}
    assert find_other_value(one, content(2, keyed(0, "a=1"), keyed(4, "b=1"))) is None


def test_what_is_committed_late_does_not_count_before_what_was_written_behind_it():
    assert content(1, keyed(0, "a=1", 7), keyed(1, "a=2"), ends(2, 7, True)).values == {b"a": b"2"}


def test_another_value_and_another_record_are_differences():
    one, other = content(1, keyed(0, "a=1"), keyed(1, "b=1")), content(2, keyed(0, "a=1"))
    assert find_other_value(one, other) == "brokers 1 and 2 have different values of the key b'b'"
    changed = content(2, keyed(0, "a=1"), keyed(1, "b=2"))
    assert find_contradiction(one, changed, 2) == "brokers 1 and 2 have different records at 1"
    assert find_contradiction(one, changed, 1) is None
