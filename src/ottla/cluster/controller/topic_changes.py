"""New topics and new partitions, which clients request or an operator writes to the store.

Zone: deterministic. `ottla.cluster.topics` checks requests and plans the nodes. Creations run concurrently with each
other and with the controller's other work. A crash between their steps leaves a topic that the next controller
completes, like one that an operator wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import Final

from ottla.cluster import topics
from ottla.cluster.controller.context import NOT_STORED, ControlledTopic
from ottla.cluster.controller.leaders import LeaderElections
from ottla.cluster.controller.partition_state_store import CHUNK, STEP, PartitionStateStore
from ottla.cluster.controller.queue import WorkQueue
from ottla.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from ottla.cluster.placement import Start
from ottla.cluster.store.layout import (
    TOPICS,
    BrokenNode,
    TopicNode,
    decode_topic,
    encode_topic,
    partitions_path,
    state_path,
    topic_config_path,
    topic_path,
)
from ottla.cluster.store.workflow import Workflow
from ottla.cluster.topics import MAX_NAME, TopicSpec
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure, Kind, Node, Op
from ottla.types import ZERO_UUID, TopicPartition

logger = logging.getLogger(__name__)

MAX_TOPICS_BEING_CREATED: Final = 1000
"""Limit of creations in progress; more are refused with a retriable error."""
_NO_EPOCH: Final = -1


class TopicChanges:
    """Creates and completes topics and partitions."""

    def __init__(
        self, core: PartitionStateStore, queue: WorkQueue, leaders: LeaderElections, image: Callable[[], ClusterImage]
    ) -> None:
        self._core = core
        self._context = core.context
        self._queue = queue
        self._leaders = leaders
        self._image = image
        self._broken: dict[str, int] = {}
        """Versions of nodes that could not be decoded, so that each is logged once."""

    # -- requests ------------------------------------------------------------------------------------------------

    def plan_topic(self, spec: TopicSpec) -> TopicImage:
        """The topic that `spec` describes. Raises ApiError."""
        image = self._image()
        # Names of topics that are being created or deleted count as taken, although clients do not see those topics.
        topics.check_new(spec, image)
        if spec.name in self._context.creating or spec.name in self._context.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {spec.name!r} is being created or deleted")
        topics.check_collision(spec.name, self._context.creating)
        if len(self._context.creating) >= MAX_TOPICS_BEING_CREATED:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many topics are being created; try again")
        settings = self._core.config()
        config = topics.resolve_config(spec, settings.topic_defaults)
        assignment = topics.place_replicas(
            spec, image, settings.num_partitions, settings.default_replication_factor, self._random_start(image)
        )
        return TopicImage(spec.name, self._core.new_uuid(), topics.first_states(assignment), dict(spec.configs), config)

    def _random_start(self, image: ClusterImage) -> Start:
        brokers = max(1, len(image.brokers))
        return Start(
            self._core.entropy.random_below("placement", brokers), self._core.entropy.random_below("placement", brokers)
        )

    def create_topic(self, topic: TopicImage) -> Workflow[TopicImage]:
        """Write a planned topic; its name must be among those being created. Raises ApiError or Failure."""
        try:
            yield from self._write_head(topic)
            version = yield from self._watch_topic(topic.name)
            yield from self._put_partitions(topic, version, 0)
        finally:
            # The name is among the topics of the context by now, unless the creation failed: at no moment does a second
            # request for the same name find it free.
            self._context.creating.pop(topic.name, None)
        yield from self._elect_first_leaders(topic.name, [each.partition for each in topic.partitions])
        return topic

    def _write_head(self, topic: TopicImage) -> Workflow[None]:
        """Write the assignment, the settings and the first states in one multi, after which the topic exists."""
        for _ in range(3):
            # Settings may exist before the topic, for example if an operator wrote them. They are replaced.
            config = yield from self._core.read_node(topic_config_path(topic.name))
            head = topics.creation_head(topic, config is not None, self._core.term.epoch)
            try:
                yield from self._core.write_multi(f"topic {topic.name}", head)
            except Failure as failure:
                if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                    raise
                # The topic's node decides about an open outcome: its random id shows whether this write succeeded.
                node = yield from self._core.read_node(topic_path(topic.name))
                if node is not None and node.data == encode_topic(topics.topic_node(topic)):
                    return  # the multi succeeded, only its response was lost
                if node is not None:
                    raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.") from None
            else:
                return
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the nodes of topic {topic.name!r} are being changed by others")

    def _watch_topic(self, name: str) -> Workflow[int]:
        node = yield from self._core.read_node(topic_path(name), self.topic_watcher(name))
        return 0 if node is None else node.version

    def topic_watcher(self, name: str) -> Callable[[], None]:
        """The callback for changes of the topic's node. Those of a topic are equal, so that repeated reads set one
        watch."""
        return _TopicWatcher(self, name)

    def queue_changed_topic(self, name: str) -> None:
        """Read a topic's node again, in its turn."""
        self._queue.submit_change(f"topic {name} changed", lambda: self.read_changed_topic(name))

    def grow_topic(
        self, name: str, count: int, assignments: Sequence[Sequence[int]] | None, validate_only: bool
    ) -> Workflow[TopicImage]:
        """Bring a topic to `count` partitions. Raises ApiError or Failure."""
        image = self._image()
        present = image.topics.get(name)
        if present is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:MAX_NAME]!r}")
        if any(partition.adding or partition.removing for partition in present.partitions):
            raise ApiError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"partitions of topic {name!r} are being moved")
        start = self._growth_start(present, image)
        added = topics.first_states(
            topics.plan_growth(present, count, assignments, image, start), len(present.partitions)
        )
        grown = present._replace(partitions=present.partitions + added)
        if not validate_only:
            yield from self._write_growth(present, grown)
            yield from self._elect_first_leaders(name, [each.partition for each in added])
        return grown

    def _growth_start(self, topic: TopicImage, image: ClusterImage) -> Start:
        """The start of the placement: it continues from the first replica of partition 0, as in Kafka."""
        first = topic.partitions[0].replicas[0]
        brokers = list(image.brokers)
        index = brokers.index(first) if first in brokers else 0
        return Start(index, index)

    def _write_growth(self, present: TopicImage, grown: TopicImage) -> Workflow[None]:
        name, first = present.name, len(present.partitions)
        topic = self._context.topics[name]
        head = topics.growth_head(grown, topic.node_version, grown.partitions[first:], self._core.term.epoch)
        try:
            results = yield from self._core.write_multi(f"topic {name}", head)
            version = results[0][1]
        except Failure as failure:
            if failure.kind not in (Kind.CONFLICT, Kind.UNKNOWN, Kind.TIMEOUT):
                raise
            found = yield from self._core.read_node(topic_path(name))
            # The first operation writes the topic's node. If the node has that content, the multi succeeded and only
            # its response was lost. With any other content nothing of this growth was written.
            if found is None or found.data != head[0].data:
                raise ApiError(ErrorCode.INVALID_PARTITIONS, f"topic {name!r} has just changed; try again") from None
            version = found.version
        yield from self._put_partitions(grown, version, first)

    # -- both ----------------------------------------------------------------------------------------------------

    def _put_partitions(self, made: TopicImage, version: int, first: int) -> Workflow[None]:
        """Put the partitions from `first` on into memory. Only those of one step have states in the store yet."""
        topic = self._context.topics.get(made.name) or ControlledTopic(made.name, made.topic_id, version)
        topic.node_version = version
        stored = first + topics.STEP_PARTITIONS
        yield from self._put_topic(
            topic,
            [
                each if each.partition < stored else _new_partition(each.partition, each.replicas)
                for each in made.partitions[first:]
            ],
        )

    def _put_topic(self, topic: ControlledTopic, partitions: Sequence[PartitionImage]) -> Workflow[None]:
        """Put partitions into memory, one chunk per turn."""
        for start in range(0, len(partitions), CHUNK):
            self._context.put_topic(topic, partitions[start : start + CHUNK])
            if start + CHUNK < len(partitions):
                yield from self._core.yield_turn()

    def _elect_first_leaders(self, name: str, numbers: Iterable[int]) -> Workflow[None]:
        """Elect the first leaders of new partitions, and have their replicas create logs."""
        tps = [TopicPartition(name, number) for number in numbers]
        yield from self._leaders.elect_first_leaders(tps)
        if any(self._leaders.is_not_stored(tp) for tp in tps):
            logger.warning("controller: topic %s: partitions without a live replica have no leader yet", name)

    # -- by hand -------------------------------------------------------------------------------------------------

    def read_topic_list(self, on_change: Callable[[], None] | None) -> Workflow[None]:
        """Read the children of /brokers/topics: adopt topics that an operator wrote, forget those that one removed."""
        names = yield from self._core.read_children(TOPICS, on_change)
        known = self._context.topics
        unknown = list(filterfalse(known.__contains__, names))
        # Mostly nothing was removed. The set of all names is made only if a count says otherwise.
        if len(names) - len(unknown) < len(known):
            for name in sorted(known.keys() - set(names)):
                self._forget_removed(name)
        # Topics that are being created are in the list before they are in the context.
        new = sorted(name for name in unknown if name not in self._context.creating)
        for name in (yield from self.read_topics(new)):
            topic = self._context.topics[name]
            logger.info("controller: adopting topic %s with %d partitions", name, len(topic.partitions))
            # The partitions without a state are elected below, which also creates their state nodes.
            unstored = _not_stored(topic.partitions)
            self._core.channels.send_leaders(
                [TopicPartition(name, number) for number in topic.partitions if number not in unstored]
            )
            yield from self._elect_first_leaders(name, unstored)

    def _forget_removed(self, name: str) -> None:
        """Forget a topic whose nodes an operator removed. Its logs are not deleted."""
        if name in self._context.deleting:
            return
        logger.warning("controller: the nodes of topic %s were removed by hand; its logs are kept", name)
        self._context.begin_deletion(name)
        numbers = self._context.topics[name].partitions
        self._core.channels.send_metadata([TopicPartition(name, number) for number in numbers])
        self._context.remove_topic(name)

    def read_topics(self, names: Sequence[str]) -> Workflow[list[str]]:
        """Read and watch topics with their states. Returns those that are valid and were not known.

        Reads some topics at a time and adds each as a whole, so that a failure leaves no topic partly known.
        """
        found: list[str] = []
        for start in range(0, len(names), STEP):
            found += yield from self._read_some(names[start : start + STEP])
        return found

    def _read_some(self, names: Sequence[str]) -> Workflow[list[str]]:
        nodes = yield from self._core.read_nodes([topic_path(name) for name in names], self._watch_path)
        plans: list[tuple[ControlledTopic, TopicNode]] = []
        for name, node in zip(names, nodes, strict=True):
            known = yield from self._with_id(name, node)
            if known is not None:
                plan, version = known
                plans.append((ControlledTopic(name, plan.topic_id, version), plan))
        states = yield from self._read_states(plans)
        # A creation may have added the same topic while this workflow waited for the store.
        taken = [(topic, plan) for topic, plan in plans if topic.name not in self._context.topics]
        for topic, plan in taken:
            yield from self._put_topic(
                topic, [self._with_known_state(topic.name, each, states) for each in _planned_partitions(plan)]
            )
        yield from self._core.yield_turn()
        return [topic.name for topic, _ in taken]

    def _read_states(
        self, plans: Sequence[tuple[ControlledTopic, TopicNode]]
    ) -> Workflow[dict[TopicPartition, Node | None]]:
        """Read the state nodes of these topics. Creates the parent of states that are missing."""
        tps = [TopicPartition(topic.name, number) for topic, plan in plans for number in plan.assignment]
        nodes = yield from self._core.read_nodes([state_path(tp.topic, tp.partition) for tp in tps])
        for name in dict.fromkeys(tp.topic for tp, node in zip(tps, nodes, strict=True) if node is None):
            if (yield from self._core.read_node(partitions_path(name))) is None:
                yield from self._core.try_write(f"topic {name}", [Op("create", partitions_path(name))])
        return dict(zip(tps, nodes, strict=True))

    def _with_known_state(
        self, name: str, partition: PartitionImage, states: Mapping[TopicPartition, Node | None]
    ) -> PartitionImage:
        tp = TopicPartition(name, partition.partition)
        node = states[tp]
        return partition if node is None else self._core.with_state(tp, partition, node)

    def _watch_path(self, path: str) -> Callable[[], None]:
        return self.topic_watcher(path.rpartition("/")[2])

    def _decode_plan(self, name: str, node: Node) -> TopicNode | None:
        path = topic_path(name)
        try:
            plan = decode_topic(path, node.data)
            _check_numbers(path, plan.assignment)
        except BrokenNode as broken:
            if self._broken.get(name) != node.version:
                self._broken[name] = node.version
                logger.warning("controller: ignoring topic %s: %s; repair its node", name, broken)
            return None
        self._broken.pop(name, None)
        return plan

    def _with_id(self, name: str, node: Node | None) -> Workflow[tuple[TopicNode, int] | None]:
        """The assignment and the version of its node; None if the node is missing or invalid.

        Gives an id to a topic that has none: it is older than topic ids, or an operator wrote it.
        """
        plan = None if node is None else self._decode_plan(name, node)
        if node is None or plan is None or plan.topic_id != ZERO_UUID:
            return None if node is None or plan is None else (plan, node.version)
        # Another writer may add an id at the same time: the node is read again, and whichever id it has is used.
        content = encode_topic(plan._replace(topic_id=self._core.new_uuid()))
        yield from self._core.try_write(f"topic {name}", [Op("put", topic_path(name), content, node.version)])
        after = yield from self._core.read_node(topic_path(name))
        plan = None if after is None else self._decode_plan(name, after)
        return None if after is None or plan is None or plan.topic_id == ZERO_UUID else (plan, after.version)

    # -- partitions by hand --------------------------------------------------------------------------------------

    def refresh_topics(self) -> Workflow[None]:
        """Read and watch all topics' nodes again after their watches were lost."""
        names = list(self._context.topics)
        nodes = yield from self._core.read_nodes([topic_path(name) for name in names], self._watch_path)
        for name, node in zip(names, nodes, strict=True):
            yield from self._apply_node(name, node)

    def read_changed_topic(self, name: str) -> Workflow[None]:
        """Handle a change of a topic's assignment node: an operator may have added partitions."""
        if name in self._context.topics:
            node = yield from self._core.read_node(topic_path(name), self.topic_watcher(name))
            yield from self._apply_node(name, node)
        elif name not in self._context.creating and (yield from self._core.read_node(topic_path(name))) is not None:
            yield from self.read_topic_list(None)  # its node was repaired; of removed ones the watch of the list tells

    def _apply_node(self, name: str, node: Node | None) -> Workflow[None]:
        topic = self._context.topics.get(name)
        # The controller's own writes fire the watch as well. They have put the new version into the context already.
        if topic is None or node is None or node.version == topic.node_version:
            return
        plan = self._decode_plan(name, node)
        if plan is None:
            return
        # Only added partitions are handled; other edits of the node are ignored.
        topic.node_version = node.version
        added = {number: replicas for number, replicas in plan.assignment.items() if number not in topic.partitions}
        if added and name in self._context.deleting:
            logger.warning("controller: not creating the partitions added to topic %s: it is being deleted", name)
        elif added:
            logger.info("controller: topic %s has %d more partitions", name, len(added))
            yield from self._put_topic(topic, [_new_partition(number, added[number]) for number in added])
            yield from self._elect_first_leaders(name, list(added))


