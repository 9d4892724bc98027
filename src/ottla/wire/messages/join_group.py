"""JoinGroup (key 11) and SyncGroup (key 14): the classic rebalance.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, nullable_string, octets, string


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    """A member joins, with the assignors it knows.

    v1: rebalance timeout (KIP-62). v5: static members (KIP-345). v8: a reason (KIP-800).
    """

    class JoinGroupRequestProtocol(Struct):
        name: str = string("0+")
        metadata: bytes = octets("0+")

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", -1, ignorable=True)
    member_id: str = string("0+")
    group_instance_id: str | None = nullable_string("5+", "5+", None)
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequestProtocol] = array("0+", most=20_000)
    reason: str | None = nullable_string("8+", "8+", None, ignorable=True)


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    """Generation, chosen assignor, and for the leader the members and their subscriptions.

    v9: whether the leader has to keep the assignment (KIP-814).
    """

    class JoinGroupResponseMember(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = nullable_string("5+", "5+", None)
        metadata: bytes = octets("0+")

    throttle_time_ms: int = int32("2+")
    error_code: int = int16("0+")
    generation_id: int = int32("0+", -1)
    protocol_type: str | None = nullable_string("7+", "7+", None)
    protocol_name: str | None = nullable_string("0+", "7+", "")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")
    member_id: str = string("0+")
    members: list[JoinGroupResponseMember] = array("0+")


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    """The leader's assignment, or a member waiting for it.

    v3: static members. v5: protocol type and name (KIP-559).
    """

    class SyncGroupRequestAssignment(Struct):
        member_id: str = string("0+")
        assignment: bytes = octets("0+")

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = nullable_string("3+", "3+", None)
    protocol_type: str | None = nullable_string("5+", "5+", None, ignorable=True)
    protocol_name: str | None = nullable_string("5+", "5+", None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array("0+", most=100_000)


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    """The member's part of the assignment."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    protocol_type: str | None = nullable_string("5+", "5+", None)
    protocol_name: str | None = nullable_string("5+", "5+", None)
    assignment: bytes = octets("0+")
