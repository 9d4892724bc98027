"""Snapshots of many producers are written in slices while the log takes appends; expiry does not visit all producers.

Zone: real. Steps are counted, not time.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.steps import count_steps

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.record.batch import TRANSACTIONAL
from ottla.storage import log_files
from ottla.storage.checkpoints import format_snapshot, parse_snapshot
from ottla.storage.producers import snapshot_writing
from ottla.storage.producers.producer_state import ProducerState

MANY = 8_000
TURN_STEPS = 150_000
"""Instructions that a turn may take: a millisecond or two. 8,000 producers take at least 400,000."""
DAY_MS = 86_400_000


def note(log, producer_id: int, now, sequence: int = 0) -> None:
    """Note a batch of a producer, as an append does."""
    header = (log.end_offset, 100, 0, 2, 0, 0, 0, 5, 5, producer_id, 0, sequence, 1)
    log.producers.note_batch(header, log.end_offset - 1, now.wall_ms)


def with_many(world, kit, count: int = MANY):
    shelf = kit.Shelf(world, TopicConfig(segment_bytes=1 << 20))
    shelf.put(kit.batch(1))
    for producer_id in range(count):
        note(shelf.log, producer_id, world.clock.now())
    return shelf


def write_on(world, shelf, between=lambda: None) -> list[int]:
    """Let the snapshot be written; returns the instructions of each turn."""
    turns = []
    while shelf.log.producers.frozen is not None:
        world.advance(2)
        turns.append(count_steps(shelf.manager.run_due))
        between()
    world.settle()
    return turns


def stored(world, offset: int):
    return sorted(parse_snapshot(world.contents(f"t-0/{offset:020d}.snapshot")))


def test_a_roll_packs_no_more_than_some_producers_in_a_turn(sim, kit) -> None:
    shelf = with_many(sim, kit)
    before = shelf.log.producers.snapshot_entries()
    roll = count_steps(shelf.log.roll_segment)
    late = iter(range(MANY, 2 * MANY))

    def others_write() -> None:
        for producer_id in (0, MANY - 1, 4711):
            note(shelf.log, producer_id, sim.clock.now(), 1)
        note(shelf.log, next(late), sim.clock.now())

    turns = write_on(sim, shelf, others_write)
    assert max(roll, *turns) < TURN_STEPS
    assert stored(sim, 1) == before
    assert len(shelf.log.producers) > MANY


def test_a_log_that_is_cut_gets_no_snapshot_of_its_old_state(sim, kit) -> None:
    shelf = with_many(sim, kit)
    shelf.put(kit.batch(1))
    shelf.log.roll_segment()
    shelf.log.truncate_to(1)
    sim.advance(100)
    shelf.manager.run_due()
    sim.settle()
    assert "00000000000000000002.snapshot" not in sim.names("t-0")


def test_a_log_that_is_deleted_meanwhile_gets_none(sim, kit) -> None:
    shelf = with_many(sim, kit)
    shelf.log.roll_segment()
    shelf.manager.delete_log(kit.TP)
    for _ in range(10):
        sim.advance(2)
        shelf.manager.run_due()
    sim.settle()
    assert not any(name.startswith("t-0/") for name in sim.names(""))


def test_a_clean_stop_does_not_wait_for_slices(sim, kit) -> None:
    shelf = with_many(sim, kit)
    shelf.log.roll_segment()
    before = shelf.log.producers.snapshot_entries()
    assert shelf.stop() is None
    assert stored(sim, 1) == before


def test_idle_producers_are_not_visited(sim, kit) -> None:
    shelf = with_many(sim, kit, 10)
    manager, now_ms = shelf.manager, sim.clock.now().wall_ms

    def expire(log, after_ms: int) -> int:
        return count_steps(lambda: manager._expiry.expire_producers(now_ms + after_ms, DAY_MS))

    few = expire(shelf.log, DAY_MS - 60_000)
    for producer_id in range(MANY):
        note(shelf.log, producer_id, sim.clock.now())
    assert expire(shelf.log, DAY_MS - 60_000) == few
    turns = []
    while len(shelf.log.producers):
        turns.append(expire(shelf.log, 2 * DAY_MS))
        assert len(turns) <= MANY // 500
    assert max(turns) < TURN_STEPS


def test_the_expiry_covers_the_producers_of_all_logs(sim, kit) -> None:
    broker = BrokerConfig(producer_id_expiration_ms=1_000, producer_id_expiration_check_interval_ms=500)
    shelf = kit.Shelf(sim, broker=broker)
    other = shelf.manager.create_log(kit.TP._replace(partition=1), kit.TOPIC_ID, TopicConfig())
    for log in (shelf.log, other):
        note(log, 1, sim.clock.now())
    gone = shelf.manager.create_log(kit.TP._replace(partition=2), kit.TOPIC_ID, TopicConfig())
    note(gone, 1, sim.clock.now())
    shelf.manager.delete_log(gone.tp)
    del gone
    for _ in range(10):
        sim.advance(200)
        note(other, 2, sim.clock.now())
        shelf.manager.run_due()
    assert not len(shelf.log.producers)
    assert [each.producer_id for each in other.producers] == [2]
    sim.advance(3_000)
    shelf.manager.run_due()
    assert not len(other.producers)


STEP = st.sampled_from(["write"] * 6 + ["slice"] * 4 + ["roll"] * 2 + ["begin", "end", "expire", "time"])


@pytest.mark.slow
@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(STEP, st.integers(0, 7)), min_size=40, max_size=100))
def test_a_snapshot_is_of_its_offset_whatever_happens_meanwhile(kit, steps) -> None:
    """And after a kill during it a start finds the very same state."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (log_files, snapshot_writing):
            patch.setattr(module, "AT_ONCE", 2)
        world = kit.SimWorld()
        shelf = kit.Shelf(world, TopicConfig(segment_bytes=1 << 20))
        log, expected, next_sequence = shelf.log, {}, {}
        for verb, number in steps:
            if verb in ("write", "begin"):
                sequence = next_sequence.get(number, 0)
                if log.producers.get(number) is None:
                    sequence = 0
                is_open = log.producers.is_open(number, 0)
                keywords = {"producer_id": number, "producer_epoch": 0, "base_sequence": sequence}
                shelf.put(kit.batch(1, transactional=is_open or verb == "begin", **keywords))
                next_sequence[number] = sequence + 1
            elif verb == "end" and log.producers.is_open(number, 0):
                shelf.put(kit.marker(number))
            elif verb == "roll" and log.end_offset > log.segments.active.base_offset:
                log.roll_segment()
                expected[log.end_offset] = log.producers.snapshot_entries()
            elif verb == "expire":
                log.producers.expire(world.clock.now().wall_ms, 5)
            elif verb == "time":
                world.advance(number)
            elif verb == "slice":
                world.advance(2)
                shelf.manager.run_due()
        present = log.producers.snapshot_entries()
        world.settle()
        for name in world.names("t-0"):
            if name.endswith(".snapshot"):
                assert stored(world, int(name[:20])) == expected[int(name[:20])]
        log.high_watermark = log.end_offset
        world.kill()
        again = shelf.again().log.producers.snapshot_entries()
        known = {entry.producer_id: entry for entry in again}
        for entry in present:  # one that was forgotten for a time has no coordinator's epoch, which the log still has
            found = known[entry.producer_id]._replace(coordinator_epoch=entry.coordinator_epoch)
            assert found == entry


def test_frozen_entries_are_complete_in_any_order() -> None:
    state = ProducerState()
    for producer_id in range(5):
        state.note_batch((0, 100, 0, 2, 0, TRANSACTIONAL, 0, 5, 5, producer_id, 0, 0, 1), producer_id, 0)
    before = state.snapshot_entries()
    frozen = state.freeze_producers()
    taken = frozen.take_entries(2)
    for producer_id in (4, 0, 0, 9):
        state.note_batch((0, 100, 0, 2, 0, TRANSACTIONAL, 0, 5, 5, producer_id, 0, 1, 1), 7, 0)
    while entries := frozen.take_entries(2):
        taken += entries
    assert sorted(taken) == before
    assert len(format_snapshot(taken)) == len(format_snapshot(before))
    again = ProducerState()
    again.load_entries(before, 5, 0)
    assert again.snapshot_entries() == before
