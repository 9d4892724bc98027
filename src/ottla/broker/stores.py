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
    """Opens the store of the shell, or the embedded one."""

    def __init__(self, world: World, effects: Effects) -> None:
        self._outside = world.store
        self._embedded = None
        if world.store is None:
            self._embedded = EmbeddedStore(world.disks[0], world.clock, effects.queue_effect)

    @property
    def is_own(self) -> bool:
        """Whether the store is embedded, so that there can be no other broker."""
        return self._embedded is not None

    def open_store(self, on_node: Callable[[str], None], on_session: Callable[[Session, int], None]) -> WatchedStore:
        """Open the store. The embedded one reports its session to `on_session`; for one outside, the shell does.

        Raises Failure or CorruptStore when the embedded store cannot be read.
        """
        if self._embedded is None:
            assert self._outside is not None
            return WatchedStore(self._outside)
        self._embedded.load_files()
        return WatchedStore(LocalSession(self._embedded, on_node, on_session).begin_session())

    def close_store(self, done: Done[None], now: Callable[[Callable[[], None]], None]) -> None:
        """Close the embedded store; the shell ends the session with one outside. `now` queues an effect."""
        if self._embedded is None:
            now(lambda: done(None))
        else:
            self._embedded.close_store(done)
