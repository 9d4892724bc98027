"""A whole broker with an authorizer, and requests of several principals to it.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.handnode import Asker, Node

from ottla.acls import Operation, PatternType, Permission, ResourceType
from ottla.config.broker_authorizer import AUTHORIZERS
from ottla.errors import ErrorCode
from ottla.wire.messages import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

SETTINGS = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:boss"}
CLUSTER = "kafka-cluster"
TITLES = {kind.title: kind for kind in ResourceType}


def creation(text: str, principal: str, operation: str, **more: Any) -> CreateAclsRequest.AclCreation:
    """An ACL for "Topic t" or "Topic t+" (prefixed)."""
    kind, _, name = text.partition(" ")
    is_prefixed = name.endswith("+")
    return CreateAclsRequest.AclCreation(
        resource_type=TITLES[kind],
        resource_name=name.removesuffix("+") or CLUSTER,
        resource_pattern_type=PatternType.PREFIXED if is_prefixed else PatternType.LITERAL,
        principal=principal,
        host=more.get("host", "*"),
        operation=Operation.from_text(operation),
        permission_type=Permission.DENY if more.get("deny") else Permission.ALLOW,
    )


def connection(principal: str, host: str = "127.0.0.1") -> Asker:
    peer = Asker()
    peer.principal, peer.host = principal, host
    return peer


class Guarded(Node):
    """Its own client is the super user User:boss."""

    def __init__(self, **properties: str) -> None:
        super().__init__({**SETTINGS, **{key.replace("_", "."): value for key, value in properties.items()}})
        self.peer.principal = "User:boss"
        self.peers: dict[str, Asker] = {}

    def connection_of(self, principal: str) -> Asker:
        """The one connection of a principal."""
        return self.peers.setdefault(principal, connection(principal))

    def ask_as(self, principal: str, request: Any, version: int) -> Any:
        """The response to a request of a principal."""
        return self.answer(self.send(request, version, self.connection_of(principal)))

    def grant(self, text: str, principal: str, *operations: str, **more: Any) -> None:
        """Create ACLs at "Topic t": one for each operation."""
        creations = [creation(text, principal, operation, **more) for operation in operations]
        response = self.ask(CreateAclsRequest(creations=creations), 2)
        assert [each.error_code for each in response.results] == [0] * len(creations), response.results

    def revoke(self, principal: str | None = None) -> int:
        """Delete all ACLs of a principal. Returns their number."""
        everything = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=ResourceType.ANY,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=principal,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        (result,) = self.ask(DeleteAclsRequest(filters=[everything]), 2).filter_results
        assert result.error_code == 0, result.error_message
        return len(result.matching_acls)

    def listed(self, **selected: Any) -> list[str]:
        """The ACLs that a filter selects, as text."""
        fields = {
            "resource_type_filter": ResourceType.ANY, "resource_name_filter": None,
            "pattern_type_filter": PatternType.ANY, "principal_filter": None, "host_filter": None,
            "operation": Operation.ANY, "permission_type": Permission.ANY, **selected,
        }  # fmt: skip
        response = self.ask(DescribeAclsRequest(**fields), 2)
        assert response.error_code == 0, response.error_message
        return sorted(
            f"{Permission(acl.permission_type).title} {acl.principal} {Operation(acl.operation).title} from {acl.host}"
            f" on {ResourceType(each.resource_type).title}:{PatternType(each.pattern_type).name}:{each.resource_name}"
            for each in response.resources
            for acl in each.acls
        )


def errors_in(message: Any) -> Iterator[ErrorCode]:
    """All error codes of a response, at every level."""
    for field in type(message).FIELDS:
        value = getattr(message, field.name)
        if field.name in ("error_code", "partition_error_code"):
            yield ErrorCode(value)
        elif isinstance(value, list):
            for element in value:
                if hasattr(type(element), "FIELDS"):
                    yield from errors_in(element)
