"""Keeps tombstones and transaction markers until every replica of a partition has cleaned its log past them.

Zone: deterministic. Followers report to their leaders how far they have cleaned the logs of compacted partitions. A
leader responds with the bound, the lowest value of all assigned replicas, its own included. Every replica removes
tombstones below that bound only.

Apache Kafka lacks this: each replica removes tombstones when delete.retention.ms has passed. A replica that was offline
for longer keeps records that the others have deleted, and when it leads they are back; or it never receives the abort
of a transaction. Here an offline replica holds the bound back until it has caught up and cleaned, or is not a replica
any more. A leader's knowledge ends with its epoch, and its knowledge of a replica ends when that one's log shrinks.

Reports travel in OffsetForLeaderEpoch, in tagged fields of Ottla's own. Brokers that do not know the field ignore it;
then nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from ottla.broker_client import BrokerClient
from ottla.changes import changes_state
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry
from ottla.seams import Failure
from ottla.types import TopicPartition
from ottla.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

LANE: Final = "epochs"
_VERSION: Final = 4
BATCH: Final = 1000
"""Partitions of one report: a leader handles them in a few milliseconds."""
_PAUSE_MS: Final = 1
"""Pause between two lots of BATCH partitions, for other turns."""
# A report: broker epoch i64, then rows. A response: rows only. A row: topic id, 16 bytes | partition i32 | leader epoch
# i32 | offset i64.
_ROW: Final = Struct(">16siiq")
_BROKER_EPOCH: Final = Struct(">q")


class RetentionRow(NamedTuple):
    """One partition in a report or a response."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    """Report: below it the follower's log is cleaned. Response: below it the logs of all replicas are."""


def pack_rows(rows: Iterable[RetentionRow]) -> bytes:
    """Encode rows for the tagged field."""
    return b"".join(_ROW.pack(*row) for row in rows)


def unpack_rows(content: bytes | memoryview) -> list[RetentionRow]:
    """Decode the rows of the tagged field. Raises ApiError INVALID_REQUEST."""
    if len(content) % _ROW.size:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{len(content)} bytes are not rows of {_ROW.size}")
    return [RetentionRow._make(row) for row in _ROW.iter_unpack(content)]


