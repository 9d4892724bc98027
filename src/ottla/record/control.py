"""Control records: the keys and values inside a control batch.

Zone: pure. Types, and the layout of transaction markers and their batch; the code that applies a marker knows what
it means.

Key: version int16, type int16. Value of a transaction marker: version int16, coordinator epoch int32
(KIP-98; the proposal's text has the two type numbers the other way round, the shipped format is this one).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from ottla.record.batch import CONTROL, TRANSACTIONAL, encode_one
from ottla.record.errors import CorruptRecord

_KEY = Struct(">hh")
_MARKER = Struct(">hi")


class ControlType(IntEnum):
    """The `type` of a control record's key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class Marker(NamedTuple):
    """The end of a transaction in a partition."""

    commit: bool
    coordinator_epoch: int


def control_key(kind: ControlType) -> bytes:
    """The 4 bytes of a control record's key, version 0."""
    return _KEY.pack(0, kind)


_COMMIT_KEY = control_key(ControlType.COMMIT)
_ABORT_KEY = control_key(ControlType.ABORT)


def control_type(key: bytes | None) -> int:
    """The type in a control record's key; it may be a future one, which ControlType does not have.

    Raises CorruptRecord for a null or short key and for a negative version.
    """
    if key is None or len(key) < 4:
        raise CorruptRecord("a control record has a key of at least 4 bytes")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecord(f"version {version} of a control record's key")
    return int(kind)


def marker_value(coordinator_epoch: int) -> bytes:
    """The 6 bytes of a transaction marker's value, version 0."""
    return _MARKER.pack(0, coordinator_epoch)


def marker_batch(producer_id: int, epoch: int, marker: Marker, timestamp: int) -> bytearray:
    """The control batch that ends a transaction of a producer; `timestamp` in ms of wall time."""
    key, value = _COMMIT_KEY if marker.commit else _ABORT_KEY, _MARKER.pack(0, marker.coordinator_epoch)
    return encode_one(TRANSACTIONAL | CONTROL, timestamp, key, value, producer_id, epoch)


def parse_marker(key: bytes | None, value: bytes | None) -> Marker | None:
    """The transaction marker in a control record, None when it is another control type.

    Raises CorruptRecord when key or value are short or of a negative version.
    """
    kind = control_type(key)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < 6:
        raise CorruptRecord("a transaction marker has a value of at least 6 bytes")
    version, coordinator_epoch = _MARKER.unpack_from(value)
    if version < 0:
        raise CorruptRecord(f"version {version} of a transaction marker")
    return Marker(kind == ControlType.COMMIT, coordinator_epoch)
