"""The metadata store in another process: ZooKeeper, or the supervisor's store over ZooKeeper's protocol.

Zone: real. Implements `ottla.seams.MetadataStore` and calls the broker's `on_session` and `on_node`. Decides about
the state of the session, and runs the watchdog, on the loop; `request_queue` has the requests, `session` wraps kazoo.

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
from collections.abc import Sequence
from typing import Final

from ottla.seams import Done, Failure, Inputs, Kind, Node, Op, Session
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import steady_ns
from ottla.server.zookeeper.request_queue import RequestQueue, Results
from ottla.server.zookeeper.session import Lost, SessionState, ZooKeeperSession
from ottla.server.zookeeper.settings import ZooKeeperSettings
from ottla.znodes.tree import Event

log = logging.getLogger(__name__)

_LOOKS: Final = 12
"""Checks of the watchdog per session time-out."""
_STANDSTILL: Final = 4
"""A pause of 1/_STANDSTILL of the session time-out counts as a standstill of the process."""
_PINGS: Final = 6
"""Pings per session time-out, if there are no other requests."""
PAUSE_S: Final = 0.5
"""Pause before the next client when one was given up before it had a session."""
MS: Final = 1_000_000


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
        lost = lambda: self._suspend_session("the connection is lost")  # noqa: E731
        self._requests = RequestQueue(turns, settings.where, max_in_flight, lost)
        self._patience_ns = (patience_ms or settings.timeout_ms) * MS
        self._inputs: Inputs | None = None
        self._link: ZooKeeperSession | None = None
        self._state: Session | None = None
        """The state that was reported to the broker last; None: none yet."""
        self._session_id = 0
        self._greeting = 0
        """Number of the last change of the connection; an answer to a greeting of an earlier one is ignored."""
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
        self._requests.submit_write(lane, ops, done)

    def get_node(self, path: str, watch: bool, done: Done[Node | None]) -> None:
        """Read a node from the server that the session is connected to."""
        self._requests.submit_read(path, False, watch, done)

    def get_children(self, path: str, watch: bool, done: Done[Sequence[str]]) -> None:
        """Read the names of a node's children. A watch on an absent node fires when it is created."""
        self._requests.submit_read(path, True, watch, done)

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
        self._requests.refuse_requests()
        # Without a connection the session cannot be ended; waiting for one would delay the stop.
        if was_open:
            link.end_session()
        else:
            link.end_in_background()

    # -- the session -------------------------------------------------------------------------------------------

    def _new_link(self) -> None:
        if not self._stopped:
            self._link = ZooKeeperSession(self._settings, self._turns, self._on_link, self._on_events)
            self._link.start_client()

    def _on_link(self, link: ZooKeeperSession, state: SessionState) -> None:
        # A client that was replaced may still report: its turns were queued by its thread before.
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

        # A server that lags behind the leader would answer reads with older state than this broker has already acted
        # on.
        link.sync_server(synced)

    def _on_opened(self, link: ZooKeeperSession) -> None:
        self._state, self._session_id, self._away_since_ns = Session.OPEN, link.session_id, 0
        # The broker is informed before the waiting requests are sent: its reaction to the session may come before them.
        self._requests.begin_session(link)
        log.info("opened session %#x with %s", link.session_id, self._settings.where)
        self._report_session(Session.OPEN)
        self._requests.send_waiting()

    def _suspend_session(self, why: str) -> None:
        if self._state is not Session.OPEN:
            return
        log.warning("suspended session %#x with %s, reconnecting: %s", self._session_id, self._settings.where, why)
        self._state, self._away_since_ns = Session.SUSPENDED, steady_ns()
        self._requests.suspend_requests()
        self._report_session(Session.SUSPENDED)

    def _expire_session(self, why: str) -> None:
        """End the session, which is over or may be: its requests fail, and a new session is begun."""
        link, self._link = self._link, None
        assert link is not None, "a session without a link"
        link.end_in_background()
        self._greeting += 1
        # 1. No session was open: the broker has nothing to learn. Try again after a pause.
        if self._state not in (Session.OPEN, Session.SUSPENDED):
            log.warning("cannot open a session with %s, trying again: %s", self._settings.where, why)
            # The pause keeps a broker from creating one client after the other while the ensemble refuses sessions.
            self._loop.call_later(PAUSE_S, self._new_link)
            return
        # 2. A session is lost: all its requests fail before the broker is informed, then a new one begins.
        log.error("session %#x with %s expired, opening a new one: %s", self._session_id, self._settings.where, why)
        self._state, self._away_since_ns, self._just_expired = Session.EXPIRED, steady_ns(), True
        # First the requests, so that none of them is still open, or sent again, when the broker reacts to the end of
        # the session.
        self._requests.expire_requests()
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
        if link is self._link and self._state is Session.OPEN and self._requests.watches.fire_watches(events):
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
