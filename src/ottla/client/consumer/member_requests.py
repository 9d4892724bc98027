"""The requests of a group's member, and what they repeat from its last generation.

Zone: pure. `membership` decides which request is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client.consumer.actions import GroupSettings, Member
from ottla.client.consumer.assignment.assignors import Assignor
from ottla.client.consumer.protocol import NO_GENERATION, Subscription, encode_subscription
from ottla.types import TopicPartition
from ottla.wire.messages import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

PROTOCOL_TYPE: Final = "consumer"
_REASON_LENGTH: Final = 255
"""Java's clients cut the reason of a request there (KIP-800)."""


class MemberRequests:
    """Builds the requests of one member."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._protocol = ""
        """The assignor that the coordinator chose in the last JoinGroup."""
        self._history: tuple[TopicPartition, ...] | None = None
        """The last assignment; it outlives the generation, so that a sticky assignor can give it back."""
        self._history_generation = NO_GENERATION

    def choose_assignor(self, name: str) -> Assignor | None:
        """Note the coordinator's choice; None: this member did not offer it."""
        self._protocol = name
        return next((each for each in self._settings.assignors if each.name == name), None)

    def note_assignment(self, partitions: tuple[TopicPartition, ...], generation: int) -> None:
        """This is the member's assignment now."""
        self._history, self._history_generation = partitions, generation

    def forget_assignment(self) -> None:
        """The subscription ended: no later one continues it."""
        self._history, self._history_generation = None, NO_GENERATION

    def join_group(
        self, member: Member, topics: tuple[str, ...], owned: tuple[TopicPartition, ...], reason: str
    ) -> JoinGroupRequest:
        """Join with these topics, and `owned` partitions that were not revoked."""
        settings = self._settings
        return JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=int(settings.session_timeout * 1000),
            rebalance_timeout_ms=int(settings.max_poll_interval * 1000),
            member_id=member.member_id,
            group_instance_id=settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[self._offer_protocol(each, topics, owned) for each in settings.assignors],
            reason=reason[:_REASON_LENGTH],
        )

    def _offer_protocol(
        self, assignor: Assignor, topics: Sequence[str], owned: tuple[TopicPartition, ...]
    ) -> JoinGroupRequest.JoinGroupRequestProtocol:
        data = assignor.user_data(self._history, self._history_generation)
        wanted = Subscription(tuple(topics), data, owned, self._history_generation, self._settings.rack)
        return JoinGroupRequest.JoinGroupRequestProtocol(name=assignor.name, metadata=encode_subscription(wanted))

    def sync_group(self, member: Member, rows: Mapping[str, bytes]) -> SyncGroupRequest:
        """Ask for the assignment; the leader has `rows` for all members, the others none."""
        return SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=data)
                for each, data in rows.items()
            ],
        )

    def heartbeat(self, member: Member) -> HeartbeatRequest:
        """Show that the member is alive."""
        return HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=self._settings.instance_id,
        )

    def leave_group(self, member_id: str, reason: str) -> LeaveGroupRequest | None:
        """None for static members: the group waits for them until their session ends (KIP-345)."""
        if self._settings.instance_id is not None:
            return None
        identity = LeaveGroupRequest.MemberIdentity(member_id=member_id, reason=reason)
        return LeaveGroupRequest(group_id=self._settings.group_id, members=[identity])
