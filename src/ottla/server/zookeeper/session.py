"""One session with ZooKeeper, through kazoo: sends requests; delivers answers, watches and states in one order.

Zone: real. Only this module and `wire` know kazoo: its threads, its exceptions, its behaviour at a loss. `store`
decides on the loop how the broker reacts.

kazoo has a thread for its connection and two more for callbacks, so that completions and watches overtake one another.
Here all callbacks run in the connection's thread, and do nothing but queue a turn.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final

from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.protocol.states import EventType, KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from ottla.seams import Failure, Kind, Node, Op
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.zookeeper.settings import ZooKeeperSettings
from ottla.server.zookeeper.wire import ZooKeeperConnection
from ottla.znodes.tree import Event, EventKind

log = logging.getLogger(__name__)

_EPHEMERAL: Final = 1
_SEQUENCE: Final = 2
_FLAGS: Final = {
    "create": 0,
    "ephemeral": _EPHEMERAL,
    "sequential": _SEQUENCE,
    "ephemeral_sequential": _EPHEMERAL | _SEQUENCE,
}
_EVENTS: Final = {
    EventType.CREATED: [(False, EventKind.CREATED)],
    EventType.CHANGED: [(False, EventKind.CHANGED)],
    EventType.DELETED: [(False, EventKind.DELETED), (True, EventKind.DELETED)],
    EventType.CHILD: [(True, EventKind.CHILD)],
}
"""kazoo's event → the watches that fire: (whether it is a watch of children, kind)."""
_LOST: Final = (errors.ConnectionLoss, errors.ConnectionClosedError, errors.SessionMovedError)
# ConnectionClosedError is a subclass of SessionExpiredError, but means only that kazoo's client was stopped.
_FOLLOWS: Final = (errors.RolledBackError, errors.RuntimeInconsistency)
"""Errors of the other operations of a multi when one of them fails."""
_CONFLICTS: Final = (
    errors.BadVersionError,
    errors.NodeExistsError,
    errors.NoNodeError,
    errors.NotEmptyError,
    errors.NoChildrenForEphemeralsError,
)
_UNSURE: Final = (errors.OperationTimeoutError, errors.SystemZookeeperError, errors.DataInconsistency)
_SENSITIVE: Final = ("/config/users", "/config/brokers", "/delegation_token")
"""Nodes that only brokers may read, as in Kafka's ZkData."""
ENDING: Final = "ottla-zookeeper-end"
"""Name of the threads in which clients are stopped."""
STOP_S: Final = 2.0
"""Time for the end of a session at a stop; an ensemble that can be reached needs some milliseconds."""


class Lost(Exception):
    """The connection broke before the answer came."""


class SessionState(Enum):
    """The states that a session reports."""

    CONNECTED = 1
    """Connected to a server; `session_id` is valid."""
    SUSPENDED = 2
    """Not connected; unanswered requests have received Lost before this state."""
    OVER = 3
    """The server has ended the session, or kazoo has given up."""
    REFUSED = 4
    """The server does not accept the credentials of `digest`."""


ZooKeeperResponse = Callable[[Any], None]


