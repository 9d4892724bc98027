"""What must hold for every history of a cluster, one function per property.

Zone: pure. A cluster has to look like one broker that never dies, so the properties of one broker
(`ottla.sim.checkers`) hold as well; this module adds more. Most of them see only what clients saw; those in BESIDE
also see replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ottla.sim import checkers
from ottla.sim.cluster.history import ACKS_ALL, ClusterHistory
from ottla.sim.history import Outcome, Read


def one_leader_per_epoch(history: ClusterHistory) -> Iterator[str]:
    """In one leader epoch only one broker appends to a log, and Metadata names only one leader."""
    yield from history.rivals
    writers: dict[tuple[str, int], int] = {}
    epochs = _batch_epochs(history)
    for write in history.writes:
        epoch = epochs.get((write.log, write.offset))
        if epoch is None or not history.is_promised(write) or write.sends != 1 or not history.is_judged(write.log):
            # A batch that was sent more than once may have been written by one broker and acknowledged by another.
            continue
        first = writers.setdefault((write.log, epoch), write.life)
        if first != write.life:
            yield f"{write.log}: brokers {first} and {write.life} both wrote in leader epoch {epoch}"


def _batch_epochs(history: ClusterHistory) -> dict[tuple[str, int], int]:
    """Leader epochs of batches by log and base offset, as readers found them."""
    return {(read.log, base): epoch for read in history.reads for base, epoch in read.epochs}


def epochs_only_rise(history: ClusterHistory) -> Iterator[str]:
    """Along a log leader epochs never go back."""
    for read in history.reads:
        for (_, before), (base, after) in zip(read.epochs, read.epochs[1:], strict=False):
            if after < before:
                yield f"{read.log}: epoch {after} at {base} after epoch {before}, read by {read.reader}"


def watermarks_never_go_back(history: ClusterHistory) -> Iterator[str]:
    """In one leader epoch, on one connection, neither the high watermark nor the log start goes back."""
    highest: dict[tuple[str, int, int], Read] = {}
    for read in history.reads:
        key = (read.log, read.connection, read.epoch)
        before = highest.get(key)
        highest[key] = read
        if before is None or not history.is_judged(read.log):
            continue
        if read.high_watermark < before.high_watermark:
            yield f"{read.log} epoch {read.epoch}: high watermark {read.high_watermark} after {before.high_watermark}"
        if read.log_start < before.log_start:
            yield f"{read.log} epoch {read.epoch}: log start {read.log_start} after {before.log_start}"


def duplicates_are_kept(history: ClusterHistory) -> Iterator[str]:
    """A batch that was acknowledged as a duplicate is in the log at the end, if the log can have lost nothing."""
    values: dict[str, set[bytes]] = {}
    for write in history.writes:
        log = write.log
        if write.outcome is not Outcome.OK or write.offset >= 0 or write.acks != ACKS_ALL or not history.keeps_all(log):
            continue
        kept = values.setdefault(log, set(history.final[log].values()))
        if not kept.issuperset(write.values):
            yield f"lost: {log}: sequence {write.sequence} of {write.producer}, a duplicate to broker {write.life}"


def acks_reach_min_isr(history: ClusterHistory) -> Iterator[str]:
    """When a record is acknowledged with acks=all, at least min.insync.replicas replicas have it."""
    yield from history.too_few


def logs_agree_below_watermark(history: ClusterHistory) -> Iterator[str]:
    """Below both high watermarks two replicas have the same bytes, at any time."""
    yield from history.divergent


def replicas_are_identical(history: ClusterHistory) -> Iterator[str]:
    """After healing all replicas of a log have the same bytes, up to the high watermark that is their end."""
    yield from history.unequal


Checker = Callable[[ClusterHistory], Iterator[str]]
CHECKERS: Final[tuple[Checker, ...]] = (
    checkers.broker_stays_up,
    checkers.protocol_is_kept,
    checkers.bytes_are_right,
    checkers.acknowledged_is_kept,
    duplicates_are_kept,
    checkers.flushed_is_kept,
    checkers.seen_is_kept,
    checkers.one_offset_one_value,
    checkers.offsets_are_dense,
    checkers.readers_see_no_jump,
    checkers.watermarks_are_ordered,
    watermarks_never_go_back,
    checkers.positions_stay_in_range,
    checkers.idempotent_is_once,
    checkers.idempotent_is_in_order,
    checkers.sequences_are_remembered,
    checkers.refused_is_absent,
    one_leader_per_epoch,
    epochs_only_rise,
    acks_reach_min_isr,
    logs_agree_below_watermark,
    replicas_are_identical,
    checkers.everything_converges,
)
BESIDE: Final = frozenset(
    {"broker_stays_up", "everything_converges", "acks_reach_min_isr", "logs_agree_below_watermark"}
)
"""Properties that see more than clients do, or that an assertion breaks: they do not count as end-to-end evidence."""


def find_violations(history: ClusterHistory, at_most: int = 5) -> list[tuple[str, str]]:
    """The violations in a history: (property, sentence), at most `at_most` per property."""
    return checkers.check_properties(history, CHECKERS, at_most)
