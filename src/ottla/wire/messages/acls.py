"""DescribeAcls (key 29), CreateAcls (key 30), DeleteAcls (key 31): access control lists.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int8, int16, int32, nullable_string, string


class DescribeAclsRequest(Message, api_key=29, versions="0-3", flexible="2+"):
    """A filter on ACLs. v1: pattern types (KIP-290)."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = nullable_string("0+", "0+", "")
    pattern_type_filter: int = int8("1+", 3)
    principal_filter: str | None = nullable_string("0+", "0+", "")
    host_filter: str | None = nullable_string("0+", "0+", "")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DescribeAclsResponse(Message, api_key=29, versions="0-3", flexible="2+"):
    """The ACLs that match, by resource."""

    class AclDescription(Struct):
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    class DescribeAclsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        pattern_type: int = int8("1+", 3)
        acls: list[DescribeAclsResponse.AclDescription] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")
    resources: list[DescribeAclsResource] = array("0+")


class CreateAclsRequest(Message, api_key=30, versions="0-3", flexible="2+"):
    """ACLs to add. v1: pattern types (KIP-290)."""

    class AclCreation(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        resource_pattern_type: int = int8("1+", 3)
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    creations: list[AclCreation] = array("0+")


class CreateAclsResponse(Message, api_key=30, versions="0-3", flexible="2+"):
    """The outcome for every ACL, in order."""

    class AclCreationResult(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")

    throttle_time_ms: int = int32("0+")
    results: list[AclCreationResult] = array("0+")


class DeleteAclsRequest(Message, api_key=31, versions="0-3", flexible="2+"):
    """Filters; every ACL that matches one is removed. v1: pattern types (KIP-290)."""

    class DeleteAclsFilter(Struct):
        resource_type_filter: int = int8("0+")
        resource_name_filter: str | None = nullable_string("0+", "0+", "")
        pattern_type_filter: int = int8("1+", 3)
        principal_filter: str | None = nullable_string("0+", "0+", "")
        host_filter: str | None = nullable_string("0+", "0+", "")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    filters: list[DeleteAclsFilter] = array("0+")


class DeleteAclsResponse(Message, api_key=31, versions="0-3", flexible="2+"):
    """The ACLs that every filter removed."""

    class DeleteAclsMatchingAcl(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        pattern_type: int = int8("1+", 3)
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    class DeleteAclsFilterResult(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = array("0+")

    throttle_time_ms: int = int32("0+")
    filter_results: list[DeleteAclsFilterResult] = array("0+")
