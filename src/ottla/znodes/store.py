"""The embedded metadata store: a tree with a journal, and the sessions of its clients.

Zone: deterministic. A transaction takes four steps:

1. it is drafted against the tree, which checks its conditions;
2. it is appended to the journal;
3. it is applied to the tree, where later transactions and reads see it;
4. once the journal is synced, its completion and the watches that it fires are delivered.

Completions and watches are in one queue, and each is delivered in a turn of its own (`later`). Reads queue after the
writes that they saw, so that no client sees a change that a crash could undo. The clients of sessions are
`local_session` in this process, and the supervisor's server over ZooKeeper's protocol.

A session is part of the tree. Its end is a journaled change, together with the deletion of its ephemeral nodes: its
client closes it, or the host of the store expires it (`expire_due`). A host that keeps the sessions when it loads
gives each its whole time-out to resume.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ottla.seams import Clock, Disk, Done, Failure, Kind, Op
from ottla.znodes.journal import SNAPSHOT_BYTES, Journal
from ottla.znodes.records import Transaction, encode_transaction
from ottla.znodes.sessions import Deadlines, Grant
from ottla.znodes.tree import Change, Event, Tree, Verb

logger = logging.getLogger(__name__)

Later = Callable[[Callable[[], None]], None]
"""Runs a thunk as a later effect of the same broker, in order."""
Results = Sequence[tuple[str, int]]


class _Entry(NamedTuple):
    """A callback in the queue; it is due once the first `end` bytes of the log are durable."""

    end: int
    callback: Callable[[Failure | None], None]
    wrote: bool


class Client(Protocol):
    """The present client of a session."""

    def on_changes(self, events: Sequence[Event]) -> None:
        """Queue (`EmbeddedStore.enqueue_callback`) the watches that these changes fire. Called within the change."""
        ...

    def on_expired(self) -> None:
        """Handle the expiry of the session. Called in a turn of its own, after all earlier callbacks."""
        ...

    def on_displaced(self) -> None:
        """Handle that another client has taken the session over. Called within that client's `resume_session`."""
        ...