@dataclass(frozen=True, slots=True)
class _TopicWatcher:
    """Called when a topic's node changes."""

    changes: TopicChanges
    name: str

    def __call__(self) -> None:
        self.changes.queue_changed_topic(self.name)


def _planned_partitions(plan: TopicNode) -> list[PartitionImage]:
    return [
        _new_partition(number, replicas)._replace(
            adding=plan.adding.get(number, ()), removing=plan.removing.get(number, ())
        )
        for number, replicas in plan.assignment.items()
    ]


def _new_partition(number: int, replicas: tuple[int, ...]) -> PartitionImage:
    """A partition without a stored state: its first leader will have epoch 0, all replicas count as in sync."""
    return PartitionImage(number, NO_LEADER, _NO_EPOCH, replicas, replicas, NOT_STORED)


def _not_stored(partitions: Mapping[int, PartitionImage]) -> dict[int, None]:
    return {number: None for number, partition in partitions.items() if partition.state_version == NOT_STORED}


def _check_numbers(path: str, assignment: Mapping[int, Sequence[int]]) -> None:
    if not assignment or list(assignment) != list(range(len(assignment))):
        raise BrokenNode(f"{path} does not number its partitions from 0 without a gap")
    for number, replicas in assignment.items():
        if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
            raise BrokenNode(f"{path} has no sound list of replicas for partition {number}")
