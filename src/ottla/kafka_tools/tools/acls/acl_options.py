"""The options of kafka-acls: resources, entries, and the shorthands for producers and consumers.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ottla.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourceFilter,
    ResourceType,
)
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    Option,
    Options,
    ToolError,
    WrongUsage,
    flag,
    names_cluster,
    refuse_together,
    single_action,
    value,
    values,
)

EntriesByResource = dict[ResourceFilter, list[AclEntry]]

_NAMED: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "delegation-token": ResourceType.DELEGATION_TOKEN,
    "user-principal": ResourceType.USER,
}
_PRODUCING: Final = {
    ResourceType.TOPIC: (Operation.DESCRIBE, Operation.WRITE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
}
_CONSUMING: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


def checked_action(options: Options) -> str:
    """The action. Raises WrongUsage for options that do not fit together."""
    if not names_cluster(options):
        raise WrongUsage("One of --bootstrap-server or --bootstrap-controller must be specified")
    action = single_action(
        options, ("list", "add", "remove"), "Command must include exactly one action: --list, --add, --remove. "
    )
    if action == "list":
        for name in ("producer", "consumer", "allow-host", "allow-principal", "deny-host", "deny-principal"):
            refuse_together(options, "list", (name,))
    if action != "list" and options.has("principal"):
        raise WrongUsage("The --principal option is only available if --list is set")
    for name in ("producer", "consumer"):
        refuse_together(options, name, ("operation", "deny-principal", "deny-host"))
    if options.has("producer") and not options.has("topic"):
        raise WrongUsage("With --producer you must specify a --topic")
    if options.has("idempotent") and not options.has("producer"):
        raise WrongUsage("The --idempotent option is only available if --producer is set")
    if options.has("consumer") and not _is_consumer_complete(options):
        raise WrongUsage(
            "With --consumer you must specify a --topic and a --group and no --cluster or --transactional-id option "
            "should be specified."
        )
    if action == "add" and not (options.has("allow-principal") or options.has("deny-principal")):
        raise WrongUsage("You must specify one of: --allow-principal, --deny-principal when trying to add ACLs.")
    return action


def _is_consumer_complete(options: Options) -> bool:
    complete = options.has("topic") and options.has("group")
    alone = options.has("producer") or not (options.has("cluster") or options.has("transactional-id"))
    return complete and alone


def _pattern_type(options: Options, *, adding: bool = False) -> PatternType:
    text = options.value_of("resource-pattern-type", "literal")
    found = PatternType.from_text(text)
    if found is PatternType.UNKNOWN:
        raise ToolError(
            f"Cannot parse argument '{text}' of option resource-pattern-type",
            "joptsimple.OptionArgumentConversionException",
        )
    if adding and found in (PatternType.ANY, PatternType.MATCH):
        raise WrongUsage(f"A '--resource-pattern-type' value of '{found.name}' is not valid when adding acls.")
    return found


def _resources(options: Options, pattern_type: PatternType) -> list[ResourceFilter]:
    found = [
        ResourceFilter(kind, name.strip(), pattern_type)
        for option, kind in _NAMED.items()
        for name in options.values_of(option)
    ]
    if pattern_type is PatternType.LITERAL and (options.has("cluster") or options.has("idempotent")):
        found.append(ResourceFilter(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL))
    return found


def listed_resources(options: Options) -> list[ResourceFilter]:
    """The resources to list; by default every one."""
    return _resources(options, _pattern_type(options)) or [ResourceFilter()]


def wanted_entries(options: Options, *, adding: bool) -> EntriesByResource:
    """The entries of each resource; none for one whose entries are all to be removed. Raises WrongUsage, ToolError."""
    resources = _resources(options, _pattern_type(options, adding=adding))
    if not resources:
        raise WrongUsage(
            "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or "
            "--delegation-token <Delegation Token ID>"
        )
    if not (options.has("producer") or options.has("consumer")):
        operations = [Operation.from_text(text.strip()) for text in options.values_of("operation")] or [Operation.ALL]
        _check_operations(resources, operations)
        entries = [
            *_entries(options, "deny", Permission.DENY, operations),
            *_entries(options, "allow", Permission.ALLOW, operations),
        ]
        return dict.fromkeys(resources, entries)
    found: EntriesByResource = {}
    for resource in resources:
        operations = _shorthand_operations(options, resource.resource_type)
        if operations:
            found[resource] = _entries(options, "allow", Permission.ALLOW, operations)
    return found


def _shorthand_operations(options: Options, kind: ResourceType) -> list[Operation]:
    operations: list[Operation] = []
    if options.has("producer"):
        operations += _PRODUCING.get(kind, ())
        if kind is ResourceType.CLUSTER and options.has("idempotent"):
            operations.append(Operation.IDEMPOTENT_WRITE)
    if options.has("consumer"):
        operations += _CONSUMING.get(kind, ())
    return list(dict.fromkeys(operations))


def _check_operations(resources: Iterable[ResourceFilter], operations: Sequence[Operation]) -> None:
    for resource in resources:
        supported = (*SUPPORTED_OPERATIONS[resource.resource_type], Operation.ALL)
        if not set(operations) <= set(supported):
            names = ", ".join(operation.name for operation in supported)
            raise WrongUsage(f"ResourceType {resource.resource_type.name} only supports operations [{names}]")


def _entries(options: Options, side: str, permission: Permission, operations: Sequence[Operation]) -> list[AclEntry]:
    principals = [text.strip() for text in options.values_of(f"{side}-principal")]
    for principal in principals:
        if ":" not in principal.strip(":"):
            raise ToolError(
                f"expected a string in format principalType:principalName but got {principal}",
                "java.lang.IllegalArgumentException",
            )
    hosts = [text.strip() for text in options.values_of(f"{side}-host")] or ["*"]
    return [
        AclEntry(principal, host, operation, permission)
        for operation in operations
        for host in hosts
        for principal in principals
    ]


ACL_OPTIONS: Final[Sequence[Option]] = (
    *SERVER,
    *COMMAND_CONFIG,
    values("authorizer-properties", "DEPRECATED: zookeeper.connect=host:port/chroot, where a broker is looked up."),
    value("bootstrap-controller", "The address of a controller.", "brokers answer for the controller"),
    flag("add", "Indicates you are trying to add ACLs."),
    flag("remove", "Indicates you are trying to remove ACLs."),
    flag("list", "List ACLs for the specified resource, or all."),
    flag("cluster", "Add/Remove cluster ACLs."),
    flag("idempotent", "Enable idempotence for the producer, with --producer."),
    flag("producer", "Convenience option to add/remove ACLs for producer role."),
    flag("consumer", "Convenience option to add/remove ACLs for consumer role."),
    flag("force", "Assume Yes to all queries and do not prompt."),
    value("resource-pattern-type", "literal, prefixed, or to list and remove also match and any."),
    *(values(name, f"{kind.title} to which ACLs should be added or removed.") for name, kind in _NAMED.items()),
    values("operation", "Operation that is being allowed or denied."),
    values("allow-principal", "Principal, in the form principalType:name, that is allowed."),
    values("deny-principal", "Principal that is denied."),
    values("allow-host", "Host from which --allow-principal will have access."),
    values("deny-host", "Host from which --deny-principal will be denied access."),
    values("principal", "List ACLs of this principal."),
)
