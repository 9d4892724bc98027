"""The offsets that a power loss may take, read from the platter.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.messagesets import message

from ottla.record.batch import Record, encode_batch
from ottla.sim.disks.durable_offsets import durable_offsets
from ottla.types import uuid_to_text

ID = bytes(range(16))
LOG = f"t-0@{uuid_to_text(ID)}"


def batch(base: int, count: int = 2) -> bytes:
    return bytes(encode_batch([Record(base + at, 0, None, b"v" * 50) for at in range(count)], base_offset=base))


@pytest.fixture
def partition(small):
    """A durable, empty partition directory."""
    small.disk.make_dir("t-0")
    metadata = f"version: 0\ntopic_id: {uuid_to_text(ID)}\n".encode()
    small.disk.replace_now("t-0/partition.metadata", metadata)
    small.disk.sync_now("")
    return small


def segment(small, base: int, *batches: bytes, synced: bool = True, named: bool = True):
    file = small.disk.open(f"t-0/{base:020d}.log", True)
    file.append(batches)
    if synced:
        small.disk.sync_now(f"t-0/{base:020d}.log")
    if named:
        small.disk.sync_now("t-0")
    return file


def test_a_log_that_is_all_durable_has_nothing_to_lose(partition):
    segment(partition, 0, batch(0), batch(2))
    assert durable_offsets(partition.drive) == {}


def test_messages_of_an_older_format_are_counted(partition):
    first, second = (message(1, None, b"v", offset=at, timestamp=1 << 40) for at in (0, 1))
    segment(partition, 0, first, second).append([message(1, None, b"v", offset=2)])
    assert durable_offsets(partition.drive) == {LOG: 2}


def test_the_unsynced_tail_may_be_lost(partition):
    segment(partition, 0, batch(0), batch(2)).append([batch(4)])
    assert durable_offsets(partition.drive) == {LOG: 4}


def test_a_batch_that_is_durable_in_part_may_be_lost(partition):
    file = segment(partition, 0, batch(0))
    file.append([batch(2)[:30]])
    partition.disk.sync_now(f"t-0/{0:020d}.log")
    file.append([batch(2)[30:]])
    assert durable_offsets(partition.drive) == {LOG: 2}


def test_a_segment_without_a_durable_name_may_be_lost(partition):
    segment(partition, 0, batch(0), batch(2))
    segment(partition, 4, batch(4), named=False)
    assert durable_offsets(partition.drive) == {LOG: 4}


def test_behind_a_dirty_segment_nothing_is_safe(partition):
    segment(partition, 0, batch(0)).append([batch(2)])
    segment(partition, 4, batch(4))
    assert durable_offsets(partition.drive) == {LOG: 2}


def test_segments_that_were_deleted_from_the_start_do_not_count(partition):
    segment(partition, 0, batch(0))
    segment(partition, 2, batch(2)).append([batch(4)])
    partition.disk.unlink_now(f"t-0/{0:020d}.log")
    partition.disk.sync_now("t-0")
    assert durable_offsets(partition.drive) == {LOG: 4}


def test_a_partition_whose_directory_is_not_durable_may_be_lost_as_a_whole(small):
    small.disk.make_dir("t-0")
    small.disk.replace_now("t-0/partition.metadata", f"topic_id: {uuid_to_text(ID)}\n".encode())
    segment(small, 0, batch(0))
    assert durable_offsets(small.drive) == {LOG: 0}


def test_a_log_without_its_id_on_disk_is_named_by_whoever_knows(small):
    small.disk.make_dir("t-0")
    segment(small, 0, batch(0))
    assert durable_offsets(small.drive, {"t": ID}) == {LOG: 0}


def test_holes_that_compaction_leaves_are_none(partition):
    segment(partition, 0, batch(0))
    segment(partition, 6)
    segment(partition, 9, batch(12)).append([batch(14)])
    assert durable_offsets(partition.drive) == {LOG: 14}


def test_a_segment_that_takes_the_place_of_others_is_as_durable_as_they_were(partition):
    segment(partition, 0, batch(0))
    segment(partition, 2, batch(2)).append([batch(4)])
    partition.disk.rename(f"t-0/{0:020d}.log", f"t-0/{0:020d}.log.deleted")
    assert durable_offsets(partition.drive) == {LOG: 4}


def test_what_a_failed_sync_left_in_the_cache_may_be_lost(partition):
    segment(partition, 0, batch(0)).append([batch(2)])
    inode = partition.drive.file_at(f"t-0/{0:020d}.log")
    inode.fail_sync(inode.start_sync())
    assert durable_offsets(partition.drive) == {LOG: 2}
