"""The metadata store outside: ZooKeeper, or the supervisor's store over ZooKeeper's protocol.

Zone: real. Implements `ottla.seams.MetadataStore` and gives the broker `on_session` and `on_node`. Lanes, what a loss
means, watches, and the watchdog live here, on the loop; kazoo is behind `session`.

States. SUSPENDED: the connection is gone, or nothing was heard for half of the session's time; the connection is then
given up. What was on its way is UNKNOWN, what waits goes on waiting, watches are gone. OPEN again, in the same session:
after a sync, so that whoever reads again does not read older state than it knew. EXPIRED: the server says so, or
nothing was heard for the whole time, after which the server may have ended the session; a new one is begun at once. The
time counts from the sending of what was answered last, so it never ends later here than there.

Reads that the loss of a connection leaves unanswered are asked again; they fail only with their session.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ottla.seams import Done, Failure, Inputs, Kind, Node, Op, Session
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import steady_ns
from ottla.server.zookeeper.session import Lost, SessionState, ZooKeeperSession
from ottla.server.zookeeper.settings import ZooKeeperSettings
from ottla.znodes.sessions import Watches
from ottla.znodes.tree import BadPath, Event, Refused, check_ops, check_path

log = logging.getLogger(__name__)

Results = Sequence[tuple[str, int]]
_LOOKS: Final = 12
"""How often the watchdog looks, per session time."""
_STANDSTILL: Final = 4
"""Which part of the session's time a standstill has to last to be looked at."""
_PINGS: Final = 6
"""How often something is asked for the sake of an answer, per session time."""
PAUSE_S: Final = 0.5
"""Before a client is thrown away and another one tried that had no session yet."""
MS: Final = 1_000_000


class _Read:
    """A node or the names of its children, asked for."""

    __slots__ = ("children", "done", "path", "watch")

    def __init__(self, path: str, children: bool, watch: bool, done: Done[Any]) -> None:
        self.path = path
        self.children = children
        self.watch = watch
        self.done = done


class _Write:
    """A multi."""

    __slots__ = ("done", "lane", "ops")

    def __init__(self, lane: str, ops: Sequence[Op], done: Done[Results]) -> None:
        self.lane = lane
        self.ops = ops
        self.done = done


_Request = _Read | _Write


