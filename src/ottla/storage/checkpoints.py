"""Formats of the small files beside the log: values to bytes, and back.

Zone: pure. Formats only; the log and its manager decide when a file is written, and through which disk.

    recovery-point-offset-checkpoint, replication-offset-checkpoint,   text, version 0: an offset per partition
    log-start-offset-checkpoint, cleaner-offset-checkpoint
    meta.properties                                                    whose directory it is
    .kafka_cleanshutdown                                               JSON: the broker was stopped cleanly
    <partition>/leader-epoch-checkpoint                                text, version 0: start offset per leader epoch
    <partition>/partition.metadata                                     text: the topic id
    <partition>/<offset>.snapshot                                      binary, version 1: the producers' state there
    <partition>/txnindex-checksums                                     text, version 0: size and checksum per file

All but the last are Apache Kafka's to the byte. An unreadable file raises CorruptCheckpoint; its readable part is not
returned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Final, NamedTuple

from ottla.config.rows import ConfigError
from ottla.config.sources import parse_properties
from ottla.record.crc import crc32c
from ottla.storage.errors import StorageError
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.indexes.txn_index import IndexChecksum
from ottla.storage.producers.producer_state import SnapshotEntry
from ottla.types import TopicPartition, uuid_from_text, uuid_to_text

_TEXT_VERSION: Final = 0
_INT32: Final = 2**31
_INT64: Final = 2**63
# A producer snapshot, big-endian:
# version i16 = 1 | CRC-32C u32, of everything after it | count i32
# and per producer: id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64,
# coordinator epoch i32, first offset of the open transaction i64
_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD = Struct(">hIi")
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")
_SNAPSHOT_COUNT_POS: Final = 6
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class CorruptCheckpoint(StorageError):
    """A file beside the log breaks its format; the message names the place."""


class WrongChecksum(CorruptCheckpoint):
    """A producer snapshot whose checksum is not that of its content."""

    def __init__(self, stored: int, computed: int) -> None:
        super().__init__("a producer snapshot with a wrong checksum")
        self.stored = stored
        self.computed = computed


class MetaProperties(NamedTuple):
    """The owner of a data directory. Version 0 calls the id `broker.id` (ZooKeeper), version 1 `node.id`."""

    node_id: int
    cluster_id: str
    directory_id: bytes | None = None
    """Uuid of this directory, 16 bytes; old directories have none."""
    version: int = 1


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """An offset checkpoint, in the order of the mapping."""
    return _format_text(list(map(_offset_line, offsets, offsets.values())))


class OffsetText:
    """An offset checkpoint that is written repeatedly: only lines that change are formatted again."""

    def __init__(self) -> None:
        self._offsets: dict[TopicPartition, int] = {}
        self._lines: dict[TopicPartition, str] = {}
        self._data: bytes | None = None
        self._is_sorted = True

    def set_offset(self, tp: TopicPartition, offset: int | None) -> None:
        """Set the offset of a partition; None removes its line."""
        if self._offsets.get(tp) == offset:
            return
        self._data = None
        if offset is None:
            del self._offsets[tp], self._lines[tp]
            return
        # A dict keeps the place of a key that is set again: only a new partition can end the order of names.
        self._is_sorted = self._is_sorted and tp in self._lines
        self._offsets[tp] = offset
        self._lines[tp] = _offset_line(tp, offset)

    def refresh_offsets(
        self, moved: dict[TopicPartition, None], offset_of: Callable[[TopicPartition], int | None]
    ) -> bytes:
        """The file with the present offsets of the partitions in `moved`, which is emptied."""
        self.take_moved(moved, offset_of)
        return self.data

    def take_moved(self, moved: dict[TopicPartition, None], offset_of: Callable[[TopicPartition], int | None]) -> None:
        """Take over the present offsets of the partitions in `moved`, which is emptied; formats no file."""
        for tp in moved:
            self.set_offset(tp, offset_of(tp))
        moved.clear()

    @property
    def data(self) -> bytes:
        """As `format_offsets`, in the order of names; the same object while nothing changes."""
        if self._data is None:
            if not self._is_sorted:
                self._lines = {tp: self._lines[tp] for tp in sorted(self._lines)}
                self._is_sorted = True
            self._data = _format_text(list(self._lines.values()))
        return self._data


def _offset_line(tp: TopicPartition, offset: int) -> str:
    return f"{tp.topic} {tp.partition} {offset}"


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Inverse of `format_offsets`. Raises CorruptCheckpoint."""
    offsets: dict[TopicPartition, int] = {}
    for line in _parse_text(data):
        fields = line.split(" ")
        if len(fields) != 3 or not fields[0]:
            raise CorruptCheckpoint(f"not `topic partition offset`: {line!r}")
        tp = TopicPartition(fields[0], _parse_integer(fields[1], _INT32))
        if tp in offsets or tp.partition < 0:
            raise CorruptCheckpoint(f"partition {tp} twice or negative")
        offsets[tp] = _parse_integer(fields[2], _INT64)
    return offsets


