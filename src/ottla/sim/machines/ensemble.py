"""The simulated metadata store: an ensemble of servers over one tree, as brokers' sessions see it.

Zone: deterministic. One leader decides and numbers every change; each server applies them a little later, or much later
when it lags, and answers reads from what it has. A server handles the requests of a connection in order: a read behind
a write sees it, a read of somebody else's write may not. Sessions live at the leader: any message over any server keeps
them, silence ends them. What brokers do with it stands in `store.py`; what goes wrong is the nemesis's.
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
    """The answer to Hello; session 0: that session is over."""

    session: int


class Ping(NamedTuple):
    """Keeps the session; answered by the same."""


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
    """What came of a request; `zxid`: the last change that the server knew."""

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
    """A message on the simulated network: bytes for the trace, the message itself for who receives it."""

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
    """The connection that speaks for it; requests that come over an older one are dropped."""


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

    def receive(self, frame: bytes) -> None:
        """A message arrived."""
        assert isinstance(frame, Letter)
        if not self.open:
            return
        if self.session is not None:
            self.server.ensemble.touch_session(self.session)
        if isinstance(frame.message, Ping):
            self.send(Ping())
        else:
            self._inbox.append(frame.message)
            self._next()

    def _next(self) -> None:
        while self._inbox and not self._busy:
            self._handle_message(self._inbox.popleft())

    def _handle_message(self, message: Message) -> None:
        ensemble = self.server.ensemble
        if isinstance(message, Get):
            self._read_request(message, self.data_watches, self.server.tree.get(message.path))
        elif isinstance(message, Children):
            tree = self.server.tree
            watches = self.child_watches if message.path in tree.nodes else self.data_watches
            self._read_request(message, watches, tree.children(message.path))
        else:
            assert isinstance(message, Hello | Multi | Bye)
            self._busy = True
            ensemble.propose(self, message)

    def _read_request(
        self, request: Get | Children, watches: dict[str, None], value: Node | Sequence[str] | None
    ) -> None:
        if request.watch:
            watches[request.path] = None
        self.send(Answer(request.number, value, self.server.zxid))

    def on_decided(self, answer: Message) -> None:
        """The leader has decided, and this server knows what it knew: answer, and go on."""
        self._busy = False
        if self.open:
            self.send(answer)
            self._next()

    def send(self, message: Message) -> None:
        """To the client."""
        self.server.ensemble.network.deliver_connection(self.connection, Letter(message))

    def fire(self, events: Sequence[Event]) -> None:
        """Tell the watches that these changes fire, each path once."""
        fired: dict[str, None] = {}
        for event in events:
            watches = self.child_watches if event.children else self.data_watches
            if event.path in watches:
                del watches[event.path]
                fired[event.path] = None
        for path in fired:
            self.send(Changed(path, self.server.zxid))

    def peer_gone(self) -> None:
        """The client's side is closed, or the connection is broken."""
        if self.open:
            self.open = False
            self.server.ends.pop(self.connection.number, None)
            if self.session is not None and self.session.end is self:
                self.session.end = None

    def drop(self) -> None:
        """The server closes."""
        self.peer_gone()
        self.server.ensemble.network.refuse_connection(self.connection)


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
        """How much later than usual it applies what the leader decides."""
        self.life = 1
        self._applies_at = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def accept(self, connection: Connection) -> StoreEnd:
        """A client connects."""
        end = self.ends[connection.number] = StoreEnd(self, connection)
        return end

    def follow(self, zxid: int, wall_ms: int, changes: Sequence[Change]) -> None:
        """The leader has decided: apply it after everything before it."""
        timeline = self.ensemble.timeline
        delay = int(self.ensemble.random.exponential(APPLY_MEAN_NS)) + self.lag_ns
        self._applies_at = max(self._applies_at, timeline.now_ns + delay)
        timeline.schedule_at(self._applies_at, "store apply", self._apply, zxid, wall_ms, changes)

    def _apply(self, zxid: int, wall_ms: int, changes: Sequence[Change]) -> None:
        events = self.tree.apply(changes, zxid, wall_ms)
        self.zxid = zxid
        for end in list(self.ends.values()):
            end.fire(events)
        while self._waiting and self._waiting[0][0] <= zxid:
            self._waiting.popleft()[1]()

    def when(self, zxid: int, then: Callable[[], None]) -> None:
        """Call `then` once everything up to that change is applied here."""
        if self.zxid >= zxid:
            then()
        else:
            self._waiting.append((zxid, then))

    def restart(self, down_ns: int) -> None:
        """All its connections break; it accepts new ones after that time."""
        network = self.ensemble.network
        network.listening.pop(self.node, None)
        self.life += 1
        for end in list(self.ends.values()):
            end.peer_gone()
            network.cut_off(end.connection)
        self.ensemble.timeline.after(down_ns, "store server up", self._up, self.life)

    def _up(self, life: int) -> None:
        """It serves, once there is a quorum to be one of."""
        if life != self.life:
            return
        ensemble = self.ensemble
        wait_ns = ensemble.down_until_ns - ensemble.timeline.now_ns
        if wait_ns > 0:
            ensemble.timeline.after(wait_ns, "store server up", self._up, life)
        else:
            ensemble.network.listening[self.node] = self


