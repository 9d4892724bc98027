"""Watches on the metadata store: callbacks for changes of nodes.

Zone: deterministic. ZooKeeper's watches fire once and report only a path; this module maps paths to callbacks. A new
session has no watches: its owner calls `forget_watches`, and readers watch again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.seams import Done, MetadataStore, Node, Op

OnChange = Callable[[], None]


class WatchedStore:
    """A metadata store whose watches call back. Use `watch_path` with it; `get_node(watch=True)` alone has no
    callback."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._watchers: dict[str, dict[OnChange, None]] = {}

    def submit_ops(self, lane: str, ops: Sequence[Op], done: Done[Sequence[tuple[str, int]]]) -> None:
        """As MetadataStore.submit."""
        self._store.submit_ops(lane, ops, done)

    def get_node(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """As MetadataStore.get."""
        self._store.get_node(path, watch, done)

    def get_children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """As MetadataStore.children."""
        self._store.get_children(path, watch, done)

    def watch_path(self, path: str, on_change: OnChange) -> None:
        """Have `on_change` called once, at the next `on_node_changed` of this path. Registering it twice has no
        effect."""
        self._watchers.setdefault(path, {})[on_change] = None

    def unwatch_path(self, path: str, on_change: OnChange) -> None:
        """Remove a callback; no error if it is not registered."""
        watchers = self._watchers.get(path)
        if watchers is not None:
            watchers.pop(on_change, None)
            if not watchers:
                del self._watchers[path]

    def on_node_changed(self, path: str) -> None:
        """Call and remove all callbacks of a node that changed. Callbacks that still need it read it again."""
        # Removed before the calls: most callbacks read the node again, and watch it.
        for on_change in self._watchers.pop(path, {}):
            on_change()

    def forget_watches(self) -> None:
        """Remove all callbacks, because a new session has no watches."""
        self._watchers.clear()