def format_epochs(epochs: Sequence[EpochEntry]) -> bytes:
    """A leader epoch checkpoint, oldest epoch first."""
    return _format_text([f"{epoch} {start_offset}" for epoch, start_offset in epochs])


def parse_epochs(data: bytes) -> list[EpochEntry]:
    """Inverse of `format_epochs`. Raises CorruptCheckpoint, also when epochs do not rise or offsets fall."""
    epochs: list[EpochEntry] = []
    for line in _parse_text(data):
        fields = line.split(" ")
        if len(fields) != 2:
            raise CorruptCheckpoint(f"not `epoch offset`: {line!r}")
        entry = EpochEntry(_parse_integer(fields[0], _INT32), _parse_integer(fields[1], _INT64))
        before = epochs[-1] if epochs else EpochEntry(-1, 0)
        if entry.epoch <= before.epoch or entry.start_offset < before.start_offset:
            raise CorruptCheckpoint(f"leader epoch {line!r} after {tuple(before)}")
        epochs.append(entry)
    return epochs


def format_checksums(sums: Mapping[str, IndexChecksum]) -> bytes:
    """Sizes and checksums by the name of a file."""
    return _format_text([f"{name} {each.size} {each.crc}" for name, each in sums.items()])


def parse_checksums(data: bytes) -> dict[str, IndexChecksum]:
    """Inverse of `format_checksums`. Raises CorruptCheckpoint."""
    sums: dict[str, IndexChecksum] = {}
    for line in _parse_text(data):
        fields = line.split(" ")
        if len(fields) != 3 or not fields[0] or fields[0] in sums:
            raise CorruptCheckpoint(f"not `name size checksum`: {line!r}")
        sums[fields[0]] = IndexChecksum(_parse_integer(fields[1], _INT64), _parse_integer(fields[2], _INT64))
    return sums


