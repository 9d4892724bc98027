"""The broker's metadata store: ZooKeeper or another one outside, or the embedded one in its first log directory.

Zone: deterministic. Chooses, opens and closes the store; no other module depends on which of the two it is.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cluster.store.watches import WatchedStore
from ottla.effects import Effects
from ottla.seams import Done, Session, World
from ottla.znodes.local_session import LocalSession
from ottla.znodes.store import EmbeddedStore


class Stores:
    """The store of the shell, or the embedded one."""

    def __init__(self, world: World, effects: Effects, on_session: Callable[[Session, int], None]) -> None:
        """`on_session` receives the session with the embedded store; for one outside, the shell reports it."""
        self._effects = effects
        self._embedded: EmbeddedStore | None = None
        if world.store is None:
            self._embedded = EmbeddedStore(world.disks[0], world.clock, effects.queue_effect)
            self._session = LocalSession(self._embedded, self._on_node, on_session)
        self.watched = WatchedStore(self._session if world.store is None else world.store)
        """The store, whichever it is. It answers once it is open."""

    @property
    def is_own(self) -> bool:
        """Whether the store is embedded, so that there can be no other broker."""
        return self._embedded is not None

    def _on_node(self, path: str) -> None:
        self.watched.on_node_changed(path)

    def open_store(self) -> None:
        """Open the embedded store; the shell opens one outside.

        Raises Failure or CorruptStore when the embedded store cannot be read.
        """
        if self._embedded is not None:
            self._embedded.load_files()
            self._session.begin_session()

    def close_store(self, done: Done[None]) -> None:
        """Close the embedded store; the shell ends the session with one outside."""
        if self._embedded is None:
            self._effects.queue_effect(lambda: done(None))
        else:
            self._embedded.close_store(done)