class ZooKeeperStore:
    """One broker's client. `connect`, then everything else is turns; `stop` at the end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: CompletionQueue,
        settings: ZooKeeperSettings,
        max_in_flight: int = 10,
        patience_ms: int | None = None,
    ) -> None:
        """`patience_ms`: how long there may be no connection before the log says so, again and again."""
        self.failed: Failure | None = None
        """Why there will never be a session."""
        self._loop = loop
        self._turns = turns
        self._settings = settings
        self._max_in_flight = max_in_flight
        self._patience_ns = (patience_ms or settings.timeout_ms) * MS
        self._inputs: Inputs | None = None
        self._link: ZooKeeperSession | None = None
        self._state: Session | None = None
        """What the broker was told last; None: nothing yet."""
        self._session_id = 0
        self._greeting = 0
        """Number of the last connection whose server was greeted."""
        self._serial = 0
        self._waiting: deque[_Request] = deque()
        self._flying: dict[int, _Request] = {}
        self._lanes: dict[str, deque[_Write]] = {}
        self._watches = Watches()
        self._timer: asyncio.TimerHandle | None = None
        self._pinged_ns = 0
        self._away_since_ns = 0
        self._just_expired = False
        """Since the watchdog looked last, so that the shell has perhaps not looked at its clock yet."""
        self._stopped = False

    # -- MetadataStore -----------------------------------------------------------------------------------------

    def submit(self, lane: str, ops: Sequence[Op], done: Done[Results]) -> None:
        """Apply all ops or none, after what came before on the lane."""
        write = _Write(lane, tuple(ops), done)
        queue = self._lanes.get(lane)
        if queue is not None:
            queue.append(write)
            return
        self._lanes[lane] = deque()
        self._begin_write(write)

    def get(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """The node, as the server that we are connected to has it."""
        self._read(_Read(path, False, watch, done))

    def children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """The children's names. A watch on an absent node fires when it is created."""
        self._read(_Read(path, True, watch, done))

    # -- the shell's side --------------------------------------------------------------------------------------

    def connect(self, inputs: Inputs) -> None:
        """Name the broker, and look for ZooKeeper."""
        self._inputs = inputs
        self._away_since_ns = steady_ns()
        log.info("looking for %s, session time-out %d ms", self._settings.where, self._settings.timeout_ms)
        self._new_link()
        self._look_later()

    @property
    def standstill_ns(self) -> int:
        """From when on the shell is to say that the process stood still."""
        return self._settings.timeout_ms * MS // _STANDSTILL

    def stood_still(self) -> None:
        """The process was stopped, or busy, for long, and everything that came meanwhile still waits.

        The watchdog may have looked a moment before: then the session is over, and the broker does not know why.
        """
        link, inputs = self._link, self._inputs
        if link is None or inputs is None or not self._session_id:
            return
        if self._just_expired or self._silence_ns(link) >= link.timeout_ms * MS:
            self._turns.run(lambda _: inputs.on_standstill(), None)
        self._turns.run(lambda _: self._watch_session(link), None)

    def stop(self) -> None:
        """End the session, so that its ephemeral nodes go now; blocks for a moment."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        link, self._link = self._link, None
        if link is None:
            return
        was_open, self._state = self._state is Session.OPEN, Session.EXPIRED
        if was_open:
            link.stop()
        else:
            link.abandon()

    # -- requests ----------------------------------------------------------------------------------------------

    def _read(self, read: _Read) -> None:
        try:
            check_path(read.path)
        except BadPath as bad:
            self._turns.soon(read.done, Failure(Kind.NOT_DONE, str(bad)))
            return
        self._send_request(read)

    def _begin_write(self, write: _Write) -> None:
        try:
            check_ops(write.ops)
        except (BadPath, Refused) as bad:
            self._fail_request(write, Failure(Kind.NOT_DONE, str(bad)))
            return
        self._send_request(write)

    def _send_request(self, request: _Request) -> None:
        if self._state is Session.EXPIRED:
            self._fail_request(request, self._over())
        else:
            self._waiting.append(request)
            self._pump()

    def _pump(self) -> None:
        while self._waiting and self._state is Session.OPEN and len(self._flying) < self._max_in_flight:
            self._serial += 1
            request = self._flying[self._serial] = self._waiting.popleft()
            self._send(self._serial, request)

    def _send(self, serial: int, request: _Request) -> None:
        link = self._link
        assert link is not None, "a request without a session"
        if isinstance(request, _Write):
            link.multi(request.ops, lambda outcome: self._on_response(serial, request, outcome))
        elif request.children:
            link.children(request.path, request.watch, lambda outcome: self._read_answered(serial, request, outcome))
        else:
            link.get(request.path, request.watch, lambda outcome: self._read_answered(serial, request, outcome))

    def _read_answered(self, serial: int, read: _Read, outcome: object) -> None:
        """An absent node was not watched by reading it; watching whether it exists may find that it does now."""
        if outcome is None and read.watch and serial in self._flying:
            assert self._link is not None
            self._link.exists(read.path, True, lambda found: self._on_read(serial, read, found))
        else:
            self._on_response(serial, read, outcome)

    def _on_read(self, serial: int, read: _Read, found: object) -> None:
        if found is True and serial in self._flying:
            self._send(serial, read)
        else:
            self._on_response(serial, read, found)

    def _on_response(self, serial: int, request: _Request, outcome: Any) -> None:
        """An answer has come; one whose request was given up meanwhile is too late."""
        if serial not in self._flying:
            return
        if isinstance(outcome, Lost):
            self._suspend("the connection is lost")
            return
        del self._flying[serial]
        self._pump()
        if isinstance(request, _Write):
            self._on_written(request, outcome)
            return
        if not isinstance(outcome, Failure):
            self._arm(request, outcome)
        request.done([] if request.children and outcome is None else outcome)

    def _arm(self, read: _Read, outcome: object) -> None:
        if read.watch:
            watches = self._watches.children if read.children and outcome is not None else self._watches.data
            watches[read.path] = None

    def _on_written(self, write: _Write, outcome: Results | Failure) -> None:
        """Tell the outcome; the next one of the lane begins, or all that wait on it fail."""
        queue = self._lanes[write.lane]
        if isinstance(outcome, Failure):
            del self._lanes[write.lane]
            behind = Failure(Kind.NOT_DONE, f"an earlier change on this lane failed: {outcome.message}")
            for waiting in queue:
                self._turns.soon(waiting.done, behind)
        elif queue:
            self._begin_write(queue.popleft())
        else:
            del self._lanes[write.lane]
        write.done(outcome)

    def _fail_request(self, request: _Request, failure: Failure) -> None:
        """In a turn of its own; for a write, all that is on its lane by then fails with it."""
        if isinstance(request, _Write):
            self._turns.soon(lambda outcome: self._on_written(request, outcome), failure)
        else:
            self._turns.soon(request.done, failure)

    def _over(self) -> Failure:
        return Failure(Kind.EXPIRED, f"there is no session with {self._settings.where}")

    # -- the session -------------------------------------------------------------------------------------------

    def _new_link(self) -> None:
        if not self._stopped:
            self._link = ZooKeeperSession(self._settings, self._turns, self._on_link, self._on_events)
            self._link.start()

    def _on_link(self, link: ZooKeeperSession, state: SessionState) -> None:
        if link is not self._link:
            return
        self._greeting += 1
        if state is SessionState.CONNECTED:
            self._greet(link, self._greeting)
        elif state is SessionState.SUSPENDED:
            self._suspend("the connection is lost")
        elif state is SessionState.OVER:
            self._expire("the server says that it is over")
        else:
            self._refuse_session(f"{self._settings.where} does not accept the credentials of ottla.zookeeper.digest")

    def _greet(self, link: ZooKeeperSession, number: int) -> None:
        """Nothing is asked before this server knows what others have told us."""

        def synced(outcome: object) -> None:
            if number == self._greeting and outcome is True:
                link.exists("/", False, found)

        def found(outcome: object) -> None:
            if number != self._greeting or isinstance(outcome, Lost | Failure):
                return
            if outcome is None:
                self._refuse_session(
                    f"{self._settings.where}: the path {self._settings.chroot} does not exist; create it there, "
                    "or correct zookeeper.connect"
                )
            else:
                self._on_opened(link)

        link.sync(synced)

    def _on_opened(self, link: ZooKeeperSession) -> None:
        self._state, self._session_id, self._away_since_ns = Session.OPEN, link.session_id, 0
        self._watches.clear()
        log.info("session %#x with %s is open", link.session_id, self._settings.where)
        self._report_session(Session.OPEN)
        self._pump()

    def _suspend(self, why: str) -> None:
        if self._state is not Session.OPEN:
            return
        log.warning("session %#x with %s is suspended: %s", self._session_id, self._settings.where, why)
        self._state, self._away_since_ns = Session.SUSPENDED, steady_ns()
        self._watches.clear()
        again = self._give_up_flying()
        self._waiting.extendleft(reversed(again))
        self._report_session(Session.SUSPENDED)

    def _give_up_flying(self) -> list[_Request]:
        """What was not answered: writes may have happened; the reads are returned."""
        flying, self._flying = self._flying, {}
        for request in flying.values():
            if isinstance(request, _Write):
                self._fail_request(
                    request, Failure(Kind.UNKNOWN, "the connection to ZooKeeper was lost before the answer")
                )
        return [request for request in flying.values() if isinstance(request, _Read)]

    def _expire(self, why: str) -> None:
        """The session is over, or may be: whatever belonged to it fails, and a new one is begun."""
        link, self._link = self._link, None
        assert link is not None, "a session without a link"
        link.abandon()
        self._greeting += 1
        if self._state not in (Session.OPEN, Session.SUSPENDED):
            log.warning("no session with %s: %s", self._settings.where, why)
            self._loop.call_later(PAUSE_S, self._new_link)
            return
        log.error("session %#x with %s has expired: %s", self._session_id, self._settings.where, why)
        self._state, self._away_since_ns, self._just_expired = Session.EXPIRED, steady_ns(), True
        self._watches.clear()
        lost = self._give_up_flying() + list(self._waiting)
        self._waiting.clear()
        for request in lost:
            self._fail_request(request, self._over())
        self._report_session(Session.EXPIRED)
        self._new_link()

    def _refuse_session(self, reason: str) -> None:
        """What only somebody can mend who changes something: a broker that starts says so and ends."""
        if self._state is not None:
            self._expire(reason)
            return
        self.failed = Failure(Kind.NOT_DONE, reason)
        link, self._link = self._link, None
        assert link is not None, "refused without a link"
        link.abandon()

    def _report_session(self, state: Session) -> None:
        assert self._inputs is not None, "a session before a broker was connected"
        self._inputs.on_session(state, self._session_id)

    def _on_events(self, link: ZooKeeperSession, events: Sequence[Event]) -> None:
        """A watch fired. One that nobody was told to be set any more, or not yet, is silent: its answer is newer."""
        if link is self._link and self._state is Session.OPEN and self._watches.fire(events):
            assert self._inputs is not None, "a watch before a broker was connected"
            self._inputs.on_node(events[0].path)

    # -- the watchdog ------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        delay_ns = self._settings.timeout_ms * 1_000_000 // _LOOKS
        if self._link is not None and self._link.heard_ns:
            silent, timeout = self._silence_ns(self._link), self._link.timeout_ms * 1_000_000
            next_ns = timeout // 2 if silent < timeout // 2 else timeout
            if silent < next_ns:
                delay_ns = min(timeout // _LOOKS, next_ns - silent)
        self._timer = self._loop.call_later(max(delay_ns, MS) / 1e9, self._time_has_come)

    def _time_has_come(self) -> None:
        self._turns.run(self._verify_connection, None)

    def _silence_ns(self, link: ZooKeeperSession) -> int:
        """How old the latest question is that was answered."""
        return steady_ns() - link.heard_ns

    def _verify_connection(self, _: object) -> None:
        self._just_expired = False
        if self._link is not None:
            self._watch_session(self._link)
        self._say_if_away()
        if self.failed is None:
            self._look_later()

    def _watch_session(self, link: ZooKeeperSession) -> None:
        timeout, now = link.timeout_ms * MS, steady_ns()
        silent = self._silence_ns(link)
        if self._state in (Session.OPEN, Session.SUSPENDED) and silent >= timeout:
            self._expire(f"nothing was heard for {silent // MS} ms")
        elif self._state is not Session.OPEN:
            if now - link.connected_ns >= timeout // 2:
                link.cut()
        elif silent >= timeout // 2:
            link.cut()
            self._suspend(f"nothing was heard for {silent // MS} ms")
        elif silent >= timeout // _PINGS and now - self._pinged_ns >= timeout // _PINGS:
            self._pinged_ns = now
            link.ping()

    def _say_if_away(self) -> None:
        now = steady_ns()
        if self._away_since_ns and now - self._away_since_ns >= self._patience_ns:
            self._away_since_ns = now
            trouble = f" ({self._link.trouble})" if self._link is not None and self._link.trouble else ""
            log.warning("%s does not answer%s: still trying", self._settings.where, trouble)
