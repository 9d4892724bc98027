"""A client of the embedded store that speaks ZooKeeper's protocol: its session, its watches, its answers in order.

Zone: deterministic. Receives and sends messages without their lengths; `ottla.server.zookeeper.znode_server` has the
sockets, `znode_ops` applies requests to the tree. All answers pass through the store's one queue: so an answer never
contains state that is not on the disk, and the notice of a watch is sent before any answer that contains its change.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ottla.seams import Failure, Kind
from ottla.server.zookeeper.records import (
    Auth,
    Connect,
    Multi,
    OpCode,
    PathKind,
    PathWatch,
    SetWatches,
    ZkError,
    decode_connect,
    decode_request,
    encode_connected,
    encode_notice,
    encode_parts,
    encode_reply,
)
from ottla.server.zookeeper.znode_ops import (
    ERRORS,
    READS,
    RequestError,
    failed_parts,
    op_of,
    ops_of,
    read_parts,
    written_answer,
)
from ottla.znodes.sessions import MAX_PASSWORD, Grant, Watches, negotiate_timeout
from ottla.znodes.store import EmbeddedStore
from ottla.znodes.tree import Event, EventKind, Refused

_CHILDREN, _DATA, _ANY = 1, 2, 3
"""Kinds of watches in a client's request to remove them."""
_WRITES: Final = (OpCode.CREATE, OpCode.CREATE2, OpCode.DELETE, OpCode.SET_DATA, OpCode.CHECK)
_OPEN: Final = (OpCode.PING, OpCode.AUTH, OpCode.CLOSE)
"""Requests that are allowed before a client has shown its credentials."""
_WATCHED: Final = (OpCode.EXISTS, OpCode.GET_DATA, OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2)


class ZnodeLimits(NamedTuple):
    """Limits of sessions and of connections."""

    least_timeout_ms: int = 1_000
    most_timeout_ms: int = 60_000
    digest: bytes | None = None
    """`user:password` that a connection has to show (`addauth digest`) before it reads or writes; None: it need
    not."""
    watches: int = 200_000
    """Watches of one client: more than any cluster needs, less than memory allows."""
    connections: int = 1_000
    strangers: int = 100
    """Connections that have not shown the store's credentials; above this the oldest of them is closed."""
    authenticate_s: float = 60.0
    """Time for a connection to show the credentials: a person who inspects the store has to type them."""
    owed: int = 64 * 1024 * 1024
    """Unread bytes above which a connection is closed: answers to MAX_ASKED requests, and watches."""


class ClientWire(NamedTuple):
    """The client's connection. Both may be called in any turn, `close` more than once."""

    send: Callable[[bytes], None]
    """Send one message, given without its length."""
    close: Callable[[str], None]
    """Close the connection after all messages are sent; the text is the reason, empty if the client asked for it."""


