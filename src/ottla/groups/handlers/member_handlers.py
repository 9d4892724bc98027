"""JoinGroup, SyncGroup, LeaveGroup: requests to commands, results to responses.

Zone: deterministic.

Version notes. JoinGroup 0 has one time-out for session and rebalance; from 4 on new members join twice (KIP-394); 5 has
static members; 9 has `skip_assignment` (KIP-814). LeaveGroup 3: several members at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.groups.commands import Join, Leave, Sync
from ottla.groups.group import JoinResult, SyncResult
from ottla.groups.groups import Groups
from ottla.groups.membership import member_code
from ottla.requests import Context, Parts, handles
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

MAX_PROTOCOLS = 500
"""The most protocols of one member. Each is compared with those of all other members; clients have one or two."""
MAX_ASSIGNMENTS = 10_000
"""The most assignments in a leader's SyncGroup: one for each member."""
_KNOWN_ID_VERSION = 4
_NULL_NAMES_VERSION = 7
_SKIP_VERSION = 9
_MANY_VERSION = 3


class MemberHandlers:
    """Handlers of the requests that members of a classic group send."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    @handles(
        ApiKey.JOIN_GROUP,
        0,
        9,
        resource="Group",
        operation="Read",
        undivided="it has at most `MAX_PROTOCOLS` protocols, of one member",
    )
    def join_group(self, context: Context, request: JoinGroupRequest) -> None:
        """Join a group. The response waits until the rebalance is complete."""
        context.check_allowed(Operation.READ, ResourceType.GROUP, request.group_id)
        version = context.api_version
        if len(request.protocols) > MAX_PROTOCOLS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"a member may name {MAX_PROTOCOLS} protocols")
        rebalance_ms = request.rebalance_timeout_ms

        def send_response(outcome: JoinResult | ApiError) -> None:
            context.send_reply(_join_response(outcome, request.member_id, version))

        self._groups.submit_command(
            Join(
                send_response,
                request.group_id,
                request.member_id,
                request.group_instance_id,
                context.client_id or "",
                f"/{context.peer.host}",
                request.session_timeout_ms,
                rebalance_ms if rebalance_ms >= 0 else request.session_timeout_ms,
                request.protocol_type,
                tuple((each.name, bytes(each.metadata)) for each in request.protocols),
                self._groups.new_id(),
                version >= _KNOWN_ID_VERSION,
                version >= _SKIP_VERSION,
            )
        )

    @handles(
        ApiKey.SYNC_GROUP,
        0,
        5,
        resource="Group",
        operation="Read",
        undivided="it has at most `MAX_ASSIGNMENTS` assignments, which take effect together",
    )
    def sync_group(self, context: Context, request: SyncGroupRequest) -> None:
        """Fetch the assignment. The response waits until the leader has sent it, and it is committed."""
        context.check_allowed(Operation.READ, ResourceType.GROUP, request.group_id)
        if len(request.assignments) > MAX_ASSIGNMENTS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"a leader may bring {MAX_ASSIGNMENTS} assignments")

        def send_response(outcome: SyncResult | ApiError) -> None:
            context.send_reply(_sync_response(outcome))

        self._groups.submit_command(
            Sync(
                send_response,
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                request.protocol_type,
                request.protocol_name,
                {each.member_id: bytes(each.assignment) for each in request.assignments},
            )
        )

    @handles(
        ApiKey.LEAVE_GROUP,
        0,
        5,
        resource="Group",
        operation="Read",
        parts=Parts(cost_us=20, request=(("members",),), response=(("members",),)),
    )
    def leave_group(self, context: Context, request: LeaveGroupRequest) -> None:
        """Leave a group. The response does not wait."""
        context.check_allowed(Operation.READ, ResourceType.GROUP, request.group_id)
        many = context.api_version >= _MANY_VERSION
        members = [(each.member_id, each.group_instance_id) for each in request.members]
        # Before version 3 a request names one member, and its answer has one error code at the top.
        if not many:
            members = [(request.member_id, None)]

        def send_response(outcome: Sequence[ErrorCode] | ApiError) -> None:
            if isinstance(outcome, ApiError):
                context.send_reply(LeaveGroupResponse(error_code=outcome.code))
            else:
                context.send_reply(_leave_response(members, outcome, many))

        self._groups.submit_command(Leave(send_response, request.group_id, members))


def _join_response(outcome: JoinResult | ApiError, member_id: str, version: int) -> JoinGroupResponse:
    if isinstance(outcome, ApiError):
        # The member id is echoed also with an error: with MEMBER_ID_REQUIRED it is the one to join with.
        outcome = JoinResult(member_code(outcome.code), member_id)
    name = outcome.protocol
    return JoinGroupResponse(
        error_code=outcome.code,
        generation_id=outcome.generation,
        protocol_type=outcome.protocol_type,
        # Before version 7 the field is not nullable; those clients read an empty name as none.
        protocol_name=name if name is not None or version >= _NULL_NAMES_VERSION else "",
        leader=outcome.leader,
        skip_assignment=outcome.skip_assignment,
        member_id=outcome.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(member_id=each, group_instance_id=instance_id, metadata=metadata)
            for each, instance_id, metadata in outcome.members
        ],
    )


def _sync_response(outcome: SyncResult | ApiError) -> SyncGroupResponse:
    if isinstance(outcome, ApiError):
        outcome = SyncResult(member_code(outcome.code))
    return SyncGroupResponse(
        error_code=outcome.code,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol,
        assignment=outcome.assignment,
    )


def _leave_response(
    members: Sequence[tuple[str, str | None]], codes: Sequence[ErrorCode], many: bool
) -> LeaveGroupResponse:
    if not many:
        return LeaveGroupResponse(error_code=codes[0])
    rows = [
        LeaveGroupResponse.MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
        for (member_id, instance_id), code in zip(members, codes, strict=True)
    ]
    return LeaveGroupResponse(members=rows)
