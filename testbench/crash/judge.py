"""Opening a drive that lost power, and comparing what is found with what ought to be there.

Zone: deterministic. `judge` starts the storage room over the drive as often as it takes: once for all; once more with a
power cut in the midst of that start, which must come to the same; and once after a clean stop, which must, too.
"""

from __future__ import annotations

import pickle
from enum import Enum
from typing import NamedTuple

from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD, unpack_header
from ottla.sim.drive import Drive, JournalLoss
from ottla.sim.entropy import Streams
from ottla.sim.inode import LossPattern
from ottla.sim.machine import Death
from ottla.storage.leader_epochs import EpochEntry
from ottla.storage.log import Log
from ottla.storage.safeguards import Safeguards
from ottla.storage.verify.directory import verify
from ottla.types import ZERO_UUID, TopicPartition
from testbench.crash.drive_source import DriveSource
from testbench.crash.model import Life, Model, State, Written
from testbench.crash.story import STAMP, Point, Site


class Fate(Enum):
    """What becomes of everything that no sync had covered."""

    KILLED = "killed"
    """Only the process dies: all of it is there."""
    LOST = "lost"
    TORN = "torn"
    """All up to some point, and half a page."""
    REORDERED = "reordered"
    """Each page and each change of names for itself."""


LOSSES = {
    Fate.LOST: (LossPattern.NONE, JournalLoss.NONE),
    Fate.TORN: (LossPattern.PREFIX, JournalLoss.PREFIX),
    Fate.REORDERED: (LossPattern.EACH, JournalLoss.EACH),
}


class Facts(NamedTuple):
    """What a start found in one log."""

    topic_id: bytes
    start: int
    end: int
    content: bytes
    """All batches from the log start on."""
    epochs: tuple[EpochEntry, ...]
    producers: tuple[tuple[int, ...], ...]


def after(point: Point, fate: Fate, seed: int) -> bytes:
    """The drive of a point as the next start finds it."""
    drive: Drive = pickle.loads(point.drive)
    drive.process_gone()
    if fate in LOSSES:
        drive.power_loss(*LOSSES[fate], Streams(seed).stream("loss"))
    return pickle.dumps(drive, protocol=5)


def judge(
    point: Point, fate: Fate, seed: int, safeguards: Safeguards | None = None, *, whole: bool = True
) -> list[str]:
    """What is wrong after that crash; `whole`: with the second and the third start."""
    drive = after(point, fate, seed)
    site = Site(pickle.loads(drive), seed, safeguards, point.now_ns)
    found, wrong = _start(site)
    if wrong:
        return wrong
    wrong = _compare(site, found, point.model, killed=fate is Fate.KILLED)
    if wrong or not whole:
        return wrong
    death = Death.KILL if fate is Fate.KILLED else Death.POWER_LOSS
    wrong = _second(drive, found, seed, safeguards, point.now_ns, death)
    return wrong or _goes_on(site, found)


def _start(site: Site) -> tuple[dict[TopicPartition, Facts], list[str]]:
    """Start, and see what is there."""
    site.load()
    site.settle()
    wrong = [f"the start failed: {crash}" for crash in site.machine.crashes]
    if wrong:
        return {}, wrong
    directory = site.manager.dirs[0]
    if directory.offline is not None:
        return {}, [f"the directory is offline: {directory.offline}"]
    found = {tp: _facts(log) for tp, log in sorted(directory.logs.items())}
    return found, []


def _facts(log: Log) -> Facts:
    content = read(log, log.start_offset)
    return Facts(
        log.topic_id, log.start_offset, log.end_offset, content, log.epochs.entries,
        tuple(tuple(entry) for entry in log.producers.snapshot()),
    )  # fmt: skip


def read(log: Log, offset: int) -> bytes:
    """All batches from an offset on, as fetches get them."""
    parts = []
    while offset < log.end_offset:
        region = log.read(offset, 3000, log.end_offset, warmed=True)
        if region is None:
            break
        piece = bytearray(region.size)
        region.file.read_now(region.pos, memoryview(piece))
        parts.append(bytes(piece))
        for header in headers_in(piece):
            offset = header[0] + header[6] + 1
    return b"".join(parts)


def headers_in(content: bytes | bytearray) -> list[tuple[int, ...]]:
    """The headers of batches that lie one behind the other."""
    at, found = 0, []
    while at + HEADER_SIZE <= len(content):
        found.append(unpack_header(content, at))
        if found[-1][1] < 0:
            break
        at += found[-1][1] + LOG_OVERHEAD
    return found


# -- against the model -----------------------------------------------------------------------------------------------


