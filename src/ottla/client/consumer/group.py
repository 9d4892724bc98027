"""The thread of a group's member: it talks to the coordinator while the application works.

Zone: real. Carries out what the machine of `membership` says: JoinGroup, SyncGroup, heartbeats, commits that nobody
waits for, and a look at the topics from time to time. Callbacks are not called here: they are events for the
application's thread. The thread has connections of its own.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connections.connection import Call, Connection, wait_readable
from ottla.client.consumer.actions import (
    NOBODY,
    Action,
    Assign,
    Assigned,
    Failed,
    FindCoordinator,
    Heartbeat,
    Join,
    Leave,
    Member,
    Prepare,
    Sync,
)
from ottla.client.consumer.assignment.assignors import Topics
from ottla.client.consumer.membership import Membership
from ottla.client.consumer.protocol import NO_GENERATION
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.consumer.waker import Waker
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.errors import AuthenticationError, ClientError, ConfigError, ConnectionLostError, RefusedError
from ottla.client.metadata import TopicView
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from ottla.wire.schema import Message

Event = Prepare | Assigned | Failed
Answered = Callable[[Any], None]
"""Takes the answer, or the ClientError in its place."""

_FIND_MS = 5_000
_MISSING_TOPIC_S = 1.0
"""How soon a topic that does not exist is looked for again."""
_JOIN_GRACE_MS = 5_000
"""Kafka's: how much longer than the rebalance itself its answer may take."""


class _Pending(NamedTuple):
    connection: Connection
    call: Call[Any]
    answered: Answered


class _Request(NamedTuple):
    """A request to the coordinator that the application does not wait for."""

    key: ApiKey
    build: Callable[[], Message]
    response: type[Any]
    at_most: int
    answered: Answered


