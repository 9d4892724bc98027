"""The claim of a batch, on which its attempts agree before they commit: its unit, the names of the sink, and whether
each task reads the rows that it writes.

Zone: real. By partition each task has a marker of its own; a whole batch has one marker. The markers of one unit mean
nothing for the other: after a batch was committed in part, a run with another unit would omit rows or write them twice.
So the first task that is about to commit writes a claim, a position like a marker, under a transactional id of its own.
Of attempts that claim at the same time one succeeds, and the others read its claim. A batch without such a task has no
claim, and may be written in any unit. Where each task chooses its unit, a claim by partition may become one of the rest
of the batch (`mixed_batches`). The claim's name has no prefix, unlike the query's other names, so that a change
of the prefix is noticed.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final, NamedTuple

from ottla.client.batch_transaction import BatchTransaction, ConnectionCache, end_transaction, is_fenced
from ottla.client.errors import ClientError, RefusedError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.stable_positions import stable_positions
from ottla.errors import ErrorCode
from ottla.spark.errors import BadCheckpoint, ChangedUnit, Fenced, StaleDriver, UnstableRows
from ottla.spark.sink.batch_decision import parts_base
from ottla.spark.sink.claim_pauses import TRIES, claim_timeout_ms, pause_after
from ottla.spark.sink.claimed_scans import Scan, is_registered, may_register, parse_scans, scans_to_json
from ottla.spark.sink.exactly_once import MARKER, MARKERS, Marker, TaskBatch, parse_marker
from ottla.spark.sink.markers import send_marker
from ottla.spark.sink.sink_options import PREFIX
from ottla.spark.sink.whole_batches import BatchCalls, finish_decided

PARTITION: Final = "partition"
BATCH: Final = "batch"
MIXED: Final = "mixed"
"""Rows of other tasks came after a task had committed its own: all that is not committed then is written as a whole."""
FOREACH: Final = "foreachBatch"
"""The batch is passed to a function, whose writes have claims of their own."""
READ: Final = "read"
"""Each task reads the rows that it writes."""
MOVED: Final = "moved"
"""Rows come to the task that claimed the batch from other tasks."""
_NOT_ALLOWED: Final = frozenset({ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
_LOG = logging.getLogger(__name__)


class Claim(NamedTuple):
    """How a batch is written."""

    query: str
    batch: int
    unit: str
    """PARTITION, BATCH, MIXED or FOREACH."""
    sink: str
    prefix: str
    rows: str = ""
    """READ or MOVED; empty when neither is true of all tasks."""
    scans: tuple[Scan, ...] | None = None
    """By partition, and MIXED: those that the tasks which commit by partition belong to. None: they are not known."""


class Claims:
    """The claim of one task's batch."""

    def __init__(
        self,
        links: ConnectionCache,
        claim: Claim,
        partition: int,
        timeout_ms: int,
        *,
        alone: bool,
        may_replace: bool = True,
    ) -> None:
        """partition: the task's. alone: the batch has no other sink (`writeStream`), so that another name of the sink
        is a change as well. may_replace: a claim of the whole batch may be replaced by one of partitions; False where
        each task chooses, since another task of this run may have claimed it."""
        self._may_replace = may_replace
        self._links = links
        self._wanted = claim
        self._turn = TaskBatch(claim.prefix, claim.query, claim.sink, claim.batch, partition)
        self._timeout_ms = timeout_ms
        name = f"{claim.query}-unit" if alone else f"{claim.query}-{claim.sink}-unit"
        self._name, self._own_name = PREFIX + name, claim.prefix + name
        self._found: Claim | None = None
        """The claim of this batch, once it cannot change any more."""
        self._is_checked = False
        self.is_first = False
        """Whether no batch of the query had a claim when the unit was chosen."""

    @property
    def claimed(self) -> Claim | None:
        """The claim of this batch, after `write_claim`."""
        return self._found

    def choose_unit(self, *, is_stable: bool, has_rows: bool) -> str:
        """The unit in which a task writes that may choose it: PARTITION, BATCH or MIXED.

        is_stable: its rows are in the same partition when the batch is run again. has_rows: whether it has any. Raises
        StaleDriver, BadCheckpoint and the client's errors.
        """
        found = self._read_claim()
        self.is_first = found is None or found.query != self._wanted.query
        # 1. The batch is claimed: all its tasks write it in the same unit, but for rows that another task may have
        #    committed. 2. The last claim was of a whole batch: rows of another task moved, and may do so again.
        if found is not None and found.query == self._wanted.query:
            self._refuse_later_batch(found)
            if found.batch == self._wanted.batch and found.unit in (PARTITION, BATCH, MIXED):
                may_commit = self._may_join(found) if is_stable else not has_rows
                return found.unit if found.unit != PARTITION or may_commit else MIXED
            if found.batch < self._wanted.batch and found.unit in (BATCH, MIXED):
                return BATCH
        return PARTITION if is_stable else BATCH

    def read_scans(self) -> tuple[Scan, ...]:
        """The scans of a MIXED batch, which do not change any more. Raises StaleDriver and the client's errors."""
        found, wanted = self._read_claim(), self._wanted
        if found is None or found[:3] != (wanted.query, wanted.batch, MIXED) or found.scans is None:
            raise StaleDriver(f"{self._turn}: another driver has claimed the batch or a later one; nothing was written")
        return found.scans

    def check_claim(self) -> Marker | None:
        """Check the claim before rows are sent. Returns the marker if an earlier run committed the batch as a whole.

        Raises ChangedUnit, StaleDriver, BadCheckpoint and the client's errors.
        """
        found = self._read_claim()
        if self._fits_claim(found):
            self._is_checked = True
            return None
        # The earlier run wrote the batch as a whole: the marker of its one transaction decides.
        if (marker := self._marker_of_whole_batch()) is None:
            self._claim_until_decided()  # now: this fences partition 0, which may be the task's own
        return marker

    def write_claim(self, *, has_read: bool = True) -> None:
        """Write the claim, before the marker is sent. Raises what `check_claim` raises, and Fenced.

        has_read: whether the task has read the rows that it writes.
        """
        if self._wanted.unit == PARTITION and not has_read:
            self._wanted = self._wanted._replace(rows=MOVED)
        self._claim_until_decided()
        assert self._found is not None
        before, now = self._found.rows, self._wanted.rows
        if {before, now} == {READ, MOVED}:
            words = {READ: "rows that are read in the task that writes them", MOVED: "rows of other tasks (a shuffle)"}
            raise ChangedUnit(_changed_text(self._turn, words[before], words[now]))

    def _claim_until_decided(self) -> None:
        for attempt in range(TRIES):
            if self._found is not None or (self._fits_claim(self._read_claim()) and self._found is not None):
                return
            try:
                self._write_once()
            except ClientError as error:
                if not is_overtaken(error) and not self._is_renamed(error):
                    raise
                pause_after(attempt)
        raise Fenced(f"{self._turn}: other attempts kept claiming the batch; start the query again")

    def _write_once(self) -> None:
        transaction = BatchTransaction(self._links, self._name, claim_timeout_ms(self._timeout_ms))
        transaction.fence_producer()
        before = self._read_claim()
        if not self._fits_claim(before):
            if self._marker_of_whole_batch() is not None:
                raise StaleDriver(f"{self._turn}: another driver has committed the whole batch; start the query again")
        elif self._found is not None:
            return
        claim = self._next_claim(before)
        send_marker(transaction, self._name, _claim_position(claim))
        end_transaction(self._links, transaction.prepared_transaction(), commit=True)
        # After the commit: only a claim that other attempts can read binds this one.
        self._found = claim
        if before is not None and before.query == self._wanted.query and before.unit in (BATCH, MIXED):
            self._abort_parts_left_open()

    def _abort_parts_left_open(self) -> None:
        """Abort the transactions of a whole batch that was never decided: they hide later rows from readers.

        The batch is claimed by partition now: no task leaves another part open, and no decision about one can follow.
        """
        if self._wanted.unit != PARTITION:
            return
        calls = BatchCalls(self._links, self._timeout_ms)
        try:
            for stray in calls.describe_strays(calls.list_open(parts_base(self._turn))):
                calls.fence_stray(stray)
        except ClientError as error:
            # For instance a broker older than ListTransactions. Their timeout ends them.
            _LOG.info(
                "spark sink: %s: open transactions of a whole batch are left to their timeout: %s", self._turn, error
            )

    def _fits_claim(self, found: Claim | None) -> bool:
        """Whether this run may write the batch under the present claim.

        False: the batch was claimed as a whole, and this run writes it by partition. Raises StaleDriver, ChangedUnit.
        """
        wanted = self._wanted
        # 1. No claim of this batch: any unit may be used.
        if found is None or found.query != wanted.query or found.batch < wanted.batch:
            return True
        # 2. A claim of a later batch: another driver is ahead.
        self._refuse_later_batch(found)
        # 3. The query was changed: markers of the earlier run would not be found under the new names.
        if FOREACH in (found.unit, wanted.unit) and found.unit != wanted.unit:
            raise ChangedUnit(_changed_text(self._turn, _way_of(found), _way_of(wanted)))
        if found.sink != wanted.sink:
            raise ChangedUnit(_changed_text(self._turn, f"sink={found.sink}", f"sink={wanted.sink}"))
        if found.prefix != wanted.prefix:
            before, now = (f"transactionalIdPrefix={claim.prefix}" for claim in (found, wanted))
            raise ChangedUnit(_changed_text(self._turn, before, now))
        # 4. The same unit. 5. Each task chooses. 6. Some partitions may be committed, the whole batch is wanted:
        # impossible. The other way round (False) is possible, because one marker decides whether the whole batch is
        # committed.
        if found.unit == wanted.unit:
            self._found = found if self._next_claim(found) == found else None
            return True
        if not self._may_replace:
            return self._fits_choice(found)
        if found.unit in (PARTITION, MIXED):
            was = "auto" if found.unit == MIXED else found.unit
            raise ChangedUnit(_changed_text(self._turn, f"exactlyOnce={was}", f"exactlyOnce={wanted.unit}"))
        return False

    def _fits_choice(self, found: Claim) -> bool:
        """The same for a task that chooses, when another one has claimed the batch in another unit.

        Raises UnstableRows when the next attempt at the task can choose again, and ChangedUnit.
        """
        # 1. The rest of the batch can be written as a whole if each marker by partition is known.
        if self._wanted.unit == BATCH:
            if found.unit == PARTITION and (found.scans is None or found.rows != READ):
                raise ChangedUnit(_changed_text(self._turn, "exactlyOnce=partition", "exactlyOnce=batch"))
            self._found = found if found.unit == MIXED else None
            return True
        # 2. This attempt took its id before the claim was changed, and its scan is registered: an attempt at the same
        #    task that writes a part now has fenced this one.
        own = self._wanted.scans
        if found.unit == MIXED and self._is_checked and own and is_registered(found.scans or (), own[0]):
            self._found = found
            return True
        raise UnstableRows(_retry_text(self._turn))

    def _may_join(self, found: Claim) -> bool:
        """Whether this task may commit by partition under a claim by partition."""
        own = self._wanted.scans
        return found.scans is None or own is None or may_register(found.scans, own[0])

    def _next_claim(self, found: Claim | None) -> Claim:
        """The claim that is to follow the present one. Raises UnstableRows."""
        wanted = self._wanted
        if found is None or found[:2] != wanted[:2]:
            return wanted
        if found.unit == PARTITION and wanted.unit == BATCH:
            return found._replace(unit=MIXED)
        if found.unit != wanted.unit:
            return wanted
        if found.unit == BATCH or found.scans is None or wanted.scans is None:
            return found._replace(scans=None)
        if is_registered(found.scans, wanted.scans[0]):
            return found
        if not self._may_join(found):
            raise UnstableRows(_retry_text(self._turn))
        return found._replace(scans=found.scans + wanted.scans)

    def _refuse_later_batch(self, found: Claim) -> None:
        if found.batch > self._wanted.batch:
            raise StaleDriver(
                f"{self._turn}: batch {found.batch} is being written already, by another driver that is ahead. Two "
                "drivers use one checkpoint (stop one of them), or it was restored from a copy; nothing was written"
            )

    def _marker_of_whole_batch(self) -> Marker | None:
        """Fence the id of the whole batch, which is then committed already or never; its marker, if it is.

        Ends the transactions of a committed batch that its driver has left open. Raises IncompleteBatch.
        """
        turn = self._turn._replace(partition=0)
        name = turn.name
        transaction = BatchTransaction(self._links, name, self._timeout_ms)
        transaction.fence_producer()
        marker = parse_marker(transaction.committed_position(name, MARKER), name)
        if marker is None or (marker.query, marker.batch) != (turn.query, turn.batch):
            return None
        finish_decided(self._links, turn, marker, self._timeout_ms)
        return marker

    def _read_claim(self) -> Claim | None:
        try:
            return self._stored_claim()
        except ClientError as error:
            if not self._is_renamed(error):
                raise
            return self._stored_claim()

    def _stored_claim(self) -> Claim | None:
        groups = self._links.coordinators.groups
        return _parse_claim(stable_positions(groups, self._name, [MARKER]).get(MARKER), self._name)

    def _is_renamed(self, error: ClientError) -> bool:
        """Switch to the name with the query's own prefix if the client may not use the other; True if it did.

        A change of the prefix is then not noticed.
        """
        refused = isinstance(error, RefusedError) and error.code in _NOT_ALLOWED
        if not refused or self._name == self._own_name:
            return False
        self._name = self._own_name
        return True


