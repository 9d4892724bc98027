"""The seam `MetadataStore` for one simulated process: a client of the ensemble, with its session.

Zone: deterministic. Connection losses, expiries, watches and answers arrive as turns, in one order. Requests that were
in flight when the connection broke end with UNKNOWN; requests without a connection wait for the next one. A client that
has received nothing for half of its session timeout connects to another server (SUSPENDED). After the whole timeout it
gives the session up (EXPIRED) and requests a new one, although the store may still have the old one.

    ensemble = Ensemble(timeline, network, streams.stream("store"))
    store = SimStore(process, ensemble)     # process.inputs gets on_session and on_node
    store.open()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.seams import Done, Failure, Kind, Node, Op, Session
from ottla.sim.machines.ensemble import (
    Answer,
    Bye,
    Changed,
    Children,
    Ensemble,
    Get,
    Hello,
    Letter,
    Message,
    Multi,
    Ping,
    Request,
    Results,
    Welcome,
)
from ottla.sim.networks.network import Connection
from ottla.sim.world import MS, SECOND

if TYPE_CHECKING:
    from ottla.sim.machines.machine import Process

SESSION_TIMEOUT_NS: Final = 2 * SECOND
REFUSED_NS: Final = MS
"""Delay before a call without a session fails."""


class _Asked:
    """A request that waits or is in flight."""

    __slots__ = ("done", "request")

    def __init__(self, request: Request, done: Callable[[Any], None]) -> None:
        self.request = request
        self.done = done

    def make_failure(self, kind: Kind) -> Failure:
        """The failure of a lost request. A read changes nothing, so a lost read is NOT_DONE instead of UNKNOWN."""
        lost = kind is Kind.UNKNOWN and not isinstance(self.request, Multi)
        return Failure(Kind.NOT_DONE if lost else kind, "the connection to the metadata store is lost")


class _Waiting:
    """A submit that waits for an earlier one of its lane."""

    __slots__ = ("done", "ops")

    def __init__(self, ops: tuple[Op, ...], done: Done[Results]) -> None:
        self.ops = ops
        self.done = done


class SimStore:
    """One client of the ensemble. Implements `ottla.seams.MetadataStore`."""

    def __init__(self, process: Process, ensemble: Ensemble, timeout_ns: int = SESSION_TIMEOUT_NS) -> None:
        self._process = process
        self._timeline = process.timeline
        self._network = ensemble.network
        self._servers = [server.node for server in ensemble.servers]
        self._timeout_ns = timeout_ns
        self._random = process.entropy.named_stream("store client")
        self._host = f"node{process.machine.node}"
        self._connection: Connection | None = None
        self._session = 0
        self._given_up = False
        """EXPIRED was reported, and no OPEN since."""
        self._welcome = False
        """The server has accepted the session on the present connection."""
        self._heard_ns = self._tried_ns = self._timeline.now_ns
        self._zxid = 0
        self._numbers = 0
        self._closed = False
        self._flying: deque[_Asked] = deque()
        self._held: deque[_Asked] = deque()
        self._lanes: dict[str, deque[_Waiting]] = {}

    @property
    def session_id(self) -> int:
        """The present session; 0: none."""
        return self._session

    def is_served(self, silence_ns: int) -> bool:
        """Whether a server has accepted the session, and was heard within that time."""
        return self._welcome and self._timeline.now_ns - self._heard_ns <= silence_ns

    # ---- MetadataStore ----

    def submit_ops(self, lane: str, ops: Sequence[Op], done: Done[Results]) -> None:
        """Apply all ops or none, after earlier submits of the lane."""
        waiting = _Waiting(tuple(ops), done)
        queue = self._lanes.get(lane)
        if queue is not None:
            queue.append(waiting)
        else:
            self._lanes[lane] = deque()
            self._begin_submit(lane, waiting)

    def get_node(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """Read a node from the connected server."""
        self._send_request(Get(self._next_number(), path, watch), done)

    def get_children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """Read the names of a node's children from the connected server."""
        self._send_request(Children(self._next_number(), path, watch), done)

    # ---- lifecycle ----

    def start_session(self) -> None:
        """Connect to a server; `on_session` follows."""
        self._heard_ns = self._timeline.now_ns
        self._process.on_resume = self._check_after_pause
        self._connect_server()
        self._on_tick()

    def _check_after_pause(self) -> None:
        """After a pause: report an expired session before any input that waited is handled."""
        inputs = self._process.inputs
        if inputs is not None and self._session and self._timeline.now_ns - self._heard_ns > self._timeout_ns:
            inputs.on_standstill()
        self._check_session()

    def end_session(self) -> None:
        """End the session at a clean stop; the store learns of it only if it can be reached now."""
        self._closed = True
        if self._connection is not None and self._welcome:
            self._send_message(Bye())

    # ---- requests ----

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _begin_submit(self, lane: str, waiting: _Waiting) -> None:
        self._send_request(
            Multi(self._next_number(), waiting.ops), lambda outcome: self._on_finished(lane, waiting.done, outcome)
        )

    def _on_finished(self, lane: str, done: Done[Results], outcome: Results | Failure) -> None:
        """Report the outcome of a submit. After a success the next one of the lane begins; else all of them fail."""
        queue = self._lanes[lane]
        if isinstance(outcome, Failure):
            del self._lanes[lane]
            for waiting in queue:
                self._post_completion(
                    waiting.done, Failure(Kind.NOT_DONE, f"an earlier change on this lane failed: {outcome}")
                )
        elif queue:
            self._begin_submit(lane, queue.popleft())
        else:
            del self._lanes[lane]
        done(outcome)

    def _send_request(self, request: Request, done: Callable[[Any], None]) -> None:
        # 1. Between EXPIRED and the next OPEN there is no session: fail soon.
        # 2. With an accepted session: send.
        # 3. Without a connection: wait for the next one.
        asked = _Asked(request, done)
        if self._given_up:
            self._process.post_turn(
                REFUSED_NS, "store", self._process.deliver_completion, done, asked.make_failure(Kind.EXPIRED)
            )
        elif self._welcome:
            self._send_asked(asked)
        else:
            self._held.append(asked)

    def _send_asked(self, asked: _Asked) -> None:
        self._flying.append(asked)
        self._send_message(asked.request)

    def _send_message(self, message: Message) -> None:
        assert self._connection is not None
        self._network.send_frame(self._connection, Letter(message))

    def _post_completion(self, done: Callable[[Any], None], outcome: object) -> None:
        self._process.post_turn(0, "store", self._process.deliver_completion, done, outcome)

    # ---- the connection ----

    def _connect_server(self) -> None:
        if self._closed or not self._process.alive or self._connection is not None:
            return
        self._tried_ns = self._timeline.now_ns
        node = self._random.choice(self._servers)
        connection = self._network.open_connection(
            self._host,
            node,
            self._on_connected,
            lambda frame: self._process.post_turn(0, "store", self._on_frame, connection, frame),
            lambda: self._process.post_turn(0, "store", self._on_lost, connection),
        )
        self._connection = connection

    def _on_connected(self, connection: Connection) -> None:
        if self._process.alive:
            self._process.post_turn(0, "store", self._on_opened, connection)
        else:
            self._network.close_connection(connection)

    def _on_opened(self, connection: Connection) -> None:
        if connection is self._connection:
            self._send_message(Hello(self._session, self._timeout_ns, self._zxid))

    def _on_lost(self, connection: Connection) -> None:
        if connection is self._connection:
            self._drop_connection()

    def _drop_connection(self) -> None:
        """Give up the connection: requests in flight may have been applied. Connect to another server soon."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._network.close_connection(connection)
        if self._welcome:
            self._welcome = False
            self._notify_session(Session.SUSPENDED)
        self._fail_lane(self._flying, Kind.UNKNOWN)
        self._timeline.schedule_after(self._random.between(20, 300) * MS, "store client", self._post_connect)

    def _post_connect(self) -> None:
        self._process.post_turn(0, "store", self._connect_server)

    def _fail_lane(self, queue: deque[_Asked], kind: Kind) -> None:
        while queue:
            asked = queue.popleft()
            self._post_completion(asked.done, asked.make_failure(kind))

    def _notify_session(self, state: Session) -> None:
        """Report a state of the session as a separate turn, after earlier reports."""
        session = self._session
        self._timeline.trace_fact(f"{self._host} session {session} {state.name}")

        def tell() -> None:
            assert self._process.inputs is not None
            self._process.inputs.on_session(state, session)

        self._process.post_turn(0, "on_session", tell)

    # ---- what arrives ----

    def _on_frame(self, connection: Connection, frame: bytes) -> None:
        if connection is not self._connection:
            return
        assert isinstance(frame, Letter)
        self._heard_ns = self._timeline.now_ns
        message = frame.message
        if isinstance(message, Answer):
            self._on_response(message)
        elif isinstance(message, Changed):
            self._zxid = max(self._zxid, message.zxid)
            assert self._process.inputs is not None
            self._process.inputs.on_node(message.path)
        elif isinstance(message, Welcome):
            self._on_welcome(message.session)

    def _on_response(self, answer: Answer) -> None:
        self._zxid = max(self._zxid, answer.zxid)
        asked = self._flying.popleft()
        assert asked.request.number == answer.number, "answers come in the order of the requests"
        self._process.deliver_completion(asked.done, answer.value)

    def _on_welcome(self, session: int) -> None:
        # The store may have ended the session while there was no connection. Then report EXPIRED, and ask for a new
        # session on the same connection.
        if session == 0:
            self._expire_session()
            self._send_message(Hello(0, self._timeout_ns, self._zxid))
            return
        self._session, self._welcome, self._given_up = session, True, False
        self._notify_session(Session.OPEN)
        held, self._held = self._held, deque()
        for asked in held:
            self._send_asked(asked)

    def _expire_session(self) -> None:
        """The session is over, or has to be treated so: fail all of its requests."""
        self._given_up = True
        self._notify_session(Session.EXPIRED)
        self._session = 0
        self._fail_lane(self._flying, Kind.UNKNOWN)
        self._fail_lane(self._held, Kind.EXPIRED)

    # ---- time ----

    def _on_tick(self) -> None:
        """Six times per session timeout: send a ping, and check how long nothing was received."""
        if not self._process.alive or self._closed:
            return
        self._process.post_turn(0, "store", self._check_session)
        self._timeline.schedule_after(self._timeout_ns // 6, "store tick", self._on_tick)

    def _check_session(self) -> None:
        # 1. Half of the timeout without a message (or without a Welcome): try another server.
        # 2. The whole timeout without a message: the store may have expired the session, so give it up.
        # 3. Otherwise the ping extends the session.
        now = self._timeline.now_ns
        silence = now - (self._heard_ns if self._welcome else self._tried_ns)
        if self._connection is not None and silence > self._timeout_ns // 2:
            self._drop_connection()
        if self._session and now - self._heard_ns > self._timeout_ns:
            self._drop_connection()  # otherwise a Welcome in flight would bring the session back
            self._expire_session()
        if self._welcome:
            self._send_message(Ping())
