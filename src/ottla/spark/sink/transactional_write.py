"""One attempt at writing the rows of a task exactly once: the steps, in their order.

Zone: real. Any number of attempts may run, die or resume late, on any machines; the broker's transaction coordinator
lets one of them commit, and the others notice it. Nothing here depends on what Spark calls afterwards.

1. `take_over`: take the transactional id, which aborts an open transaction of an earlier attempt. Then, and not before,
   read the marker: if it names this batch, there is nothing to do.
2. `write`: encode rows. They are buffered for a while, so that a slow transformation keeps no transaction open.
3. `prepare_commit`: send the remaining rows, the marker and the source's offsets, in the same transaction.
4. `commit_prepared`, or for a whole batch the driver: end the transaction. Only then the rows count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

import pyarrow as pa

from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin
from ottla.client.admin.types import NewTopic
from ottla.client.batch_transaction import (
    BatchTransaction,
    ConnectionCache,
    Prepared,
    abort_quietly,
    end_transaction,
    is_fenced,
)
from ottla.client.errors import ClientError, RefusedError, values_of
from ottla.client.stable_positions import present_positions, stable_positions
from ottla.errors import ErrorCode
from ottla.spark.errors import BadRows, Fenced, OffsetsOutside
from ottla.spark.offset_metadata import held_until, may_replace
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
from ottla.spark.sink.markers import send_marker, send_source_offsets
from ottla.spark.sink.sink_options import SinkOptions
from ottla.spark.sink.task_claims import Claims
from ottla.spark.sink.whole_batches import finish_decided
from ottla.spark.sink.writing import Queue, Rows, send_all
from ottla.spark.source.source_positions import Positions
from ottla.types import TopicPartition

HELD_BYTES: Final = 32 << 20
"""Encoded rows that are buffered before the transaction is opened; later rows are sent as they come."""


class TransactionalWrite:
    """One attempt; each step is called once, `write` for each batch of rows."""

    def __init__(
        self, links: ConnectionCache, options: SinkOptions, turn: TaskBatch, safeguards: SinkSafeguards = ALL_ON
    ) -> None:
        self.turn = turn
        self.rows = 0
        self.has_begun = False
        self.parts: str | None = None
        """The ranges that the rows were read from (`parts_of`), for the marker; None when they are not known."""
        self.claims: Sequence[Claims] = ()
        """The claims of the batch; none when it cannot be written in another way."""
        self.fences_before_claims = False
        """Where the unit may change while the task writes: an attempt that finds it changed fences this one."""
        self._links = links
        self._safeguards = safeguards
        self._demands_offsets = options.once.offsets == "true"
        self._timeout_ms = options.once.timeout_ms
        self._name = turn.name
        """The transactional id, and the name of the group of the marker."""
        self._transaction = BatchTransaction(links, self._name, self._timeout_ms)
        self._encoder = Rows(links.cluster, options, lambda: self._transaction.identity, transactional=True)
        self._held: dict[TopicPartition, Queue] = {}
        self._held_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether anything was written into its transaction."""
        return self._transaction.is_open

    @property
    def is_part(self) -> bool:
        """Whether the transaction of partition 0 decides about this one."""
        return self._name != self.turn.name

    def become_part(self, name: str) -> None:
        """Write under this transactional id, which no other attempt takes; before `take_over`."""
        self._name = name
        self._transaction = BatchTransaction(self._links, name, self._timeout_ms)

    def take_over(self) -> Marker | None:
        """Fence earlier attempts. Returns the marker if one of them has committed these rows.

        Raises StaleDriver, BadCheckpoint, ChangedUnit, Fenced and the client's errors.
        """
        is_fenced_early = self.fences_before_claims and self._safeguards.fence_first
        if is_fenced_early:
            self.has_begun = True
            self.fence()
        for claims in self.claims:
            if (whole := claims.check_claim()) is not None:
                return whole
        self.has_begun = True
        # Fence first: an earlier attempt could otherwise commit between the reading and the fencing.
        if self._safeguards.fence_first:
            if not is_fenced_early:
                self.fence()
            return self.read_marker()
        done = self.read_marker()
        self.fence()
        return done

    def fence(self) -> None:
        """The first half of `take_over`: take the transactional id."""
        self._call_guarded(self._transaction.fence_producer)

    def read_marker(self) -> Marker | None:
        """The second half of `take_over`: the marker, if it names this batch."""
        turn = self.turn._replace(partition=0) if self.is_part else self.turn
        # A part does not wait for open transactions: that of partition 0 is open until the batch ends. It may miss a
        # commit of this moment, and its rows then wait in vain: partition 0 does not miss it.
        groups = self._links.coordinators.groups
        found = (present_positions if self.is_part else stable_positions)(groups, turn.name, [MARKER]).get(MARKER)
        marker = parse_marker(found, turn.name)
        if marker is None or not already_written(turn, marker):
            return None
        if not self.is_part:
            finish_decided(self._links, turn, marker, self._timeout_ms, self._safeguards)
        return marker

    def write_rows(self, batch: pa.RecordBatch) -> None:
        """Encode rows; send them once enough are buffered. Raises BadRows, Fenced and the client's errors."""
        for tp, queue in self._encoder.encode_rows(batch).items():
            if tp.topic == MARKERS:
                raise BadRows(f"a row names the topic {MARKERS}, where the sink commits its markers: filter such rows")
            self._held_bytes += sum(len(each.data) for each in queue)
            self._held.setdefault(tp, deque()).extend(queue)
        self.rows += batch.num_rows
        if self._held_bytes > HELD_BYTES or self._transaction.is_open:
            self._send_held()

    def prepare_commit(self, sources: Positions | None = None) -> Prepared | None:
        """Send everything that belongs to the transaction; None if there is nothing, and no transaction.

        sources: the offsets of the source's group to commit with the rows. Raises Fenced, ChangedUnit, MarkersGone and
        the client's errors.
        """
        if not self.rows and not sources:
            return None
        for claims in self.claims:
            claims.write_claim(has_read=self.parts is not None)
        self._send_held()
        if self._safeguards.marker_inside:
            self._call_guarded(self._send_marker)
        for group, offsets in (sources or {}).items():
            self._send_sources(group, offsets)
        return self._transaction.prepared_transaction()

    def offsets_ahead(self, sources: Positions) -> Positions:
        """Those of these offsets that move the group forward; rows may also be of earlier batches.

        Raises the client's errors.
        """
        groups, found = self._links.coordinators.groups, {}
        for group, offsets in sources.items():
            present = stable_positions(groups, group, list(offsets))
            found[group] = {
                tp: offset for tp, offset in offsets.items() if may_replace(offset, present.get(tp), self.turn.query)
            }
        return {group: offsets for group, offsets in found.items() if offsets}

    def offsets_not_held(self, sources: Positions) -> Positions:
        """Those of these offsets that this task may commit, because no other task reads these partitions.

        The others are marked (`offset_metadata.hold`). Raises OffsetsOutside if the user demands them all, and the
        client's errors.
        """
        groups, found = self._links.coordinators.groups, {}
        for group, offsets in sources.items():
            present = stable_positions(groups, group, list(offsets))
            held = {tp for tp, at in present.items() if offsets[tp] <= (held_until(at) or -1)}
            if held and self._demands_offsets:
                raise OffsetsOutside(
                    f"offsetsInTransaction=true is impossible: {min(held)} is read in several places of the query's "
                    "plan, as in a union, and a task knows only its own rows. Read it once, write the batch as a whole "
                    "(exactlyOnce=batch), or leave offsetsInTransaction=auto"
                )
            found[group] = {tp: offset for tp, offset in offsets.items() if tp not in held}
        return {group: offsets for group, offsets in found.items() if offsets}

    def identity(self) -> Prepared | None:
        """The transaction as far as it is known, open or not; None before `take_over`."""
        return self._transaction.prepared_transaction() if self.has_begun else None

    def commit_prepared(self, prepared: Prepared) -> None:
        """End the transaction. Raises Fenced and the client's errors."""
        self._call_guarded(lambda: end_transaction(self._links, prepared, commit=True))

    def give_up(self) -> None:
        """Abort the open transaction, without waiting for brokers that do not answer."""
        if self._transaction.is_open:
            abort_quietly(self._links, self._transaction.prepared_transaction())

    def _send_held(self) -> None:
        self._call_guarded(lambda: send_all(self._transaction.send_batches, self._held))
        self._held.clear()
        self._held_bytes = 0

    def _send_marker(self) -> None:
        send_marker(self._transaction, self._name, marker_position(self.turn, self.rows, self.parts))

    def _send_sources(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not self._safeguards.offsets_inside:
            values_of(GroupAdmin(self._links.cluster).alter_group_offsets(group, offsets))
            return
        send = partial(send_source_offsets, self._transaction, self.turn, group, offsets)
        self._call_guarded(lambda: send(demanded=self._demands_offsets))

    def _call_guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except ClientError as error:
            if is_fenced(error):
                raise Fenced(f"{self.turn}: another attempt has taken over; this one has committed nothing") from error
            raise


def write_task_batch(
    attempt: TransactionalWrite,
    batches: Iterable[pa.RecordBatch],
    check: Callable[[], None],
    *,
    begin_without_rows: bool,
    sources: Callable[[], Positions] = dict,
) -> Marker | Prepared | None:
    """All steps but the last. Returns the marker if the rows are committed already, None without rows, otherwise the
    transaction to end. After an error nothing is committed.

    check: called when the first rows have come, before anything is written. begin_without_rows: take the id also
    without rows, so that an earlier attempt with rows cannot commit them later. sources: called after the last row for
    the offsets of the source's group to commit with the rows, or without any.
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
            attempt.write_rows(batch)
        return attempt.prepare_commit(sources())
    except Exception as error:
        # A fenced attempt has no transaction any more: InitProducerId of the newer attempt has aborted it.
        if not isinstance(error, Fenced):
            attempt.give_up()
        raise


def _with_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows)


def make_markers(links: ConnectionCache) -> None:
    """Create the topic of the markers if it does not exist. Raises ClientError.

    The driver calls it between batches: no marker is needed then, so that nothing is lost with a deleted topic.
    """
    # The client remembers topics: without this a deleted topic would still seem to exist.
    links.cluster.forget_topics([MARKERS])
    try:
        links.cluster.topic(MARKERS)
    except RefusedError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        # One partition: markers are offsets committed for it, and no record is written. -1: the broker's default.
        made = Admin(links.cluster).create_topics([NewTopic(MARKERS, 1, -1, {"cleanup.policy": "compact"})])
        if not (isinstance(one := made[MARKERS], RefusedError) and one.code is ErrorCode.TOPIC_ALREADY_EXISTS):
            values_of(made)