class EmbeddedStore:
    """One store with its files. Call `load` first.

    Call `open_session`, `resume_session`, `commit_ops` and `end_session`, and read `tree`, only within an action passed
    to `run_action`.
    """

    def __init__(self, disk: Disk, clock: Clock, later: Later, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
        self._journal = Journal(disk, snapshot_bytes)
        self._clock = clock
        self._later = later
        self._next_zxid = 1
        self._queue: deque[_Entry] = deque()
        self._syncing = False
        self._rolling = False
        self._held: deque[Callable[[], None]] = deque()
        self._failure: Failure | None = None
        self._clients: dict[int, Client] = {}
        self._deadlines = Deadlines()
        self.tree = Tree()

    def load_files(self, keep_sessions: bool = False) -> None:
        """Read the files, blocking. Raises CorruptStore, Failure.

        Ends the sessions of the last process. With `keep_sessions` those with a time-out continue, and it starts again.
        """
        self.tree, self._next_zxid = self._journal.load_tree()
        for session in sorted(self.tree.grants):
            timeout_ms = Grant.unpack_grant(self.tree.grants[session]).timeout_ms
            # Sessions without time-out belong to the process that died, and end with it.
            if keep_sessions and timeout_ms:
                self._deadlines.begin_session(session, timeout_ms, self._clock.now().mono_ns)
            else:
                self._write_changes(self.tree.closing_changes(session))

    # -- sessions --------------------------------------------------------------------------------------------------

    def open_session(self, client: Client, grant: Grant) -> int:
        """Begin a session; it is durable once the journal is synced (`enqueue_callback`). Raises Failure (FULL, IO)."""
        self._raise_if_failed()
        # The zxid of its own OPEN: no other session ever has it, and no counter has to be stored.
        session = self._next_zxid
        self._write_changes([Change(Verb.OPEN, "", grant.pack_grant(), session)])
        self._clients[session] = client
        self._deadlines.begin_session(session, grant.timeout_ms, self._clock.now().mono_ns)
        return session

    def resume_session(self, session: int, password: bytes, client: Client) -> Grant | None:
        """Make this client the session's present one. None: no such session, another password, or no time-out."""
        packed = self.tree.grants.get(session)
        grant = None if packed is None else Grant.unpack_grant(packed)
        if grant is None or grant.password != password or not grant.timeout_ms:
            return None
        # A client may reconnect before the loss of its old connection is noticed.
        before = self._clients.pop(session, None)
        if before is not None:
            before.on_displaced()
        self._clients[session] = client
        self.touch_session(session)
        return grant

    def leave_session(self, session: int, client: Client) -> None:
        """Remove a client whose connection is gone; the session stays until its deadline. Ignores displaced clients."""
        if self._clients.get(session) is client:
            del self._clients[session]

    def touch_session(self, session: int) -> None:
        """Extend the session's deadline."""
        self._deadlines.touch_session(session, self._clock.now().mono_ns)

    @property
    def next_expiry_ns(self) -> int | None:
        """When to call `expire_due` next, in monotonic time; None: no session can expire."""
        return self._deadlines.next_ns

    def expire_due(self) -> None:
        """End the sessions whose deadline has passed, and inform their clients."""
        if self._rolling or self._failure is not None:
            return
        for session in self._deadlines.due_sessions(self._clock.now().mono_ns):
            self._expire_session(session)

    def expire_session(self, session: int) -> None:
        """End a session whose process is known to be dead; no effect if it has ended already."""
        self.run_action(lambda: self._expire_session(session))

    def _expire_session(self, session: int) -> None:
        # Before `end_session`, which forgets the client.
        client = self._clients.get(session)
        try:
            self.end_session(session)
        except Failure as failure:
            logger.warning(
                "metadata store: could not expire session %#x: %s; retrying after its time-out", session, failure
            )
            self.touch_session(session)
            return
        logger.info("metadata store: session %#x has expired", session)
        if client is not None:
            self.enqueue_callback(lambda _: client.on_expired())

    def end_session(self, session: int) -> None:
        """Remove the session and its nodes; no effect if it has ended already. Raises Failure (FULL, IO)."""
        self._raise_if_failed()
        if session in self.tree.ephemerals:
            self._write_changes(self.tree.closing_changes(session))
        self._clients.pop(session, None)
        self._deadlines.end_session(session)

    # -- for clients -----------------------------------------------------------------------------------------------

    @property
    def failure(self) -> Failure | None:
        """The failure after which nothing is written any more; None while the device works."""
        return self._failure

    @property
    def last_zxid(self) -> int:
        """The zxid of the last change, which may not be durable yet."""
        return self._next_zxid - 1

    def run_action(self, action: Callable[[], None]) -> None:
        """Run an action now, or, while a new log begins, after that, in the order of the calls."""
        if self._rolling:
            self._held.append(action)
        else:
            action()

    def commit_ops(self, ops: Sequence[Op], session: int) -> Results:
        """Apply all operations or none. Raises Refused, BadPath, or Failure: EXPIRED, FULL, IO."""
        self._raise_if_failed()
        if session not in self.tree.ephemerals:
            raise Failure(Kind.EXPIRED, f"session {session:#x} is over")
        changes, results = self.tree.draft_changes(ops, session)
        if changes:
            self._write_changes(changes)
        return results

    def enqueue_callback(self, tell: Callable[[Failure | None], None], wrote: bool = False) -> None:
        """Call `tell` with None in a later turn, after all earlier callbacks, once the present journal is synced.

        If the journal fails, `tell` receives a Failure: UNKNOWN for a write that is not confirmed (`wrote`), else
        IO.
        """
        if self._failure is not None:
            failure = self._failure
            self._later(lambda: tell(failure))
            return
        # A read waits for the present end of the log as well: it may have seen the last change there.
        self._queue.append(_Entry(self._journal.file.size, tell, wrote))
        self._deliver_durable()

    # -- the journal -------------------------------------------------------------------------------------------

    def _write_changes(self, changes: Sequence[Change]) -> None:
        """Append changes, then apply them: a failed append leaves nothing to undo."""
        transaction = Transaction(self._next_zxid, self._clock.now().wall_ms, changes)
        try:
            self._journal.file.append([encode_transaction(transaction)])
        except Failure as failure:
            if failure.kind is not Kind.FULL:
                self._fail_store(failure.as_value())
            raise
        self._next_zxid += len(changes)
        events = self.tree.apply(changes, transaction.zxid, transaction.wall_ms)
        for client in tuple(self._clients.values()):
            client.on_changes(events)

    def _deliver_durable(self) -> None:
        """Deliver the callbacks that are durable, and sync the journal for the others."""
        durable = self._journal.file.durable
        while self._queue and self._queue[0].end <= durable:
            tell = self._queue.popleft().callback
            self._later(lambda tell=tell: tell(None))  # type: ignore[misc]
        if self._queue and not self._syncing:
            self._syncing = True
            self._journal.file.sync(self._on_synced)

    def _on_synced(self, outcome: int | Failure) -> None:
        self._syncing = False
        if isinstance(outcome, Failure):
            self._fail_store(outcome)
            return
        if self._failure is not None:
            return
        self._deliver_durable()
        # A snapshot needs a synced log. From now on actions are held, until the queue is empty and the new log exists.
        if self._journal.wants_snapshot and not self._rolling:
            self._rolling = True
        if self._rolling and not self._queue and not self._syncing:
            self._begin_roll()

    def _begin_roll(self) -> None:
        # A change without a callback, such as the end of a session, may not be synced yet.
        if self._journal.file.durable < self._journal.file.size:
            self.enqueue_callback(lambda _: self._roll_when_idle())
            return
        zxid = self._next_zxid
        self._journal.begin_log(zxid, lambda failure: self._on_rolled(zxid, failure))

    def _roll_when_idle(self) -> None:
        if self._failure is None:
            self._begin_roll()

    def _on_rolled(self, zxid: int, failure: Failure | None) -> None:
        if failure is not None:
            self._fail_store(failure)
        else:
            self._journal.write_snapshot(self.tree, zxid)
        self._rolling = False
        # A held action may start the next roll, which holds the rest again.
        while self._held and not self._rolling:
            self._held.popleft()()

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail_store(self, failure: Failure) -> None:
        """Stop the store after its device failed: unconfirmed writes have an unknown outcome, all else is refused."""
        if self._failure is not None:
            return
        logger.error("metadata store: its log failed: %s; restart after the disk is repaired", failure)
        self._failure = Failure(Kind.IO, f"the metadata store's log failed: {failure.message}")
        # The bytes of unconfirmed writes may be on the disk, or not: the next start decides.
        unknown = Failure(Kind.UNKNOWN, self._failure.message)
        for entry in self._queue:
            outcome = unknown if entry.wrote else self._failure
            self._later(lambda tell=entry.callback, outcome=outcome: tell(outcome))  # type: ignore[misc]
        self._queue.clear()
        for client in self._clients.values():
            self._later(client.on_expired)

    def close_store(self, done: Done[None]) -> None:
        """Close after all callbacks so far. `done` receives the Failure if the journal could not be synced."""

        def closed(failure: Failure | None) -> None:
            self._journal.close_log()
            done(failure)

        self.run_action(lambda: self.enqueue_callback(closed))
