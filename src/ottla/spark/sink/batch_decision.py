"""The end of a batch that many tasks have written: which transactions it consists of, and the order in which they end.

Zone: deterministic. Requests go through the seam `BatchBroker`. Each task leaves a complete transaction open. The
transaction of partition 0 decides: its transactional id is that of the query, so that one attempt alone can end it. The
driver adds the list of all other transactions (the parts) to it, and ends it first. From then on the batch counts, and
the list is durable: the driver ends the parts, or after its death the next attempt at partition 0 does.

1. A part has a transactional id that no other attempt takes (`part_ids`): nothing aborts it between decision and end,
   except its timeout.
2. Before the decision all parts must be open. After it, a part that cannot be ended has committed, which the position
   in it shows, or its timeout has passed: then rows are missing, and the batch is reported, at each start.
3. Transactions of attempts that lost are listed before the decision, and fenced after it. Only the present driver gets
   a decision committed, so those are of this batch or an earlier one, and no later driver needs them.
4. Files of a table that belong to the batch are named in the decision as well. So they are those of the attempt whose
   rows are in the topics, and any driver can commit them to the table after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.errors import BadCheckpoint, ExpiredTransaction, IncompleteBatch, TooManyTasks
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.exactly_once import MOST_LISTS, Marker, TaskBatch

_LONGEST: Final = 3_800
"""Characters of a list in one position; brokers limit its metadata to 4,096 bytes (offset.metadata.max.bytes)."""
_SHOWN: Final = 20
REST: Final = "-rest"
"""Ends the sink's name in the identity of the rest of a batch (`mixed_batches`); names of sinks have no '-'."""


class Part(NamedTuple):
    """A complete transaction with the rows of one task."""

    partition: int
    name: str
    """Its transactional id."""
    producer_id: int
    epoch: int
    version: int
    """Of the transaction protocol."""


class Stray(NamedTuple):
    """An open transaction of an attempt at some batch of the query."""

    name: str
    producer_id: int
    epoch: int


class Batch(NamedTuple):
    """A batch whose tasks have written their rows."""

    turn: TaskBatch
    """Of partition 0."""
    rows: int
    parts: tuple[Part, ...]
    files: tuple[str, ...] = ()
    """Of a table: they become a part of it after the decision."""


class BatchBroker(Protocol):
    """The requests that end a batch; each may raise the client's errors, and then has or has not been carried out."""

    def list_open(self, base: str) -> Mapping[str, int]:
        """The open transactions whose ids begin with `base`, with their producer ids."""

    def describe_strays(self, names: Iterable[str]) -> Sequence[Stray]:
        """Those of these transactions that are open."""

    def send_decision(self, decider: Part, batch: Batch, lists: Sequence[OffsetAndMetadata]) -> None:
        """Add the marker of the batch and the lists of its parts to the transaction of partition 0."""

    def commit_decider(self, decider: Part) -> None:
        """Commit the transaction of partition 0. Raises Fenced if another attempt has taken its id."""

    def commit_part(self, part: Part) -> bool:
        """Commit a part, again if it was committed. False: the coordinator knows no such open transaction."""

    def is_part_committed(self, part: Part, turn: TaskBatch) -> bool:
        """Whether the position in the part's transaction is committed."""

    def abort(self, part: Part) -> bool:
        """Abort a transaction; False if that was refused, or the outcome is unknown."""

    def is_undecided(self, turn: TaskBatch) -> bool:
        """Whether it is certain that no decision about this batch is committed."""

    def fence_stray(self, stray: Stray) -> None:
        """Abort a transaction and take its id, if it is still the one that was described."""


def commit_batch(
    broker: BatchBroker, batch: Batch, decider: Part, *, is_open: bool, safeguards: SinkSafeguards = ALL_ON
) -> None:
    """Commit a batch as a whole. is_open: whether partition 0 has written anything.

    Raises ExpiredTransaction before anything is committed; Fenced, IncompleteBatch and the client's errors.
    """
    # One transaction, or none: it needs no list of parts.
    if not batch.parts:
        if batch.files:
            broker.send_decision(decider, batch, [])
        if is_open or batch.files:
            broker.commit_decider(decider)
        return
    base = parts_base(batch.turn)
    found = broker.list_open(base)
    closed = [part for part in batch.parts if found.get(part.name) != part.producer_id]
    if closed and safeguards.parts_checked:
        raise ExpiredTransaction(
            f"{_named(batch.turn)} cannot be committed: the transactions of partitions {_numbers(closed)} are not open "
            "any more. Either the batch took longer than kafka.transaction.timeout.ms (raise it: the broker allows up "
            "to its transaction.max.timeout.ms), or a second driver has written the batch. This driver has committed "
            "nothing; the next start of the query finds out"
        )
    strays = broker.describe_strays(found.keys() - {part.name for part in batch.parts})
    broker.send_decision(decider, batch, list_parts(batch) if safeguards.parts_recorded else [])
    broker.commit_decider(decider)
    finish_batch(broker, batch, safeguards)
    for stray in strays:
        broker.fence_stray(stray)


