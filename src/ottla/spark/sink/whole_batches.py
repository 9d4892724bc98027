"""The requests that end a batch of many tasks, and the results of its tasks.

Zone: real. `batch_decision` decides the order. Used by the driver, and by the attempt that finds a batch decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.client.admin.transactions import TransactionAdmin
from ottla.client.batch_transaction import BatchTransaction, ConnectionCache, Prepared, end_transaction, is_fenced
from ottla.client.errors import ClientError, RefusedError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.producer.partition_queue import ProducerId
from ottla.client.producer.txn_calls import TxnCalls
from ottla.client.retry import Deadline
from ottla.client.stable_positions import present_positions, stable_positions
from ottla.errors import ErrorCode
from ottla.spark.errors import BadCheckpoint, Fenced
from ottla.spark.offset_metadata import may_replace
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.batch_decision import (
    Batch,
    Part,
    Stray,
    file_list_name,
    finish_batch,
    list_files,
    list_name,
    parse_files,
    parse_parts,
)
from ottla.spark.sink.exactly_once import (
    MARKER,
    Marker,
    TaskBatch,
    already_written,
    marker_position,
    parse_marker,
)
from ottla.spark.sink.markers import send_marker, send_source_offsets
from ottla.spark.source.source_positions import Positions

_OPEN: Final = "Ongoing"
_NO_TRANSACTION: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
"""With these a coordinator refuses to end a transaction that is not open under this producer id and epoch."""
_STRAY_MS: Final = 2_000
"""How long the abort of a stray transaction, or of a failed batch, is tried: its timeout would end it, too."""


class TaskResult(NamedTuple):
    """The result of a task of a batch that is written as a whole."""

    turn: TaskBatch
    prepared: Prepared | None
    """Its transaction; None: it has none, or an earlier attempt has committed the batch."""
    is_open: bool
    """Whether the task has written anything into it."""
    sources: Positions
    """The offsets of the source's groups after its rows; the driver commits those of all tasks."""

    @property
    def part(self) -> Part | None:
        """Its transaction as a part of the batch."""
        return None if self.prepared is None else Part(self.turn.partition, *self.prepared)


class BatchCalls:
    """The requests for one batch."""

    def __init__(
        self,
        links: ConnectionCache,
        timeout_ms: int,
        sources: Positions | None = None,
        *,
        demands_offsets: bool = False,
    ) -> None:
        """timeout_ms: `transaction.timeout.ms`. sources: the offsets of the source's groups to commit with the batch.
        demands_offsets: the batch must not be committed without them."""
        self._links = links
        self._timeout_ms = timeout_ms
        self._sources = sources or {}
        self._demands_offsets = demands_offsets
        self._admin = TransactionAdmin(links.cluster)

    def list_open(self, base: str) -> Mapping[str, int]:
        """The open transactions whose ids begin with `base`, with their producer ids. Raises ClientError."""
        rows, failed = self._admin.list_transactions([_OPEN])
        # The coordinator of a part may be the one that did not answer.
        for error in failed.values():
            raise error
        return {row.transactional_id: row.producer_id for row in rows if row.transactional_id.startswith(base)}

    def describe_strays(self, names: Iterable[str]) -> Sequence[Stray]:
        """Those of these transactions that are open. Raises ClientError."""
        found = []
        for name in sorted(names):
            view = self._admin.describe_transaction(name)
            if view.state == _OPEN:
                found.append(Stray(name, view.producer_id, view.producer_epoch))
        return found

    def send_decision(self, decider: Part, batch: Batch, lists: Sequence[OffsetAndMetadata]) -> None:
        """Add the marker of the batch, the lists of its parts and the source's offsets to the transaction of partition
        0. Raises Fenced, MarkersGone and the client's errors."""
        transaction = BatchTransaction.resumed(self._links, _prepared(decider))
        turn, name = batch.turn, batch.turn.name
        files = list_files(batch)
        try:
            for number, each in enumerate(lists):
                send_marker(transaction, list_name(turn, number), each)
            for number, each in enumerate(files):
                send_marker(transaction, file_list_name(turn, number), each)
            marker = marker_position(turn, batch.rows, lists=len(lists), files=len(files))
            send_marker(transaction, name, marker)
            for group, offsets in self._sources.items():
                present = present_positions(self._links.coordinators.groups, group, list(offsets))
                ahead = {tp: at for tp, at in offsets.items() if may_replace(at, present.get(tp), turn.query)}
                if ahead:
                    send_source_offsets(transaction, turn, group, ahead, demanded=self._demands_offsets)
        except ClientError as error:
            raise _fenced(name, error) from error

    def commit_decider(self, decider: Part) -> None:
        """Commit the transaction of partition 0. Raises Fenced and the client's errors."""
        try:
            end_transaction(self._links, _prepared(decider), commit=True)
        except ClientError as error:
            raise _fenced(decider.name, error) from error

    def commit_part(self, part: Part) -> bool:
        """Commit a part. False: no such transaction is open. Raises the client's errors."""
        try:
            end_transaction(self._links, _prepared(part), commit=True)
        except RefusedError as error:
            if error.code in _NO_TRANSACTION:
                return False
            raise
        return True

    def is_part_committed(self, part: Part, turn: TaskBatch) -> bool:
        """Whether the position in the part's transaction is committed. Raises the client's errors."""
        # Not the stable position: the id may be in use again, with a later transaction that is open.
        found = present_positions(self._links.coordinators.groups, part.name, [MARKER]).get(MARKER)
        marker = parse_marker(found, part.name)
        return marker is not None and marker.query == turn.query and marker.batch >= turn.batch

    def abort(self, part: Part) -> bool:
        """Abort a transaction; False if that was refused, or the outcome is unknown."""
        try:
            end_transaction(self._links, _prepared(part), commit=False, deadline=Deadline.after_ms(_STRAY_MS))
        except ClientError:
            return False
        return True

    def is_undecided(self, turn: TaskBatch) -> bool:
        """Whether it is certain that no decision about this batch is committed."""
        groups, name = self._links.coordinators.groups, turn.name
        try:
            # The stable position: it waits while a decision is being committed.
            found = stable_positions(groups, name, [MARKER], Deadline.after_ms(_STRAY_MS)).get(MARKER)
        except ClientError:
            return False
        marker = parse_marker(found, name)
        return marker is None or marker.query != turn.query or marker.batch < turn.batch

    def fence_stray(self, stray: Stray) -> None:
        """Abort a transaction and take its id, if it is still the one that was described."""
        calls = TxnCalls(self._links.coordinators, stray.name, self._timeout_ms)
        try:
            # With the known id and epoch the coordinator serves only their owner (KIP-360).
            calls.init_producer_id(ProducerId(stray.producer_id, stray.epoch), Deadline.after_ms(_STRAY_MS))
        except ClientError:
            return  # it has ended meanwhile, or its timeout ends it


