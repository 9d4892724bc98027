"""Worlds for logs: a simulated disk that can lose power, and the real one; and batches to put into logs.

Zone: real. A world provides the seams of one broker process and runs completions until none is outstanding.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ignoring import ignore

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.record.batch import BatchHeader, Record, encode_batch, header_at
from ottla.record.control import ControlType, control_key, marker_value
from ottla.record.log_entries import entries_of, records_at
from ottla.seams import Disk, Instant, Workers
from ottla.server.disks.disk import RealDisk
from ottla.server.entropy import RealEntropy
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive, JournalLoss
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death, Machine
from ottla.sim.world import SECOND, Timeline
from ottla.storage.errors import Cold
from ottla.storage.indexes.timestamps import offset_for
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition

TP = TopicPartition("t", 0)
TOPIC_ID = bytes(range(16))
LONG = 3600 * SECOND

LOG = "t-0/00000000000000000000.log"
SMALL = TopicConfig(segment_bytes=10_000, index_interval_bytes=1000)


class Answers(list):
    """Collects the values of completions."""

    def __call__(self, value: object) -> None:
        self.append(bytes(value) if isinstance(value, memoryview) else value)


class SimWorld:
    """A simulated machine with one or more drives; `restart` boots it again after a death."""

    def __init__(self, _directory: Path | None = None, drives: int = 1, seed: int = 1) -> None:
        self.timeline = Timeline()
        self.drives = [Drive(f"data{number}") for number in range(drives)]
        self.machine = Machine(1, self.timeline, Streams(seed), self.drives)
        self._boot()

    def _boot(self) -> None:
        self.process = self.machine.boot_process()
        self.clock = self.process.clock
        self.entropy = self.process.entropy
        self.faults = [DriveFaults() for _ in self.drives]
        self.disks: list[Disk] = [
            SimDisk(drive, faults, self.process) for drive, faults in zip(self.drives, self.faults, strict=True)
        ]

    @property
    def disk(self) -> Disk:
        return self.disks[0]

    def settle(self) -> None:
        """Run all outstanding completions."""
        while self.timeline.run_next_event():
            pass
        assert not self.machine.crashes, self.machine.crashes[0]

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.timeline.run_until(self.timeline.now_ns + ms * 1_000_000)

    def restart(self, death: Death = Death.KILL, loss: tuple[LossPattern, JournalLoss] | None = None) -> None:
        """End the process this way, at once, and start a new one."""
        if loss is not None:
            self.machine.loss = loss
        self.machine.end_process(death)
        while self.timeline.run_next_event():
            pass
        self._boot()

    def kill(self) -> None:
        """Kill the process, as a real one can be killed."""
        self.restart()

    def contents(self, path: str) -> bytes:
        return bytes(self.drives[0].file_at(path).data)

    def names(self, path: str) -> list[str]:
        return list(self.disk.list(path))

    def overwrite(self, path: str, data: bytes) -> None:
        """Write other bytes to a file, as another program would."""
        inode = self.drives[0].find_path(path)
        if inode is None:
            self.disk.open(path, create=True).close()
            inode = self.drives[0].file_at(path)
        inode.data[:] = data
        inode.sealed = None
        inode.synced = min(inode.synced, len(data))

    def remove(self, path: str) -> None:
        self.disk.unlink_now(path)

    def close(self) -> None:
        assert not self.machine.crashes, self.machine.crashes[0]


class RealWorld:
    """The operating system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._errors: list[object] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, context: self._errors.append(context))
        self.entropy = RealEntropy()
        self._boot()

    def _boot(self) -> None:
        self._turns = CompletionQueue(self._loop)
        self._in_flight = 0
        off_loop = self._turns.run_in_thread

        def counted(work, then):
            self._in_flight += 1

            def finished(outcome):
                self._in_flight -= 1
                then(outcome)

            return off_loop(work, finished)

        self._turns = _Counting(self._turns, counted)
        self.clock = self._turns.clock
        self.disks: list[Disk] = [RealDisk(str(self._directory), self._turns)]

    @property
    def disk(self) -> Disk:
        return self.disks[0]

    def settle(self) -> None:
        end = time.monotonic() + 180
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < end, "something never completes"
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
            quiet = 0 if self._in_flight else quiet + 1
        assert not self._errors, self._errors[0]

    def kill(self) -> None:
        """Drop every handle, as if the process had ended: written bytes are in the page cache."""
        self.settle()
        self._end()
        self._boot()

    def _end(self) -> None:
        """Close all descriptors: there are hundreds of these worlds in one process."""
        self._turns.stop_threads()
        for owner in list(self.disk.descriptors):
            owner.park_descriptor()

    def contents(self, path: str) -> bytes:
        return (self._directory / path).read_bytes()

    def names(self, path: str) -> list[str]:
        return list(self.disk.list(path))

    def overwrite(self, path: str, data: bytes) -> None:
        (self._directory / path).write_bytes(data)

    def remove(self, path: str) -> None:
        (self._directory / path).unlink()

    def close(self) -> None:
        self.settle()
        self._end()
        self._loop.close()


