"""The journal of groups: entries, and their records in `__consumer_offsets`.

Zone: pure. Kafka's own schemas. Offsets are by far the most frequent, so they are packed and unpacked here by hand; the
declared messages encode everything else.
"""

from __future__ import annotations

from struct import Struct, error
from struct import pack as pack_now
from typing import Final, NamedTuple

from ottla.groups.record_versions import EXPIRING_OFFSET, NEWEST, GroupRecordVersions
from ottla.record.internal.groups import (
    GROUP_RECORDS,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.record.internal.parsing import UnknownType, parse_record
from ottla.wire.codec import encode_bytes

_ODD: Final = "surrogateescape"
"""The error handler for text that is not UTF-8, as in `utf8.encode_text`."""
_OFFSET_KEY: Final = 1
_GROUP_KEY: Final = 2
_OFFSET_VERSION: Final = 3
_SHORT: Final = Struct(">h")
_INT: Final = Struct(">i")
# The key of an offset:
# version i16 = 1 | length i16 | group | length i16 | topic | partition i32
_KEY_HEAD: Final = Struct(">hh")
_VALUE_HEAD: Final = Struct(">hqih")
"""Version 3: version, offset, leader epoch, length of the metadata."""
_LONG: Final = Struct(">q")
_PLAIN_VALUE: Final = Struct(">hqihq")
"""Version 3 without metadata: version, offset, leader epoch, 0, time of the commit."""
_new = tuple.__new__  # a third of the time of the classes' own, and this runs for every offset that is loaded


class Position(NamedTuple):
    """A committed offset of one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int = -1
    """The wall time at which it expires; -1: offsets.retention.minutes decides."""


class OffsetCommitted(NamedTuple):
    """A group's offset in a partition; None: it is removed."""

    group_id: str
    topic: str
    partition: int
    position: Position | None


class GroupSaved(NamedTuple):
    """A generation of a group; None: the group is deleted."""

    group_id: str
    value: GroupMetadataValue | None


class GroupCodec:
    """Entries to records and back."""

    __slots__ = ("_names", "_prefix", "_versions")

    newest_only = False
    """Older entries matter: an offset of a transaction waits for its marker, whatever is committed in between."""

    def __init__(self, versions: GroupRecordVersions = NEWEST) -> None:
        """versions: what is written; every version is read."""
        self._versions = versions
        self._prefix: bytes | None = None
        """The last key without its partition: the next key is mostly of the same group and topic."""
        self._names = ("", "")

    def encode(self, entry: object) -> tuple[bytes, bytes | None]:
        """Key and value; no value deletes the key."""
        if isinstance(entry, OffsetCommitted):
            position = entry.position
            return _offset_key(entry), None if position is None else _offset_value(position, self._versions.offset)
        assert isinstance(entry, GroupSaved), entry
        key = _SHORT.pack(_GROUP_KEY) + encode_bytes(GroupMetadataKey(group=entry.group_id), 0)
        if entry.value is None:
            return key, None
        version = self._versions.group
        return key, _SHORT.pack(version) + encode_bytes(entry.value, version)

    def decode(self, key: bytes | None, value: bytes | None) -> object | None:
        """The entry; None for a record of an unknown type. Raises CorruptRecord."""
        found = self._unpack_offset(key, value)
        if found is not None:
            return found
        try:
            record = parse_record(GROUP_RECORDS, key, value)
        except UnknownType:
            return None
        message = record.key
        if isinstance(message, OffsetCommitKey):
            assert record.value is None or isinstance(record.value, OffsetCommitValue)
            position = None if record.value is None else _to_position(record.value)
            return OffsetCommitted(message.group, message.topic, message.partition, position)
        if isinstance(message, GroupMetadataKey):
            assert record.value is None or isinstance(record.value, GroupMetadataValue)
            return GroupSaved(message.group, record.value)
        return None

    def _unpack_offset(self, key: bytes | None, value: bytes | None) -> OffsetCommitted | None:
        """An offset in this broker's own format; None for any other record. Hot: a shard may have millions."""
        if key is None:
            return None
        try:
            # A key: int16 version, int16 length, group, int16 length, topic, int32 partition.
            prefix = key[:-4]
            if prefix != self._prefix:
                names = _names_in(prefix)
                if names is None:
                    return None
                self._prefix, self._names = prefix, names
            group_id, topic = self._names
            (partition,) = _INT.unpack_from(key, len(prefix))
            position = None if value is None else _unpack_position(value)
        except (error, UnicodeDecodeError):
            # The general decoder reads the record once more, and reports what is wrong with it.
            return None
        if position is None and value is not None:
            return None
        return _new(OffsetCommitted, (group_id, topic, partition, position))


def _to_position(value: OffsetCommitValue) -> Position:
    return Position(value.offset, value.leader_epoch, value.metadata, value.commit_timestamp, value.expire_timestamp)


def _offset_key(entry: OffsetCommitted) -> bytes:
    group, topic = entry.group_id.encode("utf-8", _ODD), entry.topic.encode("utf-8", _ODD)
    return b"".join(
        (_KEY_HEAD.pack(_OFFSET_KEY, len(group)), group, _SHORT.pack(len(topic)), topic, _INT.pack(entry.partition))
    )


def _offset_value(position: Position, version: int) -> bytes:
    metadata = position.metadata.encode("utf-8", _ODD)
    # Version 1 for an expiry time of its own, as Kafka chooses: later versions have no field for it.
    if position.expire_ms >= 0:
        version = EXPIRING_OFFSET
    if version >= _OFFSET_VERSION:
        head = _VALUE_HEAD.pack(version, position.offset, position.leader_epoch, len(metadata))
        return head + metadata + _LONG.pack(position.commit_ms)
    # Versions 1 and 2 have no leader epoch.
    head = pack_now(">hqh", version, position.offset, len(metadata))
    times = (position.commit_ms, position.expire_ms) if version == EXPIRING_OFFSET else (position.commit_ms,)
    return head + metadata + pack_now(f">{len(times)}q", *times)


def _names_in(prefix: bytes) -> tuple[str, str] | None:
    """Group and topic of an offset's key, given without its last four bytes; None for the key of another record.

    Raises struct.error, UnicodeDecodeError.
    """
    kind, size = _KEY_HEAD.unpack_from(prefix)
    if kind != _OFFSET_KEY or size < 0:
        return None
    topic_at = 6 + size
    (length,) = _SHORT.unpack_from(prefix, topic_at - 2)
    if length < 0 or len(prefix) != topic_at + length:
        return None
    return prefix[4 : topic_at - 2].decode(), prefix[topic_at:].decode()


def _unpack_position(value: bytes) -> Position | None:
    """An offset's value in the format that this broker writes; None for any other format.

    Raises struct.error, UnicodeDecodeError.
    """
    if len(value) == _PLAIN_VALUE.size:
        version, offset, leader_epoch, size, commit_ms = _PLAIN_VALUE.unpack(value)
        plain = version == _OFFSET_VERSION and not size
        return _new(Position, (offset, leader_epoch, "", commit_ms, -1)) if plain else None
    version, offset, leader_epoch, size = _VALUE_HEAD.unpack_from(value)
    # 24 bytes without the metadata: int16 version, int64 offset, int32 leader epoch, int16 length, int64 time of the
    # commit.
    if version != _OFFSET_VERSION or size < 0 or len(value) != 24 + size:
        return None
    (commit_ms,) = _LONG.unpack_from(value, 16 + size)
    return Position(offset, leader_epoch, value[16 : 16 + size].decode(), commit_ms)
