"""kafka-topics: create, list, describe, alter and delete topics.

Zone: real. Options and output of Apache Kafka's tool; `topic_descriptions` prints descriptions. With --zookeeper, which
scripts of that age have, the output is that of Kafka 1.0.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.name_filter import matching_names
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    ZOOKEEPER,
    ZOOKEEPER_OPTION,
    Options,
    Tool,
    ToolError,
    WrongUsage,
    WrongWords,
    flag,
    names_cluster,
    refuse_together,
    require_options,
    single_action,
    value,
    values,
)
from ottla.kafka_tools.tools.topics.topic_descriptions import PAGE, Shown, describe_topics
from ottla.types import uuid_from_text

_ARGUMENT: Final = "java.lang.IllegalArgumentException"
_ACTIONS: Final = ("list", "describe", "create", "alter", "delete")
_COLLISION: Final = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To "
    "avoid issues it is best to use either, but not both."
)
_ORDER_WARNING: Final = (
    "WARNING: If partitions are increased for a topic that has a key, the partition logic or ordering of the messages "
    "will be affected"
)
_DELETION_NOTE: Final = "Note: This will have no impact if delete.topic.enable is not set to true."
_SHOWN_PARTITIONS: Final = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
_NOT_WITH: Final = {
    "config": ("alter", "delete", "describe", "list"),
    "partitions": ("delete", "describe", "list", "exclude-internal"),
    "replication-factor": ("alter", "delete", "describe", "list"),
    "replica-assignment": ("delete", "describe", "list"),
    **dict.fromkeys(_SHOWN_PARTITIONS, ("alter", "create", "delete", "list", "topics-with-overrides")),
    "topics-with-overrides": ("alter", "create", "delete", "list"),
    "if-exists": ("create", "list"),
    "if-not-exists": ("alter", "delete", "describe", "list"),
    "exclude-internal": ("alter", "create", "delete"),
}


def run_topics(options: Options) -> None:
    """Carry out the one action of the options."""
    action = _checked_action(options)
    if not names_cluster(options):
        raise WrongWords("--bootstrap-server must be specified", _ARGUMENT)
    if options.has("bootstrap-server") and options.has(ZOOKEEPER):
        raise WrongWords("Only one of --bootstrap-server or --zookeeper must be specified", _ARGUMENT)
    with open_cluster(options) as cluster:
        _RUNS[action](options, cluster)


def _checked_action(options: Options) -> str:
    action = single_action(
        options,
        _ACTIONS,
        "Command must include exactly one action: --list, --describe, --create, --alter or --delete",
    )
    if options.has("delete-config"):
        _pass_over_deleted_configs(options)
    if action in ("create", "delete", "alter") and not options.has("topic"):
        raise WrongUsage('Missing required argument "[topic]"')
    if action == "describe" and options.has("if-exists") and not (options.has("topic") or options.has("topic-id")):
        raise WrongUsage("--topic or --topic-id is required to describe a topic")
    if action == "alter" and options.has("config"):
        raise WrongUsage(
            'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]" (To alter topic '
            "configurations, the kafka-configs tool can be used.)"
        )
    if action == "alter":
        require_options(options, "partitions")
    if action == "create":
        refuse_together(options, "replica-assignment", ("partitions", "replication-factor"))
    for name, others in _NOT_WITH.items():
        refuse_together(options, name, others)
    return action


def _pass_over_deleted_configs(options: Options) -> None:
    """As Kafka's tool does. Raises WrongWords in the commands of old tools, which deleted them."""
    if options.has(ZOOKEEPER):
        raise WrongWords("--delete-config is not supported: kafka-configs --alter does it", _ARGUMENT)
    print(
        "delete-config option is no longer supported and deprecated since version 4.0. The config will be fully "
        "removed in future releases.",
        file=sys.stderr,
        flush=True,
    )


