"""An independent model of decisions by ACLs: it walks over a list, and shares no code with the index.

Zone: pure. Written from Kafka's documented rules. A rule can be left out, to show that the comparison notices it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from ottla.acls import AclBinding, AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType

PRINCIPALS = ("User:ann", "User:bob", "Group:ann", "User:*")
HOSTS = ("10.0.0.1", "10.0.0.2", "*")
NAMES = ("*", "a", "ab", "abc", "abd", "b", "ba", "é", "a*")
TYPES = (ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = tuple(operation for operation in Operation if operation > Operation.ANY)
ASKED = tuple(operation for operation in Operation if operation > Operation.ALL)
FREQUENT = ("ALL", "READ", "WRITE", "DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")
"""Operations that interact with others: most random ACLs and questions are about these."""

IMPLIED_BY = {
    "DESCRIBE": ("READ", "WRITE", "DELETE", "ALTER"),
    "DESCRIBE_CONFIGS": ("ALTER_CONFIGS",),
}


def applies_to_name(resource: ResourcePattern, name: str, without: str = "") -> bool:
    if resource.pattern_type is PatternType.LITERAL:
        return resource.name == name or (resource.name == "*" and without != "wildcard")
    if without == "prefix":
        return resource.name == name
    return name[: len(resource.name)] == resource.name


def decide(
    acls: Iterable[AclBinding],
    principal: str,
    host: str,
    operation: Operation,
    resource: tuple[ResourceType, str],
    *,
    default: bool = False,
    without: str = "",
) -> bool:
    """without: the rule that is left out."""
    kind, name = resource
    entries = [
        acl.entry for acl in acls if acl.resource.resource_type == kind and applies_to_name(acl.resource, name, without)
    ]
    if not entries:
        return default
    allowed = denied = False
    for entry in entries:
        if entry.principal != principal and (entry.principal != "User:*" or without == "principal"):
            continue
        if without != "host" and entry.host not in (host, "*"):
            continue
        if entry.permission.name == "DENY":
            denied |= entry.operation.name in (operation.name, "ALL")
        else:
            implied = () if without == "implied" else IMPLIED_BY.get(operation.name, ())
            allowed |= entry.operation.name in (operation.name, "ALL", *implied)
    return allowed and (not denied or without == "deny")


def decide_anywhere(
    acls: Iterable[AclBinding], principal: str, host: str, operation: Operation, kind: ResourceType
) -> bool:
    """KIP-679: an allowing pattern that no denying pattern covers."""
    mine = [
        acl
        for acl in acls
        if acl.resource.resource_type == kind
        and acl.entry.principal in (principal, "User:*")
        and acl.entry.host in (host, "*")
        and acl.entry.operation.name in (operation.name, "ALL")
    ]
    denying = [acl.resource for acl in mine if acl.entry.permission.name == "DENY"]
    allowing = [acl.resource for acl in mine if acl.entry.permission.name == "ALLOW"]
    if any(resource.name == "*" and resource.pattern_type is PatternType.LITERAL for resource in denying):
        return False
    return any(not _is_covered(resource, denying) for resource in allowing)


def _is_covered(resource: ResourcePattern, denying: list[ResourcePattern]) -> bool:
    if resource.name == "*" and resource.pattern_type is PatternType.LITERAL:
        return False  # there are always names that no prefix covers
    for other in denying:
        if other.pattern_type is PatternType.PREFIXED:
            if resource.name.startswith(other.name):
                return True
        elif resource.pattern_type is PatternType.LITERAL and other.name == resource.name:
            return True
    return False


def random_acls(rng: random.Random, count: int) -> frozenset[AclBinding]:
    return frozenset(random_acl(rng) for _ in range(count))


def random_acl(rng: random.Random) -> AclBinding:
    pattern = rng.choice((PatternType.LITERAL, PatternType.PREFIXED))
    return AclBinding(
        ResourcePattern(rng.choice(TYPES), rng.choice(NAMES), pattern),
        AclEntry(
            rng.choice(PRINCIPALS),
            rng.choice(HOSTS),
            random_operation(rng, OPERATIONS),
            rng.choice((Permission.ALLOW, Permission.ALLOW, Permission.DENY)),
        ),
    )


def random_operation(rng: random.Random, among: tuple[Operation, ...]) -> Operation:
    frequent = tuple(operation for operation in among if operation.name in FREQUENT)
    return rng.choice(frequent if rng.random() < 0.8 else among)


def random_question(rng: random.Random) -> tuple[str, str, Operation, tuple[ResourceType, str]]:
    return (
        rng.choice(PRINCIPALS[:3]),
        rng.choice(("10.0.0.1", "10.0.0.2", "10.0.0.3")),
        random_operation(rng, ASKED),
        (rng.choice(TYPES), rng.choice((*NAMES, "abcd", "x"))),
    )
