"""Plans the creation, growth and deletion of topics: checks requests, and builds the multis.

Zone: pure. `controller.topic_changes` submits the plans. A plan is a list of steps, each of which is an atomic
multi. After the first step (the head) the topic or its new partitions exist; later steps write the states that the head
has no room for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

from ottla.cluster.image import ClusterImage, PartitionImage, TopicImage
from ottla.cluster.placement import Assignment, Start, assign_replicas
from ottla.cluster.store.layout import (
    DELETE_TOPICS,
    StateNode,
    TopicNode,
    encode_config,
    encode_state,
    encode_topic,
    partition_path,
    partitions_path,
    state_path,
    topic_config_path,
    topic_path,
)
from ottla.config.rows import ConfigError
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op

MAX_NAME: Final = 249
MAX_PARTITIONS_PER_REQUEST: Final = 10_000
"""Limit of new partitions in one request, as in Kafka's controller."""
_new = tuple.__new__  # a third of the time of the class's own
STEP_PARTITIONS: Final = 250
"""Partitions per multi. With two nodes each, a multi is far below a store's limit and a few milliseconds of work."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


class TopicSpec(NamedTuple):
    """A requested topic. partitions and replication_factor -1: the broker's default, or those of `assignments`."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] = {}
    configs: Mapping[str, str] = {}


def is_valid_name(name: str) -> bool:
    """Whether `check_name` accepts the name of a topic."""
    try:
        check_name(name)
    except ApiError:
        return False
    return True


def check_name(name: str) -> None:
    """Raise ApiError INVALID_TOPIC_EXCEPTION unless `name` is a valid name for a topic."""
    if not name:
        problem = "is empty"
    elif name in (".", ".."):
        problem = "is not a name"
    elif len(name) > MAX_NAME:
        problem = f"is longer than {MAX_NAME} characters"
    elif not _LEGAL.fullmatch(name):
        problem = "has characters other than letters, digits, '.', '_' and '-'"
    else:
        return
    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name[:MAX_NAME]!r} {problem}")


def check_collision(name: str, others: Collection[str]) -> None:
    """Raise ApiError when another topic's name differs only in '.' and '_': both would have the same metric names.

    For a name with few such letters all combinations are looked up: their number does not grow with that of topics.
    """
    pieces = re.split(r"[._]", name)
    if len(pieces) == 1:
        return
    # The cheaper of two ways: compare with every topic, or look up every spelling.
    if len(others) < 1 << (len(pieces) - 1):
        plain = name.replace(".", "_")
        found = [other for other in others if other.replace(".", "_") == plain]
    else:
        found = [each for each in _similar_names(pieces) if each in others]
    for other in found:
        if other != name:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic name {name!r} collides with {other!r}")


def _similar_names(pieces: Sequence[str]) -> Iterator[str]:
    """All names of these pieces with '.' or '_' between them."""
    for letters in product("._", repeat=len(pieces) - 1):
        yield pieces[0] + "".join(letter + piece for letter, piece in zip(letters, pieces[1:], strict=True))


def check_new(spec: TopicSpec, image: ClusterImage) -> None:
    """Raise ApiError when the topic cannot be created because of its name."""
    check_name(spec.name)
    if spec.name in image.topics:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{spec.name}' already exists.")
    check_collision(spec.name, image.topics)


def resolve_config(spec: TopicSpec, defaults: TopicConfig) -> TopicConfig:
    """The topic's effective settings. Raises ApiError INVALID_CONFIG."""
    try:
        return defaults.with_overrides(spec.configs)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None


def place_replicas(
    spec: TopicSpec, image: ClusterImage, default_partitions: int, default_factor: int, start: Start
) -> Assignment:
    """The replicas of every partition. Raises ApiError for invalid counts, factors or manual assignments."""
    if spec.assignments:
        # As in Kafka, a manual assignment excludes counts, even if they agree with it.
        if spec.partitions != -1 or spec.replication_factor != -1:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "give partitions and replication factor, or replica assignments, not both"
            )
        return manual_assignment(spec.assignments, image, 0, None)
    partitions = default_partitions if spec.partitions == -1 else spec.partitions
    factor = default_factor if spec.replication_factor == -1 else spec.replication_factor
    check_partition_count(partitions)
    return assign_replicas(partitions, factor, racks_of(image), start, hosts=hosts_of(image))


def check_partition_count(partitions: int) -> None:
    """Raise ApiError POLICY_VIOLATION when a request would create too many partitions at once."""
    if partitions > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"{partitions} new partitions at once; the limit of a request is {MAX_PARTITIONS_PER_REQUEST}",
        )


def racks_of(image: ClusterImage) -> dict[int, str | None]:
    """Live brokers with their racks."""
    return {node_id: broker.rack for node_id, broker in sorted(image.brokers.items())}


def hosts_of(image: ClusterImage) -> dict[int, str]:
    """The machines of live brokers: as the operator named them, else the first address that the broker advertises."""
    return {
        node_id: broker.host or (broker.endpoints[0].host if broker.endpoints else f"broker {node_id}")
        for node_id, broker in sorted(image.brokers.items())
    }


