"""The thread of a group member, which talks to the coordinator while the application processes records.

Zone: real. Carries out the actions of the state machine in `membership`: JoinGroup, SyncGroup, heartbeats; also sends
asynchronous commits, and checks the topics periodically. It does not run callbacks: these are events for the
application's thread. The thread has its own connections.
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
    NO_MEMBER,
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
"""Takes the answer, or a ClientError in its place."""

_FIND_MS = 5_000
_MISSING_TOPIC_S = 1.0
"""When to look again for a topic that does not exist."""
_JOIN_GRACE_MS = 5_000
"""Kafka's: how long the answer may take after the end of the rebalance."""


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
    """The membership. Shared by the application's thread and its own thread, which the constructor starts."""

    def __init__(self, config: ConsumerConfig, notify: Callable[[], None]) -> None:
        """notify: called from the thread when there are events or answers for the application."""
        self._config = config
        self._settings = config.group()
        self._machine = Membership(self._settings)
        self._lock = threading.Lock()
        self._notify = notify
        self._wake = Waker()
        self._events: deque[Event] = deque()
        self._assigned_as = NO_MEMBER
        """The member of the last assignment that the application has taken."""
        self._todo: deque[Action | _Request] = deque()
        self._pending: list[_Pending] = []
        self._cluster = Cluster(config.client)
        self._calls = CoordinatorCalls(self._cluster, CoordinatorKind.GROUP)
        self._connection: Connection | None = None
        self._pattern: re.Pattern[str] | None = None
        self._wanted: frozenset[str] = frozenset()
        self._led: Mapping[str, int] | None = None
        """Partitions per topic when this member made the assignment; None: another member made it."""
        self._look_at = float("inf")
        self._stop_by: Deadline | None = None
        self._broken: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run_thread, name=f"ottla-group-{self._settings.group_id}", daemon=True
        )
        self._thread.start()

    # -- for the application's thread ----------------------------------------------------------------------------------

    def subscribe_topics(self, topics: Iterable[str], pattern: re.Pattern[str] | None = None) -> None:
        """Subscribe to these topics, or to those that match the pattern."""
        with self._lock:
            self._pattern = pattern
            self._wanted = frozenset(topics)
            self._look_at = 0.0
            self._machine.forget_failure()
            if pattern is None:
                self._machine.subscribe_topics(time.monotonic(), self._wanted)
            self._share_actions()
        self._wake.wake_up()

    def end_subscription(self, reason: str) -> None:
        """Leave the group; discards events that the application has not taken."""
        with self._lock:
            self._pattern, self._wanted, self._led = None, frozenset(), None
            self._look_at = float("inf")
            self._machine.end_subscription(reason)
            self._events.clear()
            self._share_actions()
        self._wake.wake_up()

    def has_events(self) -> bool:
        """Count as a poll of the application; returns whether `poll` would return an event or raise."""
        with self._lock:
            if self._broken is None:
                self._machine.on_poll(time.monotonic())
                self._share_actions()
            return bool(self._events) or self._machine.failure is not None or self._broken is not None

    def take_events(self) -> list[Event]:
        """Count as a poll of the application; returns the events since the last one. While the group refuses the
        member, the last event is the reason, each time.

        Raises the error that ended the thread.
        """
        with self._lock:
            if self._broken is not None:
                raise self._broken
            self._machine.on_poll(time.monotonic())
            self._share_actions()
            events = list(self._events)
            self._events.clear()
            if any(isinstance(each, Assigned) for each in events):
                self._assigned_as = self._machine.member
            if self._machine.failure is not None:
                events.append(Failed(self._machine.failure))
            busy = bool(self._todo)
        if busy:
            self._wake.wake_up()
        return events

    def on_prepared(self, owned: Iterable[Any]) -> None:
        """See Membership.prepared."""
        with self._lock:
            self._machine.on_prepared(time.monotonic(), owned)
            self._share_actions()
        self._wake.wake_up()

    def on_commit_refused(self, member: Member, code: ErrorCode) -> None:
        """See Membership.on_commit_refused."""
        with self._lock:
            self._machine.on_commit_refused(time.monotonic(), member, code)
            self._share_actions()
        self._wake.wake_up()

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance."""
        with self._lock:
            self._machine.request_rejoin(reason)
            self._share_actions()
        self._wake.wake_up()

    def request_topic_check(self) -> None:
        """Check the topics soon: one of them seems to be deleted."""
        with self._lock:
            self._look_at = 0.0
        self._wake.wake_up()

    @property
    def current_member(self) -> Member:
        """The member; during a rebalance the one before it, because the application has its positions."""
        with self._lock:
            member = self._machine.committing_member
            is_known = member.generation == NO_GENERATION or not self._is_rebalancing
            return member if is_known else self._assigned_as

    @property
    def is_member(self) -> bool:
        """Whether the group has given this consumer a generation that it has not lost."""
        return self.current_member.generation != NO_GENERATION

    @property
    def committing_member(self) -> tuple[Member, bool]:
        """The member that commits, and whether commits must wait until `poll` has completed a rebalance."""
        with self._lock:
            return self._machine.committing_member, self._is_rebalancing

    @property
    def _is_rebalancing(self) -> bool:
        """Whether it is joining, or the application has not taken its assignment. Call this under the lock."""
        return self._machine.is_rejoining or self._machine.committing_member != self._assigned_as

    def send_request(
        self, key: ApiKey, build: Callable[[], Message], response: type[Any], at_most: int, answered: Answered
    ) -> None:
        """Send a request to the coordinator. The thread calls `answered` exactly once, also after an error."""
        with self._lock:
            # Under the lock: `_end_thread` either finds the request in `_todo`, or has set `_broken` before.
            if self._broken is None and self._stop_by is None:
                self._todo.append(_Request(key, build, response, at_most, answered))
                self._wake.wake_up()
                return
        answered(ConnectionLostError("the consumer's thread has ended"))

    def close_group(self, deadline: Deadline) -> None:
        """Leave the group, send queued requests, end the thread; waits for that until `deadline`."""
        self.end_subscription("the consumer was closed")
        self._stop_by = deadline
        self._wake.wake_up()
        self._thread.join(deadline.remaining_s() + 1)
        # A thread that still runs would poll closed descriptors, or new ones with the same numbers.
        if not self._thread.is_alive():
            self._wake.close_sockets()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _share_actions(self) -> None:
        """Pass the machine's actions on to the application or to the thread. Call this under the lock."""
        for action in self._machine.take_actions():
            if isinstance(action, Failed):
                self._notify()  # `poll` raises the machine's failure for as long as it lasts
            elif isinstance(action, Prepare | Assigned):
                if isinstance(action, Prepare):  # replaces an earlier one: the partitions were lost meanwhile
                    self._events = deque(each for each in self._events if not isinstance(each, Prepare))
                self._events.append(action)
                self._notify()
            else:
                self._todo.append(action)

    def _run_thread(self) -> None:
        try:
            while not self._run_round():
                pass
        except BaseException as error:  # noqa: BLE001 - raised by the application's next poll
            with self._lock:
                self._broken = error
        finally:
            self._end_thread()

    def _run_round(self) -> bool:
        """One round of the thread; True: it was the last one."""
        # First: a wake-up after this leaves its byte, so that news which this round misses begin another one.
        self._wake.clear_wakeups()
        now = time.monotonic()
        if now >= self._look_at:
            self._check_topics()
        with self._lock:
            self._machine.do_due_work(now)
            self._share_actions()
            todo, self._todo = self._todo, deque()
            wakes_at = min(self._machine.wakes_at(), self._look_at)
        for each in todo:
            self._perform_action(each)
        stop = self._stop_by
        if stop is not None and (not self._pending or stop.expired) and not self._todo:
            return True
        # After work there may be new actions, so the next round comes without waiting.
        if not todo:
            self._wait_for_answers(Deadline(wakes_at if stop is None else min(wakes_at, stop.at)))
        return False

    def _end_thread(self) -> None:
        """End the thread: requests without an answer get an error, so that no caller waits for ever."""
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

    def _wait_for_answers(self, until: Deadline) -> None:
        until = Deadline(min([until.at, time.monotonic() + 60, *(each.call.sent.at for each in self._pending)]))
        waiting = list({id(each.connection): each.connection for each in self._pending}.values())
        if all(connection.is_open for connection in waiting):
            readable, _ = wait_readable(waiting, until, self._wake.fileno())
        else:
            readable = []
        for each in [*self._pending]:
            # `_receive_answer` may close a connection and so end other requests on it, which is why each is checked
            # again here.
            late = each.call.sent.expired or not each.connection.is_open
            if late or each.connection in readable or each.connection.has_answer(each.call):
                readable = [other for other in readable if other is not each.connection]
                self._receive_answer(each)

    def _receive_answer(self, pending: _Pending) -> None:
        self._pending.remove(pending)
        try:
            answer = pending.connection.wait_for_response(pending.call, pending.call.sent)
        except ClientError as error:
            pending.answered(error)
        else:
            pending.answered(answer)

    def _perform_action(self, each: Action | _Request) -> None:
        if isinstance(each, FindCoordinator):
            self._find_coordinator()
        elif isinstance(each, Assign):
            self._run_assignor(each)
        elif isinstance(each, _Request):
            self._send_to_coordinator(each.key, each.build, each.response, each.answered, each.at_most)
        elif isinstance(each, Join):
            self._led = None
            timeout = self._config.max_poll_interval_ms + _JOIN_GRACE_MS
            hear = self._answer_handler(self._machine.on_join)
            self._send_to_coordinator(
                ApiKey.JOIN_GROUP, lambda: each.request, JoinGroupResponse, hear, timeout_ms=timeout
            )
        elif isinstance(each, Sync):
            timeout = self._config.max_poll_interval_ms + _JOIN_GRACE_MS
            hear = self._answer_handler(self._machine.on_sync)
            self._send_to_coordinator(
                ApiKey.SYNC_GROUP, lambda: each.request, SyncGroupResponse, hear, timeout_ms=timeout
            )
        elif isinstance(each, Heartbeat):
            hear = self._answer_handler(self._machine.on_heartbeat)
            self._send_to_coordinator(ApiKey.HEARTBEAT, lambda: each.request, HeartbeatResponse, hear)
        elif isinstance(each, Leave) and self._connection is not None:
            # Version 3 came with Kafka 2.4. Older brokers wait for the end of the session instead.
            self._send_to_coordinator(
                ApiKey.LEAVE_GROUP, lambda: each.request, LeaveGroupResponse, lambda _: None, at_least=3
            )

    def _answer_handler(self, tell: Callable[[float, Any], None]) -> Answered:
        """A function that gives an answer to the machine, or reports that the connection is lost."""

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
                self._share_actions()

        return on_response

    def _send_to_coordinator(
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
            connection = self._coordinator_connection()
            call = connection.send_request(build(), connection.choose_version(key, at_most, at_least), response)
        except ClientError as error:
            answered(error)
            return
        # The coordinator answers JoinGroup and SyncGroup only when all members have joined, which may take longer.
        if timeout_ms > self._config.client.request_timeout_ms:
            call = call._replace(sent=Deadline.after_ms(timeout_ms))
        self._pending.append(_Pending(connection, call, answered))

    def _coordinator_connection(self) -> Connection:
        """The connection to the coordinator, which is looked up if it is unknown. Raises ClientError."""
        if self._connection is None or not self._connection.is_open:
            deadline = Deadline.after_ms(_FIND_MS if self._stop_by is None else self._stop_by.remaining_ms())
            node = self._calls.find_coordinator(self._settings.group_id, deadline)
            if node not in self._cluster.view.nodes:
                self._cluster.refresh((), deadline)
            self._connection = self._cluster.connection(node, deadline)
        return self._connection

    def _find_coordinator(self) -> None:
        self._connection = None
        code = ErrorCode.NONE
        try:
            self._coordinator_connection()
        except RefusedError as error:
            code = error.code
        except ClientError as error:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._report_denial(error)
        with self._lock:
            self._machine.on_coordinator(time.monotonic(), code)
            self._share_actions()

    def _report_denial(self, error: ClientError) -> None:
        """Report a failed login or a wrong setting to the application at once, because retries do not help."""
        if isinstance(error, AuthenticationError | ConfigError):
            self._report_failure(error)

    def _report_failure(self, error: ClientError) -> None:
        with self._lock:
            # The failed request is repeated until it succeeds: one event is enough.
            if not any(isinstance(each, Failed) for each in self._events):
                self._events.append(Failed(error))
            self._notify()

    def _run_assignor(self, todo: Assign) -> None:
        topics = {topic for member in todo.members.values() for topic in member.topics}
        try:
            self._cluster.refresh(sorted(topics), Deadline.after_ms(self._config.client.request_timeout_ms))
        except ClientError:
            # With older metadata the assignment may miss new partitions; `_check_topics` then causes another
            # rebalance.
            if not self._cluster.view.nodes:
                raise
        found = self._topic_racks(topics)
        self._led = {topic: len(partitions) for topic, partitions in found.items()}
        assignment = todo.assignor.assign_partitions(found, todo.members)
        with self._lock:
            self._machine.on_assigned(time.monotonic(), assignment)
            self._share_actions()

    def _topic_racks(self, names: Iterable[str]) -> Topics:
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
        """Refresh the topics: a pattern may match new ones, a topic may have more partitions."""
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
            wanted = frozenset(name for name, each in view.topics.items() if self._matches_pattern(pattern, each))
        missing = [view.topics.get(name) for name in wanted if not isinstance(view.topics.get(name), TopicView)]
        if missing:
            self._look_at = time.monotonic() + _MISSING_TOPIC_S
        for error in missing:
            # As Java's consumer: poll raises it, and may be called again.
            if isinstance(error, RefusedError) and error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                self._report_failure(error)
        counts = {name: len(each) for name, each in self._topic_racks(set(led or ()) | wanted).items()}
        with self._lock:
            # The subscription changed during the request: this answer is for the old one.
            if pattern is not self._pattern:
                self._look_at = 0.0
                return
            if pattern is not None:
                self._machine.on_match(time.monotonic(), wanted)
            if led is not None and counts != led:
                self._machine.request_rejoin("the partitions of the topics changed")
            self._share_actions()

    def _matches_pattern(self, pattern: re.Pattern[str], view: object) -> bool:
        if not isinstance(view, TopicView) or (view.internal and self._config.exclude_internal_topics):
            return False
        return pattern.fullmatch(view.name) is not None
