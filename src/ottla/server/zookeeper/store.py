"""The metadata store in another process: ZooKeeper, or the supervisor's store over ZooKeeper's protocol.

Zone: real. Implements `ottla.seams.MetadataStore` and calls the broker's `on_session` and `on_node`. Handles lanes, the
loss of connections, watches and the watchdog, on the loop; `session` wraps kazoo.

States of the session:
 - OPEN: after a sync, so that a read never returns older state than an earlier one did, on another server.
 - SUSPENDED: the connection is lost, or no answer came for half of the session time-out; the connection is then closed.
   Writes that were sent fail with UNKNOWN, unsent requests keep waiting, watches are gone. The same session may become
   OPEN again.
 - EXPIRED: the server has ended the session, or may have, because no answer came for the whole time-out. A new
   session is begun at once. The time-out counts from the sending of the last answered request, so it never
   ends later here than on the server.

Reads that a lost connection leaves unanswered are sent again; they fail only when their session expires.
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
"""Checks of the watchdog per session time-out."""
_STANDSTILL: Final = 4
"""A pause of 1/_STANDSTILL of the session time-out counts as a standstill of the process."""
_PINGS: Final = 6
"""Pings per session time-out, if there are no other requests."""
PAUSE_S: Final = 0.5
"""Pause before the next client when one was given up before it had a session."""
MS: Final = 1_000_000


class _Read:
    """A read of a node, or of the names of its children."""

    __slots__ = ("children", "done", "path", "watch")

    def __init__(self, path: str, children: bool, watch: bool, done: Done[Any]) -> None:
        self.path = path
        self.children = children
        self.watch = watch
        self.done = done


class _Write:
    """A write: a multi of ZooKeeper."""

    __slots__ = ("done", "lane", "ops")

    def __init__(self, lane: str, ops: Sequence[Op], done: Done[Results]) -> None:
        self.lane = lane
        self.ops = ops
        self.done = done


_Request = _Read | _Write


class ZooKeeperStore:
    """One broker's client. `open_session` first; everything later happens in turns; `stop` at the end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: CompletionQueue,
        settings: ZooKeeperSettings,
        max_in_flight: int = 10,
        patience_ms: int | None = None,
    ) -> None:
        """`patience_ms`: the time without a connection after which a warning is logged, and repeated."""
        self.failed: Failure | None = None
        """Why there can never be a session; None while there may be one."""
        self._loop = loop
        self._turns = turns
        self._settings = settings
        self._max_in_flight = max_in_flight
        self._patience_ns = (patience_ms or settings.timeout_ms) * MS
        self._inputs: Inputs | None = None
        self._link: ZooKeeperSession | None = None
        self._state: Session | None = None
        """The state that was reported to the broker last; None: none yet."""
        self._session_id = 0
        self._greeting = 0
        """Number of the last change of the connection; an answer to a greeting of an earlier one is ignored."""
        self._serial = 0
        self._waiting: deque[_Request] = deque()
        self._unanswered: dict[int, _Request] = {}
        self._lanes: dict[str, deque[_Write]] = {}
        self._watches = Watches()
        self._timer: asyncio.TimerHandle | None = None
        self._pinged_ns = 0
        self._away_since_ns = 0
        self._just_expired = False
        """Whether the session expired since the last check of the watchdog: the shell may not have noticed the
        standstill yet."""
        self._stopped = False

    # -- MetadataStore -----------------------------------------------------------------------------------------

    def submit_ops(self, lane: str, ops: Sequence[Op], done: Done[Results]) -> None:
        """Apply all ops or none, after the earlier writes of the lane."""
        write = _Write(lane, tuple(ops), done)
        queue = self._lanes.get(lane)
        if queue is not None:
            queue.append(write)
            return
        self._lanes[lane] = deque()
        self._begin_write(write)

    def get_node(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """Read a node from the server that the session is connected to."""
        self._submit_read(_Read(path, False, watch, done))

    def get_children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """Read the names of a node's children. A watch on an absent node fires when it is created."""
        self._submit_read(_Read(path, True, watch, done))

    # -- for the shell -----------------------------------------------------------------------------------------

    def open_session(self, inputs: Inputs) -> None:
        """Set the broker, and connect to ZooKeeper."""
        self._inputs = inputs
        self._away_since_ns = steady_ns()
        log.info("connecting to %s, session time-out %d ms", self._settings.where, self._settings.timeout_ms)
        self._new_link()
        self._plan_check()

    @property
    def standstill_ns(self) -> int:
        """The pause after which the shell calls `on_standstill`."""
        return self._settings.timeout_ms * MS // _STANDSTILL

    def on_standstill(self) -> None:
        """Check the session first after the process was stopped, or busy, for long: inputs that came meanwhile still
        wait."""
        link, inputs = self._link, self._inputs
        if link is None or inputs is None or not self._session_id:
            return
        # The session is over, or the watchdog has just noticed that it is: only a broker that was stopped needs
        # `on_standstill`, and the watchdog cannot know whether it was.
        if self._just_expired or self._silence_ns(link) >= link.timeout_ms * MS:
            self._turns.run_now(lambda _: inputs.on_standstill(), None)
        self._turns.run_now(lambda _: self._watch_session(link), None)

    def close_session(self) -> None:
        """End the session, so that its ephemeral nodes are removed now; blocks for a moment."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        link, self._link = self._link, None
        if link is None:
            return
        was_open, self._state = self._state is Session.OPEN, Session.EXPIRED
        # Without a connection the session cannot be ended; waiting for one would delay the stop.
        if was_open:
            link.end_session()
        else:
            link.end_in_background()

    # -- requests ----------------------------------------------------------------------------------------------

    def _submit_read(self, read: _Read) -> None:
        try:
            check_path(read.path)
        except BadPath as bad:
            self._turns.run_soon(read.done, Failure(Kind.NOT_DONE, str(bad)))
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
            self._fail_request(request, self._expired_failure())
        else:
            self._waiting.append(request)
            self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and self._state is Session.OPEN and len(self._unanswered) < self._max_in_flight:
            self._serial += 1
            request = self._unanswered[self._serial] = self._waiting.popleft()
            self._send_one(self._serial, request)

    def _send_one(self, serial: int, request: _Request) -> None:
        link = self._link
        assert link is not None, "a request without a session"
        if isinstance(request, _Write):
            link.send_multi(request.ops, lambda outcome: self._on_response(serial, request, outcome))
        elif request.children:
            link.get_children(
                request.path, request.watch, lambda outcome: self._on_read_response(serial, request, outcome)
            )
        else:
            link.get_node(request.path, request.watch, lambda outcome: self._on_read_response(serial, request, outcome))

    def _on_read_response(self, serial: int, read: _Read, outcome: object) -> None:
        """Handle the answer to a read. Reading an absent node sets no watch: `check_exists` sets it, and may find that
        the node was created meanwhile, so that it has to be read again."""
        if outcome is None and read.watch and serial in self._unanswered:
            assert self._link is not None
            self._link.check_exists(read.path, True, lambda found: self._on_exists_response(serial, read, found))
        else:
            self._on_response(serial, read, outcome)

    def _on_exists_response(self, serial: int, read: _Read, found: object) -> None:
        if found is True and serial in self._unanswered:
            self._send_one(serial, read)
        else:
            self._on_response(serial, read, found)

    def _on_response(self, serial: int, request: _Request, outcome: Any) -> None:
        """Handle the answer to a request."""
        # 1. The request was given up meanwhile, and its outcome was reported.
        if serial not in self._unanswered:
            return
        # 2. The connection broke: this request is handled with all others that were sent over it.
        if isinstance(outcome, Lost):
            self._suspend_session("the connection is lost")
            return
        # 3. A real answer: the next request may be sent before the broker handles this one.
        del self._unanswered[serial]
        self._send_waiting()
        if isinstance(request, _Write):
            self._on_written(request, outcome)
            return
        if not isinstance(outcome, Failure):
            self._set_watch(request, outcome)
        request.done([] if request.children and outcome is None else outcome)

    def _set_watch(self, read: _Read, outcome: object) -> None:
        if read.watch:
            watches = self._watches.children if read.children and outcome is not None else self._watches.data
            watches[read.path] = None

    def _on_written(self, write: _Write, outcome: Results | Failure) -> None:
        """Report the outcome of a write, and begin the next one of its lane; after a failure all waiting ones fail."""
        queue = self._lanes[write.lane]
        if isinstance(outcome, Failure):
            del self._lanes[write.lane]
            behind = Failure(Kind.NOT_DONE, f"an earlier change on this lane failed: {outcome.message}")
            for waiting in queue:
                self._turns.run_soon(waiting.done, behind)
        elif queue:
            self._begin_write(queue.popleft())
        else:
            del self._lanes[write.lane]
        write.done(outcome)

    def _fail_request(self, request: _Request, failure: Failure) -> None:
        """Fail a request in a turn of its own; with a write, all writes fail that wait on its lane by then."""
        if isinstance(request, _Write):
            self._turns.run_soon(lambda outcome: self._on_written(request, outcome), failure)
        else:
            self._turns.run_soon(request.done, failure)

    def _expired_failure(self) -> Failure:
        return Failure(Kind.EXPIRED, f"there is no session with {self._settings.where}")

    # -- the session -------------------------------------------------------------------------------------------

    def _new_link(self) -> None:
        if not self._stopped:
            self._link = ZooKeeperSession(self._settings, self._turns, self._on_link, self._on_events)
            self._link.start_client()

    def _on_link(self, link: ZooKeeperSession, state: SessionState) -> None:
        if link is not self._link:
            return
        self._greeting += 1
        if state is SessionState.CONNECTED:
            self._greet_server(link, self._greeting)
        elif state is SessionState.SUSPENDED:
            self._suspend_session("the connection is lost")
        elif state is SessionState.OVER:
            self._expire_session("the server has ended it")
        else:
            self._refuse_session(f"{self._settings.where} does not accept the credentials of ottla.zookeeper.digest")

    def _greet_server(self, link: ZooKeeperSession, number: int) -> None:
        """Sync the server before any request, so that it knows all state that this broker has read from others; then
        check that the chroot exists."""

        def synced(outcome: object) -> None:
            if number == self._greeting and outcome is True:
                link.check_exists("/", False, found)

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

        link.sync_server(synced)

    def _on_opened(self, link: ZooKeeperSession) -> None:
        self._state, self._session_id, self._away_since_ns = Session.OPEN, link.session_id, 0
        self._watches.clear_watches()
        log.info("opened session %#x with %s", link.session_id, self._settings.where)
        self._report_session(Session.OPEN)
        self._send_waiting()

    def _suspend_session(self, why: str) -> None:
        if self._state is not Session.OPEN:
            return
        log.warning("suspended session %#x with %s, reconnecting: %s", self._session_id, self._settings.where, why)
        self._state, self._away_since_ns = Session.SUSPENDED, steady_ns()
        self._watches.clear_watches()
        # Reads are sent again on the next connection, before all others: they were requested first.
        again = self._take_unanswered()
        self._waiting.extendleft(reversed(again))
        self._report_session(Session.SUSPENDED)

    def _take_unanswered(self) -> list[_Request]:
        """Remove the unanswered requests: writes fail with UNKNOWN (they may have happened); reads are returned."""
        flying, self._unanswered = self._unanswered, {}
        for request in flying.values():
            if isinstance(request, _Write):
                self._fail_request(
                    request, Failure(Kind.UNKNOWN, "the connection to ZooKeeper was lost before the answer")
                )
        return [request for request in flying.values() if isinstance(request, _Read)]

    def _expire_session(self, why: str) -> None:
        """End the session, which is over or may be: its requests fail, and a new session is begun."""
        link, self._link = self._link, None
        assert link is not None, "a session without a link"
        link.end_in_background()
        self._greeting += 1
        # 1. No session was open: the broker has nothing to learn. Try again after a pause.
        if self._state not in (Session.OPEN, Session.SUSPENDED):
            log.warning("cannot open a session with %s, trying again: %s", self._settings.where, why)
            self._loop.call_later(PAUSE_S, self._new_link)
            return
        # 2. A session is lost: all its requests fail before the broker is informed, then a new one begins.
        log.error("session %#x with %s expired, opening a new one: %s", self._session_id, self._settings.where, why)
        self._state, self._away_since_ns, self._just_expired = Session.EXPIRED, steady_ns(), True
        self._watches.clear_watches()
        lost = self._take_unanswered() + list(self._waiting)
        self._waiting.clear()
        for request in lost:
            self._fail_request(request, self._expired_failure())
        self._report_session(Session.EXPIRED)
        self._new_link()

    def _refuse_session(self, reason: str) -> None:
        """Handle an error that only an operator can correct: a broker that starts reports it and ends; one that had a
        session tries again."""
        if self._state is not None:
            self._expire_session(reason)
            return
        self.failed = Failure(Kind.NOT_DONE, reason)
        link, self._link = self._link, None
        assert link is not None, "refused without a link"
        link.end_in_background()

    def _report_session(self, state: Session) -> None:
        assert self._inputs is not None, "a session before connect"
        self._inputs.on_session(state, self._session_id)

    def _on_events(self, link: ZooKeeperSession, events: Sequence[Event]) -> None:
        """Report a watch that fired, if the broker counts on it. Ignored: a watch of an earlier connection, and one
        whose read is not answered yet, since that answer is newer than the event."""
        if link is self._link and self._state is Session.OPEN and self._watches.fire_watches(events):
            assert self._inputs is not None, "a watch before connect"
            self._inputs.on_node(events[0].path)

    # -- the watchdog ------------------------------------------------------------------------------------------

    def _plan_check(self) -> None:
        delay_ns = self._settings.timeout_ms * 1_000_000 // _LOOKS
        # A check is due at half of the time-out and at its end, exactly: an expiry must not be noticed late.
        if self._link is not None and self._link.heard_ns:
            silent, timeout = self._silence_ns(self._link), self._link.timeout_ms * 1_000_000
            next_ns = timeout // 2 if silent < timeout // 2 else timeout
            if silent < next_ns:
                delay_ns = min(timeout // _LOOKS, next_ns - silent)
        self._timer = self._loop.call_later(max(delay_ns, MS) / 1e9, self._on_watchdog)

    def _on_watchdog(self) -> None:
        self._turns.run_now(self._verify_connection, None)

    def _silence_ns(self, link: ZooKeeperSession) -> int:
        """The time since the last answered request was sent."""
        return steady_ns() - link.heard_ns

    def _verify_connection(self, _: object) -> None:
        self._just_expired = False
        if self._link is not None:
            self._watch_session(self._link)
        self._warn_if_away()
        if self.failed is None:
            self._plan_check()

    def _watch_session(self, link: ZooKeeperSession) -> None:
        timeout, now = link.timeout_ms * MS, steady_ns()
        silent = self._silence_ns(link)
        # 1. The whole time-out: the server may have ended the session.
        if self._state in (Session.OPEN, Session.SUSPENDED) and silent >= timeout:
            self._expire_session(f"no answer came for {silent // MS} ms")
        # 2. There is no usable session: a connection that does not become one in time is replaced.
        elif self._state is not Session.OPEN:
            if now - link.connected_ns >= timeout // 2:
                link.cut_connection()
        # 3. Half of the time-out: try another server while the session can still be saved.
        elif silent >= timeout // 2:
            link.cut_connection()
            self._suspend_session(f"no answer came for {silent // MS} ms")
        # 4. Quiet, but not silent: send a request so that an answer comes.
        elif silent >= timeout // _PINGS and now - self._pinged_ns >= timeout // _PINGS:
            self._pinged_ns = now
            link.send_ping()

    def _warn_if_away(self) -> None:
        now = steady_ns()
        if self._away_since_ns and now - self._away_since_ns >= self._patience_ns:
            self._away_since_ns = now
            trouble = f" ({self._link.trouble})" if self._link is not None and self._link.trouble else ""
            log.warning("no connection to %s%s: still trying", self._settings.where, trouble)
