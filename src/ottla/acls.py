"""Access control lists: resource types, operations, entries, and the filters that select entries.

Zone: pure. Values and their matching; the numbers are those of the protocol. `security.authorization` decides with
them, `znodes.acl_nodes` stores them.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple, Self

WILDCARD: Final = "*"
"""As the name of a literal resource: every name. As a host: every host."""
WILDCARD_PRINCIPAL: Final = "User:*"
"""Every principal, whatever its type."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of the type CLUSTER."""


class _Code(IntEnum):
    """A number of the protocol. Numbers that are not known are UNKNOWN, so that a filter with one can be refused."""

    __hash__ = int.__hash__  # Enum's own is a Python function, which is slow for dictionaries on the hot path

    @classmethod
    def _missing_(cls, _value: object) -> Self:
        return cls(0)

    @property
    def title(self) -> str:
        """Kafka's spelling in nodes, messages and options: DESCRIBE_CONFIGS is DescribeConfigs."""
        return self.name.title().replace("_", "")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The member of a name in any spelling (DescribeConfigs, DESCRIBE_CONFIGS); UNKNOWN for others."""
        return cls(_names_of(cls).get(text.replace("_", "").upper(), 0))


@cache
def _names_of(kind: type[_Code]) -> dict[str, int]:
    """The members by their names without underscores: a node may have thousands of ACLs."""
    return {member.name.replace("_", ""): int(member) for member in kind}


class ResourceType(_Code):
    """What an ACL is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How the name of a resource is compared. ANY and MATCH occur only in filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Code):
    """What is done with a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Code):
    """Whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED_OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that exist for a resource; `authorized_operations` of a response reports these."""


class ResourcePattern(NamedTuple):
    """The resources that an ACL is about: a name, all names (literal `*`), or all names with a prefix."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.resource_type.title}:{self.pattern_type.name}:{self.name}"


class AclEntry(NamedTuple):
    """Who may, or may not, do what, from where."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return f"{self.permission.title} {self.operation.title} for {self.principal} from host {self.host}"


class AclBinding(NamedTuple):
    """An entry at its resource."""

    resource: ResourcePattern
    entry: AclEntry

    def __str__(self) -> str:
        return f"{self.entry} on {self.resource}"


class ResourceFilter(NamedTuple):
    """Selects resources. MATCH selects the patterns that decide about a resource of this name."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY

    def matches_resource(self, resource: ResourcePattern) -> bool:
        """Whether the resource is selected."""
        # 1. the type, 2. how the pattern was created, 3. its name.
        if self.resource_type not in (ResourceType.ANY, resource.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, resource.pattern_type):
            return False
        if self.name is None:
            return True
        # MATCH asks for the ACLs that decide about a resource: its own, those of `*`, and those of its prefixes.
        if self.pattern_type is not PatternType.MATCH:
            return self.name == resource.name
        if resource.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(resource.name)
        return resource.name in (self.name, WILDCARD)


class EntryFilter(NamedTuple):
    """Selects entries. None and ANY select everything; a wildcard is compared as text."""

    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches_entry(self, entry: AclEntry) -> bool:
        """Whether the entry is selected."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )


class AclFilter(NamedTuple):
    """Selects ACLs, as in DescribeAcls and DeleteAcls."""

    resource: ResourceFilter = ResourceFilter()
    entry: EntryFilter = EntryFilter()

    def matches_binding(self, binding: AclBinding) -> bool:
        """Whether the ACL is selected."""
        return self.resource.matches_resource(binding.resource) and self.entry.matches_entry(binding.entry)


def fault_of_binding(binding: AclBinding) -> str:
    """Why an ACL cannot be created; empty if it can be. Kafka's error for all of these is INVALID_REQUEST."""
    resource, entry = binding
    if resource.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return f"Invalid resourceType {resource.resource_type.name}"
    if resource.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {resource.pattern_type.name}"
    if entry.operation in (Operation.UNKNOWN, Operation.ANY):
        return f"Invalid operation {entry.operation.name}"
    if entry.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {entry.permission.name}"
    if not resource.name:
        return "Resource name should not be empty"
    if resource.resource_type is ResourceType.CLUSTER and resource.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if ":" not in entry.principal:
        return "the principal is not of the form type:name"
    return "" if entry.host else "the host is empty; * means every host"


def fault_of_filter(selected: AclFilter) -> str:
    """Why a filter cannot be used; empty if it can be."""
    if ResourceType.UNKNOWN in selected.resource[:1] or selected.resource.pattern_type is PatternType.UNKNOWN:
        return "Unknown patternFilter."
    if selected.entry.operation is Operation.UNKNOWN or selected.entry.permission is Permission.UNKNOWN:
        return "Unknown entryFilter."
    return ""


def normalize_host(address: str) -> str:
    """An address as the host of an ACL: Java's text, because ACLs of Kafka's tools contain that.

    1. IPv6 has all eight groups, without leading zeros. 2. IPv4 inside of IPv6 is IPv4. 3. Others stay as they are.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":"))