def finish_batch(broker: BatchBroker, batch: Batch, safeguards: SinkSafeguards = ALL_ON) -> None:
    """End the parts of a decided batch; any number of times. Raises IncompleteBatch and the client's errors."""
    ended = {part: broker.commit_part(part) for part in batch.parts}
    lost = [part for part, done in ended.items() if not done and not broker.is_part_committed(part, batch.turn)]
    if lost and safeguards.lost_parts_reported:
        raise IncompleteBatch(
            f"{_named(batch.turn)} is committed, but rows of partitions {_numbers(lost)} are missing: their "
            "transactions were aborted by the broker (kafka.transaction.timeout.ms) after the batch was decided and "
            "before they were ended, because the query did not run meanwhile. The rows of the other partitions are "
            "written. To write the batch again, its other rows a second time, run it with exactlyOnce=off; and start "
            "queries again within the timeout, or raise it"
        )


def abort_batch(broker: BatchBroker, turn: TaskBatch, decider: Part | None, parts: Sequence[Part]) -> None:
    """Abort the transactions of a failed batch, unless it is decided or may be."""
    if decider is not None and not broker.abort(decider) and not broker.is_undecided(turn):
        return
    abort_parts(broker, parts)


def abort_parts(broker: BatchBroker, parts: Sequence[Part]) -> None:
    """Abort parts that are in no decision."""
    for part in parts:
        broker.abort(part)


def parts_base(turn: TaskBatch) -> str:
    """The beginning of the transactional ids of the parts of a query: those of whole batches and of rests, so that each
    decision ends what an earlier batch has left open."""
    return f"{turn.prefix}{turn.query}-{turn.sink.removesuffix(REST)}-part-"


def list_name(turn: TaskBatch, number: int) -> str:
    """The group of a list of parts."""
    return f"{turn.prefix}{turn.query}-{turn.sink}-parts.{number}"


def file_list_name(turn: TaskBatch, number: int) -> str:
    """The group of a list of files."""
    return f"{turn.prefix}{turn.query}-{turn.sink}-files.{number}"


def list_parts(batch: Batch) -> list[OffsetAndMetadata]:
    """The parts of a batch as positions, each with as many as fit. Raises TooManyTasks."""
    base = parts_base(batch.turn)
    said = [
        json.dumps([part.name.removeprefix(base), *part._replace(name="")[2:], part.partition]) for part in batch.parts
    ]
    return _pack_lists(batch.turn, said, "tasks with rows")


def list_files(batch: Batch) -> list[OffsetAndMetadata]:
    """The files of a batch as positions, each with as many as fit. Raises TooManyTasks."""
    return _pack_lists(batch.turn, [json.dumps(each) for each in batch.files], "files")


def _pack_lists(turn: TaskBatch, entries: Sequence[str], kind: str) -> list[OffsetAndMetadata]:
    lists, size = list[list[str]](), _LONGEST
    for said in entries:
        size += len(said) + 1
        if size > _LONGEST:
            lists.append([])
            size = len(said) + 2
        lists[-1].append(said)
    if len(lists) > MOST_LISTS or any(len(said) > _LONGEST for said in entries):
        raise TooManyTasks(
            f"{_named(turn)} has {len(entries)} {kind}, more than a decision can name: write with fewer partitions "
            "(coalesce). Nothing was written"
        )
    return [OffsetAndMetadata(turn.batch + 1, -1, f"[{','.join(some)}]") for some in lists]


def parse_parts(turn: TaskBatch, marker: Marker, lists: Iterable[OffsetAndMetadata | None]) -> Batch:
    """The batch that a marker and its lists name. Raises BadCheckpoint."""
    base, parts = parts_base(turn), list[Part]()
    for found in lists:
        try:
            if found is None or found.offset != marker.batch + 1:
                raise ValueError
            for name, producer_id, epoch, version, partition in json.loads(found.metadata):
                numbers = (int(each) for each in (producer_id, epoch, version))
                parts.append(Part(int(partition), base + str(name), *numbers))
        except (ValueError, TypeError):
            raise BadCheckpoint(
                f"the list of the transactions of {_named(turn)} is damaged or missing: {found}. No other program may "
                f"commit positions of the groups {list_name(turn, 0)} and following. Rows of the batch may be missing; "
                "to write it again, rows perhaps twice, run it with exactlyOnce=off"
            ) from None
    return Batch(turn, marker.rows, tuple(parts))


def parse_files(turn: TaskBatch, marker: Marker, lists: Iterable[OffsetAndMetadata | None]) -> list[str]:
    """The files that a marker and its lists name. Raises BadCheckpoint."""
    files = list[str]()
    for found in lists:
        try:
            if found is None or found.offset != marker.batch + 1:
                raise ValueError
            files += [str(each) for each in json.loads(found.metadata)]
        except (ValueError, TypeError):
            raise BadCheckpoint(
                f"the list of the files of {_named(turn)} is damaged or missing: {found}. No other program may commit "
                f"positions of the groups {file_list_name(turn, 0)} and following. Rows of the batch are missing in "
                "the table; start the step with another name to write all rows again, into a new table"
            ) from None
    return files


def _named(turn: TaskBatch) -> str:
    return f"batch {turn.batch} of {turn.query}"


def _numbers(parts: Sequence[Part]) -> str:
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(str(part.partition) for part in parts[:_SHOWN]) + more
