"""Logs without a broker: a damaged directory is opened, and read like a client reads.

Zone: deterministic. The content before the damage is the truth. Afterwards each log is exact, or a log line names it
and the loss, or the directory is offline or refused. A client accepts no batch with a wrong checksum.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ottla.errors import ApiError
from ottla.record.batch import ATTRIBUTES_POS, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2
from ottla.record.crc import crc32c
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death
from ottla.storage.errors import WrongDirectory
from ottla.storage.log import Log
from ottla.types import TopicPartition
from testbench.crash.judge import Facts
from testbench.crash.lookups import headers_in, read
from testbench.crash.scripts import SCRIPTS
from testbench.crash.site import Site
from testbench.crash.story import Story
from testbench.damage.harm import KINDS, Harm, strike

BASES = (
    "rolls by size", "late stamps", "epochs across segments", "producer snapshots", "many producers",
    "transactions across segments", "aborts in every segment", "markers above the mark", "checkpoints",
    "a log start", "retention", "a clean stop of much", "two partitions", "a partition comes back", "indexes vanish",
)  # fmt: skip


UNSEEN = "offsets or epochs that no checksum covers"


class Base(NamedTuple):
    """A directory to damage, and its content."""

    name: str
    drives: bytes
    clean: bool
    truth: dict[TopicPartition, Facts]
    aborted: dict[TopicPartition, list[tuple[int, ...]]]


class Case(NamedTuple):
    """One damage, and its outcome."""

    base: str
    harm: Harm | None
    outcome: str
    """`exact`, `told` (a log line has the loss), `refused` (a reader gets an error), `offline`; or `unseen`: records
    are right, but offset or leader epoch of a batch, which its checksum does not cover, are wrong."""
    wrong: list[str]


def bases() -> Iterator[Base]:
    """A directory after a clean stop, and one after a kill."""
    for name in BASES:
        story = Story(SCRIPTS[name])
        assert not story.play(), name
        site = story.site
        for clean in (True, False):
            if clean:
                assert site.stop() is None
            site.machine.end_process(Death.KILL)
            site.settle()
            drives = pickle.dumps(site.drives, protocol=5)
            yield _base(name, drives, clean=clean)
            site.boot()
            site.load()
            site.settle()


def _base(name: str, drives: bytes, *, clean: bool) -> Base:
    site = Site(pickle.loads(drives), 1)
    site.load()
    site.settle()
    logs = site.manager.dirs[0].logs
    truth = {tp: facts_of(log, read(log, log.start_offset)) for tp, log in sorted(logs.items())}
    aborted = {tp: what_is_aborted(log) for tp, log in logs.items()}
    return Base(f"{name}, {'stopped' if clean else 'killed'}", drives, clean, truth, aborted)


def facts_of(log: Log, content: bytes) -> Facts:
    """The content of a log."""
    producers = tuple(tuple(entry) for entry in log.producers.snapshot_entries())
    return Facts(log.metadata.topic_id, log.start_offset, log.end_offset, content, log.epochs.entries, producers)


def what_is_aborted(log: Log) -> list[tuple[int, ...]]:
    """Producer, first and last offset of its aborted transactions."""
    return [tuple(entry[:3]) for entry in log.segments.aborted_transactions(log.start_offset, log.end_offset)]


class _Lines(logging.Handler):
    """Collects log lines of level WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect log lines instead of printing them."""
    handler, root = _Lines(), logging.getLogger("ottla")
    before = root.propagate
    root.addHandler(handler)
    root.propagate = False
    try:
        yield handler.lines
    finally:
        root.removeHandler(handler)
        root.propagate = before


def try_one(base: Base, seed: int, kinds: Sequence[str] = KINDS) -> Case:
    """Damage one file, open the directory, and check the outcome."""
    site = Site(pickle.loads(base.drives), seed)
    harm = strike(site.drives[0], Streams(seed).named_stream("harm"), tuple(kinds))
    with listening() as lines:
        refused: list[str] = []
        site.process.run_turn(lambda: _claim(site, refused))
        if refused:
            return Case(base.name, harm, "offline", [])
        site.settle()
        outcome, wrong = _look(site, base, lines)
    return Case(base.name, harm, outcome, wrong)


def _claim(site: Site, refused: list[str]) -> None:
    try:
        site.open()
    except WrongDirectory as error:
        refused.append(str(error))


def _look(site: Site, base: Base, lines: list[str]) -> tuple[str, list[str]]:
    if site.machine.crashes:
        return "traceback", [site.machine.crashes[0]]
    directory = site.manager.dirs[0]
    if directory.offline is not None:
        told = any(directory.name in line for line in lines)
        return "offline", [] if told else ["it is offline, and no line says so"]
    outcomes, wrong = {"exact"}, [f"{tp} is new" for tp in directory.logs if tp not in base.truth]
    for tp, truth in base.truth.items():
        told = [line for line in lines if str(tp) in line]
        log = directory.logs.get(tp)
        if log is None:
            outcomes.add("offline")
            wrong += [] if told else [f"{tp} is not there, and no line says so"]
            continue
        outcome, complaints = compare(log, truth, base.aborted[tp], told)
        outcomes.add(outcome)
        wrong += [f"{tp}: {text}" for text in complaints]
    if site.machine.crashes:
        return "traceback", [site.machine.crashes[0]]
    order = ("wrong", "unseen", "offline", "refused", "told", "exact")
    return next(outcome for outcome in order if outcome in outcomes), wrong


def compare(log: Log, truth: Facts, aborted: list[tuple[int, ...]], told: list[str]) -> tuple[str, list[str]]:
    """The outcome for one log, and the finding; `told`: the log lines with its name."""
    expected = _batches(truth.content)
    pieces, refused = [], False
    offset = log.start_offset
    while offset < log.end_offset:
        try:
            piece, offset, whole = _fetch(log, offset)
        except ApiError:
            refused = True
            break
        pieces += piece
        if not whole:
            refused = True
            break
    missing = _missing(pieces, expected, log, truth)
    if isinstance(missing, list):
        return "wrong", missing
    if refused:
        return "refused", []
    if missing == UNSEEN:
        return "unseen", []
    if missing:
        return "told", [] if told else [f"{missing}, and no line says so"]
    wrong = _state(log, truth, aborted)
    return ("told", []) if told else ("exact", wrong)


def _fetch(log: Log, offset: int) -> tuple[list[tuple[int, bytes]], int, bool]:
    """Batches that a client accepts, the offset after them, and whether all checksums were right."""
    region = log.read(offset, 3000, log.end_offset, warmed=True)
    if region is None:
        return [], log.end_offset, True
    content = bytearray(region.size)
    region.file.read_now(region.pos, memoryview(content))
    found, at = [], 0
    for header in headers_in(content):
        end = at + header[1] + LOG_OVERHEAD
        if (
            end > len(content)
            or end - at < HEADER_SIZE
            or header[3] != MAGIC_V2
            or crc32c(content[at + ATTRIBUTES_POS : end]) != header[4]
        ):
            return found, offset, False
        found.append((header[0], bytes(content[at:end])))
        following = header[0] + header[6] + 1
        if following <= offset and found:
            return found, offset, False
        offset = following
        at = end
    return found, offset, at == len(content)


def _batches(content: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    for header in headers_in(content):
        end = at + header[1] + LOG_OVERHEAD
        found.append((header[0], content[at:end]))
        at = end
    return found


def _missing(
    pieces: list[tuple[int, bytes]], expected: list[tuple[int, bytes]], log: Log, truth: Facts
) -> list[str] | str:
    """A list: defects of the batches read. A text: the missing part; empty: all was read."""
    known = dict(expected)
    wrong = [
        f"the batch read at offset {base} is not the one that was written"
        for base, data in pieces
        if known.get(base, data if base < truth.start else b"") != data
    ]
    if wrong:
        covered = {data[ATTRIBUTES_POS:] for _, data in expected}
        unseen = all(data[ATTRIBUTES_POS:] in covered for _, data in pieces)
        return UNSEEN if unseen else wrong
    if log.end_offset != truth.end:
        return f"it ends at {log.end_offset}, not at {truth.end}"
    if log.start_offset > truth.start:
        return f"it starts at {log.start_offset}, not at {truth.start}"
    read_bases = {base for base, _ in pieces}
    holes = [base for base, _ in expected if base not in read_bases]
    return f"batches at {holes} are passed over" if holes else ""


def _state(log: Log, truth: Facts, aborted: list[tuple[int, ...]]) -> list[str]:
    """Compare the other data that clients can request."""
    wrong = []
    there = what_is_aborted(log)
    if [entry for entry in aborted if entry not in there]:
        wrong.append(f"the aborted transactions are {there}, not {aborted}")
    producers = tuple(tuple(entry) for entry in log.producers.snapshot_entries())
    if producers != truth.producers:
        wrong.append(f"the producers are {producers}, not {truth.producers}")
    # If the log start is lost, deleted records are visible again, as after a crash before its checkpoint.
    if log.epochs.entries != truth.epochs and log.start_offset == truth.start:
        wrong.append(f"the leader epochs are {log.epochs.entries}, not {truth.epochs}")
    return wrong