def _create_topics(options: Options, cluster: Cluster) -> None:
    name = options.value_of("topic")
    # In metric names both are an underscore, so that `a.b` and `a_b` are one there.
    if "." in name or "_" in name:
        print(_COLLISION, flush=True)
    topic = _new_topic(options, name)
    error = Admin(cluster).create_topics([topic])[name]
    # The request is sent even with --if-not-exists: a look before it would race with other clients.
    exists = isinstance(error, RefusedError) and error.code is ErrorCode.TOPIC_ALREADY_EXISTS
    if isinstance(error, ClientError):
        if not (exists and options.has("if-not-exists")):
            raise error
    else:
        print(f'Created topic "{name}".' if options.has(ZOOKEEPER) else f"Created topic {name}.")


def _new_topic(options: Options, name: str) -> NewTopic:
    partitions = options.number_of("partitions", -1)
    factor = options.number_of("replication-factor", -1)
    if options.has("partitions") and partitions < 1:
        raise ToolError("The partitions must be greater than 0", _ARGUMENT)
    if options.has("replication-factor") and not 1 <= factor <= 32_767:
        raise ToolError("The replication factor must be between 1 and 32767 inclusive", _ARGUMENT)
    assignment = parse_assignment(options.value_of("replica-assignment")) if options.has("replica-assignment") else None
    return NewTopic(name, partitions, factor, _parse_configs(options.values_of("config")), assignment)