class ZnodeClient:
    """One connection. Implements `ottla.znodes.store.Client` for the session of the connection."""

    __slots__ = (
        "_connected",
        "_limits",
        "_lost",
        "_over",
        "_password",
        "_store",
        "_watches",
        "_wire",
        "answered",
        "is_trusted",
        "received",
        "session",
        "timeout_ms",
    )

    def __init__(self, store: EmbeddedStore, wire: ClientWire, password: bytes, limits: ZnodeLimits) -> None:
        """`password`: MAX_PASSWORD random bytes, for the session that may begin here."""
        assert len(password) == MAX_PASSWORD, "a session has a password"
        self._store = store
        self._wire = wire
        self._password = password
        self._limits = limits
        self._watches = Watches()
        self._connected = self._over = self._lost = False
        self.is_trusted = limits.digest is None
        """Whether it may read and write."""
        self.session = 0
        self.timeout_ms = 0
        self.received = self.answered = 0

    @property
    def watch_count(self) -> int:
        """How many nodes are watched."""
        return len(self._watches.data) + len(self._watches.children)

    # -- input -------------------------------------------------------------------------------------------------------

    def on_message(self, message: bytes) -> None:
        """Handle one message of the client. Raises BadMessage: the connection has to be closed."""
        if self._over:
            return
        self.received += 1
        if not self._connected:
            self._connected = True
            connect = decode_connect(message)
            self._store.run_action(lambda: self._begin_session(connect))
            return
        xid, op, record = decode_request(message)
        if record is None:
            self._store.run_action(lambda: self._send_reply(xid, ZkError.UNIMPLEMENTED))
        else:
            self._store.run_action(lambda: self._carry_out(xid, op, record))

    def on_lost(self) -> None:
        """Handle the loss of the connection: its requests are still carried out, and the session may be resumed."""
        self._lost = True
        self._watches.clear_watches()
        self._store.run_action(lambda: self._store.leave_session(self.session, self))

    # -- the session -------------------------------------------------------------------------------------------------

    def _begin_session(self, connect: Connect) -> None:
        if self._lost:
            return
        if connect.session:
            self._resume_session(connect)
            return
        self.timeout_ms = negotiate_timeout(
            connect.timeout_ms, self._limits.least_timeout_ms, self._limits.most_timeout_ms
        )
        try:
            self.session = self._store.open_session(self, Grant(self.timeout_ms, self._password))
        except Failure as failure:
            self._end_connection(f"no session can begin: {failure}")
            return
        self._send_message(encode_connected(self.timeout_ms, self.session, self._password), wrote=True)

    def _resume_session(self, connect: Connect) -> None:
        """Resume a session; the answer for one that is over, or for a wrong password, contains no session."""
        password = connect.password or b""
        grant = self._store.resume_session(connect.session, password, self)
        if grant is None:
            self._send_message(encode_connected(0, 0, bytes(MAX_PASSWORD)))
            self._store.enqueue_callback(lambda _: self._end_connection(""))  # queued, so that the answer is sent first
            return
        self.session, self.timeout_ms = connect.session, grant.timeout_ms
        self._send_message(encode_connected(grant.timeout_ms, connect.session, password))

    def _close_session(self, xid: int) -> None:
        try:
            self._store.end_session(self.session)
        except Failure as failure:
            self._end_connection(f"the session cannot be closed: {failure}")
            return
        self._send_reply(xid, wrote=True)
        self._store.enqueue_callback(lambda _: self._end_connection(""))

    def _end_connection(self, why: str) -> None:
        if not self._over:
            self._over = True
            self._wire.close(why)

    # -- requests ----------------------------------------------------------------------------------------------------

    def _carry_out(self, xid: int, op: int, record: Any) -> None:
        if self._over:
            return
        self._store.touch_session(self.session)
        try:
            self._dispatch_request(xid, op, record)
        except RequestError as wrong:
            self._send_reply(xid, wrong.error)
        except Refused as refused:
            self._send_reply(xid, ERRORS[refused.reason])
        except Failure as failure:
            self._answer_failure(xid, failure.as_value())

    def _dispatch_request(self, xid: int, op: int, record: Any) -> None:
        if not self.is_trusted and op not in _OPEN:
            raise RequestError(ZkError.NO_AUTH)
        # In the order of how often brokers send them; `_dispatch_seldom` has the rest.
        if op in READS:
            self._answer_read(xid, op, record)
        elif op == OpCode.PING:
            self._send_reply(xid)
        elif op in _WRITES:
            ((path, version),) = self._store.commit_ops([op_of(op, record)], self.session)
            self._send_reply(xid, wrote=op != OpCode.CHECK, answer=written_answer(op, self._store.tree, path, version))
        elif op == OpCode.MULTI:
            self._run_multi(xid, record)
        elif op == OpCode.MULTI_READ:
            self._send_message(encode_reply(xid, self._store.last_zxid) + read_parts(self._store.tree, record.ops))
        elif op == OpCode.CLOSE:
            self._close_session(xid)
        else:
            self._dispatch_seldom(xid, op, record)

    def _dispatch_seldom(self, xid: int, op: int, record: Any) -> None:
        if op in (OpCode.SET_WATCHES, OpCode.SET_WATCHES2):
            self._renew_watches(record)
            self._send_reply(xid)
        elif op in (OpCode.REMOVE_WATCHES, OpCode.CHECK_WATCHES):
            self._send_reply(xid, self._remove_watches(record, op == OpCode.REMOVE_WATCHES))
        elif op == OpCode.AUTH:
            self._check_credentials(xid, record)
        elif op == OpCode.GET_EPHEMERALS:
            own = sorted(self._store.tree.ephemerals.get(self.session, ()))
            self._send_reply(xid, answer=("T", ([path for path in own if path.startswith(record.path)],)))
        elif op == OpCode.WHO_AM_I:
            self._send_reply(xid, answer=("T", ([],)))
        else:
            raise RequestError(ZkError.UNIMPLEMENTED)

    def _check_credentials(self, xid: int, record: Auth) -> None:
        """Check the client's credentials. If the store requires none, every client may use every node."""
        expected = self._limits.digest
        shown = record.scheme == "digest" and (expected is None or hmac.compare_digest(record.data or b"", expected))
        self.is_trusted = self.is_trusted or shown
        self._send_reply(xid, ZkError.OK if shown else ZkError.AUTH_FAILED)
        if not self.is_trusted:
            self._store.enqueue_callback(
                lambda _: self._end_connection("the client showed other credentials than this store's")
            )

    def _run_multi(self, xid: int, record: Multi) -> None:
        try:
            results = self._store.commit_ops(ops_of(record.ops), self.session)
        except (RequestError, Refused) as wrong:
            error = ERRORS[wrong.reason] if isinstance(wrong, Refused) else wrong.error
            parts = failed_parts(len(record.ops), wrong.index, error)
            self._send_message(encode_reply(xid, self._store.last_zxid) + parts)
            return
        tree = self._store.tree
        done = [
            (code, ZkError.OK, *written_answer(code, tree, path, version))
            for (code, _), (path, version) in zip(record.ops, results, strict=True)
        ]
        self._send_message(encode_reply(xid, self._store.last_zxid) + encode_parts(done), wrote=True)

    def _answer_failure(self, xid: int, failure: Failure) -> None:
        # 1. No space: the request did not happen, and the client may try again.
        if failure.kind is Kind.FULL:
            self._send_reply(xid, ZkError.SYSTEM_ERROR)
        # 2. The session is over: the client has to open another one.
        elif failure.kind is Kind.EXPIRED:
            self._send_reply(xid, ZkError.SESSION_EXPIRED)
            self._store.enqueue_callback(lambda _: self._end_connection("the session is over"))
        # 3. The store has failed, and whether the request happened is not known: no answer, as after a lost connection.
        else:
            self._end_connection(str(failure))

    # -- reading and watching ------------------------------------------------------------------------------------------

    def _answer_read(self, xid: int, op: int, record: Any) -> None:
        """Answer a read and set its watch. Only `exists` can watch an absent node, until it is created."""
        try:
            answer = READS[op](self._store.tree, record)
        except RequestError as wrong:
            # As in ZooKeeper, the error does not prevent this one watch.
            if op == OpCode.EXISTS and wrong.error is ZkError.NO_NODE and record.watch:
                self._add_watch(self._watches.data, record.path)
            raise
        if op in _WATCHED and isinstance(record, PathWatch) and record.watch:
            of_children = op in (OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2)
            self._add_watch(self._watches.children if of_children else self._watches.data, record.path)
        self._send_reply(xid, answer=answer)

    def _add_watch(self, paths: dict[str, None], path: str) -> None:
        paths[path] = None
        if self.watch_count > self._limits.watches:
            self._end_connection(f"the client has more than {self._limits.watches} watches")

    def _renew_watches(self, record: SetWatches) -> None:
        """Set the watches of a lost connection again; a node that changed since `zxid` is reported at once."""
        nodes = self._store.tree.nodes
        if record.persistent or record.recursive:
            raise RequestError(ZkError.UNIMPLEMENTED)
        # 1. Watches of data that existed: its removal and its change are reported.
        for path in record.data:
            node = nodes.get(path)
            if node is None:
                self._queue_notice(EventKind.DELETED, path)
            elif node.mzxid > record.zxid:
                self._queue_notice(EventKind.CHANGED, path)
            else:
                self._add_watch(self._watches.data, path)
        # 2. Watches of nodes that did not exist: their creation is reported.
        for path in record.exist:
            if path in nodes:
                self._queue_notice(EventKind.CREATED, path)
            else:
                self._add_watch(self._watches.data, path)
        # 3. Watches of children: the removal of the node, and a child created or removed.
        for path in record.child:
            node = nodes.get(path)
            if node is None:
                self._queue_notice(EventKind.DELETED, path)
            elif node.pzxid > record.zxid:
                self._queue_notice(EventKind.CHILD, path)
            else:
                self._add_watch(self._watches.children, path)

    def _remove_watches(self, record: PathKind, remove: bool) -> ZkError:
        """Remove watches of a kind, or only check whether there are any."""
        tables = [
            paths
            for kind, paths in ((_CHILDREN, self._watches.children), (_DATA, self._watches.data))
            if record.kind in (kind, _ANY) and record.path in paths
        ]
        if remove:
            for paths in tables:
                del paths[record.path]
        return ZkError.OK if tables else ZkError.NO_WATCHER

    # -- output ------------------------------------------------------------------------------------------------------

    def _send_reply(
        self,
        xid: int,
        error: ZkError = ZkError.OK,
        wrote: bool = False,
        answer: tuple[str, Sequence[Any]] = ("", ()),
    ) -> None:
        self._send_message(encode_reply(xid, self._store.last_zxid, error, *answer), wrote)

    def _send_message(self, message: bytes, wrote: bool = False) -> None:
        """Send a message after the journal has synced all state that it contains."""
        self._store.enqueue_callback(lambda failure: self._send_synced(message, failure), wrote)

    def _send_synced(self, message: bytes, failure: Failure | None) -> None:
        self.answered += 1
        if self._over or self._lost:
            return
        if failure is None:
            self._wire.send(message)
        else:
            self._end_connection(str(failure))

    def _queue_notice(self, event: EventKind, path: str) -> None:
        message = encode_notice(event, path)
        self._store.enqueue_callback(lambda failure: self._send_notice(message, failure))

    def _send_notice(self, message: bytes, failure: Failure | None) -> None:
        if failure is None and not self._over and not self._lost:
            self._wire.send(message)

    # -- Client --------------------------------------------------------------------------------------------------------

    def on_changes(self, events: Sequence[Event]) -> None:
        """Send the notices of the watches that these changes fire."""
        for event in self._watches.fire_watches(events):
            self._queue_notice(event.kind, event.path)

    def on_expired(self) -> None:
        """Close: the session is over, or the store has failed."""
        self._end_connection("the session is over")

    def on_displaced(self) -> None:
        """Close: the session was resumed on another connection."""
        self._end_connection("the session was resumed on another connection")