class Ensemble:
    """The leader: the order of all changes, and all sessions."""

    def __init__(self, timeline: Timeline, network: Network, random: Stream) -> None:
        self.timeline = timeline
        self.network = network
        self.random = random
        self.tree = Tree()
        self.zxid = 0
        self.sessions: dict[int, StoreSession] = {}
        self.slow_until_ns = 0
        """Until then every change takes up to a second longer."""
        self.down_until_ns = 0
        """No quorum until then."""
        self.on_commit: Callable[[Sequence[Change]], None] = lambda _changes: None
        """Told of every change, in order."""
        self.expired = 0
        """Sessions that ended in silence."""
        self.servers = [StoreServer(self, node) for node in STORE_NODES]
        for server in self.servers:
            network.listening[server.node] = server
        self._commits_at = 0

    # ---- changes ----

    def propose(self, end: StoreEnd, message: Hello | Multi | Bye) -> None:
        """A request that the leader decides, in the order in which requests reach it."""
        delay = int(self.random.exponential(COMMIT_MEAN_NS))
        if self.slow_until_ns > self.timeline.now_ns:
            delay += self.random.below(1000) * MS
        self._commits_at = max(self._commits_at, self.timeline.now_ns + delay)
        self.timeline.schedule_at(self._commits_at, "store commit", self._decide, end, message)

    def _decide(self, end: StoreEnd, message: Hello | Multi | Bye) -> None:
        if self.down_until_ns > self.timeline.now_ns and self.random.chance(0.5):
            return  # lost with the leader that had it; the others were decided just before
        answer = self._answer(end, message)
        if answer is not None:
            zxid = message.seen_zxid if isinstance(message, Hello) else 0
            end.server.when(max(zxid, self.zxid), lambda: end.on_decided(answer))

    def _answer(self, end: StoreEnd, message: Hello | Multi | Bye) -> Message | None:
        """None: whoever asked has moved to another connection, or is told nothing."""
        if isinstance(message, Hello):
            return self._welcome(end, message) if end.open else None
        session = end.session
        if session is None or (session.end is not end and session.end is not None):
            return None
        if isinstance(message, Bye):
            self.end_session(session.number)
            return None
        return Answer(message.number, self._multi(session.number, message.ops), self.zxid)

    def _multi(self, session: int, ops: Sequence[Op]) -> Results | Failure:
        if session not in self.sessions:
            return Failure(Kind.EXPIRED, f"session {session} is over")
        try:
            changes, results = self.tree.draft(ops, session)
        except Refused as refused:
            return Failure(refused.kind, str(refused))
        except BadPath as bad:
            return Failure(Kind.NOT_DONE, str(bad))
        self._commit_changes(changes)
        return results

    def _commit_changes(self, changes: Sequence[Change]) -> None:
        """A multi of checks alone has its place in the order, too: whoever waits for it has seen all before it."""
        self.zxid += 1
        wall_ms = WALL_START_MS + self.timeline.now_ns // MS
        self.tree.apply(changes, self.zxid, wall_ms)
        self.on_commit(changes)
        for server in self.servers:
            server.follow(self.zxid, wall_ms, changes)

    def by_hand(self, ops: Sequence[Op]) -> Results | Failure:
        """Somebody with a shell of his own changes nodes, at once."""
        try:
            changes, results = self.tree.draft(ops, 0)
        except Refused as refused:
            return Failure(Kind.CONFLICT, str(refused))
        self._commit_changes(changes)
        return results

    # ---- sessions ----

    def _welcome(self, end: StoreEnd, hello: Hello) -> Welcome:
        if hello.session == 0:
            session = StoreSession(self.zxid + 1, hello.timeout_ns, 0, end)
            self.sessions[session.number] = session
            self._commit_changes([Change(Verb.OPEN, "", owner=session.number)])
            self.touch_session(session)
            self._watch_over(session)
        elif hello.session in self.sessions:
            session = self.sessions[hello.session]
            if session.end is not None:
                session.end.drop()
            session.end = end
            self.touch_session(session)
        else:
            return Welcome(0)
        end.session = session
        return Welcome(session.number)

    def touch_session(self, session: StoreSession) -> None:
        """Something was heard of it."""
        session.deadline_ns = self.timeline.now_ns + session.timeout_ns

    def _watch_over(self, session: StoreSession) -> None:
        tick = session.timeout_ns // 8
        due = -(-session.deadline_ns // tick) * tick
        self.timeline.schedule_at(due, "session deadline", self._look_at, session)

    def _look_at(self, session: StoreSession) -> None:
        if session.number not in self.sessions:
            return
        if self.down_until_ns > self.timeline.now_ns:
            session.deadline_ns = self.down_until_ns + session.timeout_ns
        if session.deadline_ns > self.timeline.now_ns:
            self._watch_over(session)
            return
        self.expired += 1
        self.timeline.trace_fact(f"store: session {session.number} expired")
        self.end_session(session.number)

    def end_session(self, number: int) -> None:
        """The session is over: its ephemeral nodes go, its connection is closed."""
        session = self.sessions.pop(number, None)
        if session is None:
            return
        self._commit_changes(self.tree.closing(number))
        if session.end is not None:
            session.end.drop()

    # ---- faults ----

    def break_connections(self, chosen: Callable[[str], bool]) -> None:
        """Connections of the chosen hosts break; half of them take with them what was on its way to the server."""
        for server in self.servers:
            for end in list(server.ends.values()):
                if chosen(end.connection.host):
                    if self.random.chance(0.5):
                        end.peer_gone()
                    self.network.cut_off(end.connection)

    def lose_quorum(self, down_ns: int) -> None:
        """Nobody is served for that long; sessions are kept, and count anew afterwards."""
        self.down_until_ns = max(self.down_until_ns, self.timeline.now_ns + down_ns)
        for server in self.servers:
            server.restart(self.down_until_ns - self.timeline.now_ns)

    def heal(self) -> None:
        """All servers serve, without delay."""
        self.slow_until_ns = self.down_until_ns = self.timeline.now_ns
        for server in self.servers:
            server.lag_ns = 0
            self.network.listening[server.node] = server