def _parse_configs(words: Sequence[str]) -> dict[str, str | float | Sequence[str]]:
    configs: dict[str, str | float | Sequence[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise ToolError(
                'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".',
                _ARGUMENT,
            )
        configs[key.strip()] = text.strip()
    return configs


def parse_assignment(text: str) -> dict[int, list[int]]:
    """Replicas by partition, of `1:2,2:3`. Raises ToolError."""
    assignment: dict[int, list[int]] = {}
    for number, part in enumerate(text.split(",")):
        try:
            replicas = [int(each) for each in part.strip().split(":")]
        except ValueError:
            raise ToolError(f'For input string: "{part.strip()}"', "java.lang.NumberFormatException") from None
        if twice := sorted({each for each in replicas if replicas.count(each) > 1}):
            named = ",".join(map(str, twice))
            raise ToolError(
                f"Partition replica lists may not contain duplicate entries: {named}",
                "org.apache.kafka.tools.AdminCommandFailedException",
            )
        assignment[number] = replicas
        # Kafka compares with the first partition, and so names the first that differs.
        if len(replicas) != len(assignment[0]):
            raise ToolError(
                f"Partition {number} has different replication factor: {replicas}",
                "org.apache.kafka.tools.AdminOperationException",
            )
    return assignment


def _list_topics(options: Options, cluster: Cluster) -> None:
    for topic in _selected_topics(options, cluster):
        print(topic.name)


def _selected_topics(options: Options, cluster: Cluster, *, must_exist: bool = False) -> list[TopicView]:
    """The topics that `--topic` selects, sorted. Raises ToolError if there must be one."""
    every = Admin(cluster).list_topics(internal=not options.has("exclude-internal"))
    if not options.has("topic"):
        return every
    text = options.value_of("topic")
    # --topic is a regular expression for all actions but --create.
    names = set(matching_names(text, [topic.name for topic in every]))
    if must_exist and not names and not options.has("if-exists"):
        if options.has(ZOOKEEPER):
            raise ToolError(f"Topic {text} does not exist on ZK path {options.value_of(ZOOKEEPER)}", _ARGUMENT)
        raise ToolError(f"Topic '{text}' does not exist as expected", _ARGUMENT)
    return [topic for topic in every if topic.name in names]


def _describe_topics(options: Options, cluster: Cluster) -> None:
    if options.has("topic-id"):
        topics = _topic_of_id(options, cluster)
    else:
        # Kafka 1.0 describes no topics without an error.
        topics = _selected_topics(options, cluster, must_exist=not options.has(ZOOKEEPER))
    shown = Shown(
        topics=not any(options.has(name) for name in _SHOWN_PARTITIONS),
        partitions=not options.has("topics-with-overrides"),
        with_overrides=options.has("topics-with-overrides"),
        under_replicated=options.has("under-replicated-partitions"),
        under_min_isr=options.has("under-min-isr-partitions"),
        at_min_isr=options.has("at-min-isr-partitions"),
        unavailable=options.has("unavailable-partitions"),
        as_kafka_1=options.has(ZOOKEEPER),
    )
    describe_topics(cluster, topics, shown, options.number_of("partition-size-limit-per-response", PAGE))


def _topic_of_id(options: Options, cluster: Cluster) -> list[TopicView]:
    text = options.value_of("topic-id")
    try:
        wanted = uuid_from_text(text)
    except ValueError:
        raise ToolError(f"Input string `{text}` is not a base64-encoded UUID of 16 bytes", _ARGUMENT) from None
    found = [topic for topic in Admin(cluster).list_topics(internal=True) if topic.topic_id == wanted]
    if not found and not options.has("if-exists"):
        raise ToolError(f"TopicId '{text}' does not exist as expected", _ARGUMENT)
    return found


def _alter_topics(options: Options, cluster: Cluster) -> None:
    total = options.number_of("partitions", 0)
    topics = _selected_topics(options, cluster, must_exist=True)
    added: Mapping[str, list[list[int]]] = {}
    if options.has("replica-assignment"):
        replicas = list(parse_assignment(options.value_of("replica-assignment")).values())
        # As in Kafka, the option lists all partitions; those that exist keep their replicas.
        added = {topic.name: replicas[len(topic.partitions) :] for topic in topics}
    if options.has(ZOOKEEPER) and topics:
        print(_ORDER_WARNING, flush=True)
    if topics:
        results = Admin(cluster).create_partitions({topic.name: total for topic in topics}, assignments=added)
        _raise_first(results)
    if options.has(ZOOKEEPER) and topics:
        print("Adding partitions succeeded!")


def _delete_topics(options: Options, cluster: Cluster) -> None:
    topics = _selected_topics(options, cluster, must_exist=True)
    if topics:
        _raise_first(Admin(cluster).delete_topics([topic.name for topic in topics]))
    if options.has(ZOOKEEPER):
        for topic in topics:
            print(f"Topic {topic.name} is marked for deletion.\n{_DELETION_NOTE}")


def _raise_first(results: Mapping[str, ClientError | None]) -> None:
    for error in results.values():
        if error is not None:
            raise error


_RUNS: Final = {
    "list": _list_topics,
    "describe": _describe_topics,
    "create": _create_topics,
    "alter": _alter_topics,
    "delete": _delete_topics,
}
TOOL: Final = Tool(
    "This tool helps to create, delete, describe, or change a topic.",
    (
        *SERVER,
        *ZOOKEEPER_OPTION,
        *COMMAND_CONFIG,
        flag("list", "List all available topics."),
        flag("create", "Create a new topic."),
        flag("delete", "Delete a topic."),
        flag("alter", "Alter the number of partitions and replica assignment."),
        flag("describe", "List details for the given topics."),
        value("topic", "The topic to create, alter, describe or delete; a regular expression, except for --create."),
        value("topic-id", "The topic-id to describe."),
        values("config", "A topic configuration override, name=value, for the topic being created."),
        values("delete-config", "This option is no longer supported and has been deprecated since 4.0"),
        value("partitions", "The number of partitions for the topic being created or altered."),
        value("replication-factor", "The replication factor for each partition in the topic being created."),
        value("replica-assignment", "Replicas of each partition: 1:2,2:3 for two partitions."),
        flag("under-replicated-partitions", "Only show under-replicated partitions."),
        flag("unavailable-partitions", "Only show partitions whose leader is not available."),
        flag("under-min-isr-partitions", "Only show partitions whose isr count is less than the configured minimum."),
        flag("at-min-isr-partitions", "Only show partitions whose isr count is equal to the configured minimum."),
        flag("topics-with-overrides", "Only show topics that have overridden configs."),
        flag("if-exists", "The action is only executed if the topic exists."),
        flag("if-not-exists", "The request will not fail if the topic already exists."),
        flag("exclude-internal", "Exclude internal topics when listing or describing topics."),
        value("partition-size-limit-per-response", "The maximum number of partitions in one response."),
    ),
    run_topics,
    prefix="Error while executing topic command : ",
    to_stdout=True,
)
