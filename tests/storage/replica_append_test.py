"""A follower's log appends a leader's batches: many in one write, with the same result as one by one."""

from __future__ import annotations

import random

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.storage.segments.replica_batches import replica_batches

T0 = 1_700_000_000_000


def filled(kit, config: TopicConfig, count: int = 120, seed: int = 1):
    """A leader's log with everything that a log may hold."""
    rng = random.Random(seed)
    shelf = kit.Shelf(kit.SimWorld(), config)
    sequences = dict.fromkeys(range(3), 0)
    for at in range(count):
        epoch, stamp = at // 20, T0 + at * 1000
        size = rng.randrange(10, 400)
        kind = rng.randrange(4)
        if kind == 0:
            shelf.put(kit.batch(rng.randrange(1, 5), size, stamp), epoch=epoch)
        elif kind == 3 and sequences[2]:
            shelf.put(kit.marker(2, commit=rng.random() < 0.5), epoch=epoch)
        else:
            producer = rng.randrange(3)
            more = {"transactional": True} if producer == 2 else {}
            numbers = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer], **more}
            shelf.put(kit.batch(2, size, stamp, **numbers), epoch=epoch)
            sequences[producer] += 2
    return shelf


def whole(log) -> bytes:
    """All segments, one after the other."""
    found = bytearray()
    for segment in log.segments:
        content = bytearray(segment.size)
        segment.file.read_now(0, memoryview(content))
        found += content
    return bytes(found)


CONFIGS = [
    TopicConfig(segment_bytes=8000, index_interval_bytes=700),
    TopicConfig(segment_bytes=1 << 20, index_interval_bytes=0, segment_ms=30_000),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["bytes", "time"])
@pytest.mark.parametrize("chunk", [300, 5000, 1 << 20])
def test_batches_at_once_or_one_by_one_give_the_same_log(sim, kit, config: TopicConfig, chunk: int) -> None:
    leader = filled(kit, config)
    follower = kit.Shelf(sim, config)
    content, at = memoryview(whole(leader.log)), 0
    while at < len(content):
        before = follower.log.end_offset
        follower.log.append_replica(content[at : at + chunk])
        if follower.log.end_offset == before:
            chunk += 300
        at = len(whole(follower.log))
    assert whole(follower.log) == content
    theirs, ours = leader.log, follower.log
    assert [segment.base_offset for segment in ours.segments] == [segment.base_offset for segment in theirs.segments]
    assert ours.epochs.entries == theirs.epochs.entries
    assert ours.producers.snapshot_entries() == theirs.producers.snapshot_entries()
    assert ours.segments.aborted_transactions(0, ours.end_offset) == theirs.segments.aborted_transactions(
        0, theirs.end_offset
    )
    for mine, yours in zip(ours.segments, theirs.segments, strict=True):
        assert (mine.max_timestamp, mine.offset_of_max_timestamp) == (
            yours.max_timestamp,
            yours.offset_of_max_timestamp,
        )
        assert mine.index.size == yours.index.size
    for offset in range(ours.end_offset):
        assert kit.read(sim, ours, offset, 1, ours.end_offset) == kit.read(
            leader.world, theirs, offset, 1, theirs.end_offset
        )
    again = follower.again().log
    assert (again.end_offset, again.epochs.entries) == (ours.end_offset, ours.epochs.entries)


