"""Readers of the workload: they fetch partitions from the start or from the end, and note the records.

Zone: deterministic. They check every byte: batch boundaries, checksums, records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.errors import ErrorCode
from ottla.record.batch import BatchHeader, batches_of, crc_ok, records_of
from ottla.record.errors import CorruptRecord
from ottla.sim.entropy import Stream
from ottla.sim.history import Ends, History, Read, Reset
from ottla.sim.networks.wire_client import WireClient
from ottla.sim.workload.catalog import Catalog, Role, Topic
from ottla.sim.world import MS
from ottla.wire.messages import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from ottla.wire.schema import Message

TOPIC_ID_VERSION: Final = 13
SESSION_VERSION: Final = 7
VERSIONS: Final = (4, 5, 7, 9, 10, 11, 12, 13, 15, 16, 17)
ZSTD_VERSION: Final = 10
EARLIEST: Final = -2
LATEST: Final = -1
RECORDS_MAX_BYTES: Final = 1 << 20
PAUSE_NS: Final = 100 * MS


@dataclass(slots=True, eq=False)
class Cursor:
    """The position of a reader in one partition."""

    topic: Topic
    partition: int
    position: int = -1
    """-1: unknown, to be found with ListOffsets."""
    wanted: int = EARLIEST
    """Where to start when the position is unknown or out of range."""
    fresh: bool = True
    """True: the next read is the first one at a new position."""
    asked: int = -1
    """The position in the present fetch session."""
    high_watermark: int = -1
    broken: bool = False
    """Wrong bytes were found: it reads no further."""
    epoch: int = -1
    """The leader epoch of requests; -1: any."""
    node: int = 0
    """The broker to read from."""

    @property
    def log(self) -> str:
        """Its name in the history."""
        return self.topic.partition_log(self.partition)


class Reader:
    """Follows all partitions of the topics of one role."""

    def __init__(
        self, client: WireClient, catalog: Catalog, role: Role, from_start: bool, random: Stream, history: History
    ) -> None:
        self.client = client
        self.catalog = catalog
        self.role = role
        self.random = random
        self.history = history
        self.wanted = EARLIEST if from_start else LATEST
        # Below version 10 a reader cannot get zstd, which producers of the workload use.
        self.version = TOPIC_ID_VERSION if role is Role.CHURN else random.choice(VERSIONS[4:])
        self.sessions = random.chance(0.5)
        self.max_bytes = random.choice((2000, 60_000, 1 << 20))
        self.max_wait_ms = random.choice((0, 100, 500))
        self.pause_ns = random.choice((1, 50 * MS, 200 * MS))
        """Time between an answer and the next request."""
        self.rack = ""
        self.isolation = 0
        """1: read_committed."""
        self._cursors: dict[tuple[bytes, int], Cursor] = {}
        self._session_id = 0
        self._session_epoch = 0
        self._session_cursors: list[Cursor] = []

    @property
    def name(self) -> str:
        """Its name in the history."""
        return self.client.name

    def start_reading(self) -> None:
        """Start to read."""
        self._fetch_later(self.random.random_below(PAUSE_NS))

    def list_cursors(self) -> list[Cursor]:
        """Its positions in all partitions of the existing topics."""
        found = []
        for topic in self.catalog.topics_of_role(self.role):
            for partition in range(topic.partitions):
                key = (topic.topic_id, partition)
                cursor = self._cursors.get(key)
                if cursor is None:
                    cursor = self._cursors[key] = Cursor(topic, partition, wanted=self.wanted)
                found.append(cursor)
        return found

    def restart_at(self, wanted: int) -> None:
        """Forget all positions, and start again at that end of the logs."""
        self.wanted = wanted
        self._cursors.clear()
        self._forget_session()

    def _fetch_later(self, delay_ns: int) -> None:
        self.client.timeline.schedule_after(delay_ns, "read", self._fetch_next)

    def _fetch_next(self) -> None:
        cursors = [cursor for cursor in self.list_cursors() if not cursor.broken]
        unknown = [cursor for cursor in cursors if cursor.position < 0]
        if unknown:
            self._ask_ends(unknown[0])
        elif cursors:
            self._fetch_cursors(cursors)
        else:
            self._fetch_later(PAUSE_NS)

    # ---- ends ----

    def _ask_ends(self, cursor: Cursor) -> None:
        partitions = [
            ListOffsetsRequest.ListOffsetsPartition(
                partition_index=cursor.partition, current_leader_epoch=cursor.epoch, timestamp=cursor.wanted
            )
        ]
        topic = ListOffsetsRequest.ListOffsetsTopic(name=cursor.topic.name, partitions=partitions)
        request = ListOffsetsRequest(replica_id=-1, topics=[topic])
        version = 1 + self.random.random_below(8)
        self.client.send_request(
            request, version, ListOffsetsResponse, lambda response, life: self._on_list_offsets(cursor, response, life)
        )

    def _on_list_offsets(self, cursor: Cursor, response: Message | None, life: int) -> None:
        if isinstance(response, ListOffsetsResponse):
            row = response.topics[0].partitions[0]
            if row.error_code == 0:
                cursor.position, cursor.fresh = row.offset, True
                self._note_ends(cursor, life)
                self._fetch_later(0)
                return
        self._mark_cursor_stale(cursor)
        self._fetch_later(PAUSE_NS)

    def _mark_cursor_stale(self, cursor: Cursor) -> None:
        """Hook after an error that may be due to stale metadata; a single broker needs nothing here."""

    def _note_ends(self, cursor: Cursor, life: int) -> None:
        if cursor.wanted == EARLIEST:
            end = max(cursor.position, cursor.high_watermark)
            self.history.ends.append(Ends(cursor.log, life, self.client.timeline.now_ns, cursor.position, end))

    # ---- fetching ----

    def _fetch_cursors(self, cursors: list[Cursor]) -> None:
        # In a session only partitions with a new position are sent, and removed ones are listed as forgotten (KIP-227).
        in_session = self.sessions and self.version >= SESSION_VERSION
        asked = cursors
        if in_session and self._session_epoch > 0:
            asked = [cursor for cursor in cursors if cursor.asked != cursor.position]
        request = FetchRequest(
            max_wait_ms=self.max_wait_ms,
            min_bytes=1,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation,
            session_id=self._session_id if in_session else 0,
            session_epoch=self._session_epoch if in_session else -1,
            topics=[self._build_request(cursor) for cursor in asked],
            rack_id=self.rack,
        )
        if in_session and self._session_epoch > 0:
            request.forgotten_topics_data = self._forgotten_topics(cursors)
        self._session_cursors = cursors
        positions = {(c.topic.name, c.topic.topic_id, c.partition): (c, c.position) for c in cursors}
        self.client.send_request(
            request, self.version, FetchResponse, lambda response, life: self._on_fetched(positions, response, life)
        )

    def _build_request(self, cursor: Cursor) -> FetchRequest.FetchTopic:
        cursor.asked = cursor.position
        partition = FetchRequest.FetchPartition(
            partition=cursor.partition,
            current_leader_epoch=cursor.epoch,
            fetch_offset=cursor.position,
            partition_max_bytes=self.max_bytes,
        )
        topic = FetchRequest.FetchTopic(partitions=[partition])
        if self.version >= TOPIC_ID_VERSION:
            topic.topic_id = cursor.topic.topic_id
        else:
            topic.topic = cursor.topic.name
        return topic

    def _forgotten_topics(self, cursors: list[Cursor]) -> list[FetchRequest.ForgottenTopic]:
        gone = [old for old in self._session_cursors if all(old is not cursor for cursor in cursors)]
        topics = []
        for cursor in gone:
            cursor.asked = -1
            topic = FetchRequest.ForgottenTopic(partitions=[cursor.partition])
            if self.version >= TOPIC_ID_VERSION:
                topic.topic_id = cursor.topic.topic_id
            else:
                topic.topic = cursor.topic.name
            topics.append(topic)
        return topics

    def _forget_session(self) -> None:
        self._session_id = self._session_epoch = 0

    def _on_fetched(
        self, positions: dict[tuple[str, bytes, int], tuple[Cursor, int]], response: Message | None, life: int
    ) -> None:
        # 1. No answer, or an error of the whole request: start a new session.
        # 2. Otherwise count the session's epoch, and handle each partition that still has the requested position.
        # 3. Fetch again soon if there were records, or the broker itself waits for them.
        if not isinstance(response, FetchResponse) or response.error_code:
            self._forget_session()
            for cursor, _ in positions.values():
                self._mark_cursor_stale(cursor)
            self._fetch_later(PAUSE_NS)
            return
        if self.sessions and self.version >= SESSION_VERSION:
            self._session_id = response.session_id
            self._session_epoch = self._session_epoch + 1 if response.session_id else 0
        by_id = self.version >= TOPIC_ID_VERSION
        keys = {(key[1] if by_id else key[0], key[2]): found for key, found in positions.items()}
        got = failed = False
        for topic in response.responses:
            for row in topic.partitions:
                cursor, position = keys[topic.topic_id if by_id else topic.topic, row.partition_index]
                failed = failed or row.error_code != 0
                if cursor.position == position:
                    got = self._take_row(cursor, row, life) or got
        self._fetch_later(self.pause_ns if not failed and (got or self.max_wait_ms) else PAUSE_NS)

    def _take_row(self, cursor: Cursor, row: FetchResponse.PartitionData, life: int) -> bool:
        """Note one partition of an answer. True if it had records."""
        if row.error_code:
            self._on_error(cursor, ErrorCode(row.error_code), life)
            return False
        return self._note_records(cursor, row, life)

    def _note_records(self, cursor: Cursor, row: FetchResponse.PartitionData, life: int) -> bool:
        """Add the records to the history, and move the position after them."""
        data = row.records
        epochs: list[tuple[int, int]] = []
        records: list[tuple[int, bytes]] = []
        damage = ""
        if isinstance(data, memoryview) and len(data):
            records, damage = _parse_batches(data, cursor.position, epochs)
        read = Read(
            self.name,
            cursor.log,
            life,
            self.client.timeline.now_ns,
            cursor.position,
            records,
            row.high_watermark,
            row.log_start_offset if self.version >= 5 else 0,
            self.client.connection_number,
            damage,
            cursor.fresh,
            cursor.epoch,
            epochs,
        )
        self.history.reads.append(read)
        cursor.high_watermark, cursor.fresh, cursor.broken = row.high_watermark, False, bool(damage)
        if records:
            cursor.position = records[-1][0] + 1
        return bool(records)

    def _on_error(self, cursor: Cursor, code: ErrorCode, life: int) -> None:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            now = self.client.timeline.now_ns
            self.history.resets.append(Reset(self.name, cursor.log, life, now, cursor.position))
            cursor.position = -1
        else:
            self._mark_cursor_stale(cursor)
        if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._forget_session()


def _parse_batches(
    data: memoryview, position: int, epochs: list[tuple[int, int]]
) -> tuple[list[tuple[int, bytes]], str]:
    """Offsets and values from the position on, and the defect of the bytes; adds leader epochs of batches."""
    records: list[tuple[int, bytes]] = []
    end = 0
    try:
        for pos, header in batches_of(data):
            end = pos + header.size
            if not crc_ok(data, pos, end):
                return records, f"checksum of the batch at {header.base_offset}"
            epochs.append((header.base_offset, header.leader_epoch))
            _collect_records(data, pos, header, position, records)
    except CorruptRecord as error:
        return records, f"a batch that cannot be read: {error}"
    return records, "" if end == len(data) else f"the answer ends {len(data) - end} bytes into a batch"


def _collect_records(
    data: memoryview, pos: int, header: BatchHeader, position: int, records: list[tuple[int, bytes]]
) -> None:
    if header.record_count != header.last_offset_delta + 1:
        raise CorruptRecord(f"{header.record_count} records, last offset delta {header.last_offset_delta}")
    found = records_of(data, pos, max_bytes=RECORDS_MAX_BYTES)
    records.extend((record.offset, record.value or b"") for record in found if record.offset >= position)
