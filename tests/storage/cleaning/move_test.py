"""A compacted log that moves to another directory: it is not compacted until it has moved, and is as clean then."""

from __future__ import annotations

from tests.ignoring import ignore
from tests.storage.cleaning.pass_test import fill
from tests.storage.conftest import TOPIC_ID, TP, SimWorld, append

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, encode_batch
from ottla.sim.machines.workers import SimWorkers
from ottla.storage.future_log import FutureLog
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager

CONFIG = TopicConfig(
    segment_bytes=3_000, index_interval_bytes=200, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=0,
)  # fmt: skip


class Shelves:
    """A broker with two directories, with the methods of a shelf that `fill` needs."""

    def __init__(self) -> None:
        self.world = SimWorld(drives=2)
        self.load()

    def load(self) -> None:
        world = self.world
        config, _ = BrokerConfig.from_properties({"log.dirs": "data0,data1", "log.cleaner.backoff.ms": "1000"})
        workers = SimWorkers(world.process)
        self.manager = LogManager(world.disks, world.clock, world.entropy, config, ignore, workers=workers)
        self.manager.load_logs(lambda _topic: CONFIG)
        self.log: Log = self.manager.get_log(TP) or self.manager.create_log(TP, TOPIC_ID, CONFIG)

    def put(self, batch: bytearray) -> None:
        append(self.log, batch, 0, self.world.clock.now())

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.world.settle()
            self.manager.run_due()
            self.world.settle()
            self.world.advance(1000)

    def content(self) -> bytes:
        found = bytearray()
        for segment in self.log.segments:
            piece = bytearray(segment.size)
            segment.file.read_now(0, memoryview(piece))
            found += piece
        return bytes(found)

    def finish(self, move: FutureLog) -> None:
        while move.lag:
            move.copy_piece(4000, _copied)
            self.world.settle()
        move.flush_copy(lambda _: None)
        self.world.settle()
        assert move.may_swap
        self.log = move.swap_in()
        self.world.settle()


def _copied(outcome: object) -> None:
    assert isinstance(outcome, int), outcome


def dirty(shelves: Shelves) -> None:
    """Delete all records: two passes would remove the old values, then the tombstones."""
    for at in range(12):
        now = shelves.world.clock.now().wall_ms
        shelves.put(encode_batch([Record(0, now, b"k%d" % at, None), Record(1, now, b"x%d" % at, bytes(400))]))
    shelves.log.high_watermark = shelves.log.end_offset


def test_nothing_is_compacted_while_a_log_moves() -> None:
    shelves = Shelves()
    fill(shelves, 1)
    shelves.go_on(10)
    clean = shelves.log.cleaned_until
    assert clean > 0
    dirty(shelves)
    move = shelves.manager.begin_move(TP, shelves.manager.dirs[1])
    move.copy_piece(4000, _copied)
    before = shelves.content()
    shelves.go_on(70)
    assert (shelves.log.cleaned_until, shelves.content()) == (clean, before)
    shelves.finish(move)
    assert (shelves.log.disk.name, shelves.log.cleaned_until, shelves.content()) == ("data1", clean, before)
    shelves.go_on(70)
    assert shelves.log.cleaned_until > clean


def test_a_pass_in_progress_ends_when_its_log_begins_to_move() -> None:
    for steps in range(1, 60, 4):
        shelves = Shelves()
        fill(shelves, 1)
        shelves.world.settle()
        shelves.world.advance(1000)
        shelves.manager.run_due()
        for _ in range(steps):
            shelves.world.timeline.run_next_event()
        move = shelves.manager.begin_move(TP, shelves.manager.dirs[1])
        before = shelves.content()
        move.copy_piece(1000, _copied)
        shelves.go_on(5)
        assert shelves.content() == before, steps
        shelves.finish(move)
        assert shelves.content() == before, steps


def test_a_copy_found_at_the_start_stops_compaction_of_its_log() -> None:
    shelves = Shelves()
    fill(shelves, 1)
    shelves.go_on(10)
    dirty(shelves)
    move = shelves.manager.begin_move(TP, shelves.manager.dirs[1])
    move.copy_piece(4000, _copied)
    shelves.world.settle()
    before = shelves.content()
    shelves.world.restart()
    shelves.load()
    shelves.log.high_watermark = shelves.log.end_offset
    shelves.go_on(70)
    assert shelves.content() == before
    move = shelves.manager.find_move(TP)
    assert move is not None
    shelves.finish(move)
    assert shelves.content() == before