class _Counting:
    """Turns that count the work in threads."""

    def __init__(self, turns: CompletionQueue, off_loop: Callable) -> None:
        self._turns = turns
        self.run_in_thread = off_loop
        self.clock = turns.clock
        self.run_soon = turns.run_soon
        self.stop_threads = turns.stop_threads


WORLDS = {"real": RealWorld, "sim": SimWorld}


@pytest.fixture(params=sorted(WORLDS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SimWorld | RealWorld]:
    """One machine with an empty log directory: simulated, and real."""
    made = WORLDS[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealWorld]:
    """The real machine, for features that a simulated one does not have."""
    made = RealWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def sim() -> Iterator[SimWorld]:
    """The simulated machine, for faults that a real one cannot be given."""
    made = SimWorld()
    yield made
    made.close()


@pytest.fixture
def real_over() -> Iterator[Callable[[Path], RealWorld]]:
    """`real_over(directory)`: the real machine over a directory with files in it."""
    made: list[RealWorld] = []

    def over(directory: Path) -> RealWorld:
        made.append(RealWorld(directory))
        return made[-1]

    yield over
    for world in made:
        world.close()


class Shelf:
    """A log manager over a world, with helpers for tests of one log."""

    def __init__(
        self,
        world: SimWorld | RealWorld,
        config: TopicConfig | None = None,
        broker: BrokerConfig | None = None,
        progress: Callable | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.world = world
        self.config = config or TopicConfig()
        self.manager = LogManager(world.disks, world.clock, world.entropy, broker or BrokerConfig(), ignore, workers)
        self.manager.load_logs(lambda _topic: self.config, progress)

    @property
    def log(self) -> Log:
        """The one log, created when it is missing."""
        return self.manager.get_log(TP) or self.manager.create_log(TP, TOPIC_ID, self.config)

    def put(self, *batches: bytearray, epoch: int = 0) -> list[int]:
        """Append batches as a client's; their base offsets."""
        return [append(self.log, batch, epoch, self.world.clock.now()) for batch in batches]

    def flush(self) -> object:
        answers = Answers()
        self.log.flush(answers)
        self.world.settle()
        assert len(answers) == 1
        return answers[0]

    def stop(self) -> object:
        answers = Answers()
        self.manager.stop_logs(answers)
        self.world.settle()
        assert len(answers) == 1
        return answers[0]

    def again(self, config: TopicConfig | None = None) -> Shelf:
        """A new broker process over the files of this one."""
        return Shelf(self.world, config or self.config)

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        answers = Answers()
        offset_for(self.log.segments, self.log.start_offset, timestamp, answers, self.log.home.workers)
        self.world.settle()
        assert len(answers) == 1
        return answers[0]


def append(log: Log, batch: bytearray, epoch: int, now: Instant) -> int:
    view = memoryview(batch)
    header = tuple(header_at(view))
    if header[9] >= 0 and not header[5] & 0x20:
        duplicate = log.check_producer(header)
        if duplicate is not None:
            return duplicate.base_offset
    return log.append(view, header, epoch, now)


@pytest.fixture
def shelf(world: SimWorld | RealWorld) -> Shelf:
    return Shelf(world)


def make_batch(count: int = 1, size: int = 100, timestamp: int = 1_700_000_000_000, **keywords) -> bytearray:
    """A batch of `count` records whose values have `size` bytes, stamped timestamp, timestamp + 1, …"""
    records = [Record(number, timestamp + number, None, b"v" * size) for number in range(count)]
    return encode_batch(records, **keywords)


def make_rolled(world: SimWorld | RealWorld, bases: list[int], end: int, **config: object) -> Shelf:
    """A log whose segments begin at these offsets: a record per offset, stamped by it, below the high watermark."""
    shelf = Shelf(world, TopicConfig(segment_bytes=1 << 20, index_interval_bytes=1000, **config))
    log = shelf.log
    log.restart_at(bases[0])
    for base, following in zip(bases, [*bases[1:], end], strict=True):
        if base != bases[0]:
            log.roll_segment()
        while log.end_offset < following:
            shelf.put(make_batch(1, timestamp=1_700_000_000_000 + log.end_offset))
    log.high_watermark = log.end_offset
    return shelf


def make_marker(producer_id: int, epoch: int = 0, commit: bool = True, coordinator_epoch: int = 0) -> bytearray:
    """A transaction marker, as a coordinator writes it."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    record = Record(0, 1_700_000_000_000, control_key(kind), marker_value(coordinator_epoch))
    return encode_batch([record], producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True)


def read_bytes(world: SimWorld | RealWorld, log: Log, offset: int, max_bytes: int, limit: int, **keywords) -> bytes:
    """The bytes that a fetch would send; warms cold regions."""
    while True:
        try:
            region = log.read(offset, max_bytes, limit, **keywords)
        except Cold as cold:
            world.disk.warm_regions(cold.regions, Answers())
            world.settle()
            keywords["warmed"] = True
            continue
        if region is None:
            return b""
        assert region.generation == region.file.generation
        content = bytearray(region.size)
        assert region.file.read_now(region.pos, memoryview(content)) == region.size
        return bytes(content)


def read_all(world: SimWorld | RealWorld, log: Log, max_bytes: int = 1 << 20) -> list[Record]:
    """All records of a log, by fetches."""
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.end_offset:
        content = read_bytes(world, log, offset, max_bytes, log.end_offset)
        assert content, f"nothing at offset {offset}"
        for header, records in batches_in(content):
            found += [record for record in records if record.offset >= offset]
            end = header.last_offset + 1
        offset = end
    return found


def batches_in(content: bytes) -> list[tuple[BatchHeader, list[Record]]]:
    """Headers and records of whole batches, or messages of old formats; nothing may be left over."""
    found = [
        (BatchHeader._make(header), list(records_at(content, at, max_bytes=1 << 26)))
        for at, header in entries_of(content)
    ]
    assert sum(header.size for header, _ in found) == len(content), "a region ends inside a batch"
    return found


@pytest.fixture(scope="session")
def kit() -> type:
    """The helpers of this file, for tests in other files."""

    class Kit:
        Answers = Answers
        Shelf = Shelf
        SimWorld = SimWorld
        TP = TP
        TOPIC_ID = TOPIC_ID
        append = staticmethod(append)
        batch = staticmethod(make_batch)
        marker = staticmethod(make_marker)
        rolled = staticmethod(make_rolled)
        read = staticmethod(read_bytes)
        read_all = staticmethod(read_all)
        batches_in = staticmethod(batches_in)

    return Kit


def idempotent(kit, sequence: int, count: int = 1, size: int = 100, **keywords) -> bytearray:
    """A batch of producer 1."""
    return kit.batch(count, size, producer_id=1, producer_epoch=0, base_sequence=sequence, **keywords)