def is_overtaken(error: ClientError) -> bool:
    """Whether another attempt has fenced this one.

    Kafka's coordinator also answers INVALID_TXN_STATE then: when it has ended the transaction and raised the epoch of
    the same producer id (KIP-890).
    """
    return is_fenced(error) or (isinstance(error, RefusedError) and error.code is ErrorCode.INVALID_TXN_STATE)


def claims_of(
    links: ConnectionCache,
    turn: TaskBatch,
    unit: str,
    timeout_ms: int,
    *,
    kind: str,
    reads: bool,
    may_replace: bool = True,
    scan: Scan | None = None,
) -> tuple[Claims, ...]:
    """The claims of a write, in the order in which they are checked.

    kind: "stream"; "foreach" for a write of a batch that may have several; "job" for one without a batch. reads: every
    task must have read the rows that it writes. may_replace: see `Claims`. scan: the task's, if it may choose its unit.
    """
    rows = READ if reads and unit == PARTITION else ""
    scans = None if scan is None or unit != PARTITION else (scan,)
    claim = Claim(turn.query, turn.batch, unit, turn.sink, turn.prefix, rows, scans)
    alone = kind == "stream"
    own = Claims(links, claim, turn.partition, timeout_ms, alone=alone, may_replace=may_replace)
    if kind != "foreach":
        return (own,)
    batch = claim._replace(unit=FOREACH, sink="", prefix=PREFIX, rows="", scans=None)
    return Claims(links, batch, turn.partition, timeout_ms, alone=True), own


