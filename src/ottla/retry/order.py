"""Records that wait, by key: who must not be handled before whom.

Zone: pure. A record is known by where it came from first, whatever topics it went through since.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.client.consumer.record import ConsumerRecord
from ottla.retry.headers import Trail
from ottla.types import TopicPartition


class Identity(NamedTuple):
    """Where a record came from first, and its key."""

    where: TopicPartition
    offset: int
    key: bytes


def identity(record: ConsumerRecord, trail: Trail) -> Identity | None:
    """None: it has no key, or its origin is not known, so that it has no order either."""
    if record.key is None:
        return None
    origin = trail.origin
    if origin is None:
        return Identity(TopicPartition(record.topic, record.partition), record.offset, record.key)
    if origin.partition < 0 or origin.offset < 0:
        return None
    return Identity(TopicPartition(origin.topic, origin.partition), origin.offset, record.key)


class KeyOrder:
    """The records that wait; a few words of memory for each, and none for keys without any."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, dict[bytes, dict[int, int]]] = {}
        """Origin → key → offset → when it is due (milliseconds since 1970)."""

    def __len__(self) -> int:
        return sum(len(each) for keys in self._waiting.values() for each in keys.values())

    def behind(self, who: Identity) -> int | None:
        """When the last of the earlier records of its key is due; None: there are none, its turn has come."""
        waiting = self._waiting.get(who.where, {}).get(who.key, {})
        return max((due for offset, due in waiting.items() if offset < who.offset), default=None)

    def waits(self, who: Identity, due_ms: int) -> None:
        """It waits, until then at least."""
        self._waiting.setdefault(who.where, {}).setdefault(who.key, {})[who.offset] = due_ms

    def settled(self, who: Identity) -> None:
        """It was handled, or is given up."""
        keys = self._waiting.get(who.where, {})
        waiting = keys.get(who.key)
        if waiting is not None:
            waiting.pop(who.offset, None)
            if not waiting:
                del keys[who.key]

    def forget(self, where: TopicPartition) -> None:
        """All that came from there is somebody else's."""
        self._waiting.pop(where, None)
