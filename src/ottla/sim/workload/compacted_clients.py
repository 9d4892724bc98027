"""The clients of compacted topics: a producer of keys and tombstones, and a scan of a log from start to end.

Zone: deterministic.
"""

from __future__ import annotations

import contextlib
from typing import Final

from ottla.errors import ErrorCode
from ottla.record.batch import Record, batches_of, encode_batch, records_of
from ottla.record.errors import CorruptRecord
from ottla.sim.entropy import Stream
from ottla.sim.history import History, Passage, Write, pack_record, unpack_record
from ottla.sim.networks.wire_client import Client, WireClient
from ottla.sim.workload.catalog import Catalog, Role, Topic
from ottla.sim.workload.producers import Producer, SimulatedLane
from ottla.sim.world import MS, WALL_START_MS
from ottla.wire.messages import FetchRequest, FetchResponse
from ottla.wire.schema import Message

KEYS_MIN: Final = 6
"""Keys that a producer has in a partition before it begins to delete."""
FETCH_VERSION: Final = 12
AGAIN_NS: Final = 200 * MS
RECORDS_MAX_BYTES: Final = 1 << 20


class KeyedProducer(Producer):
    """Writes values under its own keys, and deletes keys. It never uses a deleted key again."""

    def __init__(
        self, client: Client, catalog: Catalog, role: Role, idempotent: bool, random: Stream, history: History
    ) -> None:
        super().__init__(client, catalog, role, idempotent, random, history)
        self._living: dict[tuple[bytes, int], list[bytes]] = {}
        """Keys that are not deleted, by partition."""

    def _next_value(self, lane: SimulatedLane) -> bytes:
        """A packed record: a new key, a new value of a live key, or its tombstone."""
        self._count += 1
        keys = self._living.setdefault((lane.topic.topic_id, lane.partition), [])
        if len(keys) < KEYS_MIN or self.random.chance(0.3):
            keys.append(b"%s.%d" % (self.name.encode(), self._count))
            return pack_record(keys[-1], self._value_text())
        if self.random.chance(0.4):
            return pack_record(keys.pop(self.random.random_below(len(keys))), None)
        return pack_record(self.random.choice(keys), self._value_text())

    def _value_text(self) -> bytes:
        return (b"%d." % self._count * 30)[: self.random.between(1, 120)]

    def _encode_write(self, write: Write) -> bytes:
        stamp = WALL_START_MS + self.client.timeline.now_ns // MS
        rows = [unpack_record(text) for text in write.values]
        return bytes(
            encode_batch(
                [Record(at, stamp, key, value) for at, (key, value) in enumerate(rows)],
                codec=self.random.choice(self.codecs) if self.version >= 7 else 0,
                producer_id=write.producer_id,
                producer_epoch=write.epoch,
                base_sequence=write.sequence,
            )
        )


class Scan:
    """Reads one partition from its start, from one broker (leader or follower), without end."""

    def __init__(self, wire: WireClient, topic: Topic, partition: int, broker: int, history: History) -> None:
        self.topic = topic
        self.partition = partition
        self.broker = broker
        self.position = 0
        self.high_watermark = -1
        self._wire = wire
        self._history = history
        self._records = 0
        self._shown: dict[bytes, bytes | None] = {}

    def _restart_scan(self) -> None:
        """Start again at the log start, without the records read so far."""
        self.position, self._records = 0, 0
        self._shown.clear()

    def record_result(self) -> None:
        """Add its keys and values to the history, as the final state."""
        self._history.shown[self.log, self.broker] = self._shown
        self._history.kept[self.log, self.broker] = self._records

    @property
    def log(self) -> str:
        """The name of its log in the history."""
        return self.topic.partition_log(self.partition)

    @property
    def at_end(self) -> bool:
        """Whether it has read up to the high watermark of this broker."""
        return self.position == self.high_watermark

    def fetch_next(self) -> None:
        """Send the next Fetch request."""
        one = FetchRequest.FetchPartition(
            partition=self.partition, fetch_offset=self.position, partition_max_bytes=RECORDS_MAX_BYTES
        )
        topic = FetchRequest.FetchTopic(topic=self.topic.name, partitions=[one])
        request = FetchRequest(min_bytes=1, max_wait_ms=0, max_bytes=RECORDS_MAX_BYTES, topics=[topic])
        self._wire.send_request(request, FETCH_VERSION, FetchResponse, self._on_fetched)

    def _on_fetched(self, response: Message | None, _life: int) -> None:
        got = False
        if isinstance(response, FetchResponse) and not response.error_code:
            row = response.responses[0].partitions[0]
            if row.error_code == 0:
                self.high_watermark = row.high_watermark
                with contextlib.suppress(CorruptRecord):  # `readers` check the bytes, and report damage
                    got = isinstance(row.records, memoryview) and self._take_records(row.records)
            elif row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._restart_scan()
        self._wire.timeline.schedule_after(1 if got else AGAIN_NS, "scan", self.fetch_next)

    def _take_records(self, data: memoryview) -> bool:
        """Note the records of an answer. True if the position moved."""
        before, seen = self.position, set()
        for pos, header in batches_of(data):
            for record in records_of(data, pos, max_bytes=RECORDS_MAX_BYTES):
                if record.offset >= before and not header.is_control:
                    self._shown[record.key or b""] = record.value
                    self._records += 1
                    seen.add(record.offset)
            self.position = max(self.position, header.last_offset + 1)
        passage = Passage(self.log, self._wire.timeline.now_ns, before, self.position, frozenset(seen))
        self._history.passages.append(passage)
        return self.position > before
