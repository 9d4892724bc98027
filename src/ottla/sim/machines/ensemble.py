"""The simulated metadata store: an ensemble of servers over one tree, as brokers' sessions see it.

Zone: deterministic. One leader decides and numbers every change. Each server applies the changes a little later, or
much later when it lags, and answers reads from its own tree. A server handles the requests of a connection in order: a
read after a write on the same connection sees the write; a read on another connection may not. The leader keeps the
sessions: any message over any server extends a session, and silence ends it. `store.py` has the client of brokers; the
nemesis causes the faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.seams import Failure, Kind, Node, Op
from ottla.sim.entropy import Stream
from ottla.sim.networks.network import Connection, Network
from ottla.sim.world import MS, WALL_START_MS, Timeline
from ottla.znodes.tree import BadPath, Change, Event, Refused, Tree, Verb

STORE_NODES: Final = (1001, 1002, 1003)
"""The servers, as nodes of the network."""
COMMIT_MEAN_NS: Final = 2 * MS
APPLY_MEAN_NS: Final = MS
Results = Sequence[tuple[str, int]]


class Hello(NamedTuple):
    """A client connects; session 0: it wants a new one."""

    session: int
    timeout_ns: int
    seen_zxid: int


class Welcome(NamedTuple):
    """The answer to Hello; session 0: the session has expired."""

    session: int


class Ping(NamedTuple):
    """Extends the session; the answer is a Ping as well."""


class Multi(NamedTuple):
    """Apply all or nothing."""

    number: int
    ops: tuple[Op, ...]


class Get(NamedTuple):
    """Read a node."""

    number: int
    path: str
    watch: bool


class Children(NamedTuple):
    """Read the names of the children."""

    number: int
    path: str
    watch: bool


class Bye(NamedTuple):
    """End the session."""


class Answer(NamedTuple):
    """The result of a request; `zxid` is the last change that the server had applied."""

    number: int
    value: Results | Node | Sequence[str] | Failure | None
    zxid: int


class Changed(NamedTuple):
    """A watch fired."""

    path: str
    zxid: int


Request = Multi | Get | Children
Message = Hello | Welcome | Ping | Request | Bye | Answer | Changed


class Letter(bytes):
    """A message on the simulated network: bytes for the trace, and the message itself for the receiver."""

    message: Message

    def __new__(cls, message: Message) -> Letter:
        letter = super().__new__(cls, repr(message).encode())
        letter.message = message
        return letter


@dataclass(slots=True, eq=False)
class StoreSession:
    """A session, at the leader."""

    number: int
    timeout_ns: int
    deadline_ns: int
    end: StoreEnd | None
    """The connection of the session; requests on an older connection are dropped."""


class StoreEnd:
    """A connection at a server."""

    def __init__(self, server: StoreServer, connection: Connection) -> None:
        self.server = server
        self.connection = connection
        self.session: StoreSession | None = None
        self.open = True
        self.stalled_until_ns = 0
        self.data_watches: dict[str, None] = {}
        self.child_watches: dict[str, None] = {}
        self._inbox: deque[Message] = deque()
        self._busy = False

    def receive_frame(self, frame: bytes) -> None:
        """A message arrived."""
        assert isinstance(frame, Letter)
        if not self.open:
            return
        if self.session is not None:
            self.server.ensemble.touch_session(self.session)
        if isinstance(frame.message, Ping):
            self.send_message(Ping())
        else:
            self._inbox.append(frame.message)
            self._handle_next()

    def _handle_next(self) -> None:
        while self._inbox and not self._busy:
            self._handle_message(self._inbox.popleft())

    def _handle_message(self, message: Message) -> None:
        ensemble = self.server.ensemble
        if isinstance(message, Get):
            self._read_request(message, self.data_watches, self.server.tree.get_node(message.path))
        elif isinstance(message, Children):
            tree = self.server.tree
            watches = self.child_watches if message.path in tree.nodes else self.data_watches
            self._read_request(message, watches, tree.get_children(message.path))
        else:
            assert isinstance(message, Hello | Multi | Bye)
            self._busy = True
            ensemble.propose_request(self, message)

    def _read_request(
        self, request: Get | Children, watches: dict[str, None], value: Node | Sequence[str] | None
    ) -> None:
        if request.watch:
            watches[request.path] = None
        self.send_message(Answer(request.number, value, self.server.zxid))

    def on_decided(self, answer: Message) -> None:
        """This server has applied what the leader knew at its decision: answer, and continue with the inbox."""
        self._busy = False
        if self.open:
            self.send_message(answer)
            self._handle_next()

    def send_message(self, message: Message) -> None:
        """Send a message to the client."""
        self.server.ensemble.network.deliver_frame(self.connection, Letter(message))

    def fire_watches(self, events: Sequence[Event]) -> None:
        """Send the watches that these events fire, once per path."""
        fired: dict[str, None] = {}
        for event in events:
            watches = self.child_watches if event.children else self.data_watches
            if event.path in watches:
                del watches[event.path]
                fired[event.path] = None
        for path in fired:
            self.send_message(Changed(path, self.server.zxid))

    def on_peer_gone(self) -> None:
        """The client closed the connection, or it broke."""
        if self.open:
            self.open = False
            self.server.ends.pop(self.connection.number, None)
            if self.session is not None and self.session.end is self:
                self.session.end = None

    def close_connection(self) -> None:
        """Close the connection from the server's side."""
        self.on_peer_gone()
        self.server.ensemble.network.close_from_node(self.connection)


