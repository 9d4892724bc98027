"""What a member of a group is told to do, and by which settings it lives.

Zone: pure. The values that go between the machine of `membership` and whoever carries its actions out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ottla.client.consumer.assignment.assignors import Assignor
from ottla.client.consumer.protocol import NO_GENERATION, Subscription
from ottla.client.errors import ClientError
from ottla.types import TopicPartition
from ottla.wire.messages import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest


class GroupSettings(NamedTuple):
    """What the machine has to know of the configuration; times in seconds."""

    group_id: str
    assignors: Sequence[Assignor]
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    retry_backoff: float = 0.1
    rack: str | None = None

    @property
    def cooperative(self) -> bool:
        """Whether partitions are kept during a rebalance: only when all assignors can do that."""
        return all(each.cooperative for each in self.assignors)


class Member(NamedTuple):
    """Who it is, for commits and for its transactions (KIP-447)."""

    generation: int
    member_id: str


NOBODY: Final = Member(NO_GENERATION, "")


class FindCoordinator(NamedTuple):
    """Look up the coordinator, then `on_coordinator`."""


class Prepare(NamedTuple):
    """Let the application give up `partitions` (lost: they belong to others already), then `prepared`."""

    partitions: tuple[TopicPartition, ...]
    lost: bool


class Join(NamedTuple):
    """Send it, then `on_join`."""

    request: JoinGroupRequest


class Assign(NamedTuple):
    """Run the assignor over the members, then `assigned`."""

    assignor: Assignor
    members: Mapping[str, Subscription]


class Sync(NamedTuple):
    """Send it, then `on_sync`."""

    request: SyncGroupRequest


class Heartbeat(NamedTuple):
    """Send it, then `on_heartbeat`."""

    request: HeartbeatRequest


class Leave(NamedTuple):
    """Send it; nobody waits for the answer."""

    request: LeaveGroupRequest


class Assigned(NamedTuple):
    """Tell the application: what it gives up first, then what is new."""

    added: tuple[TopicPartition, ...]
    revoked: tuple[TopicPartition, ...]


class Failed(NamedTuple):
    """Tell the application; `subscribe` begins anew."""

    error: ClientError


Action = FindCoordinator | Prepare | Join | Assign | Sync | Heartbeat | Leave | Assigned | Failed
