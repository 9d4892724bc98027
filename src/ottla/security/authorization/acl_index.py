"""All ACLs of the cluster, indexed so that a decision reads only those of its resource and principal.

Zone: deterministic. Nothing here walks over all ACLs, except a filter without a name.

The ACLs of a resource are numbers: for a principal and a host, bit n allows operation n, and bit 32 + n denies it. An
entry is exactly one bit, so entries are added, removed and listed without a second copy of them. The rights at a
resource are the `or` of at most four numbers (this principal or all, this host or all) for each pattern that matches
the name: the literal, the literal `*`, and the prefixes. Prefixes are looked up by the lengths that occur.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator
from typing import Final

from ottla.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    AclBinding,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
)

DENY_SHIFT: Final = 32
"""Bit n + DENY_SHIFT denies operation n."""
EVERY_RESOURCE: Final = ResourceFilter()
_EVERYONE: Final = (WILDCARD_PRINCIPAL, WILDCARD)
_CONCRETE: Final = (PatternType.LITERAL, PatternType.PREFIXED)

_Rights = dict[tuple[str, str], int]
"""The bits of (principal, host)."""


def _bit_of(permission: Permission, operation: Operation) -> int:
    return operation if permission is Permission.ALLOW else operation + DENY_SHIFT


def _entries_of(rights: _Rights) -> Iterator[AclEntry]:
    for (principal, host), bits in rights.items():
        for operation in Operation:
            if bits >> operation & 1:
                yield AclEntry(principal, host, operation, Permission.ALLOW)
            if bits >> operation + DENY_SHIFT & 1:
                yield AclEntry(principal, host, operation, Permission.DENY)


class _Prefixes:
    """The prefixed patterns of one resource type."""

    def __init__(self) -> None:
        self.rights: dict[str, _Rights] = {}
        self._lengths: list[int] = []
        """The lengths of all prefixes, sorted, each once."""
        self._counts: dict[int, int] = {}

    def add_prefix(self, prefix: str) -> _Rights:
        length = len(prefix)
        self._counts[length] = self._counts.get(length, 0) + 1
        if self._counts[length] == 1:
            insort(self._lengths, length)
        rights: _Rights = {}
        self.rights[prefix] = rights
        return rights

    def remove_prefix(self, prefix: str) -> None:
        del self.rights[prefix]
        length = len(prefix)
        self._counts[length] -= 1
        if not self._counts[length]:
            del self._counts[length]
            self._lengths.remove(length)

    def prefixes_of(self, name: str) -> Iterator[str]:
        """The patterns that the name begins with."""
        for length in self._lengths[: bisect_right(self._lengths, len(name))]:
            prefix = name[:length]
            if prefix in self.rights:
                yield prefix


class AclIndex:
    """The ACLs by resource, and the resources by entry."""

    def __init__(self) -> None:
        self._literal: dict[ResourceType, dict[str, _Rights]] = {kind: {} for kind in ResourceType}
        self._prefixed: dict[ResourceType, _Prefixes] = {kind: _Prefixes() for kind in ResourceType}
        self._names: dict[tuple[ResourceType, PatternType, str, str, int], set[str]] = {}
        """Names of patterns by their entry (type, pattern type, principal, host, bit): for `names_with`."""

    # -- changes -----------------------------------------------------------------------------------------------------

    def replace_acls(self, resource: ResourcePattern, entries: Iterable[AclEntry]) -> bool:
        """Make these the only ACLs of a resource; without any, the resource has none. Returns whether that differs."""
        wanted, rights = frozenset(entries), self._rights_at(resource)
        present = frozenset(() if rights is None else _entries_of(rights))
        if wanted == present:
            return False
        if rights is None:
            rights = self._add_resource(resource)
        for entry in present - wanted:
            self._remove_entry(resource, rights, entry)
        for entry in wanted - present:
            self._add_entry(resource, rights, entry)
        if not rights:
            self._remove_resource(resource)
        return True

    def _add_resource(self, resource: ResourcePattern) -> _Rights:
        if resource.pattern_type is PatternType.PREFIXED:
            return self._prefixed[resource.resource_type].add_prefix(resource.name)
        rights = self._literal[resource.resource_type][resource.name] = {}
        return rights

    def _remove_resource(self, resource: ResourcePattern) -> None:
        if resource.pattern_type is PatternType.PREFIXED:
            self._prefixed[resource.resource_type].remove_prefix(resource.name)
        else:
            del self._literal[resource.resource_type][resource.name]

    def _add_entry(self, resource: ResourcePattern, rights: _Rights, entry: AclEntry) -> None:
        bit, who = _bit_of(entry.permission, entry.operation), (entry.principal, entry.host)
        rights[who] = rights.get(who, 0) | 1 << bit
        self._names.setdefault((resource.resource_type, resource.pattern_type, *who, bit), set()).add(resource.name)

    def _remove_entry(self, resource: ResourcePattern, rights: _Rights, entry: AclEntry) -> None:
        bit, who = _bit_of(entry.permission, entry.operation), (entry.principal, entry.host)
        rights[who] &= ~(1 << bit)
        if not rights[who]:
            del rights[who]
        key = (resource.resource_type, resource.pattern_type, *who, bit)
        self._names[key].remove(resource.name)
        if not self._names[key]:
            del self._names[key]

    # -- look-ups ----------------------------------------------------------------------------------------------------

    def _rights_at(self, resource: ResourcePattern) -> _Rights | None:
        if resource.pattern_type is PatternType.PREFIXED:
            return self._prefixed[resource.resource_type].rights.get(resource.name)
        return self._literal[resource.resource_type].get(resource.name)

    def matching_resources(self, resource_type: ResourceType, name: str) -> Iterator[ResourcePattern]:
        """The patterns with ACLs that decide about a resource."""
        literals = self._literal[resource_type]
        if name in literals:
            yield ResourcePattern(resource_type, name)
        if WILDCARD in literals and name != WILDCARD:
            yield ResourcePattern(resource_type, WILDCARD)
        for prefix in self._prefixed[resource_type].prefixes_of(name):
            yield ResourcePattern(resource_type, prefix, PatternType.PREFIXED)

    def rights_of(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int | None:
        """The bits that allow and deny at a resource; None: the resource has no ACLs, for any principal."""
        literals, prefixes = self._literal[resource_type], self._prefixed[resource_type]
        matching = [rights for rights in (literals.get(name), literals.get(WILDCARD)) if rights is not None]
        matching += [prefixes.rights[prefix] for prefix in prefixes.prefixes_of(name)]
        if not matching:
            return None
        found = 0
        for rights in matching:
            for who in ((principal, host), (principal, WILDCARD), (WILDCARD_PRINCIPAL, host), _EVERYONE):
                found |= rights.get(who, 0)
        return found

    def names_with(
        self,
        principal: str,
        host: str,
        resource_type: ResourceType,
        pattern_type: PatternType,
        permission: Permission,
        operation: Operation,
    ) -> list[set[str]]:
        """Sets of names of patterns at which this operation, or every operation, is allowed or denied."""
        sets = []
        for who in {(principal, host), (principal, WILDCARD), (WILDCARD_PRINCIPAL, host), _EVERYONE}:
            for each in {operation, Operation.ALL}:
                names = self._names.get((resource_type, pattern_type, *who, _bit_of(permission, each)))
                if names is not None:
                    sets.append(names)
        return sets

    def entries_at(self, resource: ResourcePattern) -> frozenset[AclEntry]:
        """All ACLs of a resource."""
        return frozenset(_entries_of(self._rights_at(resource) or {}))

    def find_entry(
        self,
        resource: ResourcePattern,
        who: tuple[str, str],
        permission: Permission,
        operations: Iterable[Operation],
    ) -> AclEntry | None:
        """The first ACL of a resource that allows, or denies, one of these operations to (principal, host)."""
        rights, (principal, host) = self._rights_at(resource) or {}, who
        for each in ((principal, host), (principal, WILDCARD), (WILDCARD_PRINCIPAL, host), _EVERYONE):
            for operation in operations:
                if rights.get(each, 0) >> _bit_of(permission, operation) & 1:
                    return AclEntry(*each, operation, permission)
        return None

    def select_resources(self, selected: ResourceFilter = EVERY_RESOURCE) -> Iterator[ResourcePattern]:
        """The resources with ACLs that a filter selects. With a name, only resources of that name are read.

        The index may change during the iteration.
        """
        wanted, name, pattern_type = selected
        for resource_type in ResourceType if wanted is ResourceType.ANY else (wanted,):
            # 1. No name: all resources. 2. MATCH: those that decide about the name. 3. The resources of this name.
            if name is None:
                if pattern_type is not PatternType.PREFIXED:
                    yield from (ResourcePattern(resource_type, each) for each in list(self._literal[resource_type]))
                if pattern_type is not PatternType.LITERAL:
                    for prefix in list(self._prefixed[resource_type].rights):
                        yield ResourcePattern(resource_type, prefix, PatternType.PREFIXED)
            elif pattern_type is PatternType.MATCH:
                yield from list(self.matching_resources(resource_type, name))
            else:
                named = (ResourcePattern(resource_type, name, each) for each in _CONCRETE)
                yield from (each for each in named if selected.matches_resource(each) and self._rights_at(each))

    def select_acls(self, selected: AclFilter) -> Iterator[AclBinding]:
        """The ACLs that a filter selects, by resource."""
        for resource in self.select_resources(selected.resource):
            for entry in list(_entries_of(self._rights_at(resource) or {})):
                if selected.entry.matches_entry(entry):
                    yield AclBinding(resource, entry)