class StoreServer:
    """One server of the ensemble: a copy of the tree, and connections."""

    def __init__(self, ensemble: Ensemble, node: int) -> None:
        self.ensemble = ensemble
        self.node = node
        self.tree = Tree()
        self.zxid = 0
        """The last change that it has applied."""
        self.ends: dict[int, StoreEnd] = {}
        self.lag_ns = 0
        """Additional delay before it applies changes."""
        self.life = 1
        self._applies_at = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def accept_connection(self, connection: Connection) -> StoreEnd:
        """A client connects."""
        end = self.ends[connection.number] = StoreEnd(self, connection)
        return end

    def schedule_apply(self, zxid: int, wall_ms: int, changes: Sequence[Change]) -> None:
        """Schedule the application of a decided change, after all earlier ones."""
        timeline = self.ensemble.timeline
        delay = int(self.ensemble.random.exponential(APPLY_MEAN_NS)) + self.lag_ns
        self._applies_at = max(self._applies_at, timeline.now_ns + delay)
        timeline.schedule_at(self._applies_at, "store apply", self._apply_changes, zxid, wall_ms, changes)

    def _apply_changes(self, zxid: int, wall_ms: int, changes: Sequence[Change]) -> None:
        events = self.tree.apply(changes, zxid, wall_ms)
        self.zxid = zxid
        for end in list(self.ends.values()):
            end.fire_watches(events)
        while self._waiting and self._waiting[0][0] <= zxid:
            self._waiting.popleft()[1]()

    def run_when_applied(self, zxid: int, then: Callable[[], None]) -> None:
        """Call `then` once everything up to that change is applied here."""
        if self.zxid >= zxid:
            then()
        else:
            self._waiting.append((zxid, then))

    def restart_server(self, down_ns: int) -> None:
        """Break all its connections; it accepts new ones after that time."""
        network = self.ensemble.network
        network.listening.pop(self.node, None)
        self.life += 1
        for end in list(self.ends.values()):
            end.on_peer_gone()
            network.cut_off(end.connection)
        self.ensemble.timeline.schedule_after(down_ns, "store server up", self._come_up, self.life)

    def _come_up(self, life: int) -> None:
        """Listen again, as soon as there is a quorum."""
        if life != self.life:
            return
        ensemble = self.ensemble
        wait_ns = ensemble.down_until_ns - ensemble.timeline.now_ns
        if wait_ns > 0:
            ensemble.timeline.schedule_after(wait_ns, "store server up", self._come_up, life)
        else:
            ensemble.network.listening[self.node] = self