def finish_decided(
    links: ConnectionCache, turn: TaskBatch, marker: Marker, timeout_ms: int, safeguards: SinkSafeguards = ALL_ON
) -> None:
    """End what the driver of a committed batch may have left open. turn: of partition 0.

    Raises IncompleteBatch, BadCheckpoint and the client's errors.
    """
    if not marker.lists:
        return
    groups = links.coordinators.groups
    names = [list_name(turn, number) for number in range(marker.lists)]
    lists = [stable_positions(groups, name, [MARKER]).get(MARKER) for name in names]
    finish_batch(BatchCalls(links, timeout_ms), parse_parts(turn, marker, lists), safeguards)


def read_decided_files(links: ConnectionCache, turn: TaskBatch) -> list[str]:
    """The files of a table that the decision of a batch names. turn: of partition 0.

    Raises StaleDriver, BadCheckpoint and the client's errors.
    """
    groups = links.coordinators.groups
    marker = parse_marker(stable_positions(groups, turn.name, [MARKER]).get(MARKER), turn.name)
    if marker is None or not already_written(turn, marker):
        raise BadCheckpoint(
            f"{turn}: its decision was in group {turn.name} a moment ago, and is not there any more. No other program "
            "may change it; start the query again"
        )
    names = [file_list_name(turn, number) for number in range(marker.files)]
    return parse_files(turn, marker, [stable_positions(groups, name, [MARKER]).get(MARKER) for name in names])


def merge_sources(results: Iterable[TaskResult]) -> Positions:
    """The last offset of each partition of the source among all tasks."""
    found: Positions = {}
    for result in results:
        for group, offsets in result.sources.items():
            places = found.setdefault(group, {})
            for tp, offset in offsets.items():
                places[tp] = max(offset, places.get(tp, 0))
    return found


def _prepared(part: Part) -> Prepared:
    return Prepared(part.name, part.producer_id, part.epoch, part.version)


def _fenced(name: str, error: ClientError) -> Exception:
    if not is_fenced(error):
        return error
    return Fenced(
        f"{name}: another attempt at the batch has begun (speculative execution, or a second driver), and nothing of "
        "this one is committed; start the query again"
    )
