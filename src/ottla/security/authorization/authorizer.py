"""Decides by ACLs, super users and the default whether an operation is allowed.

Zone: deterministic. The order of a decision, as in Kafka:

1. A super user may do everything.
2. If the resource has no ACL at all, for any principal, `allow.everyone.if.no.acl.found` decides.
3. An ACL that denies this operation, or all, wins, however general it is.
4. An ACL must allow this operation, all, or one that implies it: READ, WRITE, DELETE and ALTER imply DESCRIBE,
   ALTER_CONFIGS implies DESCRIBE_CONFIGS. Denying an operation denies no other one.
5. Otherwise the operation is denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.acls import (
    SUPPORTED_OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.changes import changes_state
from ottla.security.authorization.acl_index import DENY_SHIFT, AclIndex

EVERY_OPERATION: Final = sum(1 << operation for operation in Operation)
DENY_EVERYTHING: Final = AclEntry(WILDCARD_PRINCIPAL, WILDCARD, Operation.ALL, Permission.DENY)
_ALL: Final = 1 << Operation.ALL
_IMPLIES_DESCRIBE: Final = 1 << Operation.READ | 1 << Operation.WRITE | 1 << Operation.DELETE | 1 << Operation.ALTER
_IMPLIES_DESCRIBE_CONFIGS: Final = 1 << Operation.ALTER_CONFIGS


class Decision(NamedTuple):
    """A decision with its reason, for the audit log and `ottla acl check`."""

    allowed: bool
    reason: str
    acl: AclBinding | None = None
    """The ACL that decided, if one did."""


class Authorizer:
    """The ACLs of the cluster and the settings of this broker.

    Until all ACLs were read (`is_loaded`), only super users are allowed anything: an ACL that denies may be missing.
    """

    def __init__(self, super_users: Iterable[str] = (), *, allow_without_acl: bool = False) -> None:
        """super_users: principals as text, `User:admin`; allow_without_acl: `allow.everyone.if.no.acl.found`."""
        self._super_users = frozenset(super_users)
        self._allow_without_acl = allow_without_acl
        self.acls = AclIndex()
        self.is_loaded = False
        """Whether all ACLs were read once; `mark_loaded` sets it."""
        self.generation = 0
        """Rises when a decision may have changed; caches compare it."""
        self.caches = 0
        """How many connections have a cache."""

    def is_super_user(self, principal: str) -> bool:
        """Whether a principal may do everything, whatever the ACLs are."""
        return principal in self._super_users

    def mark_loaded(self) -> None:
        """All ACLs were read: decide by them from now on."""
        if not self.is_loaded:
            self.is_loaded = True
            self.generation += 1

    def deny_resource(self, resource: ResourcePattern) -> None:
        """Deny everything at a resource whose ACLs cannot be read, to all but super users."""
        self.replace_acls(resource, [DENY_EVERYTHING])

    @changes_state
    def replace_acls(self, resource: ResourcePattern, entries: Iterable[AclEntry]) -> None:
        """Make these the only ACLs of a resource."""
        if self.acls.replace_acls(resource, entries):
            self.generation += 1

    def allowed_operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """The operations that are allowed at a resource: bit n for operation n."""
        if principal in self._super_users:
            return EVERY_OPERATION
        if not self.is_loaded:
            return 0
        rights = self.acls.rights_of(principal, host, resource_type, name)
        if rights is None:
            return EVERY_OPERATION if self._allow_without_acl else 0
        denied = rights >> DENY_SHIFT
        if denied & _ALL:
            return 0
        if rights & _ALL:
            return EVERY_OPERATION & ~denied
        if rights & _IMPLIES_DESCRIBE:
            rights |= 1 << Operation.DESCRIBE
        if rights & _IMPLIES_DESCRIBE_CONFIGS:
            rights |= 1 << Operation.DESCRIBE_CONFIGS
        return rights & EVERY_OPERATION & ~denied

    def is_allowed(self, principal: str, host: str, operation: Operation, resource: tuple[ResourceType, str]) -> bool:
        """Whether an operation is allowed at a resource (type, name)."""
        return bool(self.allowed_operations(principal, host, *resource) >> operation & 1)

    def is_allowed_anywhere(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there can be a resource of this type at which the operation is allowed (KIP-679).

        A producer without IDEMPOTENT_WRITE may initialize a producer id if it may write to any topic. Implied
        operations do not count, as in Kafka.
        """
        if principal in self._super_users:
            return True
        if not self.is_loaded:
            return False
        who = (principal, host, resource_type)
        denied = _join_names(self.acls, who, PatternType.LITERAL, Permission.DENY, operation)
        if WILDCARD in denied:
            return False
        # In Kafka's order: a resource without an ACL would be allowed, unless an ACL denies the operation at all of
        # them.
        if self._allow_without_acl:
            return True
        denied_prefixes = _join_names(self.acls, who, PatternType.PREFIXED, Permission.DENY, operation)
        allowed = self.acls.names_with(*who, PatternType.LITERAL, Permission.ALLOW, operation)
        prefixes = self.acls.names_with(*who, PatternType.PREFIXED, Permission.ALLOW, operation)
        if not denied and not denied_prefixes:
            return bool(allowed or prefixes)
        lengths = sorted({len(prefix) for prefix in denied_prefixes})
        return any(
            name == WILDCARD or not _begins_with_any(name, denied_prefixes, lengths)
            for names in allowed
            for name in names - denied
        ) or any(not _begins_with_any(prefix, denied_prefixes, lengths) for names in prefixes for prefix in names)

    def reported_operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        """The `authorized_operations` of a response: allowed ones, among those that exist for the type."""
        allowed = self.allowed_operations(principal, host, resource_type, name)
        return allowed & sum(1 << operation for operation in SUPPORTED_OPERATIONS[resource_type])

    def explain_decision(
        self, principal: str, host: str, operation: Operation, resource: tuple[ResourceType, str]
    ) -> Decision:
        """The decision with its reason. Slower than `is_allowed`: only for decisions that are logged or asked for."""
        if principal in self._super_users:
            return Decision(True, f"{principal} is a super user")
        if not self.is_loaded:
            return Decision(False, "the ACLs have not been read yet")
        found = list(self.acls.matching_resources(*resource))
        if not found:
            return Decision(
                self._allow_without_acl,
                f"the resource has no ACL, and allow.everyone.if.no.acl.found={str(self._allow_without_acl).lower()}",
            )
        who = (principal, host)
        denying = self._first_acl(found, who, Permission.DENY, (operation,))
        if denying is not None:
            return Decision(False, f"denied by: {denying}", denying)
        allowing = self._first_acl(found, who, Permission.ALLOW, _implying(operation))
        if allowing is not None:
            return Decision(True, f"allowed by: {allowing}", allowing)
        return Decision(False, f"no ACL of the resource allows {operation.title} to {principal} from {host}")

    def _first_acl(
        self,
        resources: list[ResourcePattern],
        who: tuple[str, str],
        permission: Permission,
        operations: tuple[Operation, ...],
    ) -> AclBinding | None:
        for resource in resources:
            entry = self.acls.find_entry(resource, who, permission, (Operation.ALL, *operations))
            if entry is not None:
                return AclBinding(resource, entry)
        return None


def _implying(operation: Operation) -> tuple[Operation, ...]:
    """The operations of which one must be allowed."""
    if operation is Operation.DESCRIBE:
        return (Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    if operation is Operation.DESCRIBE_CONFIGS:
        return (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    return (operation,)


def _join_names(
    acls: AclIndex,
    who: tuple[str, str, ResourceType],
    pattern_type: PatternType,
    permission: Permission,
    operation: Operation,
) -> set[str]:
    return set().union(*acls.names_with(*who, pattern_type, permission, operation))


def _begins_with_any(name: str, prefixes: set[str], lengths: list[int]) -> bool:
    return any(name[:length] in prefixes for length in lengths if length <= len(name))
