"""Watches on the metadata store: who wants to know when a node changes.

Zone: deterministic. ZooKeeper's watches are one-shot and say only which path changed; here each has somebody to tell.
A new session has no watches: whoever watches starts anew then (`forget_watches`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.seams import Done, MetadataStore, Node, Op

OnChange = Callable[[], None]


class WatchedStore:
    """A metadata store whose watches call back. It is a MetadataStore itself; `watch=True` there is not for it."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._watchers: dict[str, dict[OnChange, None]] = {}

    def submit(self, lane: str, ops: Sequence[Op], done: Done[Sequence[tuple[str, int]]]) -> None:
        """As MetadataStore.submit."""
        self._store.submit(lane, ops, done)

    def get(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """As MetadataStore.get."""
        self._store.get(path, watch, done)

    def children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """As MetadataStore.children."""
        self._store.children(path, watch, done)

    def watch_path(self, path: str, on_change: OnChange) -> None:
        """Have `on_change` called once, at the next `on_node` of this path; the same one twice is once."""
        self._watchers.setdefault(path, {})[on_change] = None

    def unwatch(self, path: str, on_change: OnChange) -> None:
        """Not interested any more; fine if it was not."""
        watchers = self._watchers.get(path)
        if watchers is not None:
            watchers.pop(on_change, None)
            if not watchers:
                del self._watchers[path]

    def on_node(self, path: str) -> None:
        """The store says that this node changed: tell all who watch it; each asks again if it still cares."""
        for on_change in self._watchers.pop(path, {}):
            on_change()

    def forget_watches(self) -> None:
        """The session is another one: its watches are gone."""
        self._watchers.clear()
