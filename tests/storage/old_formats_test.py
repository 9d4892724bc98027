"""Logs with message sets of formats v0 and v1 in them: read, looked up, cut, recovered and followed like others."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.messagesets import GZIP, LZ4, SNAPPY, kept_set

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death

NONE = 0
CONFIG = TopicConfig(segment_bytes=3000, index_interval_bytes=300, retention_ms=-1, segment_ms=2**40)
T = 1_700_000_000_000
STAMPS = st.lists(st.tuples(st.integers(T, T + 8000), st.integers(0, 200)), min_size=1, max_size=5)
STEP = st.one_of(
    st.tuples(st.just("append"), st.tuples(st.integers(0, 2), st.sampled_from([NONE, GZIP, SNAPPY, LZ4]), STAMPS)),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("start"), st.integers(0, 90)),
    st.tuples(st.just("truncate"), st.integers(0, 90)),
    st.tuples(st.just("stop"), st.none()),
    st.tuples(st.just("kill"), st.none()),
)


def made(magic: int, codec: int, records: list[Record]) -> bytes:
    if magic == 2:
        return bytes(encode_batch(records, base_offset=records[0].offset, codec=codec, leader_epoch=0))
    return kept_set(magic, codec, records)


class Model:
    """A log, and a plain list of entries: each the records that are kept or cut together."""

    def __init__(self, kit) -> None:
        self.kit = kit
        self.world = kit.SimWorld()
        self.shelf = kit.Shelf(self.world, CONFIG)
        self.entries: list[list[Record]] = []
        self.end = 0

    def step(self, verb: str, argument) -> None:
        getattr(self, verb)(argument)
        self.shelf.log.high_watermark = self.shelf.log.end_offset

    def append(self, argument) -> None:
        magic, codec, stamps = argument
        records = [
            Record(self.end + at, stamp if magic else -1, b"k%d" % at if at % 2 else None, b"v" * size)
            for at, (stamp, size) in enumerate(stamps)
        ]
        self.shelf.log.append_replica(memoryview(made(magic, codec, records)), 3)
        self.entries += [[record] for record in records] if magic < 2 and not codec else [records]
        self.end += len(records)

    def roll(self, _) -> None:
        self.shelf.log.roll_segment()

    def start(self, offset: int) -> None:
        self.shelf.log.set_start_offset(min(offset, self.end))
        self.shelf.log.delete_old_segments(self.world.clock.now())

    def truncate(self, offset: int) -> None:
        first = self.shelf.log.segments.first.base_offset
        if offset >= self.end:
            return
        self.shelf.log.truncate_to(offset)
        if offset < first:
            self.entries, self.end = [], offset
            return
        self.entries = [entry for entry in self.entries if entry[-1].offset < offset]
        self.end = max(first, self.entries[-1][-1].offset + 1 if self.entries else 0)

    def stop(self, _) -> None:
        assert self.shelf.stop() is None
        self.shelf = self.shelf.again()

    def kill(self, _) -> None:
        self.shelf.manager.dirs[0].checkpoint_starts()
        self.world.settle()
        self.world.restart()
        self.shelf = self.shelf.again()

    def compare(self) -> None:
        log = self.shelf.log
        assert log.end_offset == self.end
        seen = [record for entry in self.entries for record in entry if record.offset >= log.start_offset]
        assert self.kit.read_all(self.world, log, max_bytes=700) == seen
        stamps = sorted({record.timestamp for record in seen})
        for wanted in (0, *stamps[:3], *(stamp + 1 for stamp in stamps[-3:])):
            expected = next(((r.timestamp, r.offset) for r in seen if r.timestamp >= max(wanted, 0)), None)
            assert self.shelf.lookup(max(wanted, 0)) == expected
        for entry in self.entries:
            for offset in {entry[0].offset, entry[len(entry) // 2].offset, entry[-1].offset}:
                if offset >= log.start_offset:
                    content = self.kit.read(self.world, log, offset, 1, self.end)
                    assert [records for _, records in self.kit.batches_in(content)] == [entry]
                    assert self.kit.read(self.world, log, offset, 1 << 20, entry[-1].offset + 1, at_least_one=False)


@pytest.mark.slow
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=16))
def test_a_log_of_all_formats_is_a_list(kit, steps) -> None:
    model = Model(kit)
    for verb, argument in steps:
        model.step(verb, argument)
    model.compare()
    model.kill(None)
    model.compare()


def records(count: int, first: int = 0) -> list[Record]:
    return [Record(first + at, T + first + at, b"k", b"v" * 50) for at in range(count)]


@pytest.fixture
def shelf(world, kit):
    return kit.Shelf(world, CONFIG)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_a_torn_tail_is_cut_off(world, shelf, kit, magic, codec) -> None:
    path = f"{kit.TP}/00000000000000000000.log"
    whole = kept_set(magic, codec, records(4))
    shelf.log.append_replica(memoryview(whole))
    shelf.log.append_replica(memoryview(kept_set(magic, NONE, records(1, 4))))
    world.settle()
    content = world.contents(path)
    assert len(content) > len(whole)
    for damaged in (content[:-1], content[:-1] + b"\xff", whole + bytes(70)):
        world.kill()
        world.overwrite(path, damaged)
        again = kit.Shelf(world, CONFIG)
        assert again.log.end_offset == 4
        assert world.contents(path) == whole
        assert [record.offset for record in kit.read_all(world, again.log)] == [0, 1, 2, 3]


def test_a_follower_refuses_an_old_message_with_a_wrong_checksum(shelf) -> None:
    sent = bytearray(kept_set(1, NONE, records(2)))
    sent[-1] ^= 1
    with pytest.raises(ApiError, match="checksum") as caught:
        shelf.log.append_replica(memoryview(sent))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert shelf.log.end_offset == 1


def test_the_epoch_of_old_messages_survives_a_crash(world, kit, shelf) -> None:
    """They have no leader epoch: the follower stores that of its leader, and recovery trusts it."""
    shelf.log.append_replica(memoryview(kept_set(0, NONE, records(3))), 4)
    shelf.log.append_replica(memoryview(kept_set(1, GZIP, records(3, 3))), 6)
    world.settle()
    world.kill()
    again = kit.Shelf(world, CONFIG)
    assert again.log.end_offset == 6
    assert again.log.epochs.entries == ((4, 0), (6, 3))


def test_old_messages_before_a_batch_are_not_newer_than_it(shelf) -> None:
    batch = encode_batch(records(1, 2), base_offset=2, leader_epoch=5)
    shelf.log.append_replica(memoryview(kept_set(0, NONE, records(2)) + bytes(batch)), 9)
    assert shelf.log.epochs.entries == ((5, 0),)


def test_a_cut_of_old_messages_is_durable_at_once(sim, kit) -> None:
    """Bytes that a power loss restores would be taken for the new leader's."""
    shelf = kit.Shelf(sim, CONFIG)
    shelf.log.append_replica(memoryview(kept_set(1, NONE, records(6))), 4)
    shelf.flush()
    shelf.log.truncate_to(3)
    sim.restart(Death.POWER_LOSS, (LossPattern.NONE, JournalLoss.ALL))
    assert kit.Shelf(sim, CONFIG).log.end_offset == 3


