"""Retention of many logs at once: how many one turn trims, and that no turn blocks on the disk."""

from __future__ import annotations

import pytest

from ottla.config.topic import TopicConfig
from ottla.sim.disks.disk import SimDisk
from ottla.storage.background_tasks import CHANGES_PER_STEP
from ottla.types import TopicPartition

LOGS = 60
MINUTE = 60_000


class CountingDisk(SimDisk):
    """Records the blocking syncs of a turn."""

    def __init__(self, *parts) -> None:
        super().__init__(*parts)
        self.waited: list[str] = []

    def sync_now(self, path: str) -> None:
        self.waited.append(path)
        super().sync_now(path)


@pytest.fixture
def old(sim, kit):
    """A shelf with logs that were just created, whose only records are older than retention allows."""
    sim.disks[0] = CountingDisk(sim.drives[0], sim.faults[0], sim.process)
    shelf = kit.Shelf(sim, TopicConfig(retention_ms=1000))
    for number in range(LOGS):
        log = shelf.manager.create_log(TopicPartition("m", number), kit.TOPIC_ID, shelf.config)
        kit.append(log, kit.batch(1), 0, sim.clock.now())
        log.high_watermark = 1
    sim.advance(5 * MINUTE)
    shelf.manager.run_due()
    return shelf


def logs_of(shelf):
    return [log for log in shelf.manager.online_logs() if log.tp.topic == "m"]


def trimmed(shelf) -> int:
    return sum(log.start_offset for log in logs_of(shelf))


def step_until_flushed(sim, shelf) -> None:
    """Run idle moments until all tasks wait for the disk."""
    while shelf.manager.run_background(1_000_000):
        pass
    sim.settle()


def test_a_step_trims_a_few_logs_only(sim, old) -> None:
    most = 0
    for _ in range(LOGS):
        before = trimmed(old)
        old.manager.run_background(1_000_000)
        most = max(most, trimmed(old) - before)
        sim.settle()
    assert trimmed(old) == LOGS
    assert most <= CHANGES_PER_STEP


def test_no_turn_of_retention_waits_for_the_disk(sim, old) -> None:
    sim.disk.waited.clear()
    step_until_flushed(sim, old)
    step_until_flushed(sim, old)
    assert trimmed(old) == LOGS
    assert sim.disk.waited == []
