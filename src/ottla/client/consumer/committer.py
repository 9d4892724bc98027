"""Commits of a consumer: synchronous, asynchronous with a callback, and automatic.

Zone: real. Synchronous commits use the application's connections, the others those of the group's thread. No commit
overtakes one that was sent before it. One thread calls it, except for `on_response`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.consumer.actions import NO_MEMBER, Member
from ottla.client.consumer.commits import (
    BY_NAME,
    MOVED_ON,
    OffsetAndMetadata,
    commit_error,
    commit_refusal,
    commit_request,
    fetch_refusal,
    fetch_request,
    not_a_member_error,
    positions_in,
    rebalance_error,
)
from ottla.client.consumer.group import Group
from ottla.client.consumer.protocol import NO_GENERATION
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.errors import ClientError, CommitFailedError, RefusedError
from ottla.client.positions import GroupMetadata
from ottla.client.retry import Deadline
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchResponse

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, ClientError | None], None]


class Committer:
    """The commits of one group."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig, group: Callable[[], Group]) -> None:
        """group: returns the group's thread, and starts it if necessary."""
        assert config.group_id is not None
        self._id = config.group_id
        self._instance = config.group_instance_id
        self._interval = config.auto_commit_interval_ms / 1000
        self._calls = CoordinatorCalls(cluster, CoordinatorKind.GROUP, beside_fetches=True)
        self._group = group
        self._subscribed = False
        self._on_their_way = 0
        self._arrived = threading.Condition()
        self._answers: deque[tuple[OnCommit | None, Offsets, ClientError | None]] = deque()
        self._next_auto = time.monotonic() + self._interval
        self._last_auto: Offsets = {}

    def set_subscribed(self, subscribed: bool) -> None:
        """subscribed: whether commits are those of a member, or of a consumer with manual assignment."""
        self._subscribed = subscribed

    def group_metadata(self) -> GroupMetadata:
        """The member, for transactions. Raises CommitFailedError if it subscribed but is not in the group."""
        member = self._group().current_member if self._subscribed else NO_MEMBER
        if self._subscribed and member.generation == NO_GENERATION:
            raise not_a_member_error(self._id)
        return GroupMetadata(self._id, member.generation, member.member_id, self._instance)

    def _committing_member(self) -> Member:
        """The member that commits. Raises CommitFailedError as `group_metadata`, and during a rebalance."""
        if not self._subscribed:
            return NO_MEMBER
        member, is_rebalancing = self._group().committing_member
        if member.generation == NO_GENERATION:
            raise not_a_member_error(self._id)
        if is_rebalancing:
            raise rebalance_error()
        return member

    def _commit_request(self, member: Member, offsets: Offsets) -> OffsetCommitRequest:
        return commit_request(self._id, member, self._instance if self._subscribed else None, offsets)

    def commit_sync(self, offsets: Offsets, deadline: Deadline) -> None:
        """Commit and wait for the answer. Raises CommitFailedError, RefusedError, DeadlineError and others."""
        with self._arrived:
            # Asynchronous commits use another connection, which the coordinator may serve later: an older position
            # would then replace this one.
            self._arrived.wait_for(lambda: not self._on_their_way, deadline.remaining_s())
        if not offsets:
            return
        member = self._committing_member()
        request = self._commit_request(member, offsets)  # a retry keeps the member of the first attempt
        try:
            self._calls.send_to_coordinator(
                self._id,
                ApiKey.OFFSET_COMMIT,
                lambda _: request,
                OffsetCommitResponse,
                commit_refusal,
                deadline,
                BY_NAME,
            )
        except ClientError as error:
            self._report_refusal(member, error)
            raise commit_error(error) from error

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> None:
        """Commit without waiting; `run_callbacks` calls the callback."""
        try:
            member = self._committing_member()
        except CommitFailedError as error:
            self._answers.append((callback, offsets, error))
            return
        with self._arrived:
            # Counted under the lock, because the group's thread counts down when an answer comes.
            self._on_their_way += 1

        def on_response(answer: Any) -> None:
            error = answer if isinstance(answer, ClientError) else commit_refusal(answer)
            if error is not None:
                self._report_refusal(member, error)
            with self._arrived:
                self._on_their_way -= 1
                self._answers.append((callback, offsets, None if error is None else commit_error(error)))
                self._arrived.notify_all()

        request = self._commit_request(member, offsets)
        self._group().send_request(ApiKey.OFFSET_COMMIT, lambda: request, OffsetCommitResponse, BY_NAME, on_response)

    def run_callbacks(self) -> None:
        """Call the callbacks of answered commits."""
        while self._answers:
            callback, offsets, error = self._answers.popleft()
            if callback is not None:
                callback(offsets, error)

    def commit_if_due(self, positions: Callable[[], Offsets]) -> None:
        """Commit without waiting when `auto.commit.interval.ms` are over; a failed commit is repeated the next time."""
        now = time.monotonic()
        if now < self._next_auto:
            return
        self._next_auto = now + self._interval
        current = positions()
        # No commit while another one is unanswered: the broker could apply them in the wrong order.
        if not current or current == self._last_auto or self._on_their_way:
            return
        self._last_auto = current

        def done(_offsets: Offsets, error: ClientError | None) -> None:
            if error is not None:
                self._last_auto = {}
                # Try again at the next poll instead of after the interval.
                if error.retriable:
                    self._next_auto = 0.0

        self.commit_async(current, done)

    def committed_positions(
        self, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed positions of the group. Raises ClientError."""
        wanted = list(partitions)
        answer = self._calls.send_to_coordinator(
            self._id,
            ApiKey.OFFSET_FETCH,
            lambda version: fetch_request(self._id, version, wanted),
            OffsetFetchResponse,
            lambda answer: fetch_refusal(answer, self._id),
            deadline,
            BY_NAME,
        )
        return positions_in(answer, wanted)

    def _report_refusal(self, member: Member, error: ClientError) -> None:
        code = error.code if isinstance(error, RefusedError) else None
        # The group's state machine must know: the member has to join again before it may commit.
        if self._subscribed and code in MOVED_ON:
            assert code is not None
            self._group().on_commit_refused(member, code)
