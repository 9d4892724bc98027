"""Runs a script against the real storage package over a simulated drive, with a snapshot after every change.

Zone: deterministic. `Story.play` runs a script to its end. `points` has a snapshot of the drive after each write, sync,
rename and unlink (as bytes, so that power losses can be tried on it repeatedly), and the state of the model then.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.record.batch import Record, encode_batch, header_at
from ottla.record.control import ControlType, control_key, marker_value
from ottla.sim.disks.drive import Drive, Operation
from ottla.sim.machines.machine import Death
from ottla.sim.world import MS
from ottla.storage.log import Log
from ottla.storage.retention.retention_enforcer import delete_old_segments
from ottla.types import TopicPartition
from testbench.crash.model import Life, Model, Written
from testbench.crash.mover import Mover
from testbench.crash.site import CONFIGS, KEYED, LOOKS_MS, PLAIN, SHORTENED, Site

STAMP = 1_700_000_000_000
OLD_MS: Final = 1_000_000
"""Age of the timestamps of records with keys: the cleaner skips younger records."""


class Point(NamedTuple):
    """The drive and the model after one change."""

    number: int
    step: str
    """The present step of the script."""
    change: str
    """The kind of the change: `write`, `cut`, `sync`, `create_log`, `rename`, `unlink` or `sync of names`."""
    drives: bytes
    model: Model
    now_ns: int


class Story:
    """The run of one script."""

    def __init__(self, script: str, seed: int = 1) -> None:
        self.model = Model()
        self.points: list[Point] = []
        self.changes: Counter[str] = Counter()
        self._steps = list(steps_of(script))
        names = ("data", "other") if any(verb == "move" for _, verb, _ in self._steps) else ("data",)
        self.site = Site([Drive(name) for name in names], seed, cleans=True)
        self.site.machine.watcher = self._look
        self._step = "start"
        self._seen = _Look(self.site.drives)
        self._tp = TopicPartition(PLAIN, 0)
        self._epoch = 0
        self._sequences: dict[int, int] = {}
        self._topics = 0

    # -- the run -------------------------------------------------------------------------------------------------------

    def play(self) -> list[str]:
        """Run the whole script. Returns tracebacks of exceptions that left a turn; there should be none."""
        self._load()
        if self._steps[0][1] not in ("compact", "compact-delete"):
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
        verb = verb.replace("-", "_")
        outside = getattr(self, f"_now_{verb}", None)
        if outside is not None:
            outside(*numbers)
        else:
            self.site.process.run_turn(getattr(self, f"_{verb}"), *numbers)

    def _look(self) -> None:
        """Take a snapshot of the drive if it has changed."""
        look = _Look(self.site.drives)
        change = look.since(self._seen)
        if change is None:
            return
        self._seen = look
        self.changes[change] += 1
        number = len(self.points)
        drives = pickle.dumps(self.site.drives, protocol=5)
        self.points.append(Point(number, self._step, change, drives, self.model.copy(), self.site.timeline.now_ns))

    def _load(self) -> None:
        self.site.load()
        self.mover = Mover(self.site)
        if len(self.site.drives) > 1:
            self.site.process.run_turn(self.mover.resume)

    # -- steps outside of a turn ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        while self.site.timeline.run_next_event():
            self._look()

    def _now_settle(self) -> None:
        self._settle()

    def _now_some(self, events: int) -> None:
        """Run some pending events."""
        for _ in range(events):
            if self.site.timeline.run_next_event():
                self._look()

    def _now_clean(self, events: int = -1) -> None:
        """Let the cleaner find and do its work, or only some events of that."""
        self._now_wait(2 * LOOKS_MS)
        if events < 0:
            self._settle()
        else:
            self._now_some(events)

    def _now_wait(self, ms: int) -> None:
        timeline = self.site.timeline
        end = timeline.now_ns + ms * MS
        while timeline._heap and timeline._heap[0][0] <= end:
            timeline.run_next_event()
            self._look()
        timeline.now_ns = max(timeline.now_ns, end)
        self.site.process.run_turn(self.site.manager.run_due)

    def _now_stop(self) -> None:
        lives = [lives[-1] for lives in self.model.lives.values() if lives and not lives[-1].gone]
        asked = [(life, life.cuts, life.appended) for life in lives]
        self.mover.stop()
        self.site.process.run_turn(self.site.manager.stop_logs, lambda outcome: self._stopped(outcome, asked))
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
        if site.machine.process is None:
            return  # it has crashed: `play` reports that
        site.machine.end_process(death)
        site.settle()
        site.boot()
        self._load()
        self._settle()

    def _now_blind(self) -> None:
        """A clean stop, after which all index files vanish before the next start."""
        self.site.process.run_turn(self.site.manager.stop_logs, lambda _: None)
        self._settle()
        self.site.process.run_turn(self._remove_indexes)
        self._again(Death.KILL)

    def _remove_indexes(self) -> None:
        (drive,), (disk,) = self.site.drives, self.site.disks
        paths = [path for path, _ in drive.walk_files() if path.endswith("index")]
        for path in sorted(paths, key=lambda path: not path.endswith(".index")):
            disk.unlink_now(path)
            disk.sync_now(path.rpartition("/")[0])

    # -- steps of the log ----------------------------------------------------------------------------------------------

    @property
    def _log(self) -> Log:
        log = self.site.manager.get_log(self._tp)
        assert log is not None, f"{self._tp} is not there"
        return log

    def _create(self) -> None:
        self._topics += 1
        topic_id = self._topics.to_bytes(16, "big")
        self.model.lives.setdefault(self._tp, []).append(Life(topic_id))
        self._sequences = {}
        self.site.manager.create_log(self._tp, topic_id, CONFIGS[self._tp.topic])

    def _compact(self) -> None:
        """Create a compacted topic, and use it from now on."""
        self._tp = TopicPartition(KEYED, 0)
        self._create()

    def _compact_delete(self) -> None:
        """Create a topic with compaction and retention, and use it from now on."""
        self._tp = TopicPartition(SHORTENED, 0)
        self._create()

    def _delete(self) -> None:
        self.model.life(self._tp).gone = True
        self.site.manager.delete_log(self._tp)

    def _on(self, partition: int) -> None:
        self._tp = TopicPartition(self._tp.topic, partition)

    def _epochs(self, by: int = 1) -> None:
        self._epoch += by

    def _append(self, producer: int, count: int, size: int, late: int = 0) -> None:
        """A batch of a producer (0: none); `late`: age of its timestamps in ms."""
        self._write("data", producer, count, size, late)

    def _txn(self, producer: int, count: int, size: int) -> None:
        self._write("txn", producer, count, size, 0)

    def _keys(self, producer: int, *keys: int) -> None:
        """A batch of a producer with a record for each key; of a negative one a tombstone."""
        self._put(self._keyed("data", producer, keys, self._log.end_offset))

    def _tkeys(self, producer: int, *keys: int) -> None:
        self._put(self._keyed("txn", producer, keys, self._log.end_offset))

    def _commit(self, producer: int) -> None:
        self._write("commit", producer, 1, 0, 0)

    def _abort(self, producer: int) -> None:
        self._write("abort", producer, 1, 0, 0)

    def _write(self, kind: str, producer: int, count: int, size: int, late: int) -> None:
        self._put(self._make(kind, producer, count, size, late, self._log.end_offset))

    def _put(self, written: Written) -> None:
        log = self._log
        life = self.model.life(self._tp)
        life.state.batches.append(written)
        view = memoryview(bytearray(written.data))
        log.append(view, tuple(header_at(view)), self._epoch, self.site.process.clock.now())
        life.appended = log.end_offset

    def _make(self, kind: str, producer: int, count: int, size: int, late: int, base: int) -> Written:
        stamp = STAMP + base * 10 - late
        if kind in ("commit", "abort"):
            control = ControlType.COMMIT if kind == "commit" else ControlType.ABORT
            records = [Record(0, stamp, control_key(control), marker_value(1))]
        else:
            # Another byte for each offset and epoch: old bytes in the place of new ones are detected.
            fill = bytes([33 + (base * 7 + self._epoch * 31 + self._topics) % 90])
            records = [Record(number, stamp + number, None, fill * size) for number in range(count)]
        return self._batch(kind, producer, records, base)

    def _keyed(self, kind: str, producer: int, keys: Sequence[int], base: int) -> Written:
        stamp = STAMP + base * 10 - OLD_MS
        values = [b"%d/%d/%d." % (base, self._epoch, self._topics) * 12 if key > 0 else None for key in keys]
        records = [
            Record(number, stamp + number, b"%d" % abs(key), value)
            for number, (key, value) in enumerate(zip(keys, values, strict=True))
        ]
        return self._batch(kind, producer, records, base)

    def _batch(self, kind: str, producer: int, records: list[Record], base: int) -> Written:
        marker = kind in ("commit", "abort")
        sequence = -1
        if producer and not marker:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + len(records)
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
        epoch = 0 if producer else -1
        return Written(
            base, last, self._epoch, records[-1].timestamp, producer or -1, epoch, sequence, kind, bytes(data),
            self.site.wall_ms,
        )  # fmt: skip

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

    def _seal(self) -> None:
        self._roll()
        self._keys(0, 9)

    def _roll(self) -> None:
        self._log.roll_segment()

    def _mark(self, back: int = 0) -> None:
        """Set the high watermark, that many offsets before the end."""
        log = self._log
        log.high_watermark = max(log.high_watermark, log.end_offset - back)
        self.model.life(self._tp).state.committed(log.high_watermark)

    def _start(self, back: int) -> None:
        """Set the log start, that many offsets before the end (DeleteRecords)."""
        log = self._log
        offset = max(log.start_offset, log.end_offset - back)
        self.model.life(self._tp).state.starts.append(offset)
        log.set_start_offset(offset)

    def _retain(self, size: int = -1) -> None:
        """Retention by size; without a size it removes only segments below the log start."""
        log = self._log
        log.high_watermark = log.end_offset
        starts = self.model.life(self._tp).state.starts
        starts += [segment.base_offset for segment in log.segments if segment.base_offset > log.start_offset]
        starts.append(log.end_offset)
        self.model.life(self._tp).state.committed(log.high_watermark)
        log.apply_config(replace(log.config, retention_bytes=size))
        delete_old_segments(log, self.site.process.clock.now())
        log.apply_config(CONFIGS[self._tp.topic])

    def _cut(self, back: int) -> None:
        """A follower truncates that many offsets; a batch that crosses the point is removed as a whole."""
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
        self.mover.cut(self._tp)

    def _restart(self, ahead: int) -> None:
        """A follower restarts its log, that many offsets above its end."""
        log = self._log
        offset = log.end_offset + ahead
        self.model.life(self._tp).cut(offset, whole=True)
        self._epoch += 1
        log.restart_at(offset)
        self.mover.cut(self._tp)

    def _points(self) -> None:
        for each in self.site.manager.dirs:
            each.offsets.checkpoint_recovery_points()

    def _starts(self) -> None:
        for each in self.site.manager.dirs:
            each.offsets.checkpoint_starts()

    def _marks(self) -> None:
        for each in self.site.manager.dirs:
            each.offsets.checkpoint_high_watermarks()

    # -- from one directory to the other -------------------------------------------------------------------------------

    def _move(self) -> None:
        self.mover.begin(self._tp)

    def _stay(self) -> None:
        """Cancel the move."""
        self.mover.stay(self._tp)


class _Look:
    """A summary that changes whenever the drives change: sizes and counts, without contents."""

    def __init__(self, drives: Sequence[Drive]) -> None:
        self.journals = [tuple(id(operation) for operation in drive.journal) for drive in drives]
        self.last = [next(reversed(drive.journal), None) for drive in drives]
        self.files = {
            id(inode): (len(inode.data), inode.generation, inode.synced, len(inode.shadow))
            for drive in drives
            for _, inode in drive.walk_files()
        }

    def since(self, before: _Look) -> str | None:
        """The kind of the change, None when there is none."""
        for slot, journal in enumerate(self.journals):
            if journal != before.journals[slot]:
                return self._of_names(self.last[slot], before.journals[slot])
        for key, (size, generation, synced, shadow) in self.files.items():
            old = before.files.get(key)
            if old is None or old == (size, generation, synced, shadow):
                continue
            if generation != old[1]:
                return "cut"
            return "write" if size != old[0] else "sync"
        return None

    @staticmethod
    def _of_names(last: Operation | None, before: tuple[int, ...]) -> str:
        if last is None or id(last) in before:
            return "sync of names"
        if not last.removed:
            return "create"
        return "rename" if last.added else "unlink"


def steps_of(script: str) -> Iterator[tuple[str, str, list[int]]]:
    """(text, verb, numbers) of every step; `3* append 1 2 300` is three of them."""
    for text in script.split(";"):
        words = text.split()
        times = 1
        if words[0].endswith("*"):
            times, words = int(words[0][:-1]), words[1:]
        for _ in range(times):
            yield " ".join(words), words[0], [int(word) for word in words[1:]]
