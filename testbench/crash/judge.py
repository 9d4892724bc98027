"""Opens drives that lost power, and compares the logs with the model.

Zone: deterministic. `judge` opens the drives several times:

1. After the power cut, and compares the logs with the model.
2. With another power cut during that opening; the result must be the same.
3. After a clean stop; the result must be the same.
4. If a log was moving to another directory, or is compacted: the move or the cleaner must finish from there.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from ottla.sim.disks.drive import Drive, JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Death
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.layout import parse_future_dir
from ottla.storage.log import Log
from ottla.storage.log_loss import IncompleteLog
from ottla.storage.verify.directory import verify_directory
from ottla.types import ZERO_UUID, TopicPartition
from testbench.crash import compacted
from testbench.crash.drive_source import DriveSource
from testbench.crash.lookups import headers_in, lookups, read
from testbench.crash.model import Life, Model, State, Written
from testbench.crash.mover import Mover
from testbench.crash.site import LOOKS_MS, Site, is_compacted
from testbench.crash.story import Point


class Fate(Enum):
    """The effect of a death on data that no sync covered."""

    KILLED = "killed"
    """Only the process dies: all data is kept."""
    LOST = "lost"
    TORN = "torn"
    """Data up to a random point is kept, and half a page."""
    REORDERED = "reordered"
    """Each page and each change of names is kept or lost independently."""


LOSSES = {
    Fate.LOST: (LossPattern.NONE, JournalLoss.NONE),
    Fate.TORN: (LossPattern.PREFIX, JournalLoss.PREFIX),
    Fate.REORDERED: (LossPattern.EACH, JournalLoss.EACH),
}


class Facts(NamedTuple):
    """The state of one log after a start."""

    topic_id: bytes
    start: int
    end: int
    content: bytes
    """All batches from the log start on."""
    epochs: tuple[EpochEntry, ...]
    producers: tuple[tuple[int, ...], ...]


def after(point: Point, fate: Fate, seed: int) -> bytes:
    """The drives of a crash point after a death."""
    drives: list[Drive] = pickle.loads(point.drives)
    random = Streams(seed).named_stream("loss")
    for drive in drives:
        drive.on_process_gone()
        if fate in LOSSES:
            drive.power_loss(*LOSSES[fate], random)
    return pickle.dumps(drives, protocol=5)


def judge(point: Point, fate: Fate, seed: int, *, whole: bool = True) -> list[str]:
    """The findings after one crash; `whole`: also with the further starts."""
    drives = after(point, fate, seed)
    site = Site(pickle.loads(drives), seed, point.now_ns)
    found, wrong = _start(site)
    if wrong:
        return wrong
    wrong = _compare(site, found, point.model, killed=fate is Fate.KILLED)
    if wrong or not whole:
        return wrong
    death = Death.KILL if fate is Fate.KILLED else Death.POWER_LOSS
    wrong = _second(drives, found, seed, point.now_ns, death)
    killed = fate is Fate.KILLED
    wrong = wrong or _goes_on(site, found, _with_holes(site, found, point.model, killed=killed))
    return wrong or _moves_on(site, found) or _cleans_on(site, found, point.model, killed=killed)


def _start(site: Site) -> tuple[dict[TopicPartition, Facts], list[str]]:
    """Start, and read the state of all logs."""
    site.load()
    site.settle()
    wrong = [f"the start failed: {crash}" for crash in site.machine.crashes]
    if wrong:
        return {}, wrong
    offline = [each.offline for each in site.manager.dirs if each.offline is not None]
    if offline:
        return {}, [f"the directory is offline: {offline[0]}"]
    return _all(site), []


def _all(site: Site) -> dict[TopicPartition, Facts]:
    return {tp: _facts(log) for tp, log in site.logs().items()}


def _facts(log: Log) -> Facts:
    content = read(log, log.start_offset)
    return Facts(
        log.metadata.topic_id, log.start_offset, log.end_offset, content, log.epochs.entries,
        tuple(tuple(entry) for entry in log.producers.snapshot_entries()),
    )  # fmt: skip


# -- against the model -----------------------------------------------------------------------------------------------


def _compare(site: Site, found: dict[TopicPartition, Facts], model: Model, *, killed: bool) -> list[str]:
    wrong = [f"{tp} was never created" for tp in found if tp not in model.lives]
    for tp, lives in sorted(model.lives.items()):
        facts = found.get(tp)
        if facts is None:
            if lives[-1].named and not lives[-1].gone:
                wrong.append(f"{tp} is not there")
            continue
        now_ms = site.wall_ms if is_compacted(tp) else None
        fitting = [life for life in lives if facts.topic_id in (life.topic_id, ZERO_UUID)]
        reasons = [_unlike(facts, life, now_ms, killed=killed) for life in fitting]
        if not reasons:
            wrong.append(f"{tp} has the topic id {facts.topic_id.hex()}, which is none of its own")
        elif all(reasons):
            wrong.append(f"{tp}: {reasons[-1]}")
        log = site.manager.get_log(tp)
        assert log is not None
        if log.metadata.loss is IncompleteLog.WITHIN and len(site.drives) > 1 and not all(reasons):
            doomed = any(state.doomed for life in lives for state in life.older)
            if not doomed and (killed or not _has_hole(site, tp, facts, lives)):
                wrong.append(f"{tp} is reported to lack records")
        if is_compacted(tp) and not all(reasons):
            batches = _survived(facts, lives, site.wall_ms, killed=killed)
            wrong += [f"{tp}: {why}" for why in _notes(log, facts, batches)]
        wrong += [f"{tp}: {why}" for why in lookups(site, log, facts.content)]
    return wrong


def _survived(facts: Facts, lives: list[Life], now_ms: int, *, killed: bool) -> list[Written]:
    """The states in which a compacted log may be found after a loss."""
    states = ((state, life) for life in lives for state in (life.state, *life.older))
    possible = (left for state, life in states for left in _left(facts, state, life, killed))
    return next(left for left in possible if not _unlike_compacted(facts, left, now_ms)).batches


def _left(facts: Facts, state: State, life: Life, killed: bool) -> Iterator[State]:
    """Compare a compacted log with one state."""
    for batches in compacted.survivors(facts.content, state.batches, state.end if killed else life.synced):
        yield State(batches, state.starts, state.doomed, state.reach, state.lost)


def _notes(log: Log, facts: Facts, batches: list[Written]) -> list[str]:
    """Check the cleaner checkpoint of a compacted log, and its list of aborted transactions."""
    batches = [batch for batch in batches if batch.base < facts.end]
    aborted = [(entry[0], entry[1], entry[2]) for entry in log.segments.aborted_transactions(facts.start, facts.end)]
    reasons = (
        compacted.twice_below(facts.content, log.cleaning.checkpoint or 0, batches),
        compacted.hidden_wrongly(facts.content, aborted, batches),
    )
    return [reason for reason in reasons if reason]


def _unlike(facts: Facts, life: Life, now_ms: int | None, *, killed: bool) -> str:
    """Differences between the log and one life of its partition. `now_ms`: the time, for a compacted log."""
    if facts.end < life.synced:
        return f"it ends at {facts.end}, a flush had reported {life.synced}"
    if killed and facts.end < life.appended:
        return f"it ends at {facts.end}, the process had appended up to {life.appended}"
    reasons = []
    for state in (life.state, *life.older):
        if now_ms is None:
            reason = _unlike_state(facts, state)
        else:
            found = [_unlike_compacted(facts, left, now_ms) for left in _left(facts, state, life, killed)]
            reason = found[0] if all(found) else ""
        if not reason:
            return ""
        reasons.append(reason)
    return reasons[0]


def _is_left_of(facts: Facts, state: State) -> bool:
    """Whether the log consists of batches of a log that was to be removed as a whole."""
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
    if facts.start == facts.end:  # all records are lost, but the log start is kept, perhaps within a batch
        state = State([batch for batch in state.batches if batch.last < facts.end], state.starts)
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


def _unlike_compacted(facts: Facts, state: State, now_ms: int) -> str:
    if facts.start not in state.starts:
        return f"it starts at {facts.start}, which never was its start ({state.starts})"
    return (
        compacted.unlike(facts.content, facts.start, facts.end, state, now_ms)
        or compacted.of_other_epochs(facts.content, facts.epochs, facts.start)
        or _unlike_producers(facts, [batch for batch in state.batches if batch.base < facts.end])
    )


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


# -- the second and the third start ----------------------------------------------------------------------------------


def _second(
    drives: bytes,
    found: dict[TopicPartition, Facts],
    seed: int,
    now_ns: int,
    death: Death,
) -> list[str]:
    """Let the process die the same way during a start: the next start must have the same result."""
    random = Streams(seed).named_stream("second")
    site = Site(pickle.loads(drives), seed, now_ns)
    site.machine.loss = (random.choice(list(LossPattern)), random.choice(list(JournalLoss)))
    site.process.fuse, site.process.fuse_death = random.random_below(60), death
    site.load()
    site.settle()
    if site.machine.process is not None:
        site.process.fuse = None
        site.machine.end_process(death)
    site.settle()
    site.boot()
    again, wrong = _start(site)
    return [f"second start: {text}" for text in wrong or _changed(found, again)]


def _with_holes(site: Site, found: dict[TopicPartition, Facts], model: Model, *, killed: bool) -> list[str]:
    """The directories of compacted logs that lost a batch in their middle."""
    if killed:
        return []
    return [str(tp) for tp, facts in found.items() if _has_hole(site, tp, facts, model.lives[tp])]


def _has_hole(site: Site, tp: TopicPartition, facts: Facts, lives: list[Life]) -> bool:
    """Whether a power loss took a batch from the middle of a compacted log."""
    if not is_compacted(tp):
        return False
    left = _survived(facts, lives, site.wall_ms, killed=False)
    states = [state for life in lives for state in (life.state, *life.older)]
    log = site.manager.get_log(tp)
    assert log is not None
    from_offset = max(log.cleaning.checkpoint or 0, min(life.synced for life in lives))
    return all(left != state.batches or _lacks(facts, state, from_offset) for state in states)


def _lacks(facts: Facts, state: State, from_offset: int) -> bool:
    """Whether a batch is missing that no flush covered, above the cleaner checkpoint.

    It counts even if compaction would have dropped each of its records.
    """
    there = {header[0] for header in headers_in(facts.content)}
    return any(from_offset <= batch.base < facts.end and batch.base not in there for batch in state.batches)


def _goes_on(site: Site, found: dict[TopicPartition, Facts], holes: list[str]) -> list[str]:
    """Stop cleanly and start again. `holes`: directories whose logs are not compared."""
    outcome = site.stop()
    if outcome is not None:
        return [f"the stop failed: {outcome} {site.machine.crashes}"]
    for drive in site.drives:
        report = verify_directory(DriveSource(drive), lambda _batches, _size: None)
        found_damaged = [
            finding
            for finding in report.findings
            if not finding.harmless and finding.path.partition("/")[0] not in holes
        ]
        if found_damaged:
            return [f"after a clean stop: {finding.path}: {finding.message}" for finding in found_damaged]
    site.machine.end_process(Death.POWER_LOSS)
    site.settle()
    site.boot()
    again, wrong = _start(site)
    return [f"after a clean stop: {text}" for text in wrong or _changed(found, again)]


def _moves_on(site: Site, found: dict[TopicPartition, Facts]) -> list[str]:
    """Finish the moves: each log arrives in the other directory, and its old directory is removed."""
    if len(site.drives) == 1:
        return []
    mover = Mover(site)
    site.process.run_turn(mover.resume)
    if not mover.under_way:
        return []
    site.settle()
    wrong = list(site.machine.crashes) or _changed(found, _all(site))
    names = [name for drive in site.drives for name in drive.root.names]
    wrong += [f"{name} is still there" for name in names if parse_future_dir(name) in found]
    return [f"having moved on: {text}" for text in wrong]


def _cleans_on(site: Site, found: dict[TopicPartition, Facts], model: Model, *, killed: bool) -> list[str]:
    """Compact the logs that were found: readers must see the same records before and after."""
    if not any(is_compacted(tp) and facts.content for tp, facts in found.items()):
        return []
    site.machine.end_process(Death.KILL)
    site.settle()
    site.cleans = True
    site.boot()
    site.load()
    logs = site.logs()
    for log in logs.values():
        log.high_watermark = log.end_offset
    for _ in range(3):
        site.let_pass(2 * LOOKS_MS)
    wrong = list(site.machine.crashes)
    for tp, log in logs.items():
        if is_compacted(tp) and not wrong:
            batches = _survived(found[tp], model.lives[tp], site.wall_ms, killed=killed)
            wrong += [f"{tp}: {why}" for why in _as_cleaned(site, log, found[tp], batches)]
    return [f"when it was cleaned: {text}" for text in wrong]


def _as_cleaned(site: Site, log: Log, found: Facts, batches: list[Written]) -> list[str]:
    if log.cleaning.uncleanable is not None:
        return [log.cleaning.uncleanable]
    batches = compacted.as_written(found.content, batches)
    state = State(batches, [found.start])
    state.committed(found.end)
    facts = _facts(log)
    if _known(facts.producers) != _known(found.producers):
        return [f"producers were {found.producers}, are {facts.producers}"]
    if (facts.start, facts.end) != (found.start, found.end):
        return [f"it is from {facts.start} to {facts.end}, and was from {found.start} to {found.end}"]
    wrong = compacted.unlike(facts.content, facts.start, facts.end, state, site.wall_ms)
    return [wrong] if wrong else _notes(log, facts, batches)


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
            if name == "producers" and is_compacted(tp) and _known(one.producers) == _known(other.producers):
                continue
            if before != now:
                shown = (len(before), len(now)) if isinstance(before, bytes) else (before, now)
                wrong.append(f"{tp}: {name} was {shown[0]}, is {shown[1]}")
    return wrong


def _known(producers: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Producers without the time of their last batch, because the cleaner may have removed that record."""
    return [(*entry[:5], *entry[6:]) for entry in producers]
