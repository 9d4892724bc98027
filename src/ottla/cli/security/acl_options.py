"""The options of `ottla acl`, and the ACLs that they describe. Names and shorthands are those of kafka-acls.

Zone: real. Sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click

from ottla.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    AclEntry,
    AclFilter,
    EntryFilter,
    Operation,
    PatternType,
    Permission,
    ResourceFilter,
    ResourcePattern,
    ResourceType,
)
from ottla.cli.views.output import Json

F = TypeVar("F", bound=Callable[..., Any])

_NAMED: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
"""Options that name a resource, and its type."""
_PRODUCER: Final = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


def resource_options(*, repeated: bool) -> Callable[[F], F]:
    """`--topic`, `--group` … and `--cluster`. repeated: each may be given several times."""
    texts = {
        "topic": ("-t", "This topic; '*' for all."),
        "group": ("-g", "This consumer group."),
        "transactional_id": ("", "This transactional id."),
        "delegation_token": ("", "This delegation token."),
        "user_principal": ("", "This user, as the owner of tokens."),
    }

    def add(command: F) -> F:
        command = click.option("--cluster", is_flag=True, help="The cluster.")(command)
        for name, (short, text) in reversed(texts.items()):
            words = [word for word in (short, f"--{name.replace('_', '-')}") if word]
            command = click.option(*words, name, multiple=repeated, metavar="NAME", help=text)(command)
        return command

    return add


def pattern_option(*choices: str, default: str) -> Callable[[F], F]:
    """`--pattern`, which kafka-acls calls `--resource-pattern-type`."""
    return click.option(
        "--pattern",
        "--resource-pattern-type",
        type=click.Choice(choices, case_sensitive=False),
        default=default,
        show_default=True,
        help="How ACLs name the resources: literally, by a prefix; match: those that decide about the name.",
    )


def entry_options(command: F) -> F:
    """Who, from where, what; and the shorthands."""
    for option in reversed(
        (
            click.option("--allow", "--allow-principal", "allowed", multiple=True, metavar="USER",
                         help="Allow it to this user (alice is User:alice; User:* is everyone); may repeat."),
            click.option("--deny", "--deny-principal", "denied", multiple=True, metavar="USER",
                         help="Deny it to this user, whatever else is allowed."),
            click.option("--allow-host", "allowed_hosts", multiple=True, metavar="IP",
                         help="Allow it only from this address; by default from everywhere."),
            click.option("--deny-host", "denied_hosts", multiple=True, metavar="IP",
                         help="Deny it only from this address."),
            click.option("-O", "--operation", "operations", multiple=True, metavar="OPERATION",
                         help="Read, Write, Describe …, or All; may repeat."),
            click.option("--producer", is_flag=True,
                         help="Write, Describe and Create on topics; Write and Describe on transactional ids."),
            click.option("--consumer", is_flag=True, help="Read and Describe on topics; Read on groups."),
            click.option("--idempotent", is_flag=True,
                         help="With --producer: IdempotentWrite on the cluster, for brokers before Kafka 2.8."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


class _Right(NamedTuple):
    """Operations on a resource; None: all that there are."""

    resource: ResourceFilter
    operations: tuple[Operation, ...] | None


def bindings_of(given: Mapping[str, Any]) -> list[AclBinding]:
    """The ACLs that the options of `acl add` describe. Raises click.UsageError if something is left open."""
    if not given["allowed"] and not given["denied"]:
        raise click.UsageError("name a user: --allow USER or --deny USER")
    bindings = []
    for resource, entry in filters_of(given):
        if resource.name is None:
            raise click.UsageError(
                "name a resource: --topic, --group, --cluster, --transactional-id, --delegation-token, --user-principal"
            )
        if entry.operation is Operation.ANY:
            raise click.UsageError("name an operation: --operation Read …, --operation All, --producer or --consumer")
        assert entry.principal is not None
        pattern = ResourcePattern(resource.resource_type, resource.name, resource.pattern_type)
        rule = AclEntry(entry.principal, entry.host or WILDCARD, entry.operation, entry.permission)
        bindings.append(AclBinding(pattern, rule))
    return list(dict.fromkeys(bindings))


def filters_of(given: Mapping[str, Any]) -> list[AclFilter]:
    """The ACLs that the options of `acl remove` select. Raises click.UsageError."""
    rights = list(_rights_of(given))
    return [
        AclFilter(right.resource, who._replace(operation=operation))
        for right in rights
        for who in _entries_of(given)
        for operation in (right.operations or (Operation.ANY,))
    ]


def _entries_of(given: Mapping[str, Any]) -> Iterator[EntryFilter]:
    """Who, from where: without an operation. Without a user, everyone."""
    sides = (
        (given["allowed"], given["allowed_hosts"], Permission.ALLOW),
        (given["denied"], given["denied_hosts"], Permission.DENY),
    )
    for users, hosts, permission in sides:
        if hosts and not users:
            raise click.UsageError(f"--{permission.name.lower()}-host needs --{permission.name.lower()}")
        for user in users:
            for host in hosts or (None,):
                yield EntryFilter(parse_principal(user), host, permission=permission)
    if not given["allowed"] and not given["denied"]:
        yield EntryFilter()


def _rights_of(given: Mapping[str, Any]) -> Iterator[_Right]:
    resources = resources_of(given)
    if given["producer"] or given["consumer"]:
        yield from _shorthand_rights(given, resources)
        return
    if given["idempotent"]:
        raise click.UsageError("--idempotent belongs to --producer")
    operations = tuple(parse_operation(word) for word in given["operations"])
    for resource in resources or [ResourceFilter()]:
        for operation in operations:
            check_operation(operation, resource.resource_type)
        yield _Right(resource, operations or None)


def _shorthand_rights(given: Mapping[str, Any], resources: list[ResourceFilter]) -> Iterator[_Right]:
    """The rights of producers and consumers. Each resource must belong to one of them, as in kafka-acls."""
    if given["operations"] or given["denied"]:
        raise click.UsageError("--producer and --consumer allow their own operations: leave out --operation and --deny")
    kinds = {resource.resource_type for resource in resources}
    if ResourceType.TOPIC not in kinds:
        raise click.UsageError("--producer and --consumer need --topic")
    if given["consumer"] and ResourceType.GROUP not in kinds:
        raise click.UsageError("--consumer needs --group")
    tables = [table for name, table in (("producer", _PRODUCER), ("consumer", _CONSUMER)) if given[name]]
    for resource in resources:
        operations = tuple(dict.fromkeys(each for table in tables for each in table.get(resource.resource_type, ())))
        if not operations:
            kind = resource.resource_type.title
            raise click.UsageError(f"these shorthands have no operation on a {kind}: use --operation")
        yield _Right(resource, operations)
    if given["idempotent"]:
        if not given["producer"]:
            raise click.UsageError("--idempotent belongs to --producer")
        cluster = ResourceFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        yield _Right(cluster, (Operation.IDEMPOTENT_WRITE,))


def resources_of(given: Mapping[str, Any]) -> list[ResourceFilter]:
    """The resources that the options name, with the pattern type of `--pattern`."""
    pattern = PatternType.from_text(given["pattern"])
    found = []
    for option, kind in _NAMED.items():
        value = given[option]
        for name in (value,) if isinstance(value, str) else value or ():
            text = parse_principal(name) if kind is ResourceType.USER else name
            found.append(ResourceFilter(kind, text, pattern))
    if given["cluster"]:
        found.append(ResourceFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return found


def parse_principal(text: str) -> str:
    """A principal: `alice` is short for `User:alice`. Raises click.UsageError."""
    kind, colon, name = text.partition(":")
    if not text or (colon and not (kind and name)):
        raise click.UsageError(f"{text!r} is not a user: write NAME or User:NAME")
    return text if colon else f"User:{text}"


def parse_operation(text: str) -> Operation:
    """An operation in any spelling. Raises click.UsageError."""
    found = Operation.from_text(text)
    if found in (Operation.UNKNOWN, Operation.ANY):
        known = ", ".join(each.title for each in Operation if each > Operation.ANY)
        raise click.UsageError(f"{text!r} is not an operation: use one of {known}")
    return found


def check_operation(operation: Operation, kind: ResourceType) -> None:
    """Raises click.UsageError if resources of this kind do not have the operation."""
    possible = SUPPORTED_OPERATIONS.get(kind)
    if possible is not None and operation not in (*possible, Operation.ALL):
        names = ", ".join(sorted(each.title for each in possible))
        raise click.UsageError(f"{operation.title} does not exist for a {kind.title}: use {names} or All")


def acl_document(binding: AclBinding) -> dict[str, Json]:
    """The JSON form of an ACL."""
    (kind, name, pattern), (principal, host, operation, permission) = binding
    return {
        "resource_type": kind.name,
        "name": name,
        "pattern_type": pattern.name,
        "permission": permission.name,
        "principal": principal,
        "host": host,
        "operation": operation.name,
    }
