"""Reads logs that transactions write, like a client with an isolation level.

Zone: deterministic. Like most clients it relies on the order of the aborted transactions: by first offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ottla.record.batch import BatchHeader, batches_of, crc_ok, records_of
from ottla.record.control import parse_marker
from ottla.record.errors import CorruptRecord
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.transactions.history import SeenMarker, SeenRecord, View
from ottla.sim.transactions.steps import RETRY_NS, Steps, pause_client, request_broker
from ottla.sim.workload.catalog import Topic
from ottla.sim.world import Timeline
from ottla.wire.messages import FetchRequest, FetchResponse

VERSIONS: Final = (9, 10, 11, 12)
"""Versions of Fetch with leader epochs, and with topic names."""
RECORDS_MAX_BYTES: Final = 1 << 20
MAX_BYTES: Final = 10_000
"""Maximum bytes of a poll."""
HURRIED_BYTES: Final = 10 * MAX_BYTES
"""Maximum bytes of a poll while the rest is copied at the end."""


class HasName(Protocol):
    """The part of a client that a view needs."""

    @property
    def name(self) -> str:
        """Its name in the history."""
        ...

    @property
    def timeline(self) -> Timeline:
        """The time."""
        ...


Aborted = Sequence[tuple[int, int]]
"""(producer id, first offset), in the order of the answer."""


class Parsed:
    """The records and markers in the bytes of an answer, from a position on."""

    __slots__ = ("_aborted", "_at", "_committed", "_open", "damage", "end", "markers", "position", "records")

    def __init__(self, data: memoryview | None, position: int, aborted: Aborted, committed: bool) -> None:
        self.position = self.end = position
        self.records: list[SeenRecord] = []
        self.markers: list[SeenMarker] = []
        self.damage = ""
        self._aborted = aborted
        self._at = 0
        self._committed = committed
        self._open: dict[int, None] = {}
        try:
            self._parse_batches(data if data is not None else memoryview(b""))
        except CorruptRecord as error:
            self.damage = f"a batch that cannot be read: {error}"

    def _parse_batches(self, data: memoryview) -> None:
        end = 0
        for pos, header in batches_of(data):
            end = pos + header.size
            if not crc_ok(data, pos, end):
                raise CorruptRecord(f"checksum of the batch at {header.base_offset}")
            self._parse_batch(data, pos, header)
            self.end = max(self.end, header.last_offset + 1)
        if end != len(data):
            raise CorruptRecord(f"{len(data) - end} bytes of a batch at the end")

    def _parse_batch(self, data: memoryview, pos: int, header: BatchHeader) -> None:
        # 1. From its first offset on, an aborted transaction hides the records of its producer.
        # 2. The abort marker ends that (in `_parse_markers`).
        # 3. A batch without a transaction is always shown.
        while self._at < len(self._aborted) and self._aborted[self._at][1] <= header.last_offset:
            self._open[self._aborted[self._at][0]] = None
            self._at += 1
        if header.is_control:
            self._parse_markers(data, pos, header)
        elif not (self._committed and header.is_transactional and header.producer_id in self._open):
            self.records.extend(
                SeenRecord(record.offset, record.value or b"", header.producer_id, header.producer_epoch)
                for record in records_of(data, pos, max_bytes=RECORDS_MAX_BYTES)
                if record.offset >= self.position
            )

    def _parse_markers(self, data: memoryview, pos: int, header: BatchHeader) -> None:
        for record in records_of(data, pos, max_bytes=RECORDS_MAX_BYTES):
            marker = parse_marker(record.key, record.value)
            if marker is None:
                continue
            if not marker.commit:
                self._open.pop(header.producer_id, None)
            if record.offset >= self.position:
                self.markers.append(SeenMarker(record.offset, header.producer_id, header.producer_epoch, *marker))


class Polled(NamedTuple):
    """An answer to a poll: the visible records, and the next position."""

    records: list[SeenRecord]
    end: int
    view: View


def parse_row(row: FetchResponse.PartitionData, position: int, committed: bool) -> Parsed:
    """Parse one partition of an answer."""
    data = row.records if isinstance(row.records, memoryview) else None
    aborted = [(one.producer_id, one.first_offset) for one in row.aborted_transactions or ()]
    return Parsed(data, position, aborted, committed)


def poll_partition(
    client: ClusterClient, random: Stream, topic: Topic, partition: int, position: int, max_bytes: int = MAX_BYTES
) -> Steps[Polled | None]:
    """Read committed records of a partition; None: the request failed."""
    seen = client.view.get((topic.name, partition))
    if seen is None or seen.leader < 0:
        client.mark_metadata_stale()
        yield from pause_client(RETRY_NS)
        return None
    row = FetchRequest.FetchPartition(
        partition=partition, current_leader_epoch=seen.epoch, fetch_offset=position, partition_max_bytes=max_bytes
    )
    request = FetchRequest(
        max_wait_ms=random.choice((0, 50, 100)),
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=1,
        topics=[FetchRequest.FetchTopic(topic=topic.name, partitions=[row])],
    )
    answer = yield from request_broker(seen.leader, request, random.choice(VERSIONS), FetchResponse)
    if answer is None or answer.error_code or answer.responses[0].partitions[0].error_code:
        client.mark_metadata_stale()
        yield from pause_client(RETRY_NS)
        return None
    told = answer.responses[0].partitions[0]
    found = parse_row(told, position, committed=True)
    if found.damage:
        client.complain(f"{client.name} at {position} of {topic.name}-{partition}: {found.damage}")
    return Polled(
        found.records, found.end, view_of(client, topic.partition_log(partition), found, told, committed=True)
    )


def view_of(client: HasName, log: str, found: Parsed, row: FetchResponse.PartitionData, committed: bool) -> View:
    """The view of an answer, for the history."""
    return View(
        client.name,
        log,
        client.timeline.now_ns,
        found.position,
        found.end,
        found.records,
        found.markers,
        row.high_watermark,
        row.last_stable_offset,
        committed,
        found.damage,
    )