def _compare(site: Site, found: dict[TopicPartition, Facts], model: Model, *, killed: bool) -> list[str]:
    wrong = [f"{tp} was never created" for tp in found if tp not in model.lives]
    for tp, lives in sorted(model.lives.items()):
        facts = found.get(tp)
        if facts is None:
            if lives[-1].named and not lives[-1].gone:
                wrong.append(f"{tp} is not there")
            continue
        reasons = [
            _unlike(facts, life, killed=killed) for life in lives if facts.topic_id in (life.topic_id, ZERO_UUID)
        ]
        if not reasons:
            wrong.append(f"{tp} has the topic id {facts.topic_id.hex()}, which is none of its own")
        elif all(reasons):
            wrong.append(f"{tp}: {reasons[-1]}")
        log = site.manager.get(tp)
        assert log is not None
        wrong += [f"{tp}: {why}" for why in _lookups(site, log, facts)]
    return wrong


def _unlike(facts: Facts, life: Life, *, killed: bool) -> str:
    """Why the log is not that life's; empty when it may be."""
    if facts.end < life.synced:
        return f"it ends at {facts.end}, a flush had reported {life.synced}"
    if killed and facts.end < life.appended:
        return f"it ends at {facts.end}, the process had appended up to {life.appended}"
    reasons = []
    for state in (life.state, *life.older):
        reason = _unlike_state(facts, state)
        if not reason:
            return ""
        reasons.append(reason)
    return reasons[0]


def _is_left_of(facts: Facts, state: State) -> bool:
    """Whether the log consists of some batches of a log that was to go whole."""
    place = 0
    for batch in state.batches:
        if facts.content.startswith(batch.data, place):
            place += len(batch.data)
    return place == len(facts.content)


def _unlike_state(facts: Facts, state: State) -> str:
    if state.doomed and _is_left_of(facts, state):
        return ""
    if facts.start not in state.starts:
        return f"it starts at {facts.start}, which never was its start ({state.starts})"
    expected = [batch for batch in state.batches if batch.last >= facts.start and batch.base < facts.end]
    if b"".join(batch.data for batch in expected) != facts.content:
        there = [tuple(header[:3]) for header in headers_in(facts.content)]
        return (
            f"from {facts.start} to {facts.end} it holds {len(facts.content)} bytes, other ones than were written: "
            f"{there}, not {[(batch.base, len(batch.data) - 12, batch.epoch) for batch in expected]}"
        )
    end = expected[-1].last + 1 if expected else facts.start
    if end != facts.end:
        return f"it ends at {facts.end}, its last batch at {end}"
    known = [batch for batch in state.batches if batch.base < facts.end]
    return _unlike_epochs(facts, known) or _unlike_producers(facts, known)


def _unlike_epochs(facts: Facts, known: list[Written]) -> str:
    entries: list[tuple[int, int]] = []
    for batch in known:
        if not entries or batch.epoch > entries[-1][0]:
            entries.append((batch.epoch, batch.base))
    while len(entries) > 1 and entries[1][1] <= facts.start:
        del entries[0]
    if entries and entries[0][1] < facts.start:
        entries[0] = (entries[0][0], facts.start)
    if entries and entries[0][1] == facts.start == facts.end and not facts.epochs:
        return ""
    there = [tuple(entry) for entry in facts.epochs]
    return "" if there == entries else f"its leader epochs are {there}, not {entries}"


def _unlike_producers(facts: Facts, known: list[Written]) -> str:
    there = {entry[0]: entry for entry in facts.producers}
    expected = _producers(known)
    for producer in there:
        if producer not in expected:
            return f"producer {producer} is known and wrote nothing"
    for producer, (sequence, last, opened, newest) in expected.items():
        entry = there.get(producer)
        if entry is None:
            if newest >= facts.start:
                return f"producer {producer} is not known"
            continue
        if last >= facts.start and (entry[2], entry[3]) != (sequence, last):
            return f"producer {producer} is at sequence {entry[2]}, offset {entry[3]}, not {sequence}, {last}"
        if opened >= facts.start and entry[7] != opened:
            return f"the transaction of producer {producer} is open from {entry[7]}, not {opened}"
        if opened < 0 <= entry[7]:
            return f"the transaction of producer {producer} is over, not open from {entry[7]}"
    return ""


def _producers(known: list[Written]) -> dict[int, tuple[int, int, int, int]]:
    """Last sequence, its offset, where an open transaction began, last offset of all; by producer id."""
    found: dict[int, tuple[int, int, int, int]] = {}
    for batch in known:
        if batch.producer < 0:
            continue
        sequence, last, opened, _ = found.get(batch.producer, (-1, -1, -1, -1))
        if batch.kind in ("commit", "abort"):
            found[batch.producer] = (sequence, last, -1, batch.last)
            continue
        if batch.kind == "txn" and opened < 0:
            opened = batch.base
        found[batch.producer] = (batch.sequence + batch.last - batch.base, batch.last, opened, batch.last)
    return found


# -- indexes ---------------------------------------------------------------------------------------------------------


