"""One attempt at writing the rows of a turn exactly once: the steps, in their order.

Zone: real. Any number of attempts at one turn may run, die or wake up late, on any machines; the broker's transaction
coordinator lets one of them commit, and the others see it. Nothing here depends on what Spark calls afterwards.

1. `take_over`: take the transactional id, which ends whatever an earlier attempt had open. Then, and not before, read
the
   marker: when it names this batch, there is nothing to do.
2. `write`: encode rows. They are held back for a while, so that a slow transformation keeps no transaction open.
3. `prepare`: send what is left, the marker, and how far the source was read, in the same transaction.
4. the end of the transaction, from here or, for a whole batch, from the driver: the moment at which it counts.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin
from ottla.client.admin.types import NewTopic
from ottla.client.batch_transaction import BatchTransaction, ConnectionCache, Prepared, abort_quietly, end, is_fenced
from ottla.client.errors import ClientError, DeadlineError, RefusedError, values_of
from ottla.client.retry import Deadline
from ottla.client.stable_positions import stable_positions
from ottla.errors import ErrorCode
from ottla.spark.errors import BadRows, Fenced, OffsetsOutside
from ottla.spark.offset_metadata import goes_on, held_until, marked
from ottla.spark.safeguards import ALL_ON, SinkSafeguards
from ottla.spark.sink.exactly_once import (
    MARKER,
    MARKERS,
    Marker,
    TaskBatch,
    already_written,
    marker_position,
    parse_marker,
)
from ottla.spark.sink.sink_options import SinkOptions
from ottla.spark.sink.task_claims import Claims, send_marker
from ottla.spark.sink.writing import Queue, Rows, send_all
from ottla.spark.source.source_positions import Positions
from ottla.types import TopicPartition

HELD_BYTES: Final = 32 << 20
"""Encoded rows that are held back before the transaction is opened; then they are sent as they come."""
_OFFSETS_PATIENCE_MS: Final = 10_000
"""How long the offsets of the source's group are tried."""
_NOT_TAKEN: Final = frozenset(
    {
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Why a broker may not take the offsets of the source's group from this client, ever."""
_LOG = logging.getLogger(__name__)


class TransactionalWrite:
    """One attempt; the steps are called once each, `write` as often as there are rows."""

    def __init__(
        self, links: ConnectionCache, options: SinkOptions, turn: TaskBatch, safeguards: SinkSafeguards = ALL_ON
    ) -> None:
        self.turn = turn
        self.rows = 0
        self.has_begun = False
        self.parts: str | None = None
        """What the rows were read from (`parts_of`), for the marker; None where it is not known."""
        self.claims: Sequence[Claims] = ()
        """Of the batch; none: there is no other way in which it could be written."""
        self._links = links
        self._safeguards = safeguards
        self._demands_offsets = options.once.offsets == "true"
        self._transaction = BatchTransaction(links, turn.name, options.once.timeout_ms)
        self._encoder = Rows(links.cluster, options, lambda: self._transaction.identity, transactional=True)
        self._held: dict[TopicPartition, Queue] = {}
        self._held_bytes = 0

    def take_over(self) -> Marker | None:
        """Take over; the marker when an earlier attempt has written this turn. Raises StaleDriver, BadCheckpoint,
        ChangedUnit, Fenced and the client's errors."""
        for claims in self.claims:
            if (whole := claims.check()) is not None:
                return whole
        self.has_begun = True
        if self._safeguards.fence_first:
            self.fence()
            return self.read_marker()
        done = self.read_marker()
        self.fence()
        return done

    def fence(self) -> None:
        """The first half of `take_over`."""
        self._guarded(self._transaction.fence)

    def read_marker(self) -> Marker | None:
        """The second half of `take_over`."""
        marker = parse_marker(self._transaction.position(self.turn.name, MARKER), self.turn.name)
        return marker if already_written(self.turn, marker) else None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take in rows. Raises BadRows, Fenced and the client's errors."""
        for tp, queue in self._encoder.encode(batch).items():
            if tp.topic == MARKERS:
                raise BadRows(f"a row names the topic {MARKERS}, where the sink keeps its own positions")
            self._held_bytes += sum(len(each.data) for each in queue)
            self._held.setdefault(tp, deque()).extend(queue)
        self.rows += batch.num_rows
        if self._held_bytes > HELD_BYTES or self._transaction.is_open:
            self._send()

    def prepare(self, sources: Positions | None = None) -> Prepared | None:
        """Everything is in the transaction now; None when there was nothing, so that there is none.

        sources: the offsets of the source's group that count with the rows. Raises Fenced, ChangedUnit, MarkersGone and
        the client's errors.
        """
        if not self.rows and not sources:
            return None
        for claims in self.claims:
            claims.write(has_read=self.parts is not None)
        self._send()
        if self._safeguards.marker_inside:
            self._guarded(self._send_marker)
        for group, offsets in (sources or {}).items():
            self._send_sources(group, offsets)
        return self._transaction.prepared()

    def ahead(self, sources: Positions) -> Positions:
        """Those of these offsets that are not behind what the group has already: rows may be of earlier batches. Raises
        the client's errors."""
        groups, found = self._links.coordinators.groups, {}
        for group, offsets in sources.items():
            present = stable_positions(groups, group, list(offsets))
            found[group] = {
                tp: offset for tp, offset in offsets.items() if goes_on(offset, present.get(tp), self.turn.query)
            }
        return {group: offsets for group, offsets in found.items() if offsets}

    def not_held(self, sources: Positions) -> Positions:
        """Those of these offsets that this task may commit: of the others, several tasks read the records
        (`position_marks.hold`). Raises OffsetsOutside where they are demanded, and the client's errors."""
        groups, found = self._links.coordinators.groups, {}
        for group, offsets in sources.items():
            present = stable_positions(groups, group, list(offsets))
            held = {tp for tp, at in present.items() if offsets[tp] <= (held_until(at) or -1)}
            if held and self._demands_offsets:
                raise OffsetsOutside(
                    f"offsetsInTransaction=true cannot be: {min(held)} is read in several places of the query's plan, "
                    "as in a union, and each task knows its own rows only. Read it once, write the batch as a whole "
                    "(exactlyOnce=batch), or leave offsetsInTransaction=auto"
                )
            found[group] = {tp: offset for tp, offset in offsets.items() if tp not in held}
        return {group: offsets for group, offsets in found.items() if offsets}

    def commit(self, prepared: Prepared) -> None:
        """End the transaction. Raises Fenced and the client's errors."""
        self._guarded(lambda: end(self._links, prepared, commit=True))

    def give_up(self) -> None:
        """Leave nothing open, as far as that can be had at once."""
        if self._transaction.is_open:
            abort_quietly(self._links, self._transaction.prepared())

    def _send(self) -> None:
        self._guarded(lambda: send_all(self._transaction.send, self._held))
        self._held.clear()
        self._held_bytes = 0

    def _send_marker(self) -> None:
        send_marker(self._transaction, self.turn.name, marker_position(self.turn, self.rows, self.parts))

    def _send_sources(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not self._safeguards.offsets_inside:
            values_of(GroupAdmin(self._links.cluster).alter_group_offsets(group, offsets))
            return
        positions, patience = marked(self.turn, offsets), Deadline.after_ms(_OFFSETS_PATIENCE_MS)
        try:
            self._guarded(lambda: self._transaction.send_positions(group, positions, patience))
            _LOG.info("%s: with the offsets of group %s", self.turn, group)
        except ClientError as error:
            last = error.last if isinstance(error, DeadlineError) else error
            if self._demands_offsets or not (isinstance(last, RefusedError) and last.code in _NOT_TAKEN):
                raise
            _LOG.warning("%s: the offsets of group %s are told behind the batch: %s", self.turn, group, last)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except ClientError as error:
            if is_fenced(error):
                raise Fenced(f"{self.turn}: another attempt has taken over; nothing of this one counts") from error
            raise


def write_turn(
    attempt: TransactionalWrite,
    batches: Iterable[pa.RecordBatch],
    check: Callable[[], None],
    *,
    begin_without_rows: bool,
    sources: Callable[[], Positions] = dict,
) -> Marker | Prepared | None:
    """All steps but the last: the marker if the turn is written already, None when there are no rows, otherwise what is
    to be ended. After an error nothing of it counts.

    check: called before anything is written, when the first rows are there. begin_without_rows: take the id even then,
    so that no earlier attempt that had rows can commit them later. sources: asked behind the last row for the offsets
    of the source's group that count with them; they are committed without rows, too.
    """
    try:
        coming = _with_rows(batches)
        first = next(coming, None)
        if first is None and not begin_without_rows and not sources():
            return None
        if first is not None:
            check()
        if (done := attempt.take_over()) is not None:
            return done
        for batch in chain([] if first is None else [first], coming):
            attempt.write(batch)
        return attempt.prepare(sources())
    except Exception as error:
        if not isinstance(error, Fenced):
            attempt.give_up()
        raise


def _with_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows)


def make_markers(links: ConnectionCache) -> None:
    """Make the topic of the markers if it is not there. For the driver, between batches: then none is in doubt, so that
    nothing is lost with one that was deleted. Raises ClientError."""
    links.cluster.forget_topics([MARKERS])
    try:
        links.cluster.topic(MARKERS)
    except RefusedError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        made = Admin(links.cluster).create_topics([NewTopic(MARKERS, 1, -1, {"cleanup.policy": "compact"})])
        if not (isinstance(one := made[MARKERS], RefusedError) and one.code is ErrorCode.TOPIC_ALREADY_EXISTS):
            values_of(made)
