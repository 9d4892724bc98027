"""Properties of the logs and of the producer's book, after all requests have arrived and every transaction timed out.

Zone: deterministic. One function per property, which yields sentences about violations. `gather_found` collects their
input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ottla.coordinator.shard import Completion
from ottla.errors import ApiError
from ottla.groups.commands import FetchOffsets
from ottla.record.batch import batches_of, records_of
from ottla.record.control import parse_marker
from ottla.sim.reorder.client import GROUP, NAME, Entry, Producer
from ottla.sim.reorder.harness import Harness
from ottla.sim.reorder.partitions import DATA, OFFSETS, PLACES, STATE
from ottla.transactions.codec import TransactionCodec
from ottla.transactions.commands import DescribeTransaction
from ottla.transactions.state import ProducerIdentity, Transaction
from ottla.types import TopicPartition

_MAX: Final = 1 << 20


class Batch(NamedTuple):
    """A batch of a log: its values, or the decision of a marker."""

    offset: int
    identity: ProducerIdentity
    values: tuple[bytes, ...]
    commit: bool | None


class Found(NamedTuple):
    """Input of the properties."""

    book: Sequence[Entry]
    complaints: Sequence[str]
    ends: dict[TopicPartition, tuple[int, int]]
    """Last stable offset and log end of each partition."""
    batches: Sequence[Batch]
    """Batches of the topic below the last stable offset."""
    written: Sequence[bytes]
    visible: Sequence[bytes]
    """The values that a read_committed reader gets."""
    position: int | str
    """The committed offset of the group, -1: none; or the name of an error."""
    transaction: Transaction | str
    """The state at the coordinator, or the name of an error."""
    decided: frozenset[tuple[ProducerIdentity, bool]]
    """The decisions in the coordinator's log: whose transaction ends, and whether it commits."""
    marked: frozenset[tuple[ProducerIdentity, bool]]
    """The decisions in the markers of all partitions."""


def gather_found(stage: Harness, producer: Producer) -> Found:
    """Collect the input of the properties."""
    batches = _log_batches(stage, DATA)
    ends = {}
    for place in PLACES:
        partition = stage.find_partition(place)
        ends[place] = (partition.last_stable_offset, partition.log.end_offset)
    return Found(
        producer.book,
        producer.complaints,
        ends,
        batches,
        [value for batch in batches for value in batch.values],
        _visible_values(stage, batches),
        _group_position(stage),
        _describe_transaction(stage),
        frozenset(_logged_decisions(stage)),
        frozenset(_marker_decisions(batches)) | frozenset(_marker_decisions(_log_batches(stage, OFFSETS))),
    )


def _log_batches(stage: Harness, place: TopicPartition) -> list[Batch]:
    view = _log_content(stage, place)
    return [_read_batch(view, pos, header) for pos, header in batches_of(view)]


def _log_content(stage: Harness, place: TopicPartition) -> memoryview:
    """The bytes of a log below its last stable offset."""
    partition = stage.find_partition(place)
    region = partition.read(0, _MAX, partition.last_stable_offset, True, warmed=True)
    content = bytearray(0 if region is None else region.size)
    if region is not None:
        region.file.read_now(region.pos, memoryview(content))
    return memoryview(content)


def _marker_decisions(batches: Sequence[Batch]) -> Iterator[tuple[ProducerIdentity, bool]]:
    return ((batch.identity, batch.commit) for batch in batches if batch.commit is not None)


def _logged_decisions(stage: Harness) -> Iterator[tuple[ProducerIdentity, bool]]:
    codec, view = TransactionCodec(), _log_content(stage, STATE)
    for pos, _ in batches_of(view):
        for record in records_of(view, pos, max_bytes=_MAX):
            entry = codec.decode(record.key, record.value)
            if entry is not None and entry.transaction is not None and entry.transaction.status.ending:
                yield entry.transaction.identity, entry.transaction.status.commits


def _read_batch(view: memoryview, pos: int, header: Any) -> Batch:
    records = list(records_of(view, pos, max_bytes=_MAX))
    identity = ProducerIdentity(header.producer_id, header.producer_epoch)
    if not header.is_control:
        return Batch(header.base_offset, identity, tuple(record.value or b"" for record in records), None)
    marker = parse_marker(records[0].key, records[0].value)
    return Batch(header.base_offset, identity, (), marker is not None and marker.commit)


def _visible_values(stage: Harness, batches: Sequence[Batch]) -> list[bytes]:
    """Filter like a consumer: drop records of aborted transactions, from their first offset to the marker (KIP-98)."""
    log = stage.find_partition(DATA).log
    waiting = sorted(
        (each.first_offset, each.producer_id) for each in log.segments.aborted_transactions(0, log.end_offset)
    )
    values: list[bytes] = []
    dropping: set[int] = set()
    for batch in batches:
        while waiting and waiting[0][0] <= batch.offset:
            dropping.add(waiting.pop(0)[1])
        if batch.commit is not None:
            dropping.discard(batch.identity.producer_id)
        elif batch.identity.producer_id not in dropping:
            values += batch.values
    return values


