"""The bytes that members of a consumer group exchange: subscriptions, assignments, user data of assignors.

Zone: pure. The format is that of Java's ConsumerProtocol and of its sticky assignors; `assignors` decides the
assignment. The bytes come from other members, so they may be invalid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from struct import Struct
from typing import Final, NamedTuple

from ottla.client.consumer.assignment.java_order import hash_order, string_key
from ottla.client.errors import MalformedReplyError
from ottla.record.errors import CorruptRecord
from ottla.record.internal.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.record.internal.parsing import parse_versioned
from ottla.types import TopicPartition
from ottla.utf8 import decode_text, encode_text
from ottla.wire.codec import encode_bytes
from ottla.wire.schema import Message

NO_GENERATION: Final = -1
HIGHEST_VERSION: Final = 3
_INT16, _INT32 = Struct(">h"), Struct(">i")


class Subscription(NamedTuple):
    """The topics that a member subscribes to, and the partitions that it has."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    """User data for the assignor of this subscription."""
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    """The generation in which it got the owned partitions (KIP-792)."""
    rack: str | None = None
    """`client.rack` (KIP-881)."""
    instance_id: str | None = None
    """`group.instance.id`; not in the bytes, the coordinator adds it."""


def encode_subscription(wanted: Subscription, version: int = HIGHEST_VERSION) -> bytes:
    """Version-prefixed bytes for JoinGroup; topics and owned partitions sorted, as in Java."""
    owned = sorted(wanted.owned, key=lambda tp: (string_key(tp.topic), tp.partition))
    message = ConsumerProtocolSubscription(
        topics=sorted(wanted.topics, key=string_key),
        user_data=wanted.user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=[each.partition for each in group])
            for topic, group in groupby(owned, lambda tp: tp.topic)
        ],
        generation_id=wanted.generation,
        rack_id=wanted.rack,
    )
    return _INT16.pack(version) + encode_bytes(message, version)


def decode_subscription(data: bytes | memoryview, instance_id: str | None = None) -> Subscription:
    """Inverse of `encode_subscription`, for every version. Raises MalformedReplyError.

    Some clients write the number of a version without its fields. As versions only add fields at the end, bytes that
    are too short for their version are read as an earlier version.
    """
    found = _parsed_subscription(bytes(data))
    assert isinstance(found, ConsumerProtocolSubscription)
    owned = tuple(TopicPartition(each.topic, number) for each in found.owned_partitions for number in each.partitions)
    user_data = None if found.user_data is None else bytes(found.user_data)
    return Subscription(tuple(found.topics), user_data, owned, found.generation_id, found.rack_id or None, instance_id)


def _parsed_subscription(data: bytes) -> Message:
    try:
        return parse_versioned(ConsumerProtocolSubscription, data)[1]
    except CorruptRecord as error:
        for earlier in (2, 1, 0):
            with suppress(CorruptRecord):
                # Only versions before the written one, and not for negative version numbers.
                if _INT16.pack(earlier) < data[:2] < b"\x80":
                    return parse_versioned(ConsumerProtocolSubscription, _INT16.pack(earlier) + data[2:])[1]
        cause = f"a member of the group sent a subscription that cannot be decoded: {error.message}"
        raise MalformedReplyError(cause) from error


def readable_members(rows: Iterable[tuple[str, bytes | memoryview, str | None]]) -> dict[str, Subscription]:
    """The members that the leader assigns partitions to, from rows of (member id, subscription, instance id).

    A member whose subscription cannot be decoded is left out: it gets no partitions, the others share them. Raising
    an error would end the membership of the leader, and so of the whole group.
    """
    found = {}
    for member_id, data, instance_id in rows:
        with suppress(MalformedReplyError):
            found[member_id] = decode_subscription(data, instance_id)
    return found


def encode_assignment(partitions: Iterable[TopicPartition], version: int = HIGHEST_VERSION) -> bytes:
    """Version-prefixed bytes for SyncGroup; topics in the order of their first partition."""
    by_topic: dict[str, list[int]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    rows = [
        ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
        for topic, numbers in by_topic.items()
    ]
    return _INT16.pack(version) + encode_bytes(ConsumerProtocolAssignment(assigned_partitions=rows), version)


def decode_assignment(data: bytes | memoryview) -> tuple[TopicPartition, ...]:
    """The partitions; empty bytes mean none. Raises MalformedReplyError."""
    if not data:
        return ()
    try:
        _, found = parse_versioned(ConsumerProtocolAssignment, bytes(data))
    except CorruptRecord as error:
        raise MalformedReplyError(
            f"the group's leader sent an assignment that cannot be decoded: {error.message}"
        ) from error
    assert isinstance(found, ConsumerProtocolAssignment)
    return tuple(TopicPartition(row.topic, number) for row in found.assigned_partitions for number in row.partitions)


def encode_sticky(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """User data of the assignor `sticky`: the member's partitions and their generation (version 1)."""
    by_topic: dict[str, list[int]] = {}
    for tp in owned:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    parts = [_INT32.pack(len(by_topic))]
    for topic in hash_order(by_topic):
        numbers = by_topic[topic]
        name = encode_text(topic)
        parts += [_INT16.pack(len(name)), name, _INT32.pack(len(numbers)), *map(_INT32.pack, numbers)]
    return b"".join([*parts, _INT32.pack(generation)])


def decode_sticky(data: bytes | None) -> tuple[tuple[TopicPartition, ...], int | None]:
    """(partitions of the member, generation or None). Bytes that are not user data of `sticky` count as none owned."""
    if not data:
        return (), None
    reader = _Reader(data)
    try:
        owned = tuple(reader.read_partitions())
        # Version 0 ends here.
        return owned, reader.read_int32() if reader.bytes_left >= _INT32.size else None
    except ValueError:
        return (), NO_GENERATION


def encode_generation(generation: int) -> bytes:
    """User data of the assignor `cooperative-sticky`."""
    return _INT32.pack(generation)


def decode_generation(data: bytes | None) -> int | None:
    """The generation in user data of `cooperative-sticky`; None for no bytes, NO_GENERATION for other bytes."""
    if data is None:
        return None
    found: int = _INT32.unpack_from(data)[0] if len(data) >= _INT32.size else NO_GENERATION
    return found


class _Reader:
    """Reads bytes whose lengths may be wrong. Raises ValueError."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def bytes_left(self) -> int:
        return len(self._data) - self._at

    def read_partitions(self) -> Sequence[TopicPartition]:
        found = []
        for _ in range(self._read_count()):
            topic = decode_text(self._take_bytes(int.from_bytes(self._take_bytes(2), "big", signed=True)))
            found += [TopicPartition(topic, self.read_int32()) for _ in range(self._read_count())]
        return found

    def read_int32(self) -> int:
        return int.from_bytes(self._take_bytes(4), "big", signed=True)

    def _read_count(self) -> int:
        count = self.read_int32()
        if not 0 <= count <= self.bytes_left:
            raise ValueError(f"{count} items in {self.bytes_left} bytes")
        return count

    def _take_bytes(self, size: int) -> bytes:
        if not 0 <= size <= self.bytes_left:
            raise ValueError(f"{size} bytes where {self.bytes_left} are left")
        self._at += size
        return self._data[self._at - size : self._at]
