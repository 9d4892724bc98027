"""A log moves to another log directory: the content of the copy, and a stop at every moment of the move."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.ignoring import ignore
from tests.storage.conftest import SMALL, idempotent

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, encode_batch
from ottla.seams import Failure
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death
from ottla.sim.machines.workers import SimWorkers
from ottla.storage.future_log import FutureLog, settle_moves
from ottla.storage.log_manager import LogManager

PIECE = 6000


class Shelves:
    """The logs of a broker with two directories, and one partition that moves from the first to the second."""

    def __init__(self, kit, world, config: TopicConfig = SMALL) -> None:
        self.kit, self.world, self.config = kit, world, config
        self.load()

    def load(self) -> None:
        world = self.world
        self.manager = LogManager(world.disks, world.clock, world.entropy, BrokerConfig(), ignore)
        self.manager.load_logs(lambda _topic: self.config)
        self.log = self.manager.get_log(self.kit.TP)
        self.move: FutureLog | None = None
        self.busy = False

    def create(self) -> None:
        self.log = self.manager.create_log(self.kit.TP, self.kit.TOPIC_ID, self.config)
        self.world.settle()

    def begin(self) -> None:
        """Continue a move that was found, or begin one."""
        move = self.manager.find_move(self.kit.TP)
        if move is None and self.log.disk.name == "data0":
            move = self.manager.begin_move(self.kit.TP, self.manager.dirs[1])
        self.move = move

    def piece(self) -> None:
        """The next piece; the last one with a flush and the swap."""
        if self.move is None or self.busy:
            return
        self.busy = True
        if self.move.lag:
            self.move.copy_piece(PIECE, self._copied)
        else:
            self.move.flush_copy(self._flushed)

    def _copied(self, outcome: object) -> None:
        assert isinstance(outcome, int), outcome
        self.busy = False

    def _flushed(self, outcome: object) -> None:
        self.busy = False
        assert not isinstance(outcome, Failure)
        if self.move is not None and self.move.may_swap and self.move.catch_up(PIECE):
            self.log = self.move.swap_in()
            self.move = None

    def finish(self) -> None:
        for _ in range(1000):
            if self.move is None:
                break
            self.piece()
            self.world.settle()
        assert self.move is None
        self.world.settle()

    def pass_minute(self) -> None:
        self.world.advance(61_000)
        self.manager.run_due()
        self.world.settle()

    def names(self) -> list[list[str]]:
        return [[name for name in disk.list("") if name.startswith("t-0")] for disk in self.world.disks]

    def content(self) -> bytes:
        log, content = self.log, b""
        offset = log.start_offset
        while offset < log.end_offset:
            piece = self.kit.read(self.world, log, offset, 5000, log.end_offset)
            content += piece
            offset = self.kit.batches_in(piece)[-1][0].last_offset + 1
        return content


def put(shelves: Shelves, sequence: int, count: int = 2, size: int = 1500, epoch: int = 0) -> bytearray:
    batch = idempotent(shelves.kit, sequence, count, size)
    shelves.kit.append(shelves.log, batch, epoch, shelves.world.clock.now())
    return batch


@pytest.fixture
def shelves(kit) -> Shelves:
    made = Shelves(kit, kit.SimWorld(drives=2))
    made.create()
    return made


def test_a_log_moves_with_all_of_its_state(shelves, kit) -> None:
    for number in range(20):
        put(shelves, 2 * number, epoch=number // 7)
    shelves.log.set_start_offset(9)
    shelves.log.high_watermark = 38
    kit.append(shelves.log, kit.batch(3, producer_id=7, producer_epoch=1, base_sequence=0, transactional=True), 2,
               shelves.world.clock.now())  # fmt: skip
    kit.append(shelves.log, kit.marker(7, 1, commit=False), 2, shelves.world.clock.now())
    old, before = shelves.log, shelves.content()
    shelves.begin()
    assert shelves.manager.is_moving(kit.TP)
    shelves.finish()
    log = shelves.log
    assert log is not old
    assert log is shelves.manager.get_log(kit.TP)
    assert log.disk.name == "data1"
    assert shelves.content() == before
    assert (log.start_offset, log.high_watermark, log.metadata.topic_id) == (9, 38, kit.TOPIC_ID)
    assert log.epochs.entries == old.epochs.entries
    assert log.producers.snapshot_entries() == old.producers.snapshot_entries()
    assert log.segments.aborted_transactions(9, 100) == old.segments.aborted_transactions(9, 100) != []
    assert log.recovery_point == log.end_offset
    assert [name.rpartition("-")[2] for name in shelves.names()[0]] == ["delete/"]
    assert shelves.names()[1] == ["t-0/"]
    assert "moving" not in shelves.world.disks[1].list("t-0")
    assert not shelves.manager.is_moving(kit.TP)
    shelves.pass_minute()
    assert shelves.names() == [[], ["t-0/"]]
    put(shelves, 40)
    answers = kit.Answers()
    shelves.manager.stop_logs(answers)
    shelves.world.settle()
    assert answers == [None]
    again = Shelves(kit, shelves.world)
    assert again.log.end_offset == 46
    assert again.log.producers.snapshot_entries() == log.producers.snapshot_entries()


def test_the_copy_follows_appends_deletions_and_cuts(shelves) -> None:
    written = [put(shelves, 2 * number) for number in range(20)]
    shelves.begin()
    for _ in range(3):
        shelves.piece()
        shelves.world.settle()
    copied = shelves.move.copy.end_offset
    assert 4 < copied < 30
    shelves.log.truncate_to(copied - 2)
    shelves.move.follow_cut()
    assert shelves.move.copy.end_offset == copied - 2
    del written[(copied - 2) // 2 :]
    shelves.piece()
    written += [put(shelves, copied - 2 + 2 * number, epoch=1) for number in range(20)]
    shelves.world.settle()
    shelves.log.set_start_offset(copied + 10)
    shelves.piece()
    shelves.world.settle()
    assert shelves.move.copy.start_offset == copied + 10
    shelves.finish()
    assert b"".join(written).endswith(shelves.content())
    assert shelves.log.start_offset == copied + 10
    assert shelves.log.end_offset == 2 * len(written)


def test_a_restarted_log_restarts_its_copy(shelves) -> None:
    for number in range(20):
        put(shelves, 2 * number)
    shelves.begin()
    shelves.piece()
    shelves.world.settle()
    shelves.log.restart_at(500)
    shelves.move.follow_cut()
    assert (shelves.move.copy.start_offset, shelves.move.copy.end_offset) == (500, 500)
    shelves.finish()
    assert (shelves.log.start_offset, shelves.log.end_offset) == (500, 500)


def test_offsets_that_were_compacted_away_at_the_end(shelves) -> None:
    put(shelves, 0)
    shelves.log.end_offset = 40  # compaction removed the records at these offsets
    shelves.log.roll_segment()
    shelves.begin()
    shelves.finish()
    assert shelves.log.end_offset == 40


def test_a_move_continues_after_a_clean_stop(shelves, kit) -> None:
    for number in range(20):
        put(shelves, 2 * number)
    shelves.begin()
    for _ in range(4):
        shelves.piece()
        shelves.world.settle()
    copied, before = shelves.move.copy.end_offset, shelves.content()
    shelves.manager.stop_logs(kit.Answers())
    shelves.world.settle()
    shelves.load()
    shelves.begin()
    assert shelves.move.copy.end_offset == copied > 0
    shelves.finish()
    assert shelves.log.disk.name == "data1"
    assert shelves.content() == before


def test_a_copy_has_a_durable_topic_id_before_it_may_replace_the_log(kit) -> None:
    """Otherwise a power cut may leave two logs of one name, the complete one without an id: the other is served."""
    for seed in range(1, 9):
        world = kit.SimWorld(seed=seed, drives=2)
        shelves = Shelves(kit, world)
        shelves.create()
        shelves.begin()
        while not shelves.move.may_swap:
            assert world.timeline.run_next_event()
        directory = world.drives[1].find_path(shelves.move.copy.metadata.directory)
        assert "partition.metadata" in directory.durable, seed
        world.close()


def test_a_move_that_is_given_up_leaves_nothing(shelves) -> None:
    put(shelves, 0)
    shelves.begin()
    shelves.piece()
    shelves.world.settle()
    shelves.move.give_up()
    assert not shelves.move.can_continue
    shelves.pass_minute()
    assert shelves.names() == [["t-0/"], []]
    assert not shelves.manager.is_moving(shelves.kit.TP)


def test_deleting_a_log_deletes_its_copy(shelves, kit) -> None:
    put(shelves, 0)
    shelves.begin()
    shelves.manager.delete_log(kit.TP)
    shelves.world.settle()
    shelves.pass_minute()
    assert shelves.names() == [[], []]


def test_a_topic_with_the_longest_name_moves(kit) -> None:
    world = kit.SimWorld(drives=2)
    shelves = Shelves(kit, world)
    kit_tp, shelves.kit = kit.TP, type("Kit", (kit,), {"TP": type(kit.TP)("n" * 249, 1)})
    shelves.create()
    shelves.begin()
    world.settle()
    assert kit_tp != shelves.kit.TP
    shelves.load()
    assert shelves.manager.find_move(shelves.kit.TP) is not None


def test_a_moving_log_is_not_compacted_until_the_swap(kit) -> None:
    """Otherwise the copy could have a record whose tombstone was removed from the log before it was copied."""
    config = TopicConfig(segment_bytes=3_000, index_interval_bytes=200, cleanup_policy=("compact",))
    world = kit.SimWorld(drives=2)
    shelves = Shelves(kit, world, config)
    shelves.manager = LogManager(
        world.disks, world.clock, world.entropy, BrokerConfig(), ignore, SimWorkers(world.process)
    )
    shelves.manager.load_logs(lambda _topic: config)
    shelves.create()
    for number in range(40):
        records = [Record(at, 1_700_000_000_000, b"key", b"%d" % number + bytes(100)) for at in range(3)]
        kit.append(shelves.log, encode_batch(records), 0, world.clock.now())
    shelves.log.high_watermark = shelves.log.end_offset
    shelves.begin()
    shelves.piece()
    for _ in range(4):
        shelves.pass_minute()
    assert shelves.log.cleaned_until == 0
    shelves.finish()
    for _ in range(4):
        shelves.pass_minute()
    assert shelves.log.cleaned_until == shelves.log.segments.active.base_offset
    assert shelves.log.disk.name == "data1"


def test_of_two_logs_the_complete_one_is_served(shelves, kit) -> None:
    """The broker dies before the copy, which has replaced the log and grown, is durable."""
    put(shelves, 0)
    shelves.world.settle()
    shelves.begin()
    for _ in range(2):
        shelves.piece()
        shelves.world.settle()
        if shelves.move is None:
            break
        assert shelves.move.catch_up(PIECE)
    shelves.log = shelves.move.swap_in() if shelves.move is not None else shelves.log
    put(shelves, 2)
    shelves.world.restart()
    assert [len(names) for names in shelves.names()] == [1, 1]
    shelves.load()
    assert (shelves.log.disk.name, shelves.log.end_offset) == ("data1", 4)
    assert shelves.names()[1] == ["t-0/"]
    assert "t-0/" not in shelves.names()[0]


@pytest.mark.parametrize("better", [0, 1])
@pytest.mark.parametrize("by", ["epoch", "length"])
def test_of_two_complete_logs_the_newer_epoch_wins_and_then_the_longer(shelves, kit, better: int, by: str) -> None:
    """As a stop leaves them between the two renames of a swap, one of them without what no sync covered."""
    dirs = shelves.manager.dirs
    put(shelves, 0)
    shelves.log = dirs[1].create_log(kit.TP, kit.TOPIC_ID, shelves.config)
    put(shelves, 0)
    shelves.log = dirs[better].logs[kit.TP]
    put(shelves, 2, epoch=1 if by == "epoch" else 0)
    if by == "epoch":
        shelves.log = dirs[1 - better].logs[kit.TP]
        put(shelves, 2)
        put(shelves, 4)
    shelves.world.settle()
    settle_moves(dirs)
    shelves.world.settle()
    assert [kit.TP in each.logs for each in dirs] == [better == 0, better == 1]


# -- a stop at every moment --------------------------------------------------------------------------------------------


class Story(Shelves):
    """A move under load that may end at any operation on the disks, and the checks of what must be true afterwards."""

    def __init__(self, kit, seed: int) -> None:
        super().__init__(kit, kit.SimWorld(drives=2, seed=seed))
        self.create()
        self.log.flush(kit.Answers())
        self.world.settle()
        self.history: list[bytearray] = []
        self.before_cut: list[bytearray] = []
        self.synced = self.epoch = 0

    def write(self, count: int) -> None:
        for _ in range(count):
            self.history.append(idempotent(self.kit, 2 * len(self.history), 2, 1500))
            self.kit.append(self.log, self.history[-1], self.epoch, self.world.clock.now())

    def sync(self) -> None:
        log = self.log

        def synced(outcome: object) -> None:
            if isinstance(outcome, int) and log is self.log:
                self.synced = max(self.synced, outcome)

        log.flush(synced)

    def cut(self) -> None:
        """As a follower does: three batches are cut off, another leader's are appended."""
        self.before_cut = list(self.history)
        offset = self.log.end_offset - 6
        self.synced = min(self.synced, offset)
        del self.history[-3:]
        self.log.truncate_to(offset)
        if self.move is not None:
            self.move.follow_cut()
        self.epoch = 1
        self.write(2)

    def script(self) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = [lambda: self.write(6), self.sync, self.begin]
        steps += [self.piece, lambda: self.write(2), self.piece, self.cut, self.piece, self.sync, self.piece]
        steps += [lambda: self.write(1), *[self.piece] * 6, lambda: self.write(2), self.sync, lambda: self.write(1)]
        return [*steps, self.checkpoint, lambda: self.world.clock.now() and None]

    def checkpoint(self) -> None:
        for each in self.manager.dirs:
            each.offsets.checkpoint_recovery_points()
            each.offsets.checkpoint_starts()

    def run(self, fuse: int | None, death: Death, loss: tuple[LossPattern, JournalLoss], settles: int) -> bool:
        """Whether it came to its end. `settles`: how many completions run between two steps."""
        world = self.world
        world.machine.loss = loss
        world.process.fuse, world.process.fuse_death = fuse, death
        for step in self.script():
            if world.machine.process is None:
                break
            world.process.run_turn(step)
            for _ in range(settles):
                world.timeline.run_next_event()
        survived = world.machine.process is not None
        if survived:
            world.machine.end_process(death)
        world.settle()
        world._boot()
        return survived

    def check(self, death: Death) -> None:
        self.load()
        assert self.log is not None, "the log is missing"
        end = self.log.end_offset
        if death is Death.KILL:
            # The process may have died before the file had the last batch.
            assert end >= 2 * len(self.history) - 2, f"{end} of {2 * len(self.history)} are left"
        assert self.synced <= end, f"{self.synced} was durable, the log ends at {end}"
        content = self.content()
        new, old = b"".join(self.history), b"".join(self.before_cut)
        assert new.startswith(content) or old.startswith(content), "other bytes than were written"
        self.begin()
        self.finish()
        assert self.content() == content
        assert self.log.disk.name == "data1"
        assert self.names()[1] == ["t-0/"]
        assert "t-0/" not in self.names()[0]
        assert "moving" not in self.world.disks[1].list("t-0")
        self.kit.append(self.log, self.kit.batch(2), 2, self.world.clock.now())
        answers = self.kit.Answers()
        self.manager.stop_logs(answers)
        self.world.settle()
        assert answers == [None]
        self.load()
        assert self.log.end_offset == end + 2