class ZooKeeperSession:
    """One session of one client: begins with `start_client`, ends by expiry, `end_in_background` or `end_session`;
    never used again."""

    def __init__(
        self,
        settings: ZooKeeperSettings,
        turns: CompletionQueue,
        on_state: Callable[[ZooKeeperSession, SessionState], None],
        on_events: Callable[[ZooKeeperSession, Sequence[Event]], None],
    ) -> None:
        """`on_state(link, state)` and `on_events(link, events)` are turns."""
        self.session_id = 0
        self._wire: ZooKeeperConnection | None = None
        """The current connection, or the last one."""
        self._heard_ns = 0
        self._granted_ms = settings.timeout_ms
        self.trouble = ""
        """Why there is no connection, if the reason is known."""
        self._settings = settings
        self._turns = turns
        self._on_state = on_state
        self._on_events = on_events
        handler = _OneQueue(self._on_connected, settings.timeout_ms / 1000 / (2 * (settings.hosts.count(",") + 1)))
        pause = KazooRetry(
            max_tries=-1, delay=0.05, max_jitter=0.4, max_delay=min(1.0, settings.timeout_ms / 8000),
            sleep_func=handler.sleep_func,
        )  # fmt: skip
        self._client = KazooClient(
            settings.hosts,
            timeout=settings.timeout_ms / 1000,
            handler=handler,
            connection_retry=pause,
            auth_data=[("digest", settings.digest)] if settings.digest else [],
            logger=_quiet_logger(),
        )
        self._client.add_listener(self._on_kazoo_state)

    # -- life ------------------------------------------------------------------------------------------------------

    def start_client(self) -> None:
        """Connect to a server, trying again without limit."""
        self._client.start_async()

    def end_in_background(self) -> None:
        """Stop the client in the background, in any state."""
        threading.Thread(target=self._end_client, name=ENDING, daemon=True).start()

    def end_session(self) -> None:
        """End the session, so that its ephemeral nodes are removed at once; blocks for at most STOP_S."""
        thread = threading.Thread(target=self._end_client, name=ENDING, daemon=True)
        thread.start()
        # The thread is a daemon: with an ensemble that does not answer, the broker ends without it, and the session
        # expires.
        thread.join(STOP_S)

    def _end_client(self) -> None:
        # This client is not used any more, so no exception of kazoo matters.
        with contextlib.suppress(Exception):
            self._client.stop()
        with contextlib.suppress(Exception):
            self._client.close()

    def cut_connection(self) -> None:
        """Shut down the current connection; kazoo connects again."""
        if self._wire is not None:
            self._wire.cut_connection()

    @property
    def heard_ns(self) -> int:
        """When the last answered request was sent, on any connection (`steady_ns`); 0: none was answered."""
        return self._heard_ns if self._wire is None else max(self._heard_ns, self._wire.heard_ns)

    @property
    def connected_ns(self) -> int:
        """When the current or last connection began (`steady_ns`); 0: there was none."""
        return 0 if self._wire is None else self._wire.born_ns

    @property
    def timeout_ms(self) -> int:
        """The session time-out that the server granted; before that, the requested one."""
        return self._granted_ms if self._wire is None or not self._wire.timeout_ms else self._wire.timeout_ms

    # -- requests: the answer comes in a turn ----------------------------------------------------------------------

    def send_multi(self, ops: Sequence[Op], answered: ZooKeeperResponse) -> None:
        """Apply all ops or none. `answered` gets (path, version) per op, Failure, or Lost."""
        transaction = self._client.transaction()
        transaction.operations.extend(map(self._kazoo_operation, ops))
        self._send_request(transaction.commit_async(), lambda results: self._multi_results(ops, results), answered)

    def get_node(self, path: str, watch: bool, answered: ZooKeeperResponse) -> None:
        """Read a node. `answered` gets the Node, None for an absent one, Failure, or Lost."""
        request = self._client.get_async(self._full_path(path), self._on_kazoo_event if watch else None)
        self._send_request(request, _decode_node, answered, may_be_absent=True)

    def get_children(self, path: str, watch: bool, answered: ZooKeeperResponse) -> None:
        """Read the names of children. `answered` gets them sorted, None for an absent node, Failure, or Lost."""
        request = self._client.get_children_async(self._full_path(path), self._on_kazoo_event if watch else None)
        self._send_request(request, sorted, answered, may_be_absent=True)

    def check_exists(self, path: str, watch: bool, answered: ZooKeeperResponse) -> None:
        """Check whether a node exists; only this request can watch an absent node. `answered` gets True, None for an
        absent node, Failure, or Lost."""
        request = self._client.exists_async(self._full_path(path), self._on_kazoo_event if watch else None)
        self._send_request(request, lambda stat: None if stat is None else True, answered)

    def sync_server(self, answered: ZooKeeperResponse) -> None:
        """Make the server catch up with its leader before it answers later requests."""
        self._send_request(self._client.sync_async(self._full_path("/")), lambda _: True, answered)

    def send_ping(self) -> None:
        """Send a request whose answer only advances `heard_ns`."""
        self._client.exists_async("/")

    def _full_path(self, path: str) -> str:
        return (
            path
            if not self._settings.chroot
            else self._settings.chroot
            if path == "/"
            else self._settings.chroot + path
        )

    def _kazoo_operation(self, op: Op) -> Create | Delete | SetData | CheckVersion:
        path = self._full_path(op.path)
        if op.verb == "check":
            return CheckVersion(path, op.version)
        if op.verb == "put":
            return SetData(path, op.data, op.version)
        if op.verb == "delete":
            return Delete(path, op.version)
        return Create(path, op.data, self._acl_for(op.path), _FLAGS[op.verb])

    def _acl_for(self, path: str) -> list[object]:
        if not self._settings.set_acl:
            return list(OPEN_ACL_UNSAFE)
        return [*CREATOR_ALL_ACL, *(() if path.startswith(_SENSITIVE) else READ_ACL_UNSAFE)]

    def _multi_results(self, ops: Sequence[Op], results: Sequence[Any]) -> list[tuple[str, int]] | Failure | Lost:
        """The results of a multi, or the failure of one of its operations: kazoo returns a list in both cases."""
        # One operation is the cause; the others get an error that only means that they were rolled back.
        failed = [(op, result) for op, result in zip(ops, results, strict=False) if isinstance(result, Exception)]
        causes = [(op, error) for op, error in failed if not isinstance(error, _FOLLOWS)] or failed
        if causes:
            op, error = causes[0]
            return _classify_error(error, op.path)
        return [self._op_result(op, result) for op, result in zip(ops, results, strict=True)]

    def _op_result(self, op: Op, result: Any) -> tuple[str, int]:
        if op.verb in _FLAGS:
            return str(result)[len(self._settings.chroot) :], 0
        version = op.version if op.verb == "check" else -1 if op.verb == "delete" else result.version
        return op.path, version

    def _send_request(
        self, request: Any, value: Callable[[Any], Any], answered: ZooKeeperResponse, may_be_absent: bool = False
    ) -> None:
        request.rawlink(partial(self._deliver_response, value, answered, may_be_absent))

    def _deliver_response(
        self, value: Callable[[Any], Any], answered: ZooKeeperResponse, may_be_absent: bool, request: Any
    ) -> None:
        """Queue a turn for an answer; runs in kazoo's thread, or in the calling one if kazoo refuses the request."""
        outcome: object
        try:
            outcome = value(request.get_nowait())
        except errors.NoNodeError as error:
            outcome = None if may_be_absent else _classify_error(error)
        except Exception as error:  # noqa: BLE001 - kazoo passes on any exception
            outcome = _classify_error(error)
        self._turns.run_from_thread(answered, outcome)

    # -- in kazoo's thread, which must not be blocked --------------------------------------------------------------

    def _on_connected(self, wire: ZooKeeperConnection | None, trouble: str) -> None:
        self.trouble = trouble
        if wire is not None:
            # Read before the connection is replaced: both properties ask the old one.
            self._heard_ns, self._granted_ms = self.heard_ns, self.timeout_ms
            self._wire = wire

    def _on_kazoo_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self.session_id = self._client.client_id[0]
            self._report_state(SessionState.CONNECTED)
        elif state == KazooState.SUSPENDED:
            self._report_state(SessionState.SUSPENDED)
        elif self._client.client_state == KeeperState.AUTH_FAILED:
            self._report_state(SessionState.REFUSED)
        else:
            self._report_state(SessionState.OVER)

    def _report_state(self, state: SessionState) -> None:
        self._turns.run_from_thread(lambda _: self._on_state(self, state), None)

    def _on_kazoo_event(self, event: Any) -> None:
        if event.type != EventType.NONE:  # NONE: the connection is lost, which `_on_kazoo_state` reports
            path = event.path[len(self._settings.chroot) :] or "/"
            events = [Event(path, children, kind) for children, kind in _EVENTS[event.type]]
            self._turns.run_from_thread(lambda _: self._on_events(self, events), None)


