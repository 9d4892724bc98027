"""kafka-configs: show and change settings of topics, brokers, groups and clients, quotas and passwords.

Zone: real. Options and their checks; `config_entities` asks and changes the cluster.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final

from ottla.client.errors import ClientError
from ottla.kafka_tools.connection import open_cluster, read_file
from ottla.kafka_tools.java_errors import error_text
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    ZOOKEEPER,
    ZOOKEEPER_OPTION,
    Options,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    flag,
    names_cluster,
    single_action,
    value,
    values,
)
from ottla.kafka_tools.tools.cluster.config_entities import Entity, alter_entity, describe_entity

_TYPES: Final = ("topics", "clients", "users", "brokers", "ips", "client-metrics", "groups", "broker-loggers")
_SHORT: Final = {
    "topic": "topics",
    "client": "clients",
    "user": "users",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "ip": "ips",
    "group": "groups",
    "client-metrics": "client-metrics",
}
_SHORT_DEFAULTS: Final = {
    "client-defaults": "clients",
    "user-defaults": "users",
    "broker-defaults": "brokers",
    "ip-defaults": "ips",
}
_PASSWORD: Final = re.compile(r"password=[^\],]*")
_NUMBERED: Final = ("brokers", "broker-loggers")
_WITH_DEFAULT: Final = ("users", "clients", "brokers", "ips")
"""Types of which an entity is the default of all others."""


def run_configs(options: Options) -> None:
    """Describe or alter the entity that the options name."""
    action = single_action(
        options, ("describe", "alter"), "Command must include exactly one action: --describe, --alter"
    )
    if not names_cluster(options):
        raise ToolError("Either --bootstrap-server or --bootstrap-controller must be specified.")
    try:
        entities = _named_entities(options, action)
        added, deleted = _changes(options, action)
    except ToolError as error:
        # Of an option that was given twice Kafka's tool prints the message alone.
        if type(error) is not ToolError:
            raise
        raise ToolError(error.message) from None
    with open_cluster(options) as cluster:
        try:
            if action == "describe":
                describe_entity(cluster, entities, every=options.has("all"), as_kafka_1=options.has(ZOOKEEPER))
            else:
                alter_entity(cluster, entities, added, deleted, as_kafka_1=options.has(ZOOKEEPER))
        except ClientError as error:
            # Kafka prints the words as they are, with the password; logs keep them for long.
            line = _PASSWORD.sub("password=[hidden]", " ".join(options.line))
            print(f"Error while executing config command with args '{line}'", file=sys.stderr)
            raise ToolError(f"java.util.concurrent.ExecutionException: {error_text(error)}") from None


def _named_entities(options: Options, action: str) -> list[Entity]:
    """The entities of both spellings; at most a user and a client. Raises ToolError."""
    given = iter(options.values_of("entity-name"))
    # A name belongs to the type of the same place, and a default has a place as well.
    places = [each for each in options.order if each in ("entity-name", "entity-default")]
    names = [next(given) if each == "entity-name" else "" for each in places]
    types = list(options.values_of("entity-type"))
    short = [Entity(kind, options.value_of(name)) for name, kind in _SHORT.items() if options.has(name)]
    short += [Entity(kind, "") for name, kind in _SHORT_DEFAULTS.items() if options.has(name)]
    _check_types(options, types, [each.kind for each in short])
    for kind in types:
        _check_names(options, action, kind)
    if len(names) > len(types) and action == "describe" and {*types} & {"users", "clients", "ips"}:
        raise ToolError("More entity names specified than entity types")
    if len(names) != len(types) and action == "alter":
        raise ToolError("An entity name must be specified for every entity type")
    entities = [Entity(kind, names[at] if at < len(names) else None) for at, kind in enumerate(types)] + short
    for entity in entities:
        _check_number(entity)
    return entities


def _check_types(options: Options, types: Sequence[str], short: Sequence[str]) -> None:
    kinds = [*types, *short]
    if not kinds:
        raise ToolError("At least one entity type must be specified")
    for kind in types:
        if kind not in _TYPES:
            raise ToolError(
                f"Invalid entity type {kind}, the entity type must be one of {', '.join(_TYPES)} with a "
                "--bootstrap-server or --bootstrap-controller argument"
            )
    if twice := [kind for at, kind in enumerate(kinds) if kind in kinds[:at]]:
        raise ToolError(f"Duplicate entity type(s) specified: {','.join(twice)}")
    # A quota may belong to a client id of a user; no other setting has two owners.
    if len(kinds) > 1 and {*kinds} != {"users", "clients"}:
        raise ToolError("Only 'users' and 'clients' entity types may be specified together")
    if short and any(map(options.has, ("entity-type", "entity-name", "entity-default"))):
        raise ToolError("--entity-{type,name,default} should not be used in conjunction with specific entity flags")


def _check_names(options: Options, action: str, kind: str) -> None:
    """Check the names beside one type; that a script has too many or too few would otherwise change another entity."""
    if action == "describe" and kind not in _WITH_DEFAULT and options.has("entity-default"):
        raise ToolError(f"--entity-default must not be specified with --describe of {kind}")
    if kind in (*_NUMBERED, "ips"):
        options.value_of("entity-name")  # raises for a second one
    if options.has("entity-name") or (action == "describe" and kind != "broker-loggers"):
        return
    if kind not in _WITH_DEFAULT:
        raise ToolError(f"An entity name must be specified with --{action} of {kind}")
    if not options.has("entity-default"):
        raise ToolError(
            "An entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
        )


def _check_number(entity: Entity) -> None:
    if entity.kind in _NUMBERED and entity.name and not entity.name.isdecimal():
        raise ToolError(
            f"The entity name for {entity.kind} must be a valid integer broker id, but it is: {entity.name}"
        )


def _changes(options: Options, action: str) -> tuple[dict[str, str], list[str]]:
    """(settings to add, keys to delete). Raises ToolError, WrongUsage."""
    if action == "describe":
        for name in ("add-config", "add-config-file", "delete-config"):
            if options.has(name):
                raise WrongUsage(f'Option "[describe]" can\'t be used with option "[{name}]"')
        return {}, []
    if options.has("add-config") and options.has("add-config-file"):
        raise ToolError("Only one of --add-config or --add-config-file must be specified")
    added = parse_config_list(options.value_of("add-config"))
    if options.has("add-config-file"):
        from ottla.client.settings import parse_properties

        added = parse_properties(read_file(options.value_of("add-config-file")))
    deleted = [each.strip() for each in ",".join(options.values_of("delete-config")).split(",") if each.strip()]
    if not added and not deleted:
        raise ToolError(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )
    return added, deleted


def parse_config_list(text: str) -> dict[str, str]:
    """The settings of `k1=v1,k2=[a,b],k3=v3`. Raises ToolError."""
    found: dict[str, str] = {}
    for part in split_outside_brackets(text):
        key, equals, raw = part.partition("=")
        if not equals:
            raise ToolError(
                "requirement failed: Invalid entity config: all configs to be added must be in the format "
                '"key=val" or  "key=[val1,val2]" to group values which contain commas.'
            )
        raw = raw.strip()
        found[key.strip()] = raw[1:-1] if raw[:1] == "[" and raw[-1:] == "]" else raw
    return found


def split_outside_brackets(text: str) -> Sequence[str]:
    """The parts between commas that are not inside of square brackets."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        # A bracket that closes nothing is a sign like others.
        depth += (sign == "[") - (sign == "]" and depth > 0)
        if sign == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