def test_a_full_index_ends_the_segment_after_the_write(sim, kit) -> None:
    config = TopicConfig(segment_index_bytes=64, index_interval_bytes=0)
    content = memoryview(whole(filled(kit, config).log))
    log = kit.Shelf(sim, config).log
    log.append_replica(content[: len(content) // 2])
    log.append_replica(content[len(whole(log)) :])
    assert whole(log) == content
    assert 1 < len(list(log.segments)) <= 3
    for offset in range(log.end_offset):
        assert kit.read(sim, log, offset, 1, log.end_offset)


def content_of(kit, *batches: bytearray) -> bytearray:
    shelf = kit.Shelf(kit.SimWorld())
    shelf.put(*batches)
    return bytearray(whole(shelf.log))


def test_batches_before_the_damage_are_appended(sim, kit) -> None:
    content = content_of(kit, kit.batch(2), kit.batch(2), kit.batch(2))
    content[len(content) // 3 + 70] ^= 1
    log = kit.Shelf(sim).log
    with pytest.raises(ApiError, match="checksum") as refused:
        log.append_replica(memoryview(content))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.end_offset == 2
    assert log.append_replica(memoryview(content)[len(content) // 3 :], check_crc=False) == 6


def test_a_batch_cut_short_is_left_out_until_the_next_fetch(sim, kit) -> None:
    content = content_of(kit, kit.batch(2), kit.batch(2))
    log = kit.Shelf(sim).log
    for size in (0, 30, 61, 100):
        assert log.append_replica(memoryview(content)[:size]) == 0
    assert log.append_replica(memoryview(content)[:-1]) == 2
    assert log.append_replica(memoryview(content)[len(content) // 2 :]) == 4


def test_an_epoch_above_the_leaders_is_left_out(sim, kit) -> None:
    shelf = kit.Shelf(kit.SimWorld())
    shelf.put(kit.batch(1), epoch=1)
    shelf.put(kit.batch(1), epoch=3)
    content = memoryview(whole(shelf.log))
    log = kit.Shelf(sim).log
    assert log.append_replica(content, 2) == 1
    assert log.epochs.entries == ((1, 0),)


@pytest.mark.parametrize("field", [(8, b"\xff\xff\xff\xff"), (8, b"\0\0\0\1"), (16, b"\1"), (23, b"\xff\xff\xff\xff")])
def test_impossible_headers_are_refused(kit, field: tuple[int, bytes]) -> None:
    content = content_of(kit, kit.batch(2))
    content[field[0] : field[0] + len(field[1])] = field[1]
    batches, error = replica_batches(memoryview(content), 0)
    assert not batches
    assert error is not None
    assert error.code is ErrorCode.CORRUPT_MESSAGE


def test_offsets_go_up(sim, kit) -> None:
    content = content_of(kit, kit.batch(2), kit.batch(2))
    half = len(content) // 2
    log = kit.Shelf(sim).log
    with pytest.raises(ApiError, match="where 4 is due"):
        log.append_replica(memoryview(content + content[half:]))
    assert log.end_offset == 4


def test_a_log_may_begin_inside_a_batch_but_not_continue_inside_one(sim, kit) -> None:
    content = memoryview(content_of(kit, kit.batch(10), kit.batch(5)))
    log = kit.Shelf(sim).log
    log.restart_at(4)
    assert log.append_replica(content) == 15
    assert (log.start_offset, log.high_watermark) == (4, 4)
    assert log.segments.first.base_offset == 0
    with pytest.raises(ApiError, match="CORRUPT_MESSAGE"):
        log.append_replica(content)
    other = kit.Shelf(kit.SimWorld()).log
    other.restart_at(3)
    other.append_replica(memoryview(content_of(kit, kit.batch(4))))
    with pytest.raises(ApiError, match="ends at 4"):
        other.append_replica(content)


def test_a_write_that_fails_changes_nothing(sim, kit) -> None:
    content = memoryview(content_of(kit, *(kit.batch(2) for _ in range(10))))
    log = kit.Shelf(sim).log
    log.append_replica(content[: len(content) // 2])
    sim.faults[0].arm_error(DiskOperation.APPEND)
    with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
        log.append_replica(content[len(content) // 2 :])
    assert (log.segments.size, log.end_offset) == (len(content) // 2, 10)


def test_one_write_takes_many_batches(sim, kit) -> None:
    content = memoryview(content_of(kit, *(kit.batch(1) for _ in range(200))))
    log = kit.Shelf(sim).log
    log.append_replica(content[: len(content) // 200])
    file, writes = log.segments.active.file, []
    append = file.append
    file.append = lambda parts: (writes.append(1), append(parts))[1]
    log.append_replica(content[len(content) // 200 :])
    assert (len(writes), log.end_offset) == (1, 200)
