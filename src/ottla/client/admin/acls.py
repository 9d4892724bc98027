"""Access control lists of a cluster: list, create and delete them.

Zone: real. Sends DescribeAcls, CreateAcls and DeleteAcls (KIP-140; KIP-290 added prefixes). The values are those of
`ottla.acls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ottla.acls import (
    AclBinding,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, MalformedReplyError, UnsupportedVersionError, refused_error
from ottla.client.retry import Deadline
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

EVERY_ACL: Final = AclFilter()


class AclAdmin:
    """Calls about ACLs over a Cluster, which the caller closes. One thread per object.

    A broker without an authorizer answers SECURITY_DISABLED. Describing needs DESCRIBE on the cluster, changing ALTER:
    CLUSTER_AUTHORIZATION_FAILED.
    """

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe_acls(self, selected: AclFilter = EVERY_ACL, deadline: Deadline | None = None) -> list[AclBinding]:
        """The ACLs that a filter selects, sorted. Raises RefusedError and the errors of every call."""
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_ACLS,
            lambda version: _describe_request(selected, version),
            DescribeAclsResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "ACLs", answer.error_message),
        )
        return sorted(_described(answer))

    def create_acls(
        self, bindings: Iterable[AclBinding], deadline: Deadline | None = None
    ) -> dict[AclBinding, ClientError | None]:
        """Add ACLs; None for each that is there now. One that exists already is no error.

        An ACL that cannot exist (`ottla.acls.fault_of_binding`) gets INVALID_REQUEST in its place.
        """
        wanted = list(dict.fromkeys(bindings))
        answer = self._cluster.send_request(
            ApiKey.CREATE_ACLS, lambda version: _create_request(wanted, version), CreateAclsResponse, deadline=deadline
        )
        _check_count("CreateAcls", len(answer.results), len(wanted))
        return {
            binding: refused_error(result.error_code, f"ACL ({binding})", result.error_message)
            for binding, result in zip(wanted, answer.results, strict=True)
        }

    def delete_acls(
        self, filters: Iterable[AclFilter], deadline: Deadline | None = None
    ) -> dict[AclFilter, dict[AclBinding, ClientError | None] | ClientError]:
        """Delete all ACLs that one of the filters selects.

        Per filter its error, or the ACLs that it selected: None for each that was deleted.
        """
        wanted = list(dict.fromkeys(filters))
        answer = self._cluster.send_request(
            ApiKey.DELETE_ACLS, lambda version: _delete_request(wanted, version), DeleteAclsResponse, deadline=deadline
        )
        _check_count("DeleteAcls", len(answer.filter_results), len(wanted))
        return {
            selected: refused_error(result.error_code, "deletion of ACLs", result.error_message) or _deleted(result)
            for selected, result in zip(wanted, answer.filter_results, strict=True)
        }


def _check_count(api: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise MalformedReplyError(f"the response to {api} has {found} results for {wanted} elements")


def _pattern_number(pattern_type: PatternType, version: int, *, filtered: bool) -> int:
    """The pattern type in a request. Version 0 has none, because all names were literal; there ANY is the same.

    Raises UnsupportedVersionError.
    """
    if version > 0:
        return pattern_type
    if pattern_type is not PatternType.LITERAL and not (filtered and pattern_type is PatternType.ANY):
        raise UnsupportedVersionError(
            f"this broker knows only ACLs of literal names, not {pattern_type.name}", "Use Apache Kafka 2.0 or newer"
        )
    return PatternType.LITERAL


def _describe_request(selected: AclFilter, version: int) -> DescribeAclsRequest:
    resource, entry = selected
    return DescribeAclsRequest(
        resource_type_filter=resource.resource_type,
        resource_name_filter=resource.name,
        pattern_type_filter=_pattern_number(resource.pattern_type, version, filtered=True),
        principal_filter=entry.principal,
        host_filter=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _create_request(bindings: Iterable[AclBinding], version: int) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=resource.resource_type,
                resource_name=resource.name,
                resource_pattern_type=_pattern_number(resource.pattern_type, version, filtered=False),
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for resource, entry in bindings
        ]
    )


def _delete_request(filters: Iterable[AclFilter], version: int) -> DeleteAclsRequest:
    return DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=resource.resource_type,
                resource_name_filter=resource.name,
                pattern_type_filter=_pattern_number(resource.pattern_type, version, filtered=True),
                principal_filter=entry.principal,
                host_filter=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for resource, entry in filters
        ]
    )


def _described(answer: DescribeAclsResponse) -> Iterator[AclBinding]:
    for found in answer.resources:
        resource = ResourcePattern(
            ResourceType(found.resource_type), found.resource_name, PatternType(found.pattern_type)
        )
        for acl in found.acls:
            yield AclBinding(
                resource, AclEntry(acl.principal, acl.host, Operation(acl.operation), Permission(acl.permission_type))
            )


def _deleted(result: DeleteAclsResponse.DeleteAclsFilterResult) -> dict[AclBinding, ClientError | None]:
    deleted: dict[AclBinding, ClientError | None] = {}
    for acl in result.matching_acls:
        resource = ResourcePattern(ResourceType(acl.resource_type), acl.resource_name, PatternType(acl.pattern_type))
        entry = AclEntry(acl.principal, acl.host, Operation(acl.operation), Permission(acl.permission_type))
        binding = AclBinding(resource, entry)
        deleted[binding] = refused_error(acl.error_code, f"deletion of the ACL ({binding})", acl.error_message)
    return deleted
