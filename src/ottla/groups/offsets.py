"""Positions of groups: those that hold, and those of transactions that are not over.

Zone: pure. State and questions about it; who may commit is decided in `commits`.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.groups.records import OffsetCommitted, Position

Place = tuple[str, int]
"""Topic and partition."""
Held = tuple[int, int, str, int, int, int]
"""The fields of a Position, and where it stands in the journal: of two commits, the later one holds.

A plain tuple of numbers and text, as Place is: the garbage collector lets such tuples alone once it has seen them. A
million named ones would be walked by every collection, which all clients would feel."""
_new = tuple.__new__


def position_of(held: Held) -> Position:
    """What holds, without its place in the journal."""
    return _new(Position, held[:5])


class Offsets:
    """All positions of one shard."""

    __slots__ = ("_held", "_open", "_pending", "count")

    def __init__(self) -> None:
        self._held: dict[str, dict[Place, Held]] = {}
        self._pending: dict[int, dict[tuple[str, Place], Held]] = {}
        self._open: dict[str, dict[Place, dict[int, None]]] = {}
        """group → place → producers with a transaction that is not over."""
        self.count = 0
        """Positions that hold."""

    # -- changes -------------------------------------------------------------------------------------------------------

    def take(self, entry: OffsetCommitted, journal_offset: int, producer_id: int) -> None:
        """A commit or a tombstone; one of a transactional producer waits for the end of its transaction."""
        group_id, topic, partition, position = entry
        place = (topic, partition)
        if position is None:
            self._drop(group_id, place)
        elif producer_id < 0:
            self._hold(group_id, place, (*position, journal_offset))
        else:
            self._pending.setdefault(producer_id, {})[group_id, place] = (*position, journal_offset)
            self._open.setdefault(group_id, {}).setdefault(place, {})[producer_id] = None

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """What the producer wrote becomes real, unless something later holds already; or void."""
        for (group_id, place), held in self._pending.pop(producer_id, {}).items():
            self._close(group_id, place, producer_id)
            if commit:
                present = self._held.get(group_id, {}).get(place)
                if present is None or present[-1] < held[-1]:
                    self._hold(group_id, place, held)

    def forget(self, group_id: str) -> None:
        """The group is gone, with all that it held or was to hold."""
        self.count -= len(self._held.pop(group_id, ()))
        for place, producers in self._open.pop(group_id, {}).items():
            for producer_id in producers:
                self._pending[producer_id].pop((group_id, place), None)

    def _hold(self, group_id: str, place: Place, held: Held) -> None:
        places = self._held.get(group_id)
        if places is None:
            places = self._held[group_id] = {}
        before = len(places)
        places[place] = held
        self.count += len(places) - before

    def _drop(self, group_id: str, place: Place) -> None:
        places = self._held.get(group_id)
        if places is not None and places.pop(place, None) is not None:
            self.count -= 1
            if not places:
                del self._held[group_id]

    def _close(self, group_id: str, place: Place, producer_id: int) -> None:
        places = self._open[group_id]
        del places[place][producer_id]
        if not places[place]:
            del places[place]
            if not places:
                del self._open[group_id]

    # -- questions -----------------------------------------------------------------------------------------------------

    def get(self, group_id: str, place: Place) -> Position | None:
        """A position."""
        held = self._held.get(group_id, {}).get(place)
        return None if held is None else position_of(held)

    def of_group(self, group_id: str) -> Iterator[tuple[Place, Position]]:
        """All positions of a group, in the order of their first commit."""
        for place, held in self._held.get(group_id, {}).items():
            yield place, position_of(held)

    def copy_of_group(self, group_id: str) -> dict[Place, Held]:
        """All positions of a group as they are now: 10 ns for each."""
        return self._held.get(group_id, {}).copy()

    def count_of(self, group_id: str) -> int:
        """How many positions a group holds."""
        return len(self._held.get(group_id, ()))

    def in_topics(self, group_id: str, topics: frozenset[str]) -> Iterator[Place]:
        """Where a group holds positions in one of these topics."""
        return (place for place in self._held.get(group_id, ()) if place[0] in topics)

    def open_of_group(self, group_id: str) -> Iterator[Place]:
        """Where transactions are going on that are to move the group."""
        yield from self._open.get(group_id, ())

    def is_open(self, group_id: str, place: Place) -> bool:
        """Whether a transaction that is not over is to move this position (KIP-447)."""
        places = self._open.get(group_id)
        return places is not None and place in places

    def has_any(self, group_id: str) -> bool:
        """Whether the group holds a position, or a transaction is to give it one."""
        return group_id in self._held or group_id in self._open
