"""A script played against the real storage room over a simulated drive, and photographed after every change.

Zone: deterministic. `Story.play` runs a script to its end; `points` are the drive as it was after each write, sync,
rename, unlink on the way (as bytes, to be robbed of power as often as wanted), with what the model held just then.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, encode_batch, header_at
from ottla.record.control import ControlType, control_key, marker_value
from ottla.sim.disk import SimDisk
from ottla.sim.drive import Drive
from ottla.sim.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machine import Death, Machine, Process
from ottla.sim.world import MS, Timeline
from ottla.storage.log import Log
from ottla.storage.log_manager import LogManager
from ottla.storage.safeguards import Safeguards
from ottla.types import TopicPartition
from testbench.crash.model import Life, Model, Written

CONFIG = TopicConfig(
    segment_bytes=6000,
    index_interval_bytes=500,
    segment_index_bytes=1200,
    retention_ms=-1,
    file_delete_delay_ms=20,
)
BROKER = BrokerConfig()
STAMP = 1_700_000_000_000
_TOPIC = "t"


class Point(NamedTuple):
    """The drive and the model after one change."""

    number: int
    step: str
    """The step of the script that was on its way."""
    change: str
    """What had just happened: `write`, `cut`, `sync`, `create`, `rename`, `unlink` or `sync of names`."""
    drive: bytes
    model: Model
    now_ns: int


class Watched(Process):
    """A process that tells of every operation on its disks before it happens."""

    def __init__(self, machine: Machine, life: int, told: Callable[[], None]) -> None:
        super().__init__(machine, life)
        self._told = told
        self.serving = True

    def touch(self) -> None:
        """As the disk calls it."""
        self._told()
        super().touch()


class Computer(Machine):
    """A machine whose processes are watched."""

    watcher: Callable[[], None] | None = None

    def _told(self) -> None:
        if self.watcher is not None:
            self.watcher()

    def boot(self) -> Process:
        """A new process."""
        assert self.process is None
        self.lives += 1
        self.process = Watched(self, self.lives, self._told)
        return self.process


class Site:
    """A computer with one drive, and a log manager in its process."""

    def __init__(self, drive: Drive, seed: int, safeguards: Safeguards | None = None, now_ns: int = 0) -> None:
        self.timeline = Timeline()
        self.timeline.now_ns = now_ns
        self.machine = Computer(1, self.timeline, Streams(seed), [drive])
        self.drive = drive
        self._safeguards = safeguards
        self.boot()

    def boot(self) -> None:
        """A new process, which has not opened anything."""
        self.process = self.machine.boot()
        self.disk = SimDisk(self.drive, DriveFaults(), self.process)

    def load(self) -> None:
        """Open all logs, in a turn."""
        self.process.turn(self.open)

    def open(self) -> None:
        """The same, within a turn. Raises WrongDirectory."""
        manager = LogManager([self.disk], self.process.clock, self.process.entropy, BROKER, self._safeguards)
        self.manager = manager
        manager.claim("cluster", 1)
        manager.load(lambda _topic: CONFIG)

    def settle(self) -> None:
        """Run all that is on its way."""
        while self.timeline.step():
            pass

    def stop(self) -> object:
        """Stop in order; what `stop` reported."""
        answers: list[object] = []
        self.process.turn(self.manager.stop, answers.append)
        self.settle()
        return answers[0] if answers else "no answer"


class Story:
    """One script on its way."""

    def __init__(self, script: str, seed: int = 1, safeguards: Safeguards | None = None) -> None:
        self.model = Model()
        self.points: list[Point] = []
        self.changes: Counter[str] = Counter()
        self._steps = list(steps_of(script))
        self.site = Site(Drive("data"), seed, safeguards)
        self.site.machine.watcher = self._look
        self._step = "start"
        self._seen = _Look(self.site.drive)
        self._tp = TopicPartition(_TOPIC, 0)
        self._epoch = 0
        self._sequences: dict[int, int] = {}
        self._topics = 0

    # -- the run -------------------------------------------------------------------------------------------------------

    def play(self) -> list[str]:
        """Run the whole script; tracebacks of what left a turn (there ought to be none)."""
        self.site.load()
        self._do("create", [])
        for step, verb, numbers in self._steps:
            self._step = step
            if self.site.machine.crashes:
                break
            self._do(verb, numbers)
            self._look()
        self._settle()
        return self.site.machine.crashes

    def _do(self, verb: str, numbers: list[int]) -> None:
        outside = getattr(self, f"_now_{verb}", None)
        if outside is not None:
            outside(*numbers)
        else:
            self.site.process.turn(getattr(self, f"_{verb}"), *numbers)

    def _look(self) -> None:
        """Photograph the drive if it has changed."""
        look = _Look(self.site.drive)
        change = look.since(self._seen)
        if change is None:
            return
        self._seen = look
        self.changes[change] += 1
        number = len(self.points)
        drive = pickle.dumps(self.site.drive, protocol=5)
        self.points.append(Point(number, self._step, change, drive, self.model.copy(), self.site.timeline.now_ns))

    # -- steps outside of a turn ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        while self.site.timeline.step():
            self._look()

    def _now_settle(self) -> None:
        self._settle()

    def _now_wait(self, ms: int) -> None:
        timeline = self.site.timeline
        end = timeline.now_ns + ms * MS
        while timeline._heap and timeline._heap[0][0] <= end:
            timeline.step()
            self._look()
        timeline.now_ns = max(timeline.now_ns, end)
        self.site.process.turn(self.site.manager.on_time)

    def _now_stop(self) -> None:
        lives = [lives[-1] for lives in self.model.lives.values() if lives and not lives[-1].gone]
        asked = [(life, life.cuts, life.appended) for life in lives]
        self.site.process.turn(self.site.manager.stop, lambda outcome: self._stopped(outcome, asked))
        self._settle()
        self._again(Death.STOP)

    def _stopped(self, outcome: object, asked: list[tuple[Life, int, int]]) -> None:
        assert outcome is None, outcome
        for life, cuts, end in asked:
            life.flushed(end, cuts)

    def _now_kill(self) -> None:
        self._again(Death.KILL)

    def _again(self, death: Death) -> None:
        site = self.site
        site.machine.end(death)
        site.settle()
        site.boot()
        site.load()
        self._settle()

    def _now_blind(self) -> None:
        """A clean stop, after which all index files vanish before the next start."""
        self.site.process.turn(self.site.manager.stop, lambda _: None)
        self._settle()
        self.site.process.turn(self._remove_indexes)
        self._again(Death.KILL)

    def _remove_indexes(self) -> None:
        paths = [path for path, _ in self.site.drive.walk() if path.endswith("index")]
        for path in sorted(paths, key=lambda path: not path.endswith(".index")):
            self.site.disk.unlink_now(path)
            self.site.disk.sync_now(path.rpartition("/")[0])

    # -- steps of the log ----------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Log:
        log = self.site.manager.get(self._tp)
        assert log is not None, f"{self._tp} is not there"
        return log

    def _create(self) -> None:
        self._topics += 1
        topic_id = self._topics.to_bytes(16, "big")
        self.model.lives.setdefault(self._tp, []).append(Life(topic_id))
        self._sequences = {}
        self.site.manager.create(self._tp, topic_id, CONFIG)

    def _delete(self) -> None:
        self.model.life(self._tp).gone = True
        self.site.manager.delete(self._tp)

    def _on(self, partition: int) -> None:
        self._tp = TopicPartition(_TOPIC, partition)

    def _epochs(self, by: int = 1) -> None:
        self._epoch += by

    def _append(self, producer: int, count: int, size: int, late: int = 0) -> None:
        """A batch of a producer (0: of none); `late`: its stamps lie so far behind."""
        self._write("data", producer, count, size, late)

    def _txn(self, producer: int, count: int, size: int) -> None:
        self._write("txn", producer, count, size, 0)

    def _commit(self, producer: int) -> None:
        self._write("commit", producer, 1, 0, 0)

    def _abort(self, producer: int) -> None:
        self._write("abort", producer, 1, 0, 0)

    def _write(self, kind: str, producer: int, count: int, size: int, late: int) -> None:
        log = self._log
        written = self._make(kind, producer, count, size, late, log.end_offset)
        life = self.model.life(self._tp)
        life.state.batches.append(written)
        view = memoryview(bytearray(written.data))
        log.append(view, tuple(header_at(view)), self._epoch, self.site.process.clock.now())
        life.appended = log.end_offset

    def _make(self, kind: str, producer: int, count: int, size: int, late: int, base: int) -> Written:
        marker = kind in ("commit", "abort")
        sequence = -1
        if producer and not marker:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + count
        stamp = STAMP + base * 10 - late
        if marker:
            control = ControlType.COMMIT if kind == "commit" else ControlType.ABORT
            records = [Record(0, stamp, control_key(control), marker_value(1))]
        else:
            # Values of the same size, another byte for each base and epoch: old bytes in the place of new ones show.
            fill = bytes([33 + (base * 7 + self._epoch * 31 + self._topics) % 90])
            records = [Record(number, stamp + number, None, fill * size) for number in range(count)]
        data = encode_batch(
            records,
            producer_id=producer or -1,
            producer_epoch=0 if producer else -1,
            base_sequence=sequence,
            transactional=kind != "data",
            control=marker,
        )
        data[0:8], data[12:16] = base.to_bytes(8, "big"), self._epoch.to_bytes(4, "big")
        last = base + len(records) - 1
        largest = stamp + len(records) - 1
        return Written(
            base, last, self._epoch, largest, producer or -1, 0 if producer else -1, sequence, kind, bytes(data)
        )

    def _follow(self, batches: int, count: int, size: int) -> None:
        """Batches of a leader, in one piece."""
        log, life = self._log, self.model.life(self._tp)
        made, base = [], log.end_offset
        for _ in range(batches):
            made.append(self._make("data", 0, count, size, 0, base))
            base += count
        life.state.batches += made
        log.append_replica(memoryview(bytearray(b"".join(batch.data for batch in made))))
        life.appended = log.end_offset

    def _flush(self) -> None:
        tp, life = self._tp, self.model.life(self._tp)
        cuts = life.cuts

        def flushed(outcome: object) -> None:
            assert isinstance(outcome, int), outcome
            self.model.flushed(tp, life, outcome, cuts)

        self._log.flush(flushed)

    def _roll(self) -> None:
        self._log.roll()

    def _mark(self, back: int = 0) -> None:
        """The high watermark, so far behind the end."""
        log = self._log
        log.high_watermark = max(log.high_watermark, log.end_offset - back)

    def _start(self, back: int) -> None:
        """The log start, so far behind the end (DeleteRecords)."""
        log = self._log
        offset = max(log.start_offset, log.end_offset - back)
        self.model.life(self._tp).state.starts.append(offset)
        log.set_start_offset(offset)

    def _retain(self, size: int = -1) -> None:
        """Retention by size; without one only what lies below the log start goes."""
        log = self._log
        log.high_watermark = log.end_offset
        starts = self.model.life(self._tp).state.starts
        starts += [segment.base_offset for segment in log.segments if segment.base_offset > log.start_offset]
        starts.append(log.end_offset)
        log.configure(replace(CONFIG, retention_bytes=size))
        log.delete_old_segments(self.site.process.clock.now())
        log.configure(CONFIG)

    def _cut(self, back: int) -> None:
        """A follower truncates: so many offsets behind the end; a batch that reaches over goes whole."""
        log = self._log
        offset = max(0, log.end_offset - back)
        life = self.model.life(self._tp)
        if offset < log.segments.first.base_offset:
            life.cut(offset, whole=True)
        else:
            hit = next((batch.base for batch in life.state.batches if batch.base <= offset <= batch.last), offset)
            life.cut(min(offset, hit))
            life.state.starts.append(min(log.start_offset, offset, hit))
        self._epoch += 1
        log.truncate_to(offset)

    def _restart(self, ahead: int) -> None:
        """A follower begins anew, so far above its end."""
        log = self._log
        offset = log.end_offset + ahead
        self.model.life(self._tp).cut(offset, whole=True)
        self._epoch += 1
        log.restart_at(offset)

    def _points(self) -> None:
        self.site.manager.dirs[0].checkpoint_recovery_points()

    def _starts(self) -> None:
        self.site.manager.dirs[0].checkpoint_starts()

    def _marks(self) -> None:
        self.site.manager.dirs[0].checkpoint_high_watermarks()


class _Look:
    """What tells that a drive has changed: sizes and numbers, no contents."""

    def __init__(self, drive: Drive) -> None:
        self.journal = tuple(id(operation) for operation in drive.journal)
        self.last = drive.journal[-1] if drive.journal else None
        self.files = {
            id(inode): (len(inode.data), inode.generation, inode.synced, len(inode.shadow)) for _, inode in drive.walk()
        }

    def since(self, before: _Look) -> str | None:
        """The kind of the change, None when there is none."""
        if self.journal != before.journal:
            return self._of_names(before)
        for key, (size, generation, synced, shadow) in self.files.items():
            old = before.files.get(key)
            if old is None or old == (size, generation, synced, shadow):
                continue
            if generation != old[1]:
                return "cut"
            return "write" if size != old[0] else "sync"
        return None

    def _of_names(self, before: _Look) -> str:
        if self.last is None or (before.journal and id(self.last) == before.journal[-1]):
            return "sync of names"
        if id(self.last) in before.journal:
            return "sync of names"
        if not self.last.removed:
            return "create"
        return "rename" if self.last.added else "unlink"


def steps_of(script: str) -> Iterator[tuple[str, str, list[int]]]:
    """(text, verb, numbers) of every step; `3* append 1 2 300` is three of them."""
    for text in script.split(";"):
        words = text.split()
        times = 1
        if words[0].endswith("*"):
            times, words = int(words[0][:-1]), words[1:]
        for _ in range(times):
            yield " ".join(words), words[0], [int(word) for word in words[1:]]
