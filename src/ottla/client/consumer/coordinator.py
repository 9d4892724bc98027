"""The consumer's side of its group: the subscription, rebalances and commits, as Java's ConsumerCoordinator.

Zone: real. Runs in the application's thread; `group` is the thread of the membership, `committer` sends the commits. A
consumer without a subscription has a group only to commit to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.consumer.actions import Failed
from ottla.client.consumer.committer import Committer, Offsets, OnCommit
from ottla.client.consumer.fetch_positions import FetchPositions
from ottla.client.consumer.group import Group
from ottla.client.consumer.rebalances import Listener, Rebalances, finish_with
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.consumer.waker import Waker
from ottla.client.errors import ClientError, UsageError
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.retry import Deadline
from ottla.types import TopicPartition

CLOSE_S: Final = 30.0
"""How long leaving a group, and a commit before partitions are revoked, may take."""
_PAUSE_S: Final = 0.1
"""How long a poll waits before it raises the same refusal of the group again."""


class ConsumerCoordinator:
    """One consumer's group, if it has one."""

    def __init__(self, cluster: Cluster, config: ConsumerConfig, wake: Waker) -> None:
        self.subscription: tuple[str, ...] | re.Pattern[str] | None = None
        self._cluster = cluster
        self._config = config
        self._wake = wake
        self._group: Group | None = None
        self._committer = Committer(cluster, config, self.ensure_group) if config.group_id else None
        committed = self._committer.committed_positions if self._committer else None
        self.reader = FetchPositions(cluster, config, wake, committed)
        """Reads from the committed positions on, and keeps the assignment."""
        self._rebalances = Rebalances(self.reader, self.ensure_group, self._auto_commit_now)
        self._refused = False
        """Whether the last `poll` raised a refusal of the group."""

    # -- the group -----------------------------------------------------------------------------------------------------

    def ensure_group(self) -> Group:
        """The group's thread, which is made if there is none."""
        if self._group is None:
            self._group = Group(self._config, self._wake.wake_up)
        return self._group

    def subscribe_topics(self, wanted: tuple[str, ...] | re.Pattern[str], listener: Listener) -> None:
        """Change the subscription; the next poll joins."""
        self.subscription = wanted
        self._rebalances.listener = listener
        self.need_committer().set_subscribed(subscribed=True)
        if isinstance(wanted, re.Pattern):
            self.ensure_group().subscribe_topics((), wanted)
        else:
            self.ensure_group().subscribe_topics(wanted)

    def has_events(self) -> bool:
        """Whether the group has an event for the next poll. Counts as a poll for the group."""
        return self._group is not None and self.subscription is not None and self._group.has_events()

    def request_rejoin(self, reason: str) -> None:
        """Ask the group for a rebalance. Raises UsageError without a subscription."""
        if self.subscription is None:
            raise UsageError("this consumer has no subscription", "Call subscribe first")
        self.ensure_group().request_rejoin(reason)

    def request_topic_check(self) -> bool:
        """Have the group look for deleted topics; False if there is no subscription that would follow."""
        if self.subscription is None or self._group is None:
            return False
        self._group.request_topic_check()
        return True

    def do_due_work(self, deadline: Deadline) -> None:
        """Do everything that is due except reading: callbacks of commits, rebalances, automatic commits."""
        if self._committer is not None:
            self._committer.run_callbacks()
        if self._group is not None and self.subscription is not None:
            # Before the automatic commit, which is for the partitions that are left.
            self._follow_group(self._group, deadline)
        if self._committer is not None and self._config.auto_commit:
            self._committer.commit_if_due(self.reader.known_positions)

    def _follow_group(self, group: Group, deadline: Deadline) -> None:
        """Handle the events of the group. Every poll raises a lasting error, after the first time with a short wait."""
        events = group.take_events()
        refused = bool(events) and isinstance(events[-1], Failed)
        if refused and self._refused:
            self._wake.wait_for_wakeup(min(deadline.remaining_s(), _PAUSE_S))
        self._refused = refused
        self._rebalances.on_events(events)

    def leave_group(self, deadline: Deadline) -> None:
        """End the subscription or the assignment. Raises an error of the last commit or of a callback, at the end."""
        # 1. Commit the positions; 2. wait for earlier commits; 3. call on_revoked; 4. leave, even after errors.
        owned = tuple(self.reader.assigned_partitions)
        subscribed, self.subscription = self.subscription is not None, None
        lost = subscribed and not self.ensure_group().is_member
        with finish_with(lambda: self._after_leaving(subscribed)):
            if owned:
                self._auto_commit_now()
            if self._committer is not None:
                self._committer.commit_sync({}, deadline)
                self._committer.run_callbacks()
            if subscribed:
                self._rebalances.give_up(owned, lost=lost)

    def _after_leaving(self, subscribed: bool) -> None:
        self.reader.assign_partitions(())
        self._rebalances.listener = Listener()
        if self._committer is not None:
            self._committer.set_subscribed(subscribed=False)
        if subscribed:
            self.ensure_group().end_subscription("the application unsubscribed")

    def close_group(self, deadline: Deadline) -> None:
        """End the group's thread."""
        if self._group is not None:
            self._group.close_group(deadline)

    # -- commits -------------------------------------------------------------------------------------------------------

    def need_committer(self) -> Committer:
        """Raises UsageError without `group.id`."""
        if self._committer is None:
            raise UsageError("this consumer has no group", "Set group.id")
        return self._committer

    def commit_now(self, offsets: Offsets, deadline: Deadline) -> None:
        """Commit, and call the interceptors. Raises ClientError."""
        committer = self.need_committer()
        committer.commit_sync(offsets, deadline)
        committer.run_callbacks()
        self._notify_interceptors(offsets)

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> None:
        """Commit once, without waiting; a later call runs the callback."""
        committer = self.need_committer()
        committer.run_callbacks()
        committer.commit_async(offsets, self._commit_callback(callback))

    def committed_positions(
        self, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed positions of the group. Raises ClientError."""
        return self.need_committer().committed_positions(partitions, deadline)

    def group_metadata(self) -> GroupMetadata:
        """Raises CommitFailedError if it subscribed but is not in the group."""
        return self.need_committer().group_metadata()

    def _auto_commit_now(self) -> None:
        """Commit before partitions are revoked. If it fails, records are read twice: groups deliver at least once."""
        if self._config.auto_commit:
            with suppress(ClientError):
                self.commit_now(self.reader.known_positions(), self._cluster.deadline().within_ms(CLOSE_S * 1000))

    def _commit_callback(self, callback: OnCommit | None) -> OnCommit:
        def on_commit(offsets: Offsets, error: ClientError | None) -> None:
            if error is None:
                self._notify_interceptors(offsets)
            if callback is not None:
                callback(offsets, error)

        return on_commit

    def _notify_interceptors(self, offsets: Offsets) -> None:
        for each in self._config.interceptor_classes:
            if hasattr(each, "on_commit"):
                each.on_commit(offsets)