TOOL: Final = Tool(
    "This tool helps to manipulate and describe entity config for a topic, client, user, broker, ip, client-metrics "
    "or group",
    (
        *SERVER,
        *ZOOKEEPER_OPTION,
        *COMMAND_CONFIG,
        value("bootstrap-controller", "The controllers to connect to.", "brokers answer for the controller"),
        flag("alter", "Alter the configuration for the entity."),
        flag("describe", "List configs for the given entity."),
        flag("all", "List all configs for the given entity, including static configs if available."),
        values("entity-type", "Type of entity (topics/clients/users/brokers/broker-loggers/ips/client-metrics/groups)"),
        values("entity-name", "Name of entity."),
        flag("entity-default", "Default entity name for clients/users/brokers/ips."),
        value("add-config", "Key Value pairs of configs to add: 'k1=v1,k2=[v1,v2,v2],k3=v3'."),
        value("add-config-file", "Path to a properties file with configs to add."),
        values("delete-config", "Config keys to remove: 'k1,k2'."),
        flag("force", "Suppress console prompts."),
        *(value(name, f"An entity of the type {kind}.") for name, kind in _SHORT.items()),
        *(flag(name, f"The defaults of {kind}.") for name, kind in _SHORT_DEFAULTS.items()),
    ),
    run_configs,
    wrong_words=WordsReport.PLAIN,
)
