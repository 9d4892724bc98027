"""What must hold of a producer's promises, one function per property.

Zone: pure. End-to-end: the outcomes that the application got, compared with the records that readers find in the logs.
The properties of a cluster are checked as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ottla.cluster.image import CONSUMER_OFFSETS
from ottla.sim.checkers import check_properties
from ottla.sim.clients.history import ClientHistory, Sent
from ottla.sim.cluster import checkers as cluster
from ottla.sim.cluster.history import ACKS_ALL
from ottla.sim.history import Outcome
from ottla.types import TopicPartition

SLACK_NS: Final = 100_000_000
"""A producer reads its clock only between two pieces of work, so it may be this late."""
PASSES_NEVER: Final = ("MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
"""Errors that stay when all faults are healed."""


def outcomes_come_once(history: ClientHistory) -> Iterator[str]:
    """Every accepted record has exactly one outcome."""
    for sent in history.sent:
        if sent.outcomes != 1:
            yield f"{_record_name(sent)} has {sent.outcomes} outcomes"


def outcomes_come_in_time(history: ClientHistory) -> Iterator[str]:
    """A record has its outcome before `delivery.timeout.ms` is over."""
    for sent in history.sent:
        took = sent.write.completed_ns - sent.write.invoked_ns
        if sent.outcomes and took > sent.promise.patience_ns + SLACK_NS:
            yield f"{_record_name(sent)} was decided after {took / 1e9:.3f} s"


def outcomes_come_in_order(history: ClientHistory) -> Iterator[str]:
    """With one request at a time, a partition's records are acknowledged in the order of their acceptance."""
    last: dict[tuple[str, str], Sent] = {}
    for sent in history.sent:
        if sent.outcomes and sent.promise.alone and not sent.error:
            before = last.setdefault((sent.write.producer, sent.write.log), sent)
            if sent.turn < before.turn:
                yield f"{_record_name(sent)} was decided before record {before.number}"
            last[sent.write.producer, sent.write.log] = sent


def failures_have_a_reason(history: ClientHistory) -> Iterator[str]:
    """A record fails only because its time is over, it was refused for good, or its sequence was lost."""
    yield from history.unfounded


def acknowledged_is_there(history: ClientHistory) -> Iterator[str]:
    """An acknowledged record is in the log, even if the broker did not remember its offset."""
    there = {log: set(found.values()) for log, found in history.final.items()}
    for sent in history.sent:
        write = sent.write
        lossy = write.acks != ACKS_ALL or write.log in history.deleted or not history.is_judged(write.log)
        if write.outcome is Outcome.OK and not lossy and write.values[0] not in there.get(write.log, write.values):
            yield f"{_record_name(sent)} was acknowledged but is not in the log"


def sent_order_is_kept(history: ClientHistory) -> Iterator[str]:
    """In a log the records of an idempotent producer are in the order in which it accepted them."""
    numbers = {(s.write.log, s.write.values[0]): s for s in history.sent if s.promise.idempotent}
    for log, found in history.final.items():
        last: dict[str, Sent] = {}
        for offset in sorted(found):
            sent = numbers.get((log, found[offset]))
            if sent is None:
                continue
            before = last.setdefault(sent.write.producer, sent)
            if sent.number < before.number:
                yield f"{_record_name(sent)} is at {offset}, after record {before.number}"
            last[sent.write.producer] = sent


def told_order_is_kept(history: ClientHistory) -> Iterator[str]:
    """Acknowledged offsets rise in the order of acceptance, where order is promised and nothing may be lost."""
    last: dict[tuple[str, str], Sent] = {}
    for sent in history.sent:
        write = sent.write
        if not sent.promise.ordered or not history.is_promised(write) or not history.is_judged(write.log):
            continue
        before = last.get((write.producer, write.log))
        if before is not None and write.offset <= before.write.offset:
            earlier = f"record {before.number} before it at {before.write.offset}"
            yield f"{_record_name(sent)} is at {write.offset}, {earlier}"
        last[write.producer, write.log] = sent


def calm_is_delivered(history: ClientHistory) -> Iterator[str]:
    """Records that are sent after everything was healed are delivered."""
    for sent in history.sent:
        if sent.calm and sent.error and not any(word in sent.error for word in PASSES_NEVER):
            yield f"{_record_name(sent)} failed in a healthy cluster: {sent.error}"


def clients_sleep(history: ClientHistory) -> Iterator[str]:
    """A producer without work waits; it does not spin."""
    yield from history.restless


def one_owner_per_generation(history: ClientHistory) -> Iterator[str]:
    """In a generation of a group a partition has one owner.

    If the topic of the groups lost data on all in-sync replicas, the next coordinator counts from an older generation.
    """
    if CONSUMER_OFFSETS in history.lossy_topics:
        return
    owners: dict[tuple[str, int, TopicPartition], str] = {}
    for owned in history.owned:
        for tp in owned.partitions:
            first = owners.setdefault((owned.group, owned.generation, tp), owned.member)
            if first != owned.member:
                yield f"{owned.group} generation {owned.generation}: {tp} belongs to {first} and {owned.member}"


def members_stay(history: ClientHistory) -> Iterator[str]:
    """No member gets an error that it cannot recover from."""
    yield from history.expelled


def _record_name(sent: Sent) -> str:
    return f"record {sent.number} of {sent.write.producer} for {sent.write.log}"


Checker = Callable[[ClientHistory], Iterator[str]]
CHECKERS: Final[tuple[Checker, ...]] = (
    *cluster.CHECKERS,
    outcomes_come_once,
    outcomes_come_in_time,
    outcomes_come_in_order,
    failures_have_a_reason,
    acknowledged_is_there,
    sent_order_is_kept,
    told_order_is_kept,
    calm_is_delivered,
    clients_sleep,
    one_owner_per_generation,
    members_stay,
)
BESIDE: Final = cluster.BESIDE | {"clients_sleep"}
"""Properties that do not prove anything about a safeguard that is switched off."""


def find_violations(history: ClientHistory, at_most: int = 5) -> list[tuple[str, str]]:
    """The violations in a history: (property, sentence), at most `at_most` per property."""
    return check_properties(history, CHECKERS, at_most)
