"""Positions of groups: those that hold, and those of transactions that are not over.

Zone: pure. State and questions about it; who may commit is decided in `commits`.

The end of a transaction with many positions counts at once, for every question, and is carried out in slices: until
then questions look at the transactions that have ended, too.
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
"""The fields of a Position, and where it stands in the journal: of two commits, the later one holds.

A plain tuple of numbers and text, as Place is: the garbage collector lets such tuples alone once it has seen them. A
million named ones would be walked by every collection, which all clients would feel."""
SLICE: Final = 100
"""Positions of ended transactions that become real in one step, of which a turn has twenty: some milliseconds."""
_new = tuple.__new__


def position_of(held: HeldOffset) -> Position:
    """What holds, without its place in the journal."""
    return _new(Position, held[:5])


class _Transaction:
    """What a producer wrote between two markers."""

    __slots__ = ("commits", "groups", "is_ended", "left")

    def __init__(self) -> None:
        self.groups: dict[str, dict[PartitionKey, HeldOffset]] = {}
        self.is_ended = False
        self.commits = False
        """Whether what it wrote is real; once it has ended."""
        self.left: Iterator[tuple[str, PartitionKey]] = iter(())
        """Where it is still to be carried out; once it has ended."""

    def end(self, commit: bool) -> None:
        self.is_ended, self.commits = True, commit
        self.left = ((group_id, place) for group_id, places in list(self.groups.items()) for place in list(places))

    def drop(self, group_id: str, place: PartitionKey) -> HeldOffset | None:
        return self.groups.get(group_id, {}).pop(place, None)


class Offsets:
    """All positions of one shard."""

    __slots__ = ("_ended", "_held", "_open", "_pending", "count")

    def __init__(self) -> None:
        self._held: dict[str, dict[PartitionKey, HeldOffset]] = {}
        self._pending: dict[int, _Transaction] = {}
        self._open: dict[str, dict[PartitionKey, dict[_Transaction, None]]] = {}
        """group → place → transactions that are not carried out."""
        self._ended: deque[_Transaction] = deque()
        """Those of them that are over."""
        self.count = 0
        """Positions that hold, without those of transactions that are being carried out."""

    # -- changes -------------------------------------------------------------------------------------------------------

    def apply_commit(self, entry: OffsetCommitted, journal_offset: int, producer_id: int) -> None:
        """A commit or a tombstone; one of a transactional producer waits for the end of its transaction."""
        group_id, topic, partition, position = entry
        place = (topic, partition)
        if position is None:
            self._drop(group_id, place)
            for ended in self._ended:
                if ended.drop(group_id, place) is not None:
                    self._close(group_id, place, ended)
        elif producer_id < 0:
            self._hold(group_id, place, (*position, journal_offset))
        else:
            transaction = self._pending.get(producer_id)
            if transaction is None:
                transaction = self._pending[producer_id] = _Transaction()
            transaction.groups.setdefault(group_id, {})[place] = (*position, journal_offset)
            self._open.setdefault(group_id, {}).setdefault(place, {})[transaction] = None

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """What the producer wrote is real, unless something later holds already; or void. `carry_out` does the rest
        of what is much."""
        transaction = self._pending.pop(producer_id, None)
        if transaction is not None:
            transaction.end(commit)
            self._ended.append(transaction)
            self.carry_out()

    @property
    def is_ending(self) -> bool:
        """Whether a transaction that has ended is to be carried out further."""
        return bool(self._ended)

    def carry_out(self) -> None:
        """One slice of the transactions that have ended, the first one first."""
        left = SLICE
        while left and self._ended:
            transaction = self._ended[0]
            some = list(islice(transaction.left, left))
            for group_id, place in some:
                held = transaction.drop(group_id, place)
                if held is not None:
                    self._close(group_id, place, transaction)
                    if transaction.commits:
                        self._hold_if_later(group_id, place, held)
            if len(some) < left:
                self._ended.popleft()
            left -= len(some)

    def _hold_if_later(self, group_id: str, place: PartitionKey, held: HeldOffset) -> None:
        present = self._held.get(group_id, {}).get(place)
        if present is None or present[-1] < held[-1]:
            self._hold(group_id, place, held)

    def forget_group(self, group_id: str) -> None:
        """The group is gone, with all that it held or was to hold."""
        self.count -= len(self._held.pop(group_id, ()))
        for place, transactions in self._open.pop(group_id, {}).items():
            for transaction in transactions:
                transaction.drop(group_id, place)

    def _hold(self, group_id: str, place: PartitionKey, held: HeldOffset) -> None:
        places = self._held.get(group_id)
        if places is None:
            places = self._held[group_id] = {}
        before = len(places)
        places[place] = held
        self.count += len(places) - before

    def _drop(self, group_id: str, place: PartitionKey) -> None:
        places = self._held.get(group_id)
        if places is not None and places.pop(place, None) is not None:
            self.count -= 1
            if not places:
                del self._held[group_id]

    def _close(self, group_id: str, place: PartitionKey, transaction: _Transaction) -> None:
        places = self._open[group_id]
        del places[place][transaction]
        if not places[place]:
            del places[place]
            if not places:
                del self._open[group_id]

    # -- questions -----------------------------------------------------------------------------------------------------

    def get(self, group_id: str, place: PartitionKey) -> Position | None:
        """A position."""
        held = self._held.get(group_id, {}).get(place)
        for transaction in self._ended:
            other = transaction.groups.get(group_id, {}).get(place) if transaction.commits else None
            if other is not None and (held is None or held[-1] < other[-1]):
                held = other
        return None if held is None else position_of(held)

    def of_group(self, group_id: str) -> Iterator[tuple[PartitionKey, Position]]:
        """All positions of a group, in the order of their first commit."""
        for place, held in self._all_of(group_id).items():
            yield place, position_of(held)

    def copy_of_group(self, group_id: str) -> dict[PartitionKey, HeldOffset]:
        """All positions of a group as they are now: 10 ns for each, and 100 ns for each that is being carried out."""
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
        """The same, only to be read."""
        return self.copy_of_group(group_id) if self._ended else self._held.get(group_id, {})

    def count_of(self, group_id: str) -> int:
        """How many positions a group holds."""
        return len(self._all_of(group_id))

    def in_topics(self, group_id: str, topics: frozenset[str]) -> Iterator[PartitionKey]:
        """Where a group holds positions in one of these topics."""
        return (place for place in self._all_of(group_id) if place[0] in topics)

    def open_of_group(self, group_id: str) -> Iterator[PartitionKey]:
        """Where transactions are going on that are to move the group."""
        if not self._ended:
            yield from self._open.get(group_id, ())
        elif group_id in self._open:
            for transaction in self._pending.values():
                yield from transaction.groups.get(group_id, ())

    def is_open(self, group_id: str, place: PartitionKey) -> bool:
        """Whether a transaction that is not over is to move this position (KIP-447)."""
        places = self._open.get(group_id)
        return places is not None and place in places and _is_any_open(places[place])

    def has_any(self, group_id: str) -> bool:
        """Whether the group holds a position, or a transaction is to give it one."""
        return group_id in self._held or group_id in self._open


def _is_any_open(transactions: dict[_Transaction, None]) -> bool:
    for transaction in transactions:  # noqa: SIM110  # a third of the time of `any`
        if not transaction.is_ended:
            return True
    return False