def test_segments_without_timestamps_age_by_their_files_time(world, kit, shelf) -> None:
    log = shelf.log
    log.append_replica(memoryview(kept_set(0, NONE, records(3))))
    log.roll_segment()
    log.append_replica(memoryview(kept_set(0, NONE, records(3, 3))))
    log.high_watermark = log.end_offset
    modified = world.disk.modified_ms(log.segments.first.path)
    assert log.segments.first.largest_timestamp == modified
    log.apply_config(TopicConfig(segment_bytes=3000, retention_ms=1000))
    now = world.clock.now()
    assert log.delete_old_segments(now._replace(wall_ms=modified + 1000)) == 0
    assert log.delete_old_segments(now._replace(wall_ms=modified + 60_000)) == 2
    assert log.start_offset == 6


def test_indexes_of_earlier_brokers_name_the_first_offset_of_a_wrapper(world, kit, shelf) -> None:
    """Up to 0.10 an entry held the first offset of the append; the wrapper there has its last one as its offset."""
    log = shelf.log
    for first in range(0, 40, 4):
        log.append_replica(memoryview(kept_set(1, GZIP, records(4, first))))
    segment = log.segments.active
    positions = [segment.index.entry_at_slot(slot) for slot in range(segment.index.entries)]
    assert positions
    assert shelf.stop() is None
    index = b"".join((each.offset - 3).to_bytes(4, "big") + each.position.to_bytes(4, "big") for each in positions)
    world.overwrite(f"{kit.TP}/00000000000000000000.index", index)
    again = kit.Shelf(world, CONFIG)
    for offset in range(40):
        content = kit.read(world, again.log, offset, 1, 40)
        ((header, inside),) = kit.batches_in(content)
        assert offset in [record.offset for record in inside], header


def test_a_new_leaders_segment_begins_where_the_log_ends_when_a_wrapper_comes_first(shelf) -> None:
    log = shelf.log
    first = 0
    while len(log.segments) < 3:
        log.append_replica(memoryview(kept_set(1, GZIP, records(5, first))))
        first += 5
    assert [segment.base_offset % 5 for segment in log.segments] == [0, 0, 0]
