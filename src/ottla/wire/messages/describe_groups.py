"""DescribeGroups (key 15), ListGroups (key 16), DeleteGroups (key 42): groups as an administrator sees them.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, nullable_string, octets, string


class DescribeGroupsRequest(Message, api_key=15, versions="0-6", flexible="5+"):
    """Classic groups to describe. v3: authorized operations."""

    groups: list[str] = array("0+", "string")
    include_authorized_operations: bool = boolean("3+")


class DescribeGroupsResponse(Message, api_key=15, versions="0-6", flexible="5+"):
    """State, protocol and members of every group. v4: static members. v6: error texts."""

    class DescribedGroupMember(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = nullable_string("4+", "4+", None)
        client_id: str = string("0+")
        client_host: str = string("0+")
        member_metadata: bytes = octets("0+")
        member_assignment: bytes = octets("0+")

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("6+", "6+", None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        protocol_type: str = string("0+")
        protocol_data: str = string("0+")
        members: list[DescribeGroupsResponse.DescribedGroupMember] = array("0+")
        authorized_operations: int = int32("3+", -2147483648)

    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array("0+")


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible="3+"):
    """Filters: by state (v4, KIP-518), by type (v5, KIP-848)."""

    states_filter: list[str] = array("4+", "string")
    types_filter: list[str] = array("5+", "string")


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    """Every group this broker coordinates."""

    class ListedGroup(Struct):
        group_id: str = string("0+")
        protocol_type: str = string("0+")
        group_state: str = string("4+")
        group_type: str = string("5+")

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("0+")
    groups: list[ListedGroup] = array("0+")


class DeleteGroupsRequest(Message, api_key=42, versions="0-3", flexible="2+"):
    """Empty groups to delete with their positions (KIP-229)."""

    groups_names: list[str] = array("0+", "string")


class DeleteGroupsResponse(Message, api_key=42, versions="0-3", flexible="2+"):
    """The outcome for every group. v3: error texts."""

    class DeletableGroupResult(Struct):
        group_id: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("3+", "3+", None)

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array("0+")