def _ask_coordinator(stage: Harness, submit: Callable[[Completion[Any]], None]) -> Any:
    answers: list[Any] = []
    stage.run_turn(lambda: submit(answers.append))
    stage.pass_ms(100)
    (answer,) = answers
    return answer


def _group_position(stage: Harness) -> int | str:
    wanted = [("t", [0])]
    groups = stage.coordinators.groups
    answer = _ask_coordinator(
        stage, lambda ticket: groups.submit_command(FetchOffsets(ticket, GROUP, wanted, require_stable=True))
    )
    if isinstance(answer, ApiError):
        return answer.code.name
    (row,) = answer
    if row.code:
        return str(row.code.name)
    return -1 if row.position is None else int(row.position.offset)


def _describe_transaction(stage: Harness) -> Transaction | str:
    transactions = stage.coordinators.transactions
    answer = _ask_coordinator(stage, lambda ticket: transactions.submit_command(DescribeTransaction(NAME, ticket)))
    return answer.code.name if isinstance(answer, ApiError) else answer


# -- properties --------------------------------------------------------------------------------------------------------


def nothing_hangs(seen: Found) -> Iterator[str]:
    """No transaction is open in any partition."""
    for place in (OFFSETS, DATA):
        stable, end = seen.ends[place]
        if stable != end:
            yield f"{place} ends at {end}, and its last stable offset is {stable}"
    if isinstance(seen.position, str):
        yield f"the group's position is {seen.position}"


def the_coordinator_rests(seen: Found) -> Iterator[str]:
    """The transaction is complete at the coordinator."""
    if isinstance(seen.transaction, str) or not seen.transaction.status.resting:
        yield f"{STATE} has {seen.transaction}"


def markers_are_decided(seen: Found) -> Iterator[str]:
    """Every marker agrees with a decision in the coordinator's log."""
    for identity, commit in sorted(seen.marked - seen.decided):
        yield f"a marker {'commits' if commit else 'aborts'} {identity}; decided is {sorted(seen.decided)}"


def transactions_are_apart(seen: Found) -> Iterator[str]:
    """Each marker ends records of one transaction only."""
    present: dict[int, list[bytes]] = {}
    for batch in seen.batches:
        if batch.commit is None:
            present.setdefault(batch.identity.producer_id, []).extend(batch.values)
        else:
            inside = present.pop(batch.identity.producer_id, [])
            if len(set(inside)) > 1:
                yield f"one transaction at offset {batch.offset} has the records {inside}"


def acknowledged_is_written(seen: Found) -> Iterator[str]:
    """An acknowledged record is in the log, whether its transaction committed or not."""
    for entry in seen.book:
        if entry.record and entry.value not in seen.written:
            yield f"the record of transaction {entry.number} was acknowledged, but is not in the log"


def records_are_once(seen: Found) -> Iterator[str]:
    """No record is visible twice."""
    if len(set(seen.visible)) < len(seen.visible):
        yield f"visible: {list(seen.visible)}"


def visible_if_committed(seen: Found) -> Iterator[str]:
    """A record is visible if and only if its transaction committed."""
    for entry in seen.book:
        is_visible = entry.value in seen.visible
        if is_visible and not entry.requested:
            yield f"the record of transaction {entry.number}, whose commit was not requested, is visible"
        elif entry.confirmed is True and not is_visible:
            yield f"transaction {entry.number} is committed, and its record is not visible"
        elif entry.confirmed is False and is_visible:
            yield f"transaction {entry.number} is aborted, and its record is visible"


def offsets_go_with_records(seen: Found) -> Iterator[str]:
    """The offset of the group is that of the last committed transaction."""
    committed = [entry for entry in seen.book if entry.value in seen.visible]
    expected = committed[-1].position if committed else -1
    if seen.position != expected:
        numbers = [entry.number for entry in committed]
        yield f"the group is at {seen.position}, the transactions {numbers} are committed: {expected}"


def nobody_is_fenced_for_nothing(seen: Found) -> Iterator[str]:
    """A producer that is alone and in time gets no fatal error."""
    yield from seen.complaints


PROPERTIES: Final = (
    nothing_hangs,
    the_coordinator_rests,
    markers_are_decided,
    transactions_are_apart,
    acknowledged_is_written,
    records_are_once,
    visible_if_committed,
    offsets_go_with_records,
    nobody_is_fenced_for_nothing,
)


def find_violations(seen: Found) -> list[tuple[str, str]]:
    """The violations: (property, sentence)."""
    return [(check.__name__, text) for check in PROPERTIES for text in check(seen)]
