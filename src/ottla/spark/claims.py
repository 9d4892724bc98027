"""What the attempts at one batch agree on before anything of it is committed: its unit, and the sink's name.

Zone: real. By partition each task has a marker of its own; a whole batch has one. The markers of one unit say nothing
of the other: over a batch that is committed in part, a run with another unit would leave rows out or write them twice.
So the first task that is about to commit writes a claim, a position like a marker, under a transactional id of its own:
of attempts that claim at the same time one succeeds, and the others read what it wrote. A batch of which no task came
so far has no claim, and may be written in any unit.
"""

from __future__ import annotations

import json
import random
import time
from typing import Final, NamedTuple

from ottla.client.batch_transaction import BatchTransaction, Links, end, is_fenced
from ottla.client.errors import ClientError, DeadlineError, RefusedError
from ottla.client.positions import OffsetAndMetadata
from ottla.client.retry import Deadline
from ottla.client.stable_positions import stable_positions
from ottla.errors import ErrorCode
from ottla.spark.errors import BadCheckpoint, ChangedUnit, Fenced, MarkersGone, StaleDriver
from ottla.spark.exactly_once import MARKER, MARKERS, Marker, Turn, parse_marker

PARTITION: Final = "partition"
BATCH: Final = "batch"
_TRIES: Final = 100
_PAUSE_S: Final = 0.02
_MARKER_PATIENCE_MS: Final = 10_000
"""A topic that was made just now is known to all brokers within this time."""


class Claim(NamedTuple):
    """How a batch is written."""

    query: str
    batch: int
    unit: str
    """PARTITION or BATCH."""
    sink: str


class Claims:
    """The claim of the batch of one turn."""

    def __init__(self, links: Links, turn: Turn, unit: str, timeout_ms: int, *, alone: bool) -> None:
        """alone: the batch has no other sink (`writeStream`), so that another sink's name is a change, too."""
        self._links = links
        self._turn = turn
        self._wanted = Claim(turn.query, turn.batch, unit, turn.sink)
        self._timeout_ms = timeout_ms
        self._name = f"{turn.prefix}{turn.query}-unit" if alone else f"{turn.prefix}{turn.query}-{turn.sink}-unit"
        self._settled = False

    def check(self) -> Marker | None:
        """Before anything is sent. The marker when an earlier run has committed all of the batch in the other unit.

        Raises ChangedUnit, StaleDriver, BadCheckpoint and the client's errors.
        """
        found = self._read()
        if self._fits(found):
            return None
        # The earlier run wrote the batch as a whole: its one transaction tells.
        if (marker := self._marker_of_whole_batch()) is None:
            self.write()  # now: this fences partition 0, which may be the task's own
        return marker

    def write(self) -> None:
        """Before the marker is sent. Raises what `check` raises, and Fenced."""
        for _ in range(_TRIES):
            if self._settled or (self._fits(self._read()) and self._settled):
                return
            try:
                self._write_once()
            except ClientError as error:
                if not is_fenced(error):
                    raise
                time.sleep(random.random() * _PAUSE_S)
        raise Fenced(f"{self._turn}: other attempts claim the batch all the time; start the query again")

    def _write_once(self) -> None:
        transaction = BatchTransaction(self._links, self._name, self._timeout_ms)
        transaction.fence()
        if not self._fits(self._read()):
            if self._marker_of_whole_batch() is not None:
                raise StaleDriver(f"{self._turn}: another driver has committed the whole batch; start the query again")
        elif self._settled:
            return
        send_marker(transaction, self._name, _position(self._wanted))
        end(self._links, transaction.prepared(), commit=True)
        self._settled = True

    def _fits(self, found: Claim | None) -> bool:
        """False: the batch was claimed as a whole, and this run writes it by partition."""
        wanted = self._wanted
        if found is None or found.query != wanted.query or found.batch < wanted.batch:
            return True
        if found.batch > wanted.batch:
            raise StaleDriver(
                f"{self._turn}: batch {found.batch} is being written already, by a driver that is ahead of this one. "
                "Two drivers run on one checkpoint, or the checkpoint was put back; nothing was written"
            )
        if found.sink != wanted.sink:
            raise ChangedUnit(_words(self._turn, f"sink={found.sink}", f"sink={wanted.sink}"))
        if found.unit == wanted.unit:
            self._settled = True
            return True
        if found.unit == PARTITION:
            raise ChangedUnit(_words(self._turn, f"exactlyOnce={found.unit}", f"exactlyOnce={wanted.unit}"))
        return False

    def _marker_of_whole_batch(self) -> Marker | None:
        """Fence the id of a whole batch: it is committed by now, or never."""
        name = self._turn._replace(partition=0).name
        transaction = BatchTransaction(self._links, name, self._timeout_ms)
        transaction.fence()
        marker = parse_marker(transaction.position(name, MARKER), name)
        done = marker is not None and (marker.query, marker.batch) == (self._turn.query, self._turn.batch)
        return marker if done else None

    def _read(self) -> Claim | None:
        groups = self._links.coordinators.groups
        return _parse(stable_positions(groups, self._name, [MARKER]).get(MARKER), self._name)


def send_marker(transaction: BatchTransaction, name: str, position: OffsetAndMetadata) -> None:
    """Add a marker, or a claim, to a transaction. Raises MarkersGone and the client's errors."""
    try:
        transaction.send_positions(name, {MARKER: position}, Deadline.after_ms(_MARKER_PATIENCE_MS))
    except DeadlineError as error:
        if isinstance(error.last, RefusedError) and error.last.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise MarkersGone(
                f"the topic {MARKERS} is not there any more, and with it went what says which batches are written. "
                "The next start of the query makes it again; a batch that is in doubt then may be written twice"
            ) from error
        raise


def _words(turn: Turn, before: str, now: str) -> str:
    return (
        f"batch {turn.batch} of {turn.query} was begun with {before}, and this run has {now}: what is committed of the "
        "batch would be left out or written twice. Start the query as it was, until this batch is finished, and change "
        "it then; or, where records may be written twice, finish this batch with exactlyOnce=off. Nothing was written"
    )


def _position(claim: Claim) -> OffsetAndMetadata:
    metadata = json.dumps({"q": claim.query, "u": claim.unit, "s": claim.sink}, separators=(",", ":"))
    return OffsetAndMetadata(claim.batch + 1, -1, metadata)


def _parse(found: OffsetAndMetadata | None, name: str) -> Claim | None:
    if found is None:
        return None
    try:
        said = json.loads(found.metadata)
        return Claim(str(said["q"]), found.offset - 1, str(said["u"]), str(said["s"]))
    except (ValueError, TypeError, KeyError):
        raise BadCheckpoint(
            f"group {name} has a position of {MARKERS} that this version of the sink did not write: "
            f"{found.metadata[:100]!r}. Take another transactionalIdPrefix"
        ) from None
