"""Periodic tasks over the logs of a broker cost nothing for logs that did not change.

Zone: real. Steps are counted, not time.
"""

from __future__ import annotations

import pytest
from tests.steps import count_steps

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.sim.machines.workers import SimWorkers
from ottla.storage.checkpoints import parse_offsets
from ottla.storage.retention.retention_task import RetentionQueue
from ottla.types import TopicPartition

FEW, MANY = 10, 300
MARKS = "replication-offset-checkpoint"
POINTS = "recovery-point-offset-checkpoint"
ROUNDS = BrokerConfig(log_retention_check_interval_ms=10**9, producer_id_expiration_check_interval_ms=10**9)
"""Checkpoints only."""


def filled(kit, count: int, broker: BrokerConfig = ROUNDS, *, cleans: bool = False):
    world = kit.SimWorld()
    shelf = kit.Shelf(world, broker=broker, workers=SimWorkers(world.process) if cleans else None)
    for partition in range(count):
        log = shelf.manager.create_log(TopicPartition("t", partition), kit.TOPIC_ID, TopicConfig())
        kit.append(log, kit.batch(1), 0, world.clock.now())
        log.high_watermark = 1
    pass_minutes(shelf, 3)
    return shelf


def pass_minutes(shelf, minutes: int) -> None:
    for _ in range(minutes * 12):
        shelf.world.advance(5_000)
        shelf.manager.run_due()
        while shelf.manager.run_background(0):
            pass
        shelf.world.advance(100)


@pytest.mark.slow
def test_checkpoints_of_logs_at_rest_cost_nothing(kit) -> None:
    few, many = filled(kit, FEW), filled(kit, MANY)
    steps = [count_steps(lambda shelf=shelf: pass_minutes(shelf, 2)) for shelf in (few, many)]
    assert steps[1] <= steps[0] + 500, steps


@pytest.mark.slow
def test_one_log_that_is_written_costs_the_same_beside_many(kit) -> None:
    steps = []
    for shelf in (filled(kit, FEW), filled(kit, MANY)):
        log = shelf.manager.get_log(TopicPartition("t", 3))

        def write(shelf=shelf, log=log) -> None:
            kit.append(log, kit.batch(1), 0, shelf.world.clock.now())
            log.high_watermark = log.end_offset
            log.flush(kit.Answers())
            pass_minutes(shelf, 2)

        write()
        steps.append(count_steps(write))
        marks = parse_offsets(shelf.world.contents(MARKS))
        assert marks[log.tp] == parse_offsets(shelf.world.contents(POINTS))[log.tp] == 3
    assert steps[1] <= steps[0] + 500, steps


@pytest.mark.slow
def test_one_log_that_is_deleted_costs_the_same_beside_many(kit) -> None:
    steps = []
    for shelf in (filled(kit, FEW), filled(kit, MANY)):
        steps.append(count_steps(lambda shelf=shelf: shelf.manager.delete_log(TopicPartition("t", 3))))
        shelf.world.settle()
        assert parse_offsets(shelf.world.contents(POINTS))[TopicPartition("t", 3)] == 1
        shelf.manager.forget_topics(["t"])
        pass_minutes(shelf, 2)
        assert TopicPartition("t", 3) not in parse_offsets(shelf.world.contents(POINTS))
        assert TopicPartition("t", 3) not in parse_offsets(shelf.world.contents(MARKS))
    assert steps[1] <= steps[0] + 500, steps


STARTS = "log-start-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"


@pytest.mark.slow
def test_a_log_start_that_moves_costs_the_same_beside_many(kit) -> None:
    steps = []
    for shelf in (filled(kit, FEW), filled(kit, MANY)):
        log = shelf.manager.get_log(TopicPartition("t", 3))
        directory = shelf.manager.dirs[0]
        directory.offsets.checkpoint_starts()
        shelf.world.settle()

        def move(shelf=shelf, log=log, directory=directory) -> None:
            log.set_start_offset(1)
            directory.offsets.checkpoint_starts()
            shelf.world.settle()

        steps.append(count_steps(move))
        assert parse_offsets(shelf.world.contents(STARTS)) == {log.tp: 1}
        shelf.manager.delete_log(log.tp)
        directory.offsets.checkpoint_starts()
        shelf.world.settle()
        assert parse_offsets(shelf.world.contents(STARTS)) == {}
    assert steps[1] <= steps[0] + 500, steps


@pytest.mark.slow
def test_a_log_that_becomes_clean_costs_the_same_beside_many(kit) -> None:
    steps = []
    for shelf in (filled(kit, FEW), filled(kit, MANY)):
        log = shelf.manager.get_log(TopicPartition("t", 3))

        def note(shelf=shelf, log=log) -> None:
            log.cleaning.checkpoint = 1
            shelf.manager.dirs[0].offsets.checkpoint_cleaned(log.tp)
            shelf.world.settle()

        shelf.manager.dirs[0].offsets.checkpoint_cleaned(log.tp)
        shelf.world.settle()
        steps.append(count_steps(note))
        assert parse_offsets(shelf.world.contents(CLEANED)) == {log.tp: 1}
        log.truncate_to(0)
        assert parse_offsets(shelf.world.contents(CLEANED)) == {log.tp: 0}
    assert steps[1] <= steps[0] + 500, steps


