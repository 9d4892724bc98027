"""Producer snapshots and text checkpoints.

Zone: real. Reads whole files (they are small) and shows their values.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.storage.checkpoints import CorruptCheckpoint, parse_epochs, parse_offsets, parse_snapshot
from ottla.storage.dump.items import Fields, Item, OptionalLong
from ottla.types import NO_OFFSET

_SIZE_MAX = 1 << 28


def dump_snapshot(path: str) -> Iterator[Item]:
    """Producers of a snapshot. Raises OSError and CorruptCheckpoint."""
    for entry in parse_snapshot(_content(path)):
        first_offset = entry.current_txn_first_offset
        fields: list[tuple[str, int | str | OptionalLong]] = [
            ("producerId", entry.producer_id),
            ("producerEpoch", entry.producer_epoch),
            ("coordinatorEpoch", entry.coordinator_epoch),
            ("currentTxnFirstOffset", OptionalLong(None if first_offset == NO_OFFSET else first_offset)),
            ("lastTimestamp", entry.timestamp),
        ]
        if entry.last_offset >= 0:
            fields += [
                ("firstSequence", (entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF),
                ("lastSequence", entry.last_sequence),
                ("lastOffset", entry.last_offset),
                ("offsetDelta", entry.offset_delta),
                ("timestamp", entry.timestamp),
            ]
        yield Fields("producer", tuple(fields))


def dump_epochs(path: str) -> Iterator[Item]:
    """Leader epochs of a partition. Raises OSError and CorruptCheckpoint."""
    for epoch, start_offset in parse_epochs(_content(path)):
        yield Fields("leader epoch", (("epoch", epoch), ("startOffset", start_offset)))


def dump_offsets(path: str) -> Iterator[Item]:
    """Offsets of an offset checkpoint. Raises OSError and CorruptCheckpoint."""
    for tp, offset in parse_offsets(_content(path)).items():
        yield Fields("offset", (("topic", tp.topic), ("partition", tp.partition), ("offset", offset)))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        content = file.read(_SIZE_MAX + 1)
    if len(content) > _SIZE_MAX:
        raise CorruptCheckpoint(f"{path} has more than {_SIZE_MAX} bytes")
    return content
