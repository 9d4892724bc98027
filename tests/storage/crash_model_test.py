"""Crashes at any moment: a model of what a log may lose, and what it must keep."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.conftest import SMALL, idempotent

from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4), st.integers(0, 2000)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("settle"), st.just(0), st.just(0)),
        st.tuples(st.just("start"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


class Story:
    """A log in a world that may die at any operation, and the checks of what must be true afterwards."""

    def __init__(self, kit, seed: int) -> None:
        self.kit = kit
        self.world = kit.SimWorld(seed=seed)
        self.shelf = kit.Shelf(self.world, SMALL)
        self.written: list[tuple[int, bytearray]] = []
        self.synced = 0
        self.start = 0

    def step(self, verb: str, first: int, second: int) -> None:
        log = self.shelf.log
        if verb == "append":
            batch = idempotent(self.kit, log.end_offset, first, second)
            offset = log.end_offset
            self.written.append((offset, batch))  # a kill may strike after the write
            self.shelf.put(batch)
        elif verb == "flush":
            log.flush(self._flushed)
        elif verb == "roll":
            log.roll_segment()
        elif verb == "start":
            log.set_start_offset(min(first, log.end_offset))
            log.high_watermark = log.end_offset
            log.delete_old_segments(self.world.clock.now())
        elif verb == "checkpoint":
            self.shelf.manager.dirs[0].checkpoint_recovery_points()
            self.shelf.manager.dirs[0].checkpoint_starts()

    def _flushed(self, outcome) -> None:
        assert isinstance(outcome, int)
        self.synced = max(self.synced, outcome)

    def run(self, steps, fuse: int, loss) -> None:
        world = self.world
        self.shelf.log  # noqa: B018  creates it
        world.settle()
        world.machine.loss = loss
        world.process.fuse, world.process.fuse_death = fuse, Death.POWER_LOSS
        for verb, first, second in steps:
            if world.machine.process is None:
                break
            if verb == "settle":
                world.settle()
            else:
                world.process.run_turn(self.step, verb, first, second)
        if world.machine.process is not None:
            world.machine.end_process(Death.POWER_LOSS)
        world.settle()
        world._boot()

    def check(self) -> None:
        world, kit = self.world, self.kit
        again = self.shelf.again()
        log = again.log
        end = log.end_offset
        assert self.synced <= end
        assert log.start_offset <= log.high_watermark <= end
        offset = log.start_offset
        content = b""
        while offset < end:
            piece = kit.read(world, log, offset, 5000, end)
            content += piece
            offset = kit.batches_in(piece)[-1][0].last_offset + 1
        expected = [batch for base, batch in self.written if base < end]
        assert b"".join(expected).endswith(content)
        self._check_going_on(again, end)

    def _check_going_on(self, again, end: int) -> None:
        """Appends continue, duplicates are recognised, and a clean stop changes nothing."""
        if end > again.log.start_offset:
            sequence, last = next((b, batch) for b, batch in reversed(self.written) if b < end)
            assert again.put(bytearray(last)) == [sequence]
        assert again.put(self.kit.batch(2)) == [end]
        self.world.settle()
        assert again.stop() is None
        third = again.again()
        assert third.log.end_offset == end + 2
        assert third.log.producers.snapshot_entries() == again.log.producers.snapshot_entries()


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=STEPS,
    seed=st.integers(0, 10_000),
    fuse=st.integers(0, 150),
    pages=st.sampled_from(list(LossPattern)),
    names=st.sampled_from(list(JournalLoss)),
)
def test_a_power_cut_at_any_moment(kit, steps, seed, fuse, pages, names) -> None:
    """Flushed records exist; existing records were written, in order, without a hole; and the log works on."""
    story = Story(kit, seed)
    story.run(steps, fuse, (pages, names))
    story.check()
