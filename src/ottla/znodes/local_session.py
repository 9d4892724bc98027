"""A session of the same process with the embedded store: lanes, reads, watches.

Zone: deterministic. Implements `ottla.seams.MetadataStore`. Completions and watches come from the store's queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ottla.seams import Done, Failure, Kind, Node, Op, Session
from ottla.znodes.sessions import Grant, Watches
from ottla.znodes.store import EmbeddedStore, Results
from ottla.znodes.tree import BadPath, Event, Refused


class _Waiting(NamedTuple):
    """A multi that waits for the one before it on its lane."""

    ops: Sequence[Op]
    done: Done[Results]


class LocalSession:
    """One client of the store in this process. It also implements `ottla.znodes.store.Client`."""

    def __init__(
        self, store: EmbeddedStore, on_node: Callable[[str], None], on_session: Callable[[Session, int], None]
    ) -> None:
        self.id = 0
        self._store = store
        self._on_node = on_node
        self._on_session = on_session
        self._lanes: dict[str, deque[_Waiting]] = {}
        self._watches = Watches()
        self._open = False

    def begin_session(self, timeout_ms: int = 0) -> LocalSession:
        """Open the session; `on_session(OPEN, id)` follows once that is durable. Raises Failure (FULL, IO).

        With a time-out the session expires after that time without a `touch_session`; without one it ends with the
        process.
        """
        self.id = self._store.open_session(self, Grant(timeout_ms))
        self._open = True
        self._store.enqueue_callback(self._on_opened, wrote=True)
        return self

    def touch_session(self) -> None:
        """Restart the time-out of the session."""
        self._store.touch_session(self.id)

    # -- MetadataStore -----------------------------------------------------------------------------------------

    def submit_ops(self, lane: str, ops: Sequence[Op], done: Done[Results]) -> None:
        """Apply all operations or none, after the earlier multis of the lane."""
        waiting = _Waiting(tuple(ops), done)
        # One multi per lane is in progress, so that a failure can fail the later ones, which may depend on it.
        queue = self._lanes.get(lane)
        if queue is not None:
            queue.append(waiting)
            return
        self._lanes[lane] = deque()
        self._store.run_action(lambda: self._begin_submit(lane, waiting))

    def get_node(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """Read the node now; `done` is called in the order of the store's queue."""
        self._store.run_action(
            lambda: self._read_node(path, watch, self._watches.data, self._store.tree.get_node, done)
        )

    def get_children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """Read the children's names, like `get_node`. A watch on an absent node fires when the node is created."""
        self._store.run_action(lambda: self._read_children(path, watch, done))

    def close_session(self) -> None:
        """End the session and delete its ephemeral nodes. Raises Failure (FULL, IO)."""
        self._open = False
        self._store.run_action(lambda: self._store.end_session(self.id))

    # -- helpers -------------------------------------------------------------------------------------------------

    def _read_children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        # As in ZooKeeper, a watch on the children of an absent node becomes a watch on its creation.
        watches = self._watches.children if path in self._store.tree.nodes else self._watches.data
        self._read_node(path, watch, watches, self._store.tree.get_children, done)

    def _read_node(
        self, path: str, watch: bool, watches: dict[str, None], read: Callable[[str], Any], done: Done[Any]
    ) -> None:
        if not self._open:
            failure = Failure(Kind.EXPIRED, f"session {self.id:#x} is over")
            self._store.enqueue_callback(lambda _: done(failure))
            return
        self.touch_session()
        if watch:
            watches[path] = None
        value = read(path)
        self._store.enqueue_callback(lambda failure: done(value if failure is None else failure))

    def _begin_submit(self, lane: str, waiting: _Waiting) -> None:
        outcome = self._commit_ops(waiting.ops)
        wrote = not isinstance(outcome, Failure)
        self._store.enqueue_callback(
            lambda failure: self._deliver_outcome(lane, waiting.done, failure or outcome), wrote
        )

    def _commit_ops(self, ops: Sequence[Op]) -> Results | Failure:
        if not self._open:
            return Failure(Kind.EXPIRED, f"session {self.id:#x} is over")
        self.touch_session()
        try:
            return self._store.commit_ops(ops, self.id)
        except Refused as refused:
            return Failure(refused.kind, str(refused))
        except BadPath as bad:
            return Failure(Kind.NOT_DONE, str(bad))
        except Failure as failure:
            return failure.as_value()

    def _deliver_outcome(self, lane: str, done: Done[Results], outcome: Results | Failure) -> None:
        """Begin the lane's next multi, or fail all of them after a Failure, and pass on the outcome."""
        # The lane is settled before `done` is called, which may submit the next multi to it.
        queue = self._lanes[lane]
        if isinstance(outcome, Failure):
            del self._lanes[lane]
            for waiting in queue:
                self._store.enqueue_callback(_lane_refusal(waiting.done, outcome))
        elif queue:
            following = queue.popleft()
            self._store.run_action(lambda: self._begin_submit(lane, following))
        else:
            del self._lanes[lane]
        done(outcome)

    # -- Client ------------------------------------------------------------------------------------------------

    def on_changes(self, events: Sequence[Event]) -> None:
        """Queue the watches that these changes fire, each path once."""
        if not self._open:
            return
        for path in dict.fromkeys(event.path for event in self._watches.fire_watches(events)):
            self._store.enqueue_callback(lambda failure, path=path: self._notify_watch(path, failure))  # type: ignore[misc]

    def _notify_watch(self, path: str, failure: Failure | None) -> None:
        if failure is None:
            self._on_node(path)

    def _on_opened(self, failure: Failure | None) -> None:
        """Report the session once it is durable; `on_expired` follows a Failure."""
        if failure is None:
            self._on_session(Session.OPEN, self.id)

    def on_expired(self) -> None:
        """Handle the end of the session, or of the store itself."""
        self._open = False
        self._on_session(Session.EXPIRED, self.id)

    def on_displaced(self) -> None:
        """Cannot happen: only another client with the password could take the session over, and there is none."""
        raise AssertionError(f"session {self.id:#x} was taken over")


def _lane_refusal(done: Done[Results], cause: Failure) -> Callable[[Failure | None], None]:
    failure = Failure(Kind.NOT_DONE, f"an earlier change on this lane failed: {cause.message}")
    return lambda _: done(failure)
