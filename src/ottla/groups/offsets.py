"""Offsets of groups: committed ones, and pending ones of open transactions.

Zone: pure. State, and queries of it; `commits` decides which commits are accepted.

The end of a transaction takes effect at once for all queries, but a transaction with many offsets is carried out in
slices. Until the last slice queries also search the transactions that have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ottla.groups.records import OffsetCommitted, Position

PartitionKey = tuple[str, int]
"""Topic and partition."""
HeldOffset = tuple[int, int, str, int, int, int]
"""The fields of a Position, and its offset in the journal: of two commits the later one is valid.

A plain tuple of numbers and text, like PartitionKey: the garbage collector untracks such tuples when it first meets
them. A million NamedTuples would be traversed by every full collection, and delay every client."""
SLICE: Final = 100
"""The number of offsets that one step carries out. A turn has twenty steps, which take some milliseconds."""
_new = tuple.__new__


def position_of(held: HeldOffset) -> Position:
    """The Position of a held offset, without its offset in the journal."""
    return _new(Position, held[:5])


class _Transaction:
    """The offsets that a producer wrote between two markers."""

    __slots__ = ("commits", "groups", "is_ended", "left")

    def __init__(self) -> None:
        self.groups: dict[str, dict[PartitionKey, HeldOffset]] = {}
        self.is_ended = False
        self.commits = False
        """Once it has ended: whether it was committed."""
        self.left: Iterator[tuple[str, PartitionKey]] = iter(())
        """Once it has ended: the partitions in which it is still to be carried out."""

    def mark_ended(self, commit: bool) -> None:
        self.is_ended, self.commits = True, commit
        self.left = ((group_id, place) for group_id, places in list(self.groups.items()) for place in list(places))

    def take_offset(self, group_id: str, place: PartitionKey) -> HeldOffset | None:
        return self.groups.get(group_id, {}).pop(place, None)


class Offsets:
    """All offsets of one shard."""

    __slots__ = ("_ended", "_held", "_open", "_pending", "count")

    def __init__(self) -> None:
        self._held: dict[str, dict[PartitionKey, HeldOffset]] = {}
        self._pending: dict[int, _Transaction] = {}
        self._open: dict[str, dict[PartitionKey, dict[_Transaction, None]]] = {}
        """group → partition → transactions that are open, or have ended and are not carried out."""
        self._ended: deque[_Transaction] = deque()
        """The transactions that have ended and are not carried out."""
        self.count = 0
        """The number of committed offsets, without those of transactions that are being carried out."""

    # -- changes -------------------------------------------------------------------------------------------------------

    def apply_commit(self, entry: OffsetCommitted, journal_offset: int, producer_id: int) -> None:
        """Apply a commit or a tombstone. A commit of a transactional producer waits for the end of its transaction."""
        group_id, topic, partition, position = entry
        place = (topic, partition)
        # 1. A tombstone also removes what ended transactions would still write here: they ended before it.
        if position is None:
            self._remove_held(group_id, place)
            for ended in self._ended:
                if ended.take_offset(group_id, place) is not None:
                    self._close_pending(group_id, place, ended)
        # 2. A plain commit.
        elif producer_id < 0:
            self._set_held(group_id, place, (*position, journal_offset))
        # 3. A transactional one: it is kept aside, and makes the offset unstable.
        else:
            transaction = self._pending.get(producer_id)
            if transaction is None:
                transaction = self._pending[producer_id] = _Transaction()
            transaction.groups.setdefault(group_id, {})[place] = (*position, journal_offset)
            self._open.setdefault(group_id, {}).setdefault(place, {})[transaction] = None

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """End the producer's transaction. Its offsets become valid, unless a later commit exists, or are dropped.

        This carries out the first slice; `carry_out` does the rest.
        """
        # None: the producer has committed no offsets in this shard, or the marker is a repetition.
        transaction = self._pending.pop(producer_id, None)
        if transaction is not None:
            transaction.mark_ended(commit)
            self._ended.append(transaction)
            self.carry_out()

    @property
    def is_ending(self) -> bool:
        """Whether a transaction that has ended is not carried out yet."""
        return bool(self._ended)

    def carry_out(self) -> None:
        """Carry out one slice of the transactions that have ended, in the order of their ends."""
        left = SLICE
        while left and self._ended:
            transaction = self._ended[0]
            some = list(islice(transaction.left, left))
            for group_id, place in some:
                held = transaction.take_offset(group_id, place)
                if held is not None:  # else a tombstone or the end of its group has removed it
                    self._close_pending(group_id, place, transaction)
                    if transaction.commits:
                        self._hold_if_later(group_id, place, held)
            if len(some) < left:
                self._ended.popleft()
            left -= len(some)

    def _hold_if_later(self, group_id: str, place: PartitionKey, held: HeldOffset) -> None:
        # A plain commit after this one, but before the marker, is newer: the journal's order decides, as in Kafka.
        present = self._held.get(group_id, {}).get(place)
        if present is None or present[-1] < held[-1]:
            self._set_held(group_id, place, held)

    def forget_group(self, group_id: str) -> None:
        """Drop a group with its committed and its pending offsets."""
        # Pending offsets go as well: otherwise the end of their transactions would bring back offsets of a deleted
        # group.
        self.count -= len(self._held.pop(group_id, ()))
        # Otherwise the end of a transaction would bring back offsets of a deleted group.
        for place, transactions in self._open.pop(group_id, {}).items():
            for transaction in transactions:
                transaction.take_offset(group_id, place)

    def _set_held(self, group_id: str, place: PartitionKey, held: HeldOffset) -> None:
        places = self._held.get(group_id)
        if places is None:
            places = self._held[group_id] = {}
        before = len(places)
        places[place] = held
        self.count += len(places) - before

    def _remove_held(self, group_id: str, place: PartitionKey) -> None:
        places = self._held.get(group_id)
        if places is not None and places.pop(place, None) is not None:
            self.count -= 1
            if not places:
                del self._held[group_id]

    def _close_pending(self, group_id: str, place: PartitionKey, transaction: _Transaction) -> None:
        places = self._open[group_id]
        del places[place][transaction]
        if not places[place]:
            del places[place]
            if not places:
                del self._open[group_id]

    # -- queries -------------------------------------------------------------------------------------------------------

    def get_offset(self, group_id: str, place: PartitionKey) -> Position | None:
        """The committed offset of a partition; None when there is none."""
        held = self._held.get(group_id, {}).get(place)
        for transaction in self._ended:
            other = transaction.groups.get(group_id, {}).get(place) if transaction.commits else None
            if other is not None and (held is None or held[-1] < other[-1]):
                held = other
        return None if held is None else position_of(held)

    def of_group(self, group_id: str) -> Iterator[tuple[PartitionKey, Position]]:
        """All committed offsets of a group, in the order of their first commit."""
        for place, held in self._all_of(group_id).items():
            yield place, position_of(held)

    def copy_of_group(self, group_id: str) -> dict[PartitionKey, HeldOffset]:
        """A copy of a group's committed offsets: 10 ns per offset, 100 ns per offset that is not carried out yet."""
        places = self._held.get(group_id, {}).copy()
        for transaction in self._ended:
            real = transaction.groups.get(group_id, {}) if transaction.commits else {}
            if not places:
                places = real.copy()
                continue
            for place, held in real.items():
                present = places.get(place)
                if present is None or present[-1] < held[-1]:
                    places[place] = held
        return places

    def _all_of(self, group_id: str) -> dict[PartitionKey, HeldOffset]:
        """The same for reading only, without a copy where possible."""
        return self.copy_of_group(group_id) if self._ended else self._held.get(group_id, {})

    def count_of(self, group_id: str) -> int:
        """The number of committed offsets of a group."""
        return len(self._all_of(group_id))

    def in_topics(self, group_id: str, topics: frozenset[str]) -> Iterator[PartitionKey]:
        """The partitions of these topics in which a group has a committed offset."""
        return (place for place in self._all_of(group_id) if place[0] in topics)

    def open_of_group(self, group_id: str) -> Iterator[PartitionKey]:
        """The partitions in which open transactions have a pending offset of the group."""
        # `_open` also has transactions that have ended and are not carried out. While there are some, the open ones are
        # searched.
        if not self._ended:
            yield from self._open.get(group_id, ())
        elif group_id in self._open:
            for transaction in self._pending.values():
                yield from transaction.groups.get(group_id, ())

    def is_open(self, group_id: str, place: PartitionKey) -> bool:
        """Whether an open transaction has a pending offset for this partition (KIP-447)."""
        places = self._open.get(group_id)
        return places is not None and place in places and _is_any_open(places[place])

    def has_any(self, group_id: str) -> bool:
        """Whether the group has a committed or a pending offset."""
        return group_id in self._held or group_id in self._open


def _is_any_open(transactions: dict[_Transaction, None]) -> bool:
    for transaction in transactions:  # noqa: SIM110  # a third of the time of `any`
        if not transaction.is_ended:
            return True
    return False
