"""When a log is durable, which callers are informed, and what the safeguards prevent."""

from __future__ import annotations

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.sim.mutants.ablation import without_safeguard

DAY_MS = 86_400_000
T0 = 1_700_000_000_000


def small(**keywords) -> TopicConfig:
    return TopicConfig(**{"segment_bytes": 10_000, "index_interval_bytes": 1000, **keywords})


def code_of(act) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        act()
    return refused.value.code


# -- flushing ----------------------------------------------------------------------------------------------------------


def test_the_recovery_point_moves_when_the_sync_has_completed(world, kit, shelf) -> None:
    shelf.put(kit.batch(3))
    answers = kit.Answers()
    shelf.log.flush(answers)
    assert shelf.log.recovery_point == 0
    shelf.put(kit.batch(2))
    world.settle()
    assert answers == [3]
    assert shelf.log.recovery_point == 3


def test_requests_during_a_flush_share_the_next_one(world, kit, shelf) -> None:
    answers = kit.Answers()
    for _ in range(5):
        shelf.put(kit.batch(1))
        shelf.log.flush(answers)
    world.settle()
    assert answers == [1, 5, 5, 5, 5]


def test_repeated_requests_for_one_flush_are_called_once(world, kit) -> None:
    shelf = kit.Shelf(world, TopicConfig(flush_messages=1))
    called: list[int] = []
    shelf.log.flush_policy.call_when_synced(lambda: called.append(shelf.log.recovery_point))
    for _ in range(50):
        shelf.put(kit.batch(1))
    world.settle()
    assert called == [1, 50]


def test_flush_messages(world, kit) -> None:
    shelf = kit.Shelf(world, TopicConfig(flush_messages=3))
    shelf.put(kit.batch(2))
    world.settle()
    assert shelf.log.recovery_point == 0
    shelf.put(kit.batch(1))
    world.settle()
    assert shelf.log.recovery_point == 3
    shelf.put(kit.batch(2))
    world.settle()
    assert shelf.log.recovery_point == 3
    shelf.put(kit.batch(2))
    world.settle()
    assert shelf.log.recovery_point == 7


def test_indexes_of_a_segment_whose_records_were_durable_before_its_roll_are_synced(sim, kit) -> None:
    """Found by the simulator: the recovery point was at the roll, so the flush began after the sealed segment."""
    shelf = kit.Shelf(sim, small())
    shelf.put(*(kit.batch(5) for _ in range(10)))
    shelf.flush()
    shelf.log.roll_segment()
    shelf.put(kit.batch(1))
    shelf.flush()
    for name in sim.names("t-0"):
        if name.startswith("00000000000000000000."):
            assert sim.drives[0].file_at(f"t-0/{name}").durable == len(sim.contents(f"t-0/{name}")), name


def test_recovered_records_are_awaited_until_they_are_durable(sim, kit) -> None:
    """Found by the simulator: a retry was answered as a duplicate of a batch that the next power loss took."""
    shelf = kit.Shelf(sim, TopicConfig(flush_messages=1000))
    shelf.put(kit.batch(3))
    sim.restart()
    sim.disk.faults.syncs_all = False
    log = shelf.again().log
    assert (log.end_offset, log.recovery_point, log.flush_policy.awaited_offset) == (3, 0, 3)
    told = []
    log.flush_policy.call_when_synced(lambda: told.append(log.recovery_point))
    sim.settle()
    assert told == [3]


def test_flush_ms(sim, kit) -> None:
    shelf = kit.Shelf(sim, TopicConfig(flush_ms=50))
    assert shelf.log.recovery_point == 0
    shelf.put(kit.batch(1))
    deadline = shelf.manager.next_deadline_ns()
    assert deadline == sim.clock.now().mono_ns + 50_000_000
    sim.advance(49)
    shelf.manager.run_due()
    sim.advance(0)
    assert shelf.log.recovery_point == 0
    sim.advance(1)
    shelf.manager.run_due()
    sim.settle()
    assert shelf.log.recovery_point == 1
    shelf.put(kit.batch(1))
    assert shelf.manager.next_deadline_ns() is not None
    sim.advance(50)
    shelf.manager.run_due()
    sim.settle()
    assert shelf.log.recovery_point == 2


# -- safeguards --------------------------------------------------------------------------------------------------------


def test_without_dedupe_a_repeated_batch_is_written_twice(world, kit) -> None:
    for missing, end in ((None, 3), ("dedupe", 6)):
        shelf = kit.Shelf(world)
        shelf.log.restart_at(0)
        with without_safeguard(missing):
            for _ in range(2):
                shelf.put(kit.batch(3, producer_id=1, producer_epoch=0, base_sequence=0))
        assert shelf.log.end_offset == end
        shelf.manager.delete_log(kit.TP)


@without_safeguard("fsync_before_recovery_point")
def test_without_its_order_the_recovery_point_runs_ahead_of_the_sync(world, kit) -> None:
    shelf = kit.Shelf(world)
    shelf.put(kit.batch(3))
    shelf.log.flush(kit.Answers())
    assert shelf.log.recovery_point == 3


def test_without_the_safeguard_no_append_awaits_a_flush(sim, kit) -> None:
    for missing, awaited in ((None, 2), ("flush_before_ack", 0)):
        shelf = kit.Shelf(sim, TopicConfig(flush_messages=1))
        shelf.log.restart_at(0)
        with without_safeguard(missing):
            shelf.put(kit.batch(2))
        assert (shelf.log.flush_policy.awaited_offset, shelf.log.recovery_point) == (awaited, 0)
        sim.settle()
        shelf.manager.delete_log(kit.TP)
