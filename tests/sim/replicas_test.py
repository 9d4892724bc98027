"""Replicas on drives, compared.

Zone: real.
"""

from __future__ import annotations

from ottla.record.batch import Record, encode_batch
from ottla.sim.cluster.replicas import difference, replica_on
from ottla.sim.drive import Directory, Drive
from ottla.sim.inode import Inode
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
    assert difference(left, right, 1 << 62) is None


def test_one_may_begin_later():
    assert difference(copy(1, (0, ONE + TWO + THREE)), copy(2, (2, TWO + THREE)), 1 << 62) is None


def test_other_bytes_below_the_limit_are_a_difference_and_above_it_are_not():
    left, right = copy(1, (0, ONE + TWO + THREE)), copy(2, (0, ONE + TWO + batch(3, "d", "x")))
    assert difference(left, right, 5) == "brokers 1 and 2 differ at (3, 4) and (3, 4)"
    assert difference(left, right, 3) is None


def test_a_torn_end_does_not_count():
    assert copy(1, (0, ONE + TWO[:-3])).end == 2


def test_a_log_of_another_topic_id_is_no_copy():
    assert replica_on(1, [drive((0, ONE), topic_id=bytes(16))], "t", 0, TOPIC_ID) is None
    assert copy(1).end == -1
