"""Heartbeat (key 12) and LeaveGroup (key 13): members of a classic group, alive and leaving.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, nullable_string, string


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    """A member of a generation is alive. v3: static members (KIP-345)."""

    group_id: str = string("0+")
    generation_id: int = int32("0+")
    member_id: str = string("0+")
    group_instance_id: str | None = nullable_string("3+", "3+", None)


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    """NONE, or that a rebalance is under way."""

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")


class LeaveGroupRequest(Message, api_key=13, versions="0-5", flexible="4+"):
    """Members that leave. v3: several at once, static ones included. v5: a reason (KIP-800)."""

    class MemberIdentity(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = nullable_string("3+", "3+", None)
        reason: str | None = nullable_string("5+", "5+", None, ignorable=True)

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array("3+")


class LeaveGroupResponse(Message, api_key=13, versions="0-5", flexible="4+"):
    """The outcome for every member (from v3)."""

    class MemberResponse(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = nullable_string("3+", "3+", "")
        error_code: int = int16("3+")

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    members: list[MemberResponse] = array("3+")