def _lookups(site: Site, log: Log, facts: Facts) -> list[str]:
    """Look-ups by offset, by time, and of aborted transactions, against a plain walk over the content."""
    headers = headers_in(facts.content)
    wrong = _by_offset(log, headers)
    for stamp in sorted({header[8] for header in headers})[:: max(1, len(headers) // 3)]:
        wrong += _by_time(site, log, facts, headers, stamp)
    return wrong + _aborted(log, facts, headers)


def _by_offset(log: Log, headers: list[tuple[int, ...]]) -> list[str]:
    wrong = []
    for header in headers:
        offset = max(header[0], log.start_offset)
        for wanted in {offset, header[0] + header[6]}:
            region = log.read(wanted, 1, log.end_offset, warmed=True)
            found = -1 if region is None else _offset_at(region.file, region.pos)
            if found != header[0]:
                wrong.append(f"a look-up of offset {wanted} finds the batch at {found}, not {header[0]}")
    return wrong


def _offset_at(file: object, position: int) -> int:
    head = bytearray(8)
    file.read_now(position, memoryview(head))  # type: ignore[attr-defined]
    return int.from_bytes(head, "big")


def _by_time(site: Site, log: Log, facts: Facts, headers: list[tuple[int, ...]], stamp: int) -> list[str]:
    answers: list[object] = []
    site.process.turn(log.lookup_timestamp, stamp, answers.append)
    site.settle()
    first = next((header for header in headers if header[8] >= stamp), None)
    (answer,) = answers
    if first is None or not isinstance(answer, tuple):
        return [] if first is None and answer is None else [f"a look-up of time {stamp - STAMP} answers {answer}"]
    # The records of a batch are stamped one after the other from its base timestamp on.
    index = max(0, stamp - first[7])
    while first[0] + index < facts.start:
        index += 1
    expected = (first[7] + index, first[0] + index)
    if tuple(answer) != expected and index <= first[6]:
        return [f"a look-up of time {stamp - STAMP} answers {tuple(answer)}, not {expected}"]
    return []


def _aborted(log: Log, facts: Facts, headers: list[tuple[int, ...]]) -> list[str]:
    """Transactions that began in what is there, and were aborted in it."""
    opened: dict[int, int] = {}
    expected = []
    position = 0
    for header in headers:
        producer = header[9]
        if header[5] & 0x20:
            kind = facts.content[position + HEADER_SIZE + 7 : position + HEADER_SIZE + 9]
            first = opened.pop(producer, -1)
            if kind == b"\x00\x00" and first >= 0:
                expected.append((producer, first, header[0]))
        elif header[5] & 0x10:
            opened.setdefault(producer, header[0])
        position += header[1] + LOG_OVERHEAD
    there = [(entry[0], entry[1], entry[2]) for entry in log.aborted_transactions(facts.start, facts.end)]
    missing = [entry for entry in expected if entry not in there]
    extra = [entry for entry in there if entry not in expected and entry[1] >= facts.start]
    return [f"the aborted transactions are {there}, not {expected}"] if missing or extra else []


# -- the second and the third start ----------------------------------------------------------------------------------


def _second(
    drive: bytes,
    found: dict[TopicPartition, Facts],
    seed: int,
    safeguards: Safeguards | None,
    now_ns: int,
    death: Death,
) -> list[str]:
    """The same death in the midst of the start: the next one comes to the same."""
    random = Streams(seed).stream("second")
    site = Site(pickle.loads(drive), seed, safeguards, now_ns)
    site.machine.loss = (random.choice(list(LossPattern)), random.choice(list(JournalLoss)))
    site.process.fuse, site.process.fuse_death = random.below(60), death
    site.load()
    site.settle()
    if site.machine.process is not None:
        site.process.fuse = None
        site.machine.end(death)
    site.settle()
    site.boot()
    again, wrong = _start(site)
    return [f"second start: {text}" for text in wrong or _changed(found, again)]


def _goes_on(site: Site, found: dict[TopicPartition, Facts]) -> list[str]:
    """A clean stop, and a start after it."""
    outcome = site.stop()
    if outcome is not None:
        return [f"the stop failed: {outcome} {site.machine.crashes}"]
    report = verify(DriveSource(site.drive), lambda _batches, _size: None)
    if not report.clean:
        found_damaged = [finding for finding in report.findings if not finding.harmless]
        return [f"after a clean stop: {finding.path}: {finding.message}" for finding in found_damaged]
    site.machine.end(Death.POWER_LOSS)
    site.settle()
    site.boot()
    again, wrong = _start(site)
    return [f"after a clean stop: {text}" for text in wrong or _changed(found, again)]


def _changed(found: dict[TopicPartition, Facts], again: dict[TopicPartition, Facts]) -> list[str]:
    wrong = []
    for tp in sorted({*found, *again}):
        one, other = found.get(tp), again.get(tp)
        if one is None or other is None:
            wrong.append(
                f"{tp} was {'not ' if one is None else ''}there, and is {'not ' if other is None else ''}there"
            )
            continue
        for name, before, now in zip(Facts._fields, one, other, strict=True):
            if before != now:
                shown = (len(before), len(now)) if isinstance(before, bytes) else (before, now)
                wrong.append(f"{tp}: {name} was {shown[0]}, is {shown[1]}")
    return wrong
