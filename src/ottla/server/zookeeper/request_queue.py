"""The requests of one broker to the metadata store: those that wait for a session, and those without an answer yet.

Zone: real. Keeps the order of each lane, and decides what becomes of requests when a connection is lost or a session
expires; `store` decides when that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ottla.seams import Done, Failure, Kind, Op
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.zookeeper.session import Lost, ZooKeeperSession
from ottla.znodes.sessions import Watches
from ottla.znodes.tree import BadPath, Refused, check_ops, check_path

Results = Sequence[tuple[str, int]]


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


class RequestQueue:
    """All requests, over all connections and sessions."""

    def __init__(self, turns: CompletionQueue, where: str, max_in_flight: int, on_lost: Callable[[], None]) -> None:
        """where: the servers, for messages. on_lost: called when an answer shows that the connection is lost."""
        self._turns = turns
        self._where = where
        self._max_in_flight = max_in_flight
        self._on_lost = on_lost
        self._link: ZooKeeperSession | None = None
        """Where requests are sent; None while there is no open session."""
        self._has_expired = False
        """Whether the session has expired, and there is no new one: requests fail at once."""
        self._serial = 0
        self._waiting: deque[_Request] = deque()
        self._unanswered: dict[int, _Request] = {}
        self._lanes: dict[str, deque[_Write]] = {}
        self.watches = Watches()
        """The watches that the broker counts on: those of answered reads over the present connection."""

    # -- the session -------------------------------------------------------------------------------------------

    def begin_session(self, link: ZooKeeperSession) -> None:
        """From now on send requests over this connection; `send_waiting` sends those that wait."""
        self._link, self._has_expired = link, False
        self.watches.clear_watches()

    def suspend_requests(self) -> None:
        """The connection is lost: unanswered writes fail with UNKNOWN, unanswered reads wait for the next one."""
        self._link = None
        self.watches.clear_watches()
        # Reads are sent again on the next connection, before all others: they were requested first.
        again = self._take_unanswered()
        self._waiting.extendleft(reversed(again))

    def expire_requests(self) -> None:
        """The session is over: every request fails, also those that come before the next session."""
        self.refuse_requests()
        self.watches.clear_watches()
        lost = self._take_unanswered() + list(self._waiting)
        self._waiting.clear()
        for request in lost:
            self._fail_request(request, self._expired_failure())

    def refuse_requests(self) -> None:
        """From now on requests fail at once."""
        self._link, self._has_expired = None, True

    def _take_unanswered(self) -> list[_Request]:
        """Remove the unanswered requests: writes fail with UNKNOWN (they may have happened); reads are returned."""
        flying, self._unanswered = self._unanswered, {}
        for request in flying.values():
            if isinstance(request, _Write):
                self._fail_request(
                    request, Failure(Kind.UNKNOWN, "the connection to ZooKeeper was lost before the answer")
                )
        return [request for request in flying.values() if isinstance(request, _Read)]

    # -- requests ----------------------------------------------------------------------------------------------

    def submit_write(self, lane: str, ops: Sequence[Op], done: Done[Results]) -> None:
        """Apply all ops or none, after the earlier writes of the lane."""
        write = _Write(lane, tuple(ops), done)
        queue = self._lanes.get(lane)
        if queue is not None:
            queue.append(write)
            return
        self._lanes[lane] = deque()
        self._begin_write(write)

    def submit_read(self, path: str, children: bool, watch: bool, done: Done[Any]) -> None:
        """Read a node, or the names of its children."""
        read = _Read(path, children, watch, done)
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
        if self._has_expired:
            self._fail_request(request, self._expired_failure())
        else:
            self._waiting.append(request)
            self.send_waiting()

    def send_waiting(self) -> None:
        """Send the requests that wait, as many as may be unanswered at once."""
        while self._waiting and self._link is not None and len(self._unanswered) < self._max_in_flight:
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
            self._on_lost()
            return
        # 3. A real answer: the next request may be sent before the broker handles this one.
        del self._unanswered[serial]
        self.send_waiting()
        if isinstance(request, _Write):
            self._on_written(request, outcome)
            return
        if not isinstance(outcome, Failure):
            self._set_watch(request, outcome)
        request.done([] if request.children and outcome is None else outcome)

    def _set_watch(self, read: _Read, outcome: object) -> None:
        if read.watch:
            watches = self.watches.children if read.children and outcome is not None else self.watches.data
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
        return Failure(Kind.EXPIRED, f"there is no session with {self._where}")