@pytest.mark.slow
def test_a_name_that_is_used_again_costs_the_same_beside_many(kit) -> None:
    steps = []
    for shelf in (filled(kit, FEW), filled(kit, MANY)):
        tp = TopicPartition("t", 3)

        def create_again(shelf=shelf, tp=tp) -> None:
            shelf.manager.delete_log(tp)
            shelf.manager.create_log(tp, kit.TOPIC_ID, TopicConfig())

        create_again()
        shelf.world.settle()
        steps.append(count_steps(create_again))
    assert steps[1] <= steps[0] + 1_000, steps


@pytest.mark.slow
def test_the_cleaner_does_not_visit_logs_that_are_not_compacted(kit) -> None:
    steps = []
    for count in (FEW, MANY):
        shelf = filled(kit, count, cleans=True)
        steps.append(count_steps(lambda shelf=shelf: pass_minutes(shelf, 2)))
    assert steps[1] <= steps[0] + 500, steps


@pytest.mark.parametrize("late", [False, True])
def test_a_high_watermark_that_moves_later_is_checkpointed(kit, late) -> None:
    shelf = filled(kit, 2)
    log = shelf.manager.get_log(TopicPartition("t", 0))
    kit.append(log, kit.batch(2), 0, shelf.world.clock.now())
    if late:
        pass_minutes(shelf, 1)
        assert parse_offsets(shelf.world.contents(MARKS))[log.tp] == 1
    log.high_watermark = 3
    pass_minutes(shelf, 1)
    assert parse_offsets(shelf.world.contents(MARKS))[log.tp] == 3
    log.truncate_to(1)
    pass_minutes(shelf, 1)
    assert parse_offsets(shelf.world.contents(MARKS))[log.tp] == 1


# -- retention ---------------------------------------------------------------------------------------------------------

WEEK_MS = 7 * 24 * 3_600_000
EACH_MINUTE = BrokerConfig(log_retention_check_interval_ms=60_000, producer_id_expiration_check_interval_ms=10**9)


@pytest.mark.slow
def test_retention_does_not_visit_logs_at_rest(kit) -> None:
    steps = []
    for count in (FEW, MANY):
        shelf = filled(kit, count, EACH_MINUTE)
        pass_minutes(shelf, 3)
        steps.append(count_steps(lambda shelf=shelf: pass_minutes(shelf, 3)))
    assert steps[1] <= steps[0] + 500, steps


def one_log(kit, config: TopicConfig):
    """A log of two segments with a record each, stamped now, that has been at rest for minutes."""
    shelf = kit.Shelf(kit.SimWorld(), config, broker=EACH_MINUTE)
    stamp = shelf.world.clock.now().wall_ms
    shelf.put(kit.batch(1, timestamp=stamp))
    shelf.log.roll_segment()
    shelf.put(kit.batch(1, timestamp=stamp))
    shelf.log.high_watermark = 2
    pass_minutes(shelf, 5)
    assert shelf.log.start_offset == 0
    return shelf


def test_a_log_at_rest_is_dropped_when_its_time_has_come(kit) -> None:
    shelf = one_log(kit, TopicConfig(retention_ms=15 * 60_000))
    pass_minutes(shelf, 8)
    assert shelf.log.start_offset == 0
    pass_minutes(shelf, 5)
    assert shelf.log.start_offset == 2


@pytest.mark.parametrize("changed", [{"retention_ms": 1000}, {"retention_bytes": 1}])
def test_a_setting_that_is_lowered_counts_at_the_next_check(kit, changed) -> None:
    shelf = one_log(kit, TopicConfig())
    shelf.log.apply_config(TopicConfig(**changed))
    pass_minutes(shelf, 2)
    assert shelf.log.start_offset > 0


def test_a_log_that_grows_beyond_its_size_is_cut_at_the_next_check(kit) -> None:
    shelf = one_log(kit, TopicConfig(retention_bytes=1000))
    shelf.put(kit.batch(20))
    shelf.log.high_watermark = shelf.log.end_offset
    pass_minutes(shelf, 2)
    assert shelf.log.start_offset == 1


def test_segments_that_had_to_stay_are_removed_at_the_next_check(kit) -> None:
    shelf = one_log(kit, TopicConfig())
    shelf.log.high_watermark = 0
    shelf.log.apply_config(TopicConfig(retention_ms=1000))
    pass_minutes(shelf, 3)
    assert shelf.log.start_offset == 0
    shelf.log.high_watermark = 2
    pass_minutes(shelf, 2)
    assert shelf.log.start_offset == 2


def test_records_that_a_client_deletes_free_their_segments_at_the_next_check(kit) -> None:
    shelf = one_log(kit, TopicConfig())
    shelf.log.set_start_offset(1)
    pass_minutes(shelf, 2)
    assert len(shelf.log.segments) == 1


def test_created_and_deleted_logs_leave_no_entries_in_the_queue() -> None:
    queue = RetentionQueue()
    for number in range(10_000):
        queue.schedule_log(TopicPartition(f"t{number}", 0), WEEK_MS + number)
        queue.schedule_log(TopicPartition("busy", 0), WEEK_MS + number)
        queue.forget_log(TopicPartition(f"t{number}", 0))
    assert len(queue) == 1
    assert len(queue._heap) < 100
    assert queue.take_due(WEEK_MS) == [TopicPartition("busy", 0)]