def _decode_node(answer: tuple[bytes, Any]) -> Node:
    data, stat = answer
    return Node(data, stat.version, stat.czxid, stat.ephemeralOwner, stat.mzxid)


def _classify_error(error: Exception, path: str = "") -> Failure | Lost:
    """Classify an exception of kazoo as Lost or a Failure."""
    if isinstance(error, _LOST):
        return Lost()
    text = f"{path} {type(error).__name__} {error}".strip()
    if isinstance(error, _CONFLICTS):
        return Failure(Kind.CONFLICT, text)
    if isinstance(error, errors.SessionExpiredError):
        return Failure(Kind.EXPIRED, text)
    return Failure(Kind.UNKNOWN if isinstance(error, _UNSURE) else Kind.NOT_DONE, f"ZooKeeper answered {text}")


def _quiet_logger() -> logging.Logger:
    """kazoo's logger, silent unless debugging is on: kazoo logs every attempt to connect."""
    logger = logging.getLogger("kazoo.client")
    if not log.isEnabledFor(logging.DEBUG):
        logger.setLevel(logging.CRITICAL)
    return logger


class _AtOnce:
    """Replaces kazoo's queues of callbacks: a callback runs when it is put."""

    def put(self, callback: Callable[[], None]) -> None:
        callback()


class _OneQueue(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler without threads for callbacks, with connections that record their answers."""

    def __init__(self, on_connection: Callable[[ZooKeeperConnection | None, str], None], connect_s: float) -> None:
        super().__init__()
        self.completion_queue = self.callback_queue = _AtOnce()
        self._on_connection = on_connection
        self._connect_s = connect_s

    def start(self) -> None:
        """Start no threads, and register nothing at the interpreter's exit."""
        self._running = True

    def stop(self) -> None:
        """Undo `start_client`."""
        self._running = False

    def create_connection(self, address: tuple[str, int], **_: object) -> ZooKeeperConnection:
        """Connect with a short time-out: a host that does not answer must leave time for the other hosts before the
        session expires."""
        try:
            sock = socket.create_connection(address, self._connect_s)
        except OSError as error:
            self._on_connection(None, f"{address[0]}:{address[1]}: {error.strerror or error}")
            raise
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = ZooKeeperConnection(sock)
        self._on_connection(wire, "")
        return wire