def manual_assignment(
    given: Mapping[int, Sequence[int]], image: ClusterImage, first_partition: int, factor: int | None
) -> Assignment:
    """Check a manual assignment: contiguous partitions from `first_partition`, each with `factor` distinct replicas.

    factor None: as many replicas as the first partition has. Raises ApiError.
    """
    check_partition_count(len(given))
    expected = range(first_partition, first_partition + len(given))
    if sorted(given) != list(expected):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"partitions must be numbered from {first_partition} without gaps",
        )
    factor = len(given[first_partition]) if factor is None else factor
    for partition in expected:
        _check_replicas(partition, given[partition], image, factor)
    return [tuple(given[partition]) for partition in expected]


def _check_replicas(partition: int, replicas: Sequence[int], image: ClusterImage, factor: int) -> None:
    if not replicas:
        problem = "has no replicas"
    elif len(set(replicas)) != len(replicas):
        problem = "names a broker twice"
    elif len(replicas) != factor:
        problem = f"has {len(replicas)} replicas, not {factor}"
    else:
        unknown = [broker for broker in replicas if broker not in image.brokers]
        if not unknown:
            return
        problem = f"names broker {unknown[0]}, which is not alive"
    raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition} {problem}")


def plan_growth(
    topic: TopicImage, count: int, given: Sequence[Sequence[int]] | None, image: ClusterImage, start: Start
) -> Assignment:
    """The replicas of the partitions that increase the topic's number to `count`. Raises ApiError."""
    present = len(topic.partitions)
    if count == present:
        raise ApiError(ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r} has {present} partitions already")
    if count < present:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS, f"topic {topic.name!r} has {present} partitions; the number can only increase"
        )
    check_partition_count(count - present)
    factor = len(topic.partitions[0].replicas)
    if given is not None:
        if len(given) != count - present:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{count - present} partitions are added, {len(given)} are assigned",
            )
        numbered = {present + index: replicas for index, replicas in enumerate(given)}
        return manual_assignment(numbered, image, present, factor)
    return assign_replicas(count - present, factor, racks_of(image), start, present, hosts_of(image))


# -- steps -----------------------------------------------------------------------------------------------------------


def first_states(assignment: Assignment, first_partition: int = 0) -> tuple[PartitionImage, ...]:
    """The states of new partitions: the first replica leads with epoch 0, all replicas are in sync."""
    return tuple(
        _new(PartitionImage, (partition, replicas[0], 0, replicas, replicas, 0, (), (), ()))
        for partition, replicas in enumerate(assignment, first_partition)
    )


def topic_node(topic: TopicImage) -> TopicNode:
    """The assignment node of a topic."""
    return TopicNode(
        topic.topic_id,
        {partition.partition: partition.replicas for partition in topic.partitions},
        {partition.partition: partition.adding for partition in topic.partitions if partition.adding},
        {partition.partition: partition.removing for partition in topic.partitions if partition.removing},
    )


def state_ops(topic: str, partitions: Iterable[PartitionImage], controller_epoch: int) -> list[Op]:
    """The operations that create the nodes of new partitions."""
    ops = []
    for partition in partitions:
        state = StateNode(partition.leader, partition.leader_epoch, partition.isr, controller_epoch)
        ops.append(Op("create", partition_path(topic, partition.partition)))
        ops.append(Op("create", state_path(topic, partition.partition), encode_state(state)))
    return ops


def creation_head(topic: TopicImage, has_config: bool, controller_epoch: int) -> list[Op]:
    """The first multi of a creation, with the states of one step."""
    # Settings of an earlier topic of this name may be left, or of an operator who wrote them in advance.
    config = Op("put" if has_config else "create", topic_config_path(topic.name), encode_config(topic.overrides))
    return [
        Op("create", topic_path(topic.name), encode_topic(topic_node(topic))),
        config,
        Op("create", partitions_path(topic.name)),
        *state_ops(topic.name, topic.partitions[:STEP_PARTITIONS], controller_epoch),
    ]


def growth_head(
    topic: TopicImage, node_version: int, added: Sequence[PartitionImage], controller_epoch: int
) -> list[Op]:
    """The first multi of a growth, with the states of one step."""
    head = Op("put", topic_path(topic.name), encode_topic(topic_node(topic)), node_version)
    return [head, *state_ops(topic.name, added[:STEP_PARTITIONS], controller_epoch)]


def deletion_mark(topic: str) -> list[Op]:
    """The multi that marks a topic for deletion."""
    return [Op("create", f"{DELETE_TOPICS}/{topic}")]


def deletion_steps(topic: str, present: Sequence[str], has_config: bool) -> list[list[Op]]:
    """The multis that delete a topic's nodes, the mark last. `present`: names under the topic's partitions node."""
    steps = []
    for start in range(0, len(present), STEP_PARTITIONS):
        step = []
        for partition in present[start : start + STEP_PARTITIONS]:
            step.append(Op("delete", f"{partitions_path(topic)}/{partition}/state"))
            step.append(Op("delete", f"{partitions_path(topic)}/{partition}"))
        steps.append(step)
    # The mark goes with the topic's own node. Until then a new controller finds the mark, and continues the deletion.
    last = [Op("delete", partitions_path(topic)), Op("delete", topic_path(topic))]
    if has_config:
        last.append(Op("delete", topic_config_path(topic)))
    return [*steps, [*last, Op("delete", f"{DELETE_TOPICS}/{topic}")]]