def _changed_text(turn: TaskBatch, before: str, now: str) -> str:
    return (
        f"batch {turn.batch} of {turn.query} was begun with {before}, and this run has {now}: rows of the batch would "
        "be omitted or written twice. Start the query as it was, until this batch is finished, and change it then; or, "
        "if records may be written twice, finish this batch with exactlyOnce=off. Nothing was written"
    )


def _retry_text(turn: TaskBatch) -> str:
    return (
        f"{turn}: another task of the batch has rows that may be in other partitions when the batch is run again, so "
        "the batch is written as a whole. This attempt had begun to write by partition, and has committed nothing; the "
        "next one writes its part of the whole batch: start the query again. Set exactlyOnce=batch to write whole "
        "batches from the beginning"
    )


def _way_of(claim: Claim) -> str:
    return "foreachBatch" if claim.unit == FOREACH else "writeStream of this format"


def _claim_position(claim: Claim) -> OffsetAndMetadata:
    # The position is the batch plus one, because a position names what comes next. q: query, u: unit, s: sink,
    # x: transactionalIdPrefix, r: rows, c: scans. Short keys, because a broker limits the metadata
    # (offset.metadata.max.bytes).
    said: dict[str, Any] = {"q": claim.query, "u": claim.unit, "s": claim.sink, "x": claim.prefix, "r": claim.rows}
    said |= {} if claim.scans is None else {"c": scans_to_json(claim.scans)}
    metadata = json.dumps(said, separators=(",", ":"))
    return OffsetAndMetadata(claim.batch + 1, -1, metadata)


def _parse_claim(found: OffsetAndMetadata | None, name: str) -> Claim | None:
    if found is None:
        return None
    try:
        said = json.loads(found.metadata)
        unit, sink, prefix, rows = (str(said[name]) for name in ("u", "s", "x", "r"))
        return Claim(str(said["q"]), found.offset - 1, unit, sink, prefix, rows, parse_scans(said.get("c")))
    except (ValueError, TypeError, KeyError):
        raise BadCheckpoint(
            f"group {name} has a position of {MARKERS} that this version of the sink did not write: "
            f"{found.metadata[:100]!r}. Set another transactionalIdPrefix"
        ) from None
