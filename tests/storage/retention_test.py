"""Retention: by time, by size, by the log start; and how files are removed."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Instant

DAY_MS = 86_400_000
T0 = 1_700_000_000_000


def small(**keywords) -> TopicConfig:
    return TopicConfig(**{"segment_bytes": 10_000, "index_interval_bytes": 1000, **keywords})


def code_of(act) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        act()
    return refused.value.code


# -- trimming ----------------------------------------------------------------------------------------------------------


def test_delete_by_log_start(world, kit) -> None:
    shelf = kit.rolled(world, [5, 21, 35, 57, 71], 80, retention_ms=-1)
    log = shelf.log
    log.set_start_offset(60)
    assert log.delete_old_segments(world.clock.now()) == 3
    assert [segment.base_offset for segment in log.segments] == [57, 71]
    assert log.start_offset == 60
    assert code_of(lambda: log.read(59, 10, 80)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_dropped_files_wait_as_deleted(world, kit) -> None:
    shelf = kit.rolled(world, [0, 21, 35], 40, retention_ms=-1, file_delete_delay_ms=0)
    world.settle()
    shelf.log.set_start_offset(25)
    assert shelf.log.delete_old_segments(world.clock.now()) == 1
    world.settle()
    names = world.names("t-0")
    assert "00000000000000000000.log.deleted" in names
    assert "00000000000000000000.index.deleted" in names
    assert "00000000000000000000.log" not in names
    shelf.manager.run_due()
    world.settle()
    assert not any(name.endswith(".deleted") for name in world.names("t-0"))


def test_dropped_files_keep_their_delay(sim, kit) -> None:
    shelf = kit.rolled(sim, [0, 21, 35], 40, retention_ms=-1)
    shelf.log.set_start_offset(25)
    shelf.log.delete_old_segments(sim.clock.now())
    sim.advance(1000)  # the new log start is durable, then the files are renamed
    sim.advance(58_999)
    shelf.manager.run_due()
    assert "00000000000000000021.log" in sim.names("t-0")
    assert "00000000000000000000.log.deleted" in sim.names("t-0")
    sim.advance(1000)
    shelf.manager.run_due()
    sim.settle()
    assert "00000000000000000000.log.deleted" not in sim.names("t-0")


def test_retention_by_time(world, kit) -> None:
    shelf = kit.rolled(world, [0, 10, 20], 30, retention_ms=1000)
    log = shelf.log
    assert log.delete_old_segments(Instant(0, T0 + 1009)) == 0
    assert log.delete_old_segments(Instant(0, T0 + 1010)) == 1
    assert log.start_offset == 10


def test_retention_by_size(world, kit) -> None:
    shelf = kit.rolled(world, [0, 10, 20], 30, retention_ms=-1, retention_bytes=0)
    log = shelf.log
    third = log.size // 3
    log.apply_config(small(retention_ms=-1, retention_bytes=3 * third - third // 2))
    assert log.delete_old_segments(world.clock.now()) == 0
    log.apply_config(small(retention_ms=-1, retention_bytes=2 * third))
    assert log.delete_old_segments(world.clock.now()) == 1
    assert log.start_offset == 10


def test_the_active_segment_rolls_first_when_it_must_go(world, kit) -> None:
    shelf = kit.rolled(world, [0, 10], 20, retention_ms=1000)
    log = shelf.log
    assert log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 2
    assert [segment.base_offset for segment in log.segments] == [20]
    assert log.start_offset == log.end_offset == 20
    assert log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 0
    assert shelf.put(kit.batch(1)) == [20]


def test_nothing_at_or_above_the_high_watermark_is_removed(world, kit) -> None:
    shelf = kit.rolled(world, [0, 10, 20], 30, retention_ms=1000)
    shelf.log.high_watermark = 19
    assert shelf.log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 1
    assert shelf.log.start_offset == 10


def test_nothing_of_an_open_transaction_is_removed(world, kit) -> None:
    shelf = kit.Shelf(world, small(retention_ms=1000))
    log = shelf.log
    shelf.put(kit.batch(1))
    log.roll_segment()
    shelf.put(kit.batch(1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    log.roll_segment()
    shelf.put(kit.batch(1))
    log.high_watermark = log.end_offset
    assert log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 1
    assert log.start_offset == 1
    log.set_start_offset(2)
    assert log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 1, "deleted on purpose, it keeps nothing"


def test_compacted_logs_are_not_aged(world, kit) -> None:
    shelf = kit.rolled(world, [0, 10], 20, retention_ms=1000, cleanup_policy=("compact",))
    assert shelf.log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 0


def test_logs_without_a_cleanup_policy_keep_all_but_what_is_below_their_start(world, kit) -> None:
    """KIP-1161: neither age nor size; DeleteRecords still moves the start."""
    shelf = kit.rolled(world, [0, 10, 20], 30, retention_ms=1, retention_bytes=0, cleanup_policy=())
    assert shelf.log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 0
    shelf.log.set_start_offset(10)
    assert shelf.log.delete_old_segments(Instant(0, T0 + DAY_MS)) == 1


def test_retention_precedence() -> None:
    """log.retention.ms over .minutes over .hours; 168 hours by default; a minute until files are removed."""

    def given(**keys: str) -> TopicConfig:
        properties = {key.replace("_", "."): text for key, text in keys.items()}
        return BrokerConfig.from_properties(properties)[0].topic_defaults

    assert given().retention_ms == 168 * 3_600_000
    assert given(log_retention_hours="1").retention_ms == 3_600_000
    assert given(log_retention_hours="1", log_retention_minutes="2").retention_ms == 120_000
    assert given(log_retention_hours="1", log_retention_minutes="2", log_retention_ms="3").retention_ms == 3
    assert given().file_delete_delay_ms == 60_000


def test_the_log_start_does_not_pass_the_end_nor_go_back(kit, shelf) -> None:
    shelf.put(kit.batch(3))
    shelf.log.set_start_offset(2)
    shelf.log.set_start_offset(1)
    assert shelf.log.start_offset == 2
    assert code_of(lambda: shelf.log.set_start_offset(4)) is ErrorCode.OFFSET_OUT_OF_RANGE
