"""The broker's metadata store: one outside, or its own in its first log directory.

Zone: deterministic. Which of the two, and how it is opened and closed; nobody else knows the difference.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cluster.store.watches import WatchedStore
from ottla.effects import Effects
from ottla.seams import Done, Session, World
from ottla.znodes.local_session import LocalSession
from ottla.znodes.store import EmbeddedStore


class Stores:
    """Opens the store that the world has, or the embedded one."""

    def __init__(self, world: World, effects: Effects) -> None:
        self._outside = world.store
        self._embedded = None
        if world.store is None:
            self._embedded = EmbeddedStore(world.disks[0], world.clock, effects.later)

    @property
    def is_own(self) -> bool:
        """Whether the store is this broker's alone, so that there can be no other broker."""
        return self._embedded is not None

    def open(self, on_node: Callable[[str], None], on_session: Callable[[Session, int], None]) -> WatchedStore:
        """The store to work with. The embedded one tells its session here; of one outside, the shell tells the broker.

        Raises Failure or CorruptStore when the embedded store cannot be read.
        """
        if self._embedded is None:
            assert self._outside is not None
            return WatchedStore(self._outside)
        self._embedded.load()
        return WatchedStore(LocalSession(self._embedded, on_node, on_session).begin_session())

    def close(self, done: Done[None], now: Callable[[Callable[[], None]], None]) -> None:
        """End the embedded store; the session with one outside is the shell's to end. `now` queues an effect."""
        if self._embedded is None:
            now(lambda: done(None))
        else:
            self._embedded.close(done)