def format_partition_metadata(topic_id: bytes) -> bytes:
    """The file `partition.metadata`, version 0."""
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> bytes:
    """The topic id, 16 bytes. Raises CorruptCheckpoint; the id zero means "none" in the protocol and is refused."""
    fields = dict(line.split(": ", 1) for line in _decode_lines(data) if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CorruptCheckpoint("partition.metadata names version 0 and a topic_id")
    topic_id = _parse_uuid(fields["topic_id"])
    if not any(topic_id):
        raise CorruptCheckpoint("partition.metadata has the topic id zero")
    return topic_id


def format_meta_properties(meta: MetaProperties, wall_ms: int) -> bytes:
    """The file `meta.properties`; `wall_ms` goes into its comment."""
    assert meta.version in (0, 1)
    # Java's Properties begin with a comment, which is empty here, and the date.
    lines = ["#", "#" + _java_date(wall_ms), f"{'node' if meta.version else 'broker'}.id={meta.node_id}"]
    if meta.directory_id is not None:
        lines.append(f"directory.id={uuid_to_text(meta.directory_id)}")
    lines += [f"version={meta.version}", f"cluster.id={meta.cluster_id}"]
    return "\n".join([*lines, ""]).encode()


def parse_meta_properties(data: bytes) -> MetaProperties:
    """Inverse of `format_meta_properties`; keys of other programs are ignored. Raises CorruptCheckpoint."""
    try:
        fields = parse_properties("\n".join(_decode_lines(data)))
    except ConfigError as error:
        raise CorruptCheckpoint(f"meta.properties: {error}") from error
    version = _parse_integer(fields.get("version", "0"), _INT32)
    id_key = {0: "broker.id", 1: "node.id"}.get(version)
    if id_key is None:
        raise CorruptCheckpoint(f"meta.properties of version {version}")
    if id_key not in fields or "cluster.id" not in fields:
        raise CorruptCheckpoint(f"meta.properties without {id_key} or cluster.id")
    directory = fields.get("directory.id")
    return MetaProperties(
        node_id=_parse_integer(fields[id_key], _INT32),
        cluster_id=fields["cluster.id"],
        directory_id=None if directory is None else _parse_uuid(directory),
        version=version,
    )


def format_clean_shutdown(broker_epoch: int) -> bytes:
    """The file `.kafka_cleanshutdown`; an epoch of -1 is not known."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def parse_clean_shutdown(data: bytes) -> int:
    """The broker epoch, -1 when it is not known: the file of Kafka before 3.6 is empty. Raises CorruptCheckpoint."""
    if not data:
        return -1
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f".kafka_cleanshutdown is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("version") != 0:
        raise CorruptCheckpoint(".kafka_cleanshutdown is not of version 0")
    epoch = content.get("brokerEpoch", -1)
    # The type itself: for `isinstance`, JSON's true is an int as well.
    if type(epoch) is not int or not -1 <= epoch < _INT64:
        raise CorruptCheckpoint(f".kafka_cleanshutdown has the broker epoch {epoch!r}")
    return epoch


def format_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """A producer snapshot: version int16, CRC-32C of what follows it uint32, count int32, 46 bytes per producer."""
    body = pack_entries(entries)
    return join_snapshot(len(body) // _SNAPSHOT_ENTRY.size, [body])


def pack_entries(entries: Iterable[SnapshotEntry]) -> bytes:
    """Some entries of a snapshot."""
    return b"".join([_SNAPSHOT_ENTRY.pack(*entry) for entry in entries])


def join_snapshot(count: int, packed: Sequence[bytes]) -> bytes:
    """A snapshot of `count` entries that are packed."""
    checksum = crc32c(count.to_bytes(4, "big"))
    for each in packed:
        checksum = crc32c(each, checksum)
    return b"".join([_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, checksum, count), *packed])


def parse_snapshot(data: bytes) -> list[SnapshotEntry]:
    """Inverse of `format_snapshot`. Raises CorruptCheckpoint for another version, checksum or length."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise CorruptCheckpoint(f"a producer snapshot of {len(data)} bytes")
    version, checksum, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != _SNAPSHOT_VERSION:
        raise CorruptCheckpoint(f"a producer snapshot of version {version}")
    if (computed := crc32c(data[_SNAPSHOT_COUNT_POS:])) != checksum:
        raise WrongChecksum(checksum, computed)
    if count * _SNAPSHOT_ENTRY.size != len(data) - _SNAPSHOT_HEAD.size:
        raise CorruptCheckpoint(f"a producer snapshot of {count} entries in {len(data)} bytes")
    return [SnapshotEntry._make(fields) for fields in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :])]


def _format_text(lines: list[str]) -> bytes:
    return "\n".join([str(_TEXT_VERSION), str(len(lines)), *lines, ""]).encode()


def _parse_text(data: bytes) -> list[str]:
    """The entries of a version 0 text checkpoint: version, count, one line each. An empty file was just created."""
    if not data:
        return []
    lines = _decode_lines(data)
    if len(lines) < 2:
        raise CorruptCheckpoint("a checkpoint begins with its version and count")
    if lines[0] != str(_TEXT_VERSION):
        raise CorruptCheckpoint(f"a checkpoint of version {lines[0]!r}")
    if _parse_integer(lines[1], _INT32) != len(lines) - 2:
        raise CorruptCheckpoint(f"{len(lines) - 2} entries where the checkpoint announces {lines[1]}")
    return lines[2:]


def _decode_lines(data: bytes) -> list[str]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"not UTF-8: {error}") from error
    return text.removesuffix("\n").split("\n") if text else []


def _parse_integer(text: str, limit: int) -> int:
    """A decimal integer in -limit ... limit - 1, without the spaces and underscores that `int` would take."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and -limit <= int(text) < limit):
        raise CorruptCheckpoint(f"not an integer in range: {text[:40]!r}")
    return int(text)


def _parse_uuid(text: str) -> bytes:
    try:
        return uuid_from_text(text)
    except ValueError as error:
        raise CorruptCheckpoint(f"not a uuid: {text[:40]!r}") from error


def _java_date(wall_ms: int) -> str:
    """As java.util.Date prints it: `Fri Nov 20 21:38:28 UTC 2026`, in English whatever the locale."""
    at = datetime.fromtimestamp(wall_ms // 1000, UTC)
    return f"{_DAYS[at.weekday()]} {_MONTHS[at.month - 1]} {at:%d %H:%M:%S} UTC {at.year:04}"