def tell(kit, fuse: int, death: Death, loss, settles: int, seed: int = 1) -> bool:
    story = Story(kit, seed)
    survived = story.run(fuse, death, loss, settles)
    try:
        story.check(death)
    except Exception as error:
        raise AssertionError(f"fuse {fuse}, {death}, {loss}, {settles} settled, seed {seed}") from error
    return survived


LOSSES = [(pages, names) for pages in LossPattern for names in JournalLoss]


STRIDE = 1 if "EXPLORE" in os.environ else 7
"""The number of operations between two stops that are tried."""


@pytest.mark.slow
@pytest.mark.parametrize("settles", [0, 3, 1000])
def test_a_kill_at_every_moment_of_a_move(kit, settles: int) -> None:
    fuse = settles % STRIDE
    while not tell(kit, fuse, Death.KILL, LOSSES[0], settles):
        fuse += STRIDE
    assert fuse > 100


@pytest.mark.slow
@pytest.mark.parametrize("settles", [1, 4, 1000])
def test_a_power_cut_at_every_moment_of_a_move(kit, settles: int) -> None:
    """Durable records exist, whatever else is lost; the move continues, and ends with one log."""
    fuse = settles % STRIDE
    while not tell(kit, fuse, Death.POWER_LOSS, LOSSES[(fuse * 7 + settles) % len(LOSSES)], settles, seed=fuse):
        fuse += STRIDE
    assert fuse > 100


def test_a_cut_undone_by_a_power_loss_is_not_followed_by_newer_segments(kit) -> None:
    """The old tail of a segment came back before a later segment: a log with other bytes in its middle."""
    assert not tell(kit, 102, Death.POWER_LOSS, (LossPattern.PREFIX, JournalLoss.ALL), 4, seed=102)
