"""Runs the application's rebalance callbacks, and keeps the assignment in step with them.

Zone: real. Runs in the application's thread. If a callback raises, the rebalance is completed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ottla.client.consumer.actions import Assigned, Failed, Prepare
from ottla.client.consumer.fetch_positions import FetchPositions
from ottla.client.consumer.group import Event, Group
from ottla.types import TopicPartition

OnPartitions = Callable[[list[TopicPartition]], None]


class Listener(NamedTuple):
    """The application's callbacks."""

    assigned: OnPartitions | None = None
    revoked: OnPartitions | None = None
    lost: OnPartitions | None = None


class Rebalances:
    """Carries out the events of the group's thread."""

    def __init__(self, reader: FetchPositions, group: Callable[[], Group], commit: Callable[[], None]) -> None:
        """commit: commits the positions if automatic commits are on; raises nothing."""
        self.listener = Listener()
        self._reader = reader
        self._group = group
        self._commit = commit

    def on_events(self, events: Sequence[Event]) -> None:
        """Handle all events, then raise the first error of a callback or of a Failed event."""
        first: BaseException | None = None
        for event in events:
            try:
                self._on_event(event)
            except BaseException as error:  # noqa: BLE001  raised below, after the other events
                first = first or error
        if first is not None:
            raise first

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Prepare):
            self._prepare_event(event)
        else:
            self._take_assigned(event)

    def give_up(self, partitions: Sequence[TopicPartition], *, lost: bool) -> None:
        """Call the callback for all partitions at the end of a subscription. lost: the member is not in the group."""
        self._call_listener(self.listener.lost if lost else self.listener.revoked, partitions, then=[])

    def _prepare_event(self, event: Prepare) -> None:
        """Revoke partitions before a rebalance, or report that they are lost."""
        before, named = self._reader.assigned_partitions, set(event.partitions)
        # The event may be older than the assignment: only partitions that are still assigned are revoked.
        owned = [tp for tp in before if tp not in named]
        gone = [tp for tp in before if tp in named]
        with finish_with(lambda: self._group().on_prepared(owned)):
            if event.lost:
                self._call_listener(self.listener.lost, gone, then=owned)
            else:
                self._commit()
                self._call_listener(self.listener.revoked, gone, then=owned)

    def _take_assigned(self, event: Assigned) -> None:
        gone = set(event.revoked)
        kept = [tp for tp in self._reader.assigned_partitions if tp not in gone]
        with finish_with(lambda: self._reader.assign_partitions([*kept, *event.added])):
            if event.revoked:
                self._commit()
            self._call_listener(self.listener.revoked, event.revoked, then=kept)
        if self.listener.assigned is not None:
            self.listener.assigned(list(event.added))

    def _call_listener(
        self, callback: OnPartitions | None, partitions: Sequence[TopicPartition], then: list[TopicPartition]
    ) -> None:
        with finish_with(lambda: self._reader.assign_partitions(then)):
            if callback is not None and partitions:
                callback(list(partitions))


@contextmanager
def finish_with(last: Callable[[], None]) -> Iterator[None]:
    """Call `last` at the end, also if the application's callback raises."""
    try:
        yield
    finally:
        last()
