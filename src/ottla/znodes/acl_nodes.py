"""Kafka's nodes of ACLs: paths, JSON and notifications, as Apache Kafka 3.9 writes and reads them.

Zone: pure. All ACLs of a resource are one node, so a change replaces its whole content on the condition of the node's
version, and two writers cannot lose each other's entries. After it the writer creates a sequential notification that
names the resource; brokers watch the notifications and read that one node again. Literal and prefixed patterns have
separate nodes and notifications, because brokers before Kafka 2.0 know only the former.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple

from ottla.acls import AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from ottla.znodes.tree import BadPath, check_path

_ROOTS: Final = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
_CHANGES: Final = {PatternType.LITERAL: "/kafka-acl-changes", PatternType.PREFIXED: "/kafka-acl-extended-changes"}
ACL_CHANGES: Final = tuple(_CHANGES.values())
"""The parents of the notifications."""
_VERSION: Final = 1
_TYPES: Final = tuple(kind for kind in ResourceType if kind > ResourceType.ANY)


def type_path(resource_type: ResourceType, pattern_type: PatternType) -> str:
    """Path of the parent of the resources of a type; its children are their names."""
    return f"{_ROOTS[pattern_type]}/{resource_type.title}"


def acl_path(resource: ResourcePattern) -> str:
    """Path of the ACLs of a resource that `fault_of_node_name` accepts."""
    return f"{type_path(resource.resource_type, resource.pattern_type)}/{resource.name}"


PERSISTENT_ACL_PATHS: Final = (
    "/kafka-acl",
    "/kafka-acl-extended",
    "/kafka-acl-extended/prefixed",
    *ACL_CHANGES,
    *(type_path(kind, pattern) for pattern in _ROOTS for kind in _TYPES),
)
"""Nodes that a broker with an authorizer creates if they are missing, parents first."""
ACL_TYPE_PATHS: Final = tuple((type_path(kind, pattern), kind, pattern) for pattern in _ROOTS for kind in _TYPES)
"""(path, type, pattern type) of all parents of ACLs: a start reads the children of each."""


def fault_of_node_name(resource: ResourcePattern) -> str:
    """Why the ACLs of a resource cannot be stored under its name; empty if they can be.

    The layout does not escape names. Kafka fails for these names with an error of ZooKeeper.
    """
    # ZooKeeper refuses U+FFF0 and everything above it, which the embedded store accepts.
    wrong = next((char for char in resource.name if char == "/" or char >= "\ufff0"), None)
    if wrong is not None:
        return f"the name contains {wrong!r}, which the name of a node cannot contain"
    try:
        check_path(acl_path(resource))
    except BadPath as error:
        return str(error)
    return ""


def encode_acls(entries: Iterable[AclEntry]) -> bytes:
    """Encode all ACLs of a resource. The keys have the order of Kafka's hash map; the entries are sorted."""
    content = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission.title,
            "host": entry.host,
            "operation": entry.operation.title,
        }
        for entry in sorted(entries)
    ]
    return _encode_json({"acls": content, "version": _VERSION})


def decode_acls(path: str, data: bytes) -> frozenset[AclEntry]:
    """Decode the ACLs of a resource; an empty node has none.

    Raises ValueError. An entry that cannot be read may be a denial, so none of the others is returned: the caller has
    to deny everything at the resource.
    """
    if not data:
        return frozenset()
    content = _decode_object(path, data)
    if content.get("version") != _VERSION:
        raise ValueError(f"{path} has version {content.get('version')!r}, not {_VERSION}")
    acls = content.get("acls")
    if not isinstance(acls, list):
        raise ValueError(f"{path} has no list of ACLs")
    return frozenset(_decode_entry(path, each) for each in acls)


def _decode_entry(path: str, value: object) -> AclEntry:
    if not isinstance(value, dict):
        raise ValueError(f"{path} contains an ACL that is not an object")
    principal, host = _text_at(path, value, "principal"), _text_at(path, value, "host")
    operation = Operation.from_text(_text_at(path, value, "operation"))
    permission = Permission.from_text(_text_at(path, value, "permissionType"))
    if ":" not in principal or operation <= Operation.ANY or permission <= Permission.ANY:
        raise ValueError(f"{path} contains an ACL with an unknown principal, operation or permission")
    return AclEntry(principal, host, operation, permission)


class AclChange(NamedTuple):
    """A notification to create."""

    path_prefix: str
    """The store appends the sequence number."""
    data: bytes


def change_of(resource: ResourcePattern) -> AclChange:
    """The notification that the ACLs of a resource have changed."""
    prefix = f"{_CHANGES[resource.pattern_type]}/acl_changes_"
    if resource.pattern_type is PatternType.LITERAL:
        return AclChange(prefix, f"{resource.resource_type.name}:{resource.name}".encode(errors="replace"))
    content = {
        "version": _VERSION,
        "resourceType": resource.resource_type.name,
        "name": resource.name,
        "patternType": resource.pattern_type.name,
    }
    return AclChange(prefix, _encode_json(content))


def decode_change(path: str, data: bytes) -> ResourcePattern:
    """The resource that a notification names. Raises ValueError: the caller has to read all ACLs again."""
    if path.startswith(f"{_CHANGES[PatternType.LITERAL]}/"):
        kind, colon, name = data.decode(errors="replace").partition(":")
        resource = ResourcePattern(ResourceType.from_text(kind), name)
        if not colon:
            raise ValueError(f"{path} is not of the form type:name")
    else:
        content = _decode_object(path, data)
        resource = ResourcePattern(
            ResourceType.from_text(_text_at(path, content, "resourceType")),
            _text_at(path, content, "name"),
            PatternType.from_text(_text_at(path, content, "patternType")),
        )
        if content.get("version") != _VERSION:
            raise ValueError(f"{path} has version {content.get('version')!r}, not {_VERSION}")
    if resource.resource_type <= ResourceType.ANY or resource.pattern_type not in _ROOTS or not resource.name:
        raise ValueError(f"{path} names an unknown resource")
    return resource


def _encode_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _decode_object(path: str, data: bytes) -> dict[str, object]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {type(error).__name__}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def _text_at(path: str, content: dict[str, object], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{path}: {key!r} is not text")
    return value