class TombstoneRetention:
    """Exchanges the bounds of one broker's partitions: reports of its followers, responses of its leaders."""

    def __init__(
        self,
        hosted: PartitionRegistry,
        fence: ControlFence,
        peers: BrokerClient,
        purgatory: Purgatory,
        due: dict[TopicPartition, None],
        interval_ms: int,
        timeout_ms: int,
    ) -> None:
        """`due`: partitions of which a fact has changed since they were last visited: how far they are cleaned, their
        role, or a replica. `interval_ms` is the interval of the reports (log.cleaner.backoff.ms)."""
        self._hosted = hosted
        self._fence = fence
        self._peers = peers
        self._purgatory = purgatory
        self._due = due
        self._interval_ms = max(1, interval_ms)
        self._timeout_ms = timeout_ms
        self._busy: dict[int, None] = {}
        """Leaders that have not responded yet."""
        self._stopped = False

    def start_reports(self) -> None:
        """Schedule the next reports."""
        self._purgatory.look_after(self._interval_ms, self._visit_due)

    def stop_reports(self) -> None:
        """Send no further reports."""
        self._stopped = True

    # -- followers -----------------------------------------------------------------------------------------------------

    def _visit_due(self) -> None:
        due = list(self._due)
        # Before the visits: a partition that is not settled, or noted, during one of them is due again.
        self._due.clear()
        self._visit_partitions(iter(due), {})

    def _visit_partitions(self, due: Iterator[TopicPartition], followed: dict[int, list[Partition]]) -> None:
        """Visit the next partitions, and the others in a later turn: after a start all are due."""
        if self._stopped:
            return
        some = list(islice(due, BATCH))
        for tp in some:
            partition = self._hosted.find_partition(tp.topic, tp.partition)
            if partition is not None and partition.offline is None and partition.config.compact:
                self._visit_partition(partition, followed)
        if len(some) == BATCH:
            self._purgatory.look_after(_PAUSE_MS, lambda: self._visit_partitions(due, followed))
            return
        # A leader that has not responded yet gets no second report: its partitions are due again, and the next one has
        # newer values.
        for leader, partitions in followed.items():
            if leader not in self._busy:
                self._begin_report(leader, partitions)
        self.start_reports()

    def _visit_partition(self, partition: Partition, followed: dict[int, list[Partition]]) -> None:
        # A leader computes its bound by itself. A follower reports unless it has cleaned exactly up to the bound. Both
        # stay due while another replica has cleaned less, because what it does is not known here.
        log = partition.log
        if partition.is_leader:
            is_settled = partition.leader_role.bound_removals() >= log.cleaned_until
        else:
            is_settled = partition.leader < 0 or log.removable_below == log.cleaned_until
            if not is_settled:
                followed.setdefault(partition.leader, []).append(partition)
        if not is_settled:
            log.note_bound_due()

    @changes_state
    def _begin_report(self, leader: int, partitions: Iterable[Partition]) -> None:
        self._busy[leader] = None
        self._send_report(leader, iter(partitions))

    def _send_report(self, leader: int, partitions: Iterator[Partition]) -> None:
        """Report some of the partitions to their leader, and the next ones after its response."""
        # Checked again, because this may follow the response to earlier rows: the partition may have got another leader
        # since.
        some = [each for each in islice(partitions, BATCH) if each.leader == leader and each.offline is None]
        if not some or self._stopped:
            del self._busy[leader]
            return
        rows = pack_rows(
            RetentionRow(each.topic_id, each.tp.partition, each.leader_epoch, each.log.cleaned_until) for each in some
        )
        request = OffsetForLeaderEpochRequest(replica_id=self._fence.node_id)
        request.cleaned = _BROKER_EPOCH.pack(self._fence.broker_epoch) + rows

        def on_response(answer: OffsetForLeaderEpochResponse | Failure) -> None:
            if isinstance(answer, Failure):
                del self._busy[leader]  # the next report repeats it
                return
            self._take_bounds(leader, answer.removable)
            self._send_report(leader, partitions)

        self._peers.send_request(leader, request, _VERSION, self._timeout_ms, on_response, LANE)

    def _take_bounds(self, leader: int, content: bytes) -> None:
        # A response of another form changes no bound. Then tombstones are kept for longer, which is always safe.
        for row in unpack_rows(content) if len(content) % _ROW.size == 0 else ():
            partition = self._find_partition(row)
            if partition is not None and partition.leader == leader:
                partition.log.removable_below = row.offset

    # -- leaders -------------------------------------------------------------------------------------------------------

    def handle_report(self, replica_id: int, report: bytes) -> bytes:
        """Note a follower's report. Returns the bounds of those of its partitions that are led here.

        Raises ApiError INVALID_REQUEST.
        """
        if len(report) < _BROKER_EPOCH.size:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the report of cleaned offsets has no broker epoch")
        (broker_epoch,) = _BROKER_EPOCH.unpack_from(report)
        told = []
        for row in unpack_rows(report[_BROKER_EPOCH.size :]):
            partition = self._find_partition(row)
            if partition is not None and partition.is_leader:
                bound = partition.leader_role.note_cleaned(replica_id, broker_epoch, row.offset)
                told.append(row._replace(offset=bound))
        return pack_rows(told)

    def _find_partition(self, row: RetentionRow) -> Partition | None:
        """The partition of a row; None if it is not here or has another leader epoch by now."""
        topic = self._hosted.by_id.get(row.topic_id)
        partition = None if topic is None else topic.partitions.get(row.partition)
        if partition is None or partition.offline is not None or partition.leader_epoch != row.leader_epoch:
            return None
        return partition