class Group:
    """The membership, shared by the application's thread and its own; `start` before anything else."""

    def __init__(self, config: ConsumerConfig, notify: Callable[[], None]) -> None:
        """notify: called from the thread when there are events or answers for the application."""
        self._config = config
        self._settings = config.group()
        self._machine = Membership(self._settings)
        self._lock = threading.Lock()
        self._notify = notify
        self._wake = Waker()
        self._events: deque[Event] = deque()
        self._assigned_as = NOBODY
        """The member that it was in the last assignment that the application has taken."""
        self._todo: deque[Action | _Request] = deque()
        self._pending: list[_Pending] = []
        self._cluster = Cluster(config.client)
        self._calls = CoordinatorCalls(self._cluster, CoordinatorKind.GROUP)
        self._connection: Connection | None = None
        self._pattern: re.Pattern[str] | None = None
        self._wanted: frozenset[str] = frozenset()
        self._led: Mapping[str, int] | None = None
        """Partitions per topic when this member assigned for all; None: another one did."""
        self._look_at = float("inf")
        self._stop_by: Deadline | None = None
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"ottla-group-{self._settings.group_id}", daemon=True)
        self._thread.start()

    # -- for the application's thread ----------------------------------------------------------------------------------

    def subscribe_topics(self, topics: Iterable[str], pattern: re.Pattern[str] | None = None) -> None:
        """Want these topics, or those that match the pattern."""
        with self._lock:
            self._pattern = pattern
            self._wanted = frozenset(topics)
            self._look_at = 0.0
            self._machine.reset()
            if pattern is None:
                self._machine.subscribe(time.monotonic(), self._wanted)
            self._share()
        self._wake.set()

    def unsubscribe(self, reason: str) -> None:
        """Leave the group; events that were not taken are void."""
        with self._lock:
            self._pattern, self._wanted, self._led = None, frozenset(), None
            self._look_at = float("inf")
            self._machine.unsubscribe(reason)
            self._events.clear()
            self._share()
        self._wake.set()

    def attend(self) -> bool:
        """The application is alive; whether `poll` has something for it."""
        with self._lock:
            if self._broken is None:
                self._machine.poll(time.monotonic())
                self._share()
            return bool(self._events) or self._machine.failure is not None or self._broken is not None

    def poll(self) -> list[Event]:
        """The application is alive; what has happened meanwhile, and each time why the group refused the member.

        Raises what ended the thread.
        """
        with self._lock:
            if self._broken is not None:
                raise self._broken
            self._machine.poll(time.monotonic())
            self._share()
            events = list(self._events)
            self._events.clear()
            if any(isinstance(each, Assigned) for each in events):
                self._assigned_as = self._machine.member
            if self._machine.failure is not None:
                events.append(Failed(self._machine.failure))
            busy = bool(self._todo)
        if busy:
            self._wake.set()
        return events

    def prepared(self, owned: Iterable[Any]) -> None:
        """See Membership.prepared."""
        with self._lock:
            self._machine.prepared(time.monotonic(), owned)
            self._share()
        self._wake.set()

    def on_commit_refused(self, member: Member, code: ErrorCode) -> None:
        """See Membership.on_commit_refused."""
        with self._lock:
            self._machine.on_commit_refused(time.monotonic(), member, code)
            self._share()
        self._wake.set()

    def rejoin(self, reason: str) -> None:
        """Ask for a rebalance."""
        with self._lock:
            self._machine.rejoin(reason)
            self._share()
        self._wake.set()

    def request_topic_check(self) -> None:
        """A topic seems to be gone: see which there are."""
        with self._lock:
            self._look_at = 0.0
        self._wake.set()

    @property
    def member(self) -> Member:
        """Who it is; during a rebalance who it was before, whose positions the application has."""
        with self._lock:
            member = self._machine.committing
            is_known = member.generation == NO_GENERATION or not self._is_rebalancing
            return member if is_known else self._assigned_as

    @property
    def committing(self) -> tuple[Member, bool]:
        """In whose name commits are made, and whether they have to wait until `poll` has completed a rebalance."""
        with self._lock:
            return self._machine.committing, self._is_rebalancing

    @property
    def _is_rebalancing(self) -> bool:
        """Whether it is joining, or the application has not taken its assignment yet. Under the lock."""
        return self._machine.is_rejoining or self._machine.committing != self._assigned_as

    def send(
        self, key: ApiKey, build: Callable[[], Message], response: type[Any], at_most: int, answered: Answered
    ) -> None:
        """Send a request to the coordinator; `on_response` is called from the thread, once, whatever comes."""
        with self._lock:
            if self._broken is None and self._stop_by is None:
                self._todo.append(_Request(key, build, response, at_most, answered))
                self._wake.set()
                return
        answered(ConnectionLostError("the consumer's thread has ended"))

    def close(self, deadline: Deadline) -> None:
        """Leave if it has not left, send what is to be sent, end the thread; waits for it until `deadline`."""
        self.unsubscribe("the consumer was closed")
        self._stop_by = deadline
        self._wake.set()
        self._thread.join(deadline.remaining_s() + 1)
        if not self._thread.is_alive():
            self._wake.close()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Sort the machine's actions: for the application, for the thread. Under the lock."""
        for action in self._machine.actions():
            if isinstance(action, Failed):
                self._notify()  # `poll` raises the machine's failure for as long as it lasts
            elif isinstance(action, Prepare | Assigned):
                if isinstance(action, Prepare):  # lost meanwhile: there is nothing to be given up any more
                    self._events = deque(each for each in self._events if not isinstance(each, Prepare))
                self._events.append(action)
                self._notify()
            else:
                self._todo.append(action)

    def _run(self) -> None:
        try:
            while not self._turn():
                pass
        except BaseException as error:  # noqa: BLE001 - the application hears of it when it polls
            with self._lock:
                self._broken = error
        finally:
            self._end()

    def _turn(self) -> bool:
        """One round; True when it was the last."""
        self._wake.clear()
        now = time.monotonic()
        if now >= self._look_at:
            self._check_topics()
        with self._lock:
            self._machine.tick(now)
            self._share()
            todo, self._todo = self._todo, deque()
            wakes_at = min(self._machine.wakes_at(), self._look_at)
        for each in todo:
            self._perform(each)
        stop = self._stop_by
        if stop is not None and (not self._pending or stop.expired) and not self._todo:
            return True
        if not todo:
            self._wait(Deadline(wakes_at if stop is None else min(wakes_at, stop.at)))
        return False

    def _end(self) -> None:
        """Nobody waits in vain."""
        with self._lock:
            ended = ConnectionLostError("the consumer's thread has ended")
            self._broken = self._broken or ended
            left, self._todo = self._todo, deque()
        for each in left:
            if isinstance(each, _Request):
                each.answered(ended)
        for pending in self._pending:
            pending.answered(ended)
        self._cluster.close()
        self._notify()

    def _wait(self, until: Deadline) -> None:
        until = Deadline(min([until.at, time.monotonic() + 60, *(each.call.sent.at for each in self._pending)]))
        waiting = list({id(each.connection): each.connection for each in self._pending}.values())
        if all(connection.is_open for connection in waiting):
            readable, _ = wait_readable(waiting, until, self._wake.fileno())
        else:
            readable = []
        for each in [*self._pending]:
            late = each.call.sent.expired or not each.connection.is_open
            if late or each.connection in readable or each.connection.has_answer(each.call):
                readable = [other for other in readable if other is not each.connection]
                self._receive(each)

    def _receive(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        try:
            answer = pending.connection.result(pending.call, pending.call.sent)
        except ClientError as error:
            pending.answered(error)
        else:
            pending.answered(answer)

    def _perform(self, each: Action | _Request) -> None:
        if isinstance(each, FindCoordinator):
            self._find()
        elif isinstance(each, Assign):
            self._assign(each)
        elif isinstance(each, _Request):
            self._send(each.key, each.build, each.response, each.answered, each.at_most)
        elif isinstance(each, Join):
            self._led = None
            timeout = self._config.max_poll_interval_ms + _JOIN_GRACE_MS
            hear = self._hear(self._machine.on_join)
            self._send(ApiKey.JOIN_GROUP, lambda: each.request, JoinGroupResponse, hear, timeout_ms=timeout)
        elif isinstance(each, Sync):
            timeout = self._config.max_poll_interval_ms + _JOIN_GRACE_MS
            hear = self._hear(self._machine.on_sync)
            self._send(ApiKey.SYNC_GROUP, lambda: each.request, SyncGroupResponse, hear, timeout_ms=timeout)
        elif isinstance(each, Heartbeat):
            hear = self._hear(self._machine.on_heartbeat)
            self._send(ApiKey.HEARTBEAT, lambda: each.request, HeartbeatResponse, hear)
        elif isinstance(each, Leave) and self._connection is not None:
            # Brokers before Kafka 2.4 wait for the end of the session instead.
            self._send(ApiKey.LEAVE_GROUP, lambda: each.request, LeaveGroupResponse, lambda _: None, at_least=3)

    def _hear(self, tell: Callable[[float, Any], None]) -> Answered:
        """Tell the machine of an answer, or of a connection that is gone."""

        def on_response(answer: Any) -> None:
            with self._lock:
                now = time.monotonic()
                if not isinstance(answer, ClientError):
                    tell(now, answer)
                else:
                    self._connection = None
                    if not answer.retriable:
                        self._events.append(Failed(answer))
                        self._notify()
                    self._machine.on_disconnect(now)
                self._share()

        return on_response

    def _send(
        self,
        key: ApiKey,
        build: Callable[[], Message],
        response: type[Any],
        answered: Answered,
        at_most: int = 32_767,
        *,
        at_least: int = 0,
        timeout_ms: float = 0,
    ) -> None:
        try:
            connection = self._coordinator()
            call = connection.send(build(), connection.version(key, at_most, at_least), response)
        except ClientError as error:
            answered(error)
            return
        if timeout_ms > self._config.client.request_timeout_ms:
            call = call._replace(sent=Deadline.after_ms(timeout_ms))
        self._pending.append(_Pending(connection, call, answered))

    def _coordinator(self) -> Connection:
        """The connection to the coordinator, found if need be. Raises ClientError."""
        if self._connection is None or not self._connection.is_open:
            deadline = Deadline.after_ms(_FIND_MS if self._stop_by is None else self._stop_by.remaining_ms())
            node = self._calls.find(self._settings.group_id, deadline)
            if node not in self._cluster.view.nodes:
                self._cluster.refresh((), deadline)
            self._connection = self._cluster.connection(node, deadline)
        return self._connection

    def _find(self) -> None:
        self._connection = None
        code = ErrorCode.NONE
        try:
            self._coordinator()
        except RefusedError as error:
            code = error.code
        except ClientError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._tell_of_denial(error)
        with self._lock:
            self._machine.on_coordinator(time.monotonic(), code)
            self._share()

    def _tell_of_denial(self, error: ClientError) -> None:
        """The application hears at once that nobody will let us in: that does not pass by itself."""
        if isinstance(error, AuthenticationError | ConfigError):
            with self._lock:
                if not any(isinstance(each, Failed) for each in self._events):
                    self._events.append(Failed(error))
                self._notify()

    def _assign(self, todo: Assign) -> None:
        topics = {topic for member in todo.members.values() for topic in member.topics}
        try:
            self._cluster.refresh(sorted(topics), Deadline.after_ms(self._config.client.request_timeout_ms))
        except ClientError:
            if not self._cluster.view.nodes:
                raise
        found = self._topics(topics)
        self._led = {topic: len(partitions) for topic, partitions in found.items()}
        assignment = todo.assignor.assign(found, todo.members)
        with self._lock:
            self._machine.assigned(time.monotonic(), assignment)
            self._share()

    def _topics(self, names: Iterable[str]) -> Topics:
        nodes = self._cluster.view.nodes
        found = {}
        for name in names:
            view = self._cluster.view.topics.get(name)
            if isinstance(view, TopicView):
                found[name] = [
                    frozenset(rack for node in each.replicas if node in nodes and (rack := nodes[node].rack))
                    for each in view.partitions.values()
                ]
        return found

    def _check_topics(self) -> None:
        """See which topics there are: a pattern may match others, a topic may have more partitions."""
        with self._lock:
            pattern, wanted, led = self._pattern, self._wanted, self._led
        self._look_at = time.monotonic() + self._config.client.metadata_max_age_ms / 1000
        names = None if pattern is not None else sorted(wanted | set(led or ()))
        create = self._config.client.allow_auto_create_topics and pattern is None
        try:
            view = self._cluster.refresh(names, Deadline.after_ms(_FIND_MS), create=create)
        except ClientError:
            self._look_at = time.monotonic() + _MISSING_TOPIC_S
            return
        if pattern is not None:
            wanted = frozenset(name for name, each in view.topics.items() if self._matches(pattern, each))
        if not all(isinstance(view.topics.get(name), TopicView) for name in wanted):
            self._look_at = time.monotonic() + _MISSING_TOPIC_S
        counts = {name: len(each) for name, each in self._topics(set(led or ()) | wanted).items()}
        with self._lock:
            if pattern is not self._pattern:
                self._look_at = 0.0
                return
            if pattern is not None:
                self._machine.on_match(time.monotonic(), wanted)
            if led is not None and counts != led:
                self._machine.rejoin("the partitions of the topics changed")
            self._share()

    def _matches(self, pattern: re.Pattern[str], view: object) -> bool:
        if not isinstance(view, TopicView) or (view.internal and self._config.exclude_internal_topics):
            return False
        return pattern.fullmatch(view.name) is not None