class Ensemble:
    """The leader: the order of all changes, and all sessions."""

    def __init__(
        self,
        timeline: Timeline,
        network: Network,
        random: Stream,
        on_commit: Callable[[Sequence[Change]], None] | None = None,
    ) -> None:
        """`on_commit` is called with every transaction, in order."""
        self.timeline = timeline
        self.network = network
        self.random = random
        self._on_commit = on_commit
        self.tree = Tree()
        self.zxid = 0
        self.sessions: dict[int, StoreSession] = {}
        self.slow_until_ns = 0
        """Until this time every change takes up to a second longer."""
        self.down_until_ns = 0
        """There is no quorum before this time."""
        self.expired = 0
        """Sessions that expired."""
        self.servers = [StoreServer(self, node) for node in STORE_NODES]
        for server in self.servers:
            network.listening[server.node] = server
        self._commits_at = 0

    # ---- changes ----

    def propose_request(self, end: StoreEnd, message: Hello | Multi | Bye) -> None:
        """Queue a request for the leader, which decides requests in the order of their arrival."""
        delay = int(self.random.exponential(COMMIT_MEAN_NS))
        if self.slow_until_ns > self.timeline.now_ns:
            delay += self.random.random_below(1000) * MS
        self._commits_at = max(self._commits_at, self.timeline.now_ns + delay)
        self.timeline.schedule_at(self._commits_at, "store commit", self._decide_request, end, message)

    def _decide_request(self, end: StoreEnd, message: Hello | Multi | Bye) -> None:
        if self.down_until_ns > self.timeline.now_ns and self.random.chance(0.5):
            return  # the request is lost with the old leader; with equal chance it was decided just before
        answer = self._make_answer(end, message)
        if answer is not None:
            zxid = message.seen_zxid if isinstance(message, Hello) else 0
            end.server.run_when_applied(max(zxid, self.zxid), lambda: end.on_decided(answer))

    def _make_answer(self, end: StoreEnd, message: Hello | Multi | Bye) -> Message | None:
        """Decide a request. None: the session uses another connection by now, or the request has no answer."""
        if isinstance(message, Hello):
            return self._open_session(end, message) if end.open else None
        session = end.session
        if session is None or (session.end is not end and session.end is not None):
            return None
        if isinstance(message, Bye):
            self.end_session(session.number)
            return None
        return Answer(message.number, self._apply_multi(session.number, message.ops), self.zxid)

    def _apply_multi(self, session: int, ops: Sequence[Op]) -> Results | Failure:
        if session not in self.sessions:
            return Failure(Kind.EXPIRED, f"session {session} is over")
        try:
            changes, results = self.tree.draft_changes(ops, session)
        except Refused as refused:
            return Failure(refused.kind, str(refused))
        except BadPath as bad:
            return Failure(Kind.NOT_DONE, str(bad))
        self._commit_changes(changes)
        return results

    def _commit_changes(self, changes: Sequence[Change]) -> None:
        """Number and apply a transaction. One with checks only gets a number as well, so its answer waits its turn."""
        self.zxid += 1
        wall_ms = WALL_START_MS + self.timeline.now_ns // MS
        self.tree.apply(changes, self.zxid, wall_ms)
        if self._on_commit is not None:
            self._on_commit(changes)
        for server in self.servers:
            server.schedule_apply(self.zxid, wall_ms, changes)

    def change_nodes_now(self, ops: Sequence[Op]) -> Results | Failure:
        """Change nodes at once, as an operator with a shell of the store does."""
        try:
            changes, results = self.tree.draft_changes(ops, 0)
        except Refused as refused:
            return Failure(Kind.CONFLICT, str(refused))
        self._commit_changes(changes)
        return results

    # ---- sessions ----

    def _open_session(self, end: StoreEnd, hello: Hello) -> Welcome:
        # 1. A new session: its number is that of the change that opens it.
        # 2. A known session moves to this connection; the old connection is closed.
        # 3. An expired session: the client has to ask for a new one.
        if hello.session == 0:
            session = StoreSession(self.zxid + 1, hello.timeout_ns, 0, end)
            self.sessions[session.number] = session
            self._commit_changes([Change(Verb.OPEN, "", owner=session.number)])
            self.touch_session(session)
            self._schedule_expiry(session)
        elif hello.session in self.sessions:
            session = self.sessions[hello.session]
            if session.end is not None:
                session.end.close_connection()
            session.end = end
            self.touch_session(session)
        else:
            return Welcome(0)
        end.session = session
        return Welcome(session.number)

    def touch_session(self, session: StoreSession) -> None:
        """A message of the session arrived: extend its deadline."""
        session.deadline_ns = self.timeline.now_ns + session.timeout_ns

    def _schedule_expiry(self, session: StoreSession) -> None:
        tick = session.timeout_ns // 8
        due = -(-session.deadline_ns // tick) * tick
        self.timeline.schedule_at(due, "session deadline", self._check_session, session)

    def _check_session(self, session: StoreSession) -> None:
        # 1. A session that was closed meanwhile needs no check.
        # 2. Without a quorum no time passes for sessions: the deadline counts from its return.
        # 3. A session that sent something meanwhile is checked again at its new deadline; any other expires.
        if session.number not in self.sessions:
            return
        if self.down_until_ns > self.timeline.now_ns:
            session.deadline_ns = self.down_until_ns + session.timeout_ns
        if session.deadline_ns > self.timeline.now_ns:
            self._schedule_expiry(session)
            return
        self.expired += 1
        self.timeline.trace_fact(f"store: session {session.number} expired")
        self.end_session(session.number)

    def end_session(self, number: int) -> None:
        """End a session: delete its ephemeral nodes, and close its connection."""
        session = self.sessions.pop(number, None)
        if session is None:
            return
        self._commit_changes(self.tree.closing_changes(number))
        if session.end is not None:
            session.end.close_connection()

    # ---- faults ----

    def break_connections(self, chosen: Callable[[str], bool]) -> None:
        """Break the connections of the chosen hosts; half of them lose the requests that are in flight."""
        for server in self.servers:
            for end in list(server.ends.values()):
                if chosen(end.connection.host):
                    if self.random.chance(0.5):
                        end.on_peer_gone()
                    self.network.cut_off(end.connection)

    def lose_quorum(self, down_ns: int) -> None:
        """Serve no requests for that long. Sessions are kept, and their timeouts start again afterwards."""
        self.down_until_ns = max(self.down_until_ns, self.timeline.now_ns + down_ns)
        for server in self.servers:
            server.restart_server(self.down_until_ns - self.timeline.now_ns)

    def heal_servers(self) -> None:
        """Let all servers serve without delay."""
        self.slow_until_ns = self.down_until_ns = self.timeline.now_ns
        for server in self.servers:
            server.lag_ns = 0
            self.network.listening[server.node] = server
