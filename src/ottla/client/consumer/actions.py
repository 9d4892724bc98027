"""Actions of a group member, and its settings.

Zone: pure. Values that the state machine in `membership` gives to the code that carries them out (`group`).
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
    """The settings that the state machine needs; times in seconds."""

    group_id: str
    assignors: Sequence[Assignor]
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    max_poll_interval: float = 300.0
    retry_backoff: float = 0.1
    rack: str | None = None

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep their partitions during a rebalance: only if all assignors are cooperative."""
        return all(each.cooperative for each in self.assignors)


class Member(NamedTuple):
    """Identity of a member, for commits and transactions (KIP-447)."""

    generation: int
    member_id: str


NO_MEMBER: Final = Member(NO_GENERATION, "")


class FindCoordinator(NamedTuple):
    """Find the coordinator, then call `on_coordinator`."""


class Prepare(NamedTuple):
    """Revoke `partitions` from the application (lost: others have them already), then call `prepared`."""

    partitions: tuple[TopicPartition, ...]
    lost: bool


class Join(NamedTuple):
    """Send the request, then call `on_join`."""

    request: JoinGroupRequest


class Assign(NamedTuple):
    """Run the assignor for the members, then call `assigned`."""

    assignor: Assignor
    members: Mapping[str, Subscription]


class Sync(NamedTuple):
    """Send the request, then call `on_sync`."""

    request: SyncGroupRequest


class Heartbeat(NamedTuple):
    """Send the request, then call `on_heartbeat`."""

    request: HeartbeatRequest


class Leave(NamedTuple):
    """Send the request; its answer is ignored."""

    request: LeaveGroupRequest


class Assigned(NamedTuple):
    """Report the new assignment to the application: first the revoked partitions, then the added ones."""

    added: tuple[TopicPartition, ...]
    revoked: tuple[TopicPartition, ...]


class Failed(NamedTuple):
    """Report the error to the application; `subscribe` starts again."""

    error: ClientError


Action = FindCoordinator | Prepare | Join | Assign | Sync | Heartbeat | Leave | Assigned | Failed
