"""What must hold for every history, one function per property.

Zone: pure. End-to-end only: a checker sees what clients saw and which losses the machine suffered. It does not see the
inside of the broker. Each checker returns the violations it found, as sentences.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from ottla.sim.history import NEVER, History, Outcome, Passage, Read, Write, unpack_record
from ottla.sim.world import MS

H = TypeVar("H", bound=History)
Values = dict[bytes, list[bytes | None]]


def broker_stays_up(history: History) -> Iterator[str]:
    """No exception leaves a turn: the broker answers operating errors and survives them."""
    for crash in history.crashes:
        yield f"the broker crashed: {crash}"


def protocol_is_kept(history: History) -> Iterator[str]:
    """Every answer can be decoded, belongs to the oldest open request, and has no trailing bytes."""
    yield from history.broken_protocol


def bytes_are_right(history: History) -> Iterator[str]:
    """Readers get whole batches with correct checksums, and only values that a producer sent to that log."""
    sent = {(write.log, value) for write in history.writes for value in write.values}
    for read in history.reads:
        if read.damage:
            yield f"{read.reader} read {read.log} at {read.position}: {read.damage}"
        for offset, value in read.records:
            if (read.log, value) not in sent:
                yield f"{read.reader} read {read.log} at {offset}: no producer sent the value {value[:40]!r} there"


def acknowledged_is_kept(history: History) -> Iterator[str]:
    """Every acknowledged record is in the log at the end, unless it was deleted, or lost before it was synced."""
    for write in history.writes:
        if not history.is_promised(write) or write.log not in history.final:
            continue
        found = history.final[write.log]
        for offset, value in enumerate(write.values, write.offset):
            if found.get(offset) != value and not history.may_be_lost(write.log, offset, write.life):
                there = found.get(offset)
                found_text = _shorten_value(there)
                yield f"lost: {write.log} at {offset}, acknowledged in life {write.life}; there is {found_text}"


def flushed_is_kept(history: History) -> Iterator[str]:
    """With flush.messages=1 every acknowledged record is in the log at the end, whatever faults the machine had."""
    for write in history.writes:
        log = write.log
        if log not in history.flushed or log in history.rewritten or log in history.dropped:
            continue
        if not history.is_promised(write) or log not in history.final:
            continue
        for offset, value in enumerate(write.values, write.offset):
            if history.final[log].get(offset) != value and not history.may_be_missing(log, offset):
                yield f"lost although flushed: {log} at {offset}, acknowledged in life {write.life}"


def seen_is_kept(history: History) -> Iterator[str]:
    """Every record that a reader got is in the log at the end, with the same exceptions."""
    for read in history.reads:
        found = history.final.get(read.log)
        if found is None:
            continue
        for offset, value in read.records:
            if found.get(offset) != value and not history.may_be_lost(read.log, offset, read.life):
                yield f"read, then lost: {read.log} at {offset}, read by {read.reader} in life {read.life}"


def one_offset_one_value(history: History) -> Iterator[str]:
    """Within one era, all acknowledgements and reads of an offset agree on its value."""
    seen: dict[tuple[str, int, int], bytes] = {}
    for log, offset, value, life in _observed_values(history):
        if not history.is_judged(log):
            continue
        key = (log, offset, history.loss_era(log, offset, life))
        first = seen.setdefault(key, value)
        if first != value:
            yield f"two values: {log} at {offset} in life {life}: {_shorten_value(first)} and {_shorten_value(value)}"


def _observed_values(history: History) -> Iterator[tuple[str, int, bytes, int]]:
    for write in history.writes:
        if history.is_promised(write):
            for offset, value in enumerate(write.values, write.offset):
                yield write.log, offset, value, write.life
    for read in history.reads:
        for offset, value in read.records:
            yield read.log, offset, value, read.life
    for log, found in history.final.items():
        for offset, value in found.items():
            yield log, offset, value, history.final_life


def offsets_are_dense(history: History) -> Iterator[str]:
    """Within one Fetch answer the offsets rise by one."""
    for read in history.reads:
        for (before, _), (after, _) in zip(read.records, read.records[1:], strict=False):
            if after != before + 1:
                yield f"{read.reader} read {read.log}: {after} after {before}"
                break


def readers_see_no_jump(history: History) -> Iterator[str]:
    """The first record of an answer has the requested offset; only a reset moves a reader to the log start."""
    for read in history.reads:
        if read.records and read.records[0][0] != read.position:
            yield f"{read.reader} asked {read.log} for {read.position} and got {read.records[0][0]}"


def watermarks_are_ordered(history: History) -> Iterator[str]:
    """logStart ≤ position ≤ high watermark in every answer, and no record at or above the high watermark."""
    for read in history.reads:
        if not read.log_start <= read.high_watermark:
            yield f"{read.log}: log start {read.log_start} above high watermark {read.high_watermark}"
        if read.records and read.records[-1][0] >= read.high_watermark:
            yield f"{read.log}: {read.records[-1][0]} was served, high watermark is {read.high_watermark}"
    for ends in history.ends:
        if ends.earliest > ends.latest:
            yield f"{ends.log}: earliest {ends.earliest} above latest {ends.latest}"


def watermarks_never_go_back(history: History) -> Iterator[str]:
    """On one connection neither the high watermark nor the log start goes back."""
    highest: dict[tuple[str, int], Read] = {}
    for read in history.reads:
        before = highest.get((read.log, read.connection))
        highest[read.log, read.connection] = read
        if before is None or not history.is_judged(read.log):
            continue
        if read.high_watermark < before.high_watermark:
            yield f"{read.log}: high watermark {read.high_watermark} after {before.high_watermark}"
        if read.log_start < before.log_start:
            yield f"{read.log}: log start {read.log_start} after {before.log_start}"


def positions_stay_in_range(history: History) -> Iterator[str]:
    """A reader gets OFFSET_OUT_OF_RANGE only after a deletion or a loss that can explain it."""
    for reset in history.resets:
        if reset.position < history.deleted.get(reset.log, 0) or not history.is_judged(reset.log):
            continue
        # A loss before this life may have removed the reader's position from the end of the log.
        lossy = any(loss.life < reset.life and loss.floors.get(reset.log, NEVER) < NEVER for loss in history.losses)
        if not lossy and reset.log not in history.dropped:
            yield f"{reset.reader} at {reset.position} of {reset.log}: out of range in life {reset.life} without a loss"


def idempotent_is_once(history: History) -> Iterator[str]:
    """A value of an idempotent producer is at one offset at most."""
    writes = {(w.log, value): w for w in history.writes if w.idempotent for value in w.values}
    for log, found in _log_views(history):
        places: dict[bytes, int] = {}
        for offset, value in found:
            if (log, value) in writes and places.setdefault(value, offset) != offset:
                yield f"twice: {log} at {places[value]} and {offset}: {_shorten_value(value)}"


def idempotent_is_in_order(history: History) -> Iterator[str]:
    """In a log the values of one producer id and epoch are in the order of their sequence numbers."""
    order: dict[tuple[str, bytes], tuple[tuple[int, int], int]] = {}
    for write in history.writes:
        if write.idempotent:
            for index, value in enumerate(write.values):
                order[write.log, value] = ((write.producer_id, write.epoch), write.sequence + index)
    for log, found in _log_views(history):
        last: dict[tuple[int, int], int] = {}
        for offset, value in found:
            entry = order.get((log, value))
            if entry is None:
                continue
            producer, sequence = entry
            if sequence < last.get(producer, -1):
                yield f"out of order: {log} at {offset}: sequence {sequence} after {last[producer]}"
            last[producer] = sequence


def _log_views(history: History) -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """Every consistent view of a log: the final one, and each single Fetch answer."""
    for log, found in history.final.items():
        yield log, sorted(found.items())
    for read in history.reads:
        yield read.log, read.records


def sequences_are_remembered(history: History) -> Iterator[str]:
    """No producer is refused for its next sequence number as long as none of its batches may have been lost."""
    for refusal in history.refusals:
        lossy = any(
            refusal.since_life <= loss.life < refusal.life and loss.floors.get(refusal.log, NEVER) < NEVER
            for loss in history.losses
        )
        if not lossy and history.is_judged(refusal.log):
            yield f"{refusal.producer} on {refusal.log}: {refusal.code} in life {refusal.life} without a loss"


def refused_is_absent(history: History) -> Iterator[str]:
    """A batch whose every attempt was refused for good is never read."""
    refused = {(w.log, v) for w in history.writes if w.outcome is Outcome.FAIL for v in w.values}
    for log, found in _log_views(history):
        for offset, value in found:
            if (log, value) in refused:
                yield f"refused but readable: {log} at {offset}: {_shorten_value(value)}"


def latest_is_shown(history: History) -> Iterator[str]:
    """At the end every replica of a compacted log has the last value of each key, and no key that was deleted."""
    for log in history.compacted:
        allowed = _allowed_values(history, log)
        for (of, broker), found in history.shown.items():
            if of == log:
                yield from _check_shown_values(log, broker, found, allowed)


def _check_shown_values(log: str, broker: int, found: dict[bytes, bytes | None], allowed: Values) -> Iterator[str]:
    for key in sorted({*found, *allowed}):
        value, wanted = found.get(key), allowed.get(key, [None])
        if value in wanted:
            continue
        if wanted == [None]:
            yield f"{log}: broker {broker} shows {value!r} of the deleted key {key.decode()}"
        else:
            yield f"{log}: broker {broker} shows {value!r} of the key {key.decode()}, the last was {wanted[0]!r}"


def _allowed_values(history: History, log: str) -> Values:
    """Key → values that a reader may find: the last one that cannot be lost, all later ones, and uncertain ones.

    One producer writes a key, and it writes the batches of a partition in the order in which it made them.
    """
    last: Values = {}
    unsure: Values = {}
    for write in history.writes:
        if write.log != log or write.outcome is Outcome.FAIL:
            continue
        end = NEVER - 1 if write.offset < 0 else write.offset + len(write.values) - 1
        taken = history.may_be_taken(log, end, write.life)
        for text in write.values:
            key, value = unpack_record(text)
            # 1. Without an acknowledgement the value may be in the log or not: it is allowed, but proves nothing.
            # 2. An acknowledged value that a loss may have taken is allowed beside all values before it.
            # 3. An acknowledged value that no loss can have taken replaces every value before it.
            if write.outcome is not Outcome.OK:
                unsure.setdefault(key, []).append(value)
            elif taken:
                last.setdefault(key, [None]).append(value)
            else:
                last[key] = [value]
    for key, values in unsure.items():
        last.setdefault(key, [None]).extend(values)
    return last


def deletions_are_told(history: History) -> Iterator[str]:
    """A reader of a compacted log gets every tombstone that is younger than delete.retention.ms."""
    for log, retention_ms in history.compacted.items():
        passages = [passage for passage in history.passages if passage.log == log]
        times = [passage.at_ns for passage in passages]
        for write in history.writes:
            if write.log != log or write.outcome is not Outcome.OK or write.offset < 0:
                continue
            last_ns = write.invoked_ns + retention_ms * MS
            # Brokers measure the age of a tombstone by the wall clock: a jump may end its retention early.
            if any(write.invoked_ns <= jump <= last_ns for jump in history.jumps):
                continue
            within = passages[bisect_right(times, write.completed_ns) : bisect_left(times, last_ns)]
            for offset, text in enumerate(write.values, write.offset):
                if text.endswith(b"=") and not history.may_be_taken(log, offset, write.life):
                    yield from _missing_tombstones(offset, within)


def _missing_tombstones(offset: int, passages: list[Passage]) -> Iterator[str]:
    for passage in passages:
        if passage.position <= offset < passage.following and offset not in passage.offsets:
            yield (
                f"{passage.log}: a reader from {passage.position} to {passage.following} did not get the tombstone "
                f"at {offset}"
            )


def everything_converges(history: History) -> Iterator[str]:
    """After all faults are healed producers get their acknowledgements and readers reach the end of the log."""
    for what in history.stuck:
        yield f"stuck: {what}"


def _shorten_value(value: bytes | None) -> str:
    return "nothing" if value is None else repr(value[:32])


CHECKERS: Final[tuple[Callable[[History], Iterator[str]], ...]] = (
    broker_stays_up,
    protocol_is_kept,
    bytes_are_right,
    acknowledged_is_kept,
    flushed_is_kept,
    seen_is_kept,
    one_offset_one_value,
    offsets_are_dense,
    readers_see_no_jump,
    watermarks_are_ordered,
    watermarks_never_go_back,
    positions_stay_in_range,
    idempotent_is_once,
    idempotent_is_in_order,
    sequences_are_remembered,
    refused_is_absent,
    latest_is_shown,
    deletions_are_told,
    everything_converges,
)


def find_violations(history: History, at_most: int = 5) -> list[tuple[str, str]]:
    """The violations in a history: (property, sentence), at most `at_most` per property."""
    return check_properties(history, CHECKERS, at_most)


def check_properties(
    history: H, properties: Iterable[Callable[[H], Iterator[str]]], at_most: int
) -> list[tuple[str, str]]:
    """Check a history for the given properties; the result is that of `find_violations`."""
    return [(each.__name__, sentence) for each in properties for sentence in islice(each(history), at_most)]


__all__ = ["CHECKERS", "Write", "check_properties", "find_violations"]
