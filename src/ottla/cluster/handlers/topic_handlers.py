"""CreateTopics, DeleteTopics, CreatePartitions: requests that change topics.

Zone: deterministic. `topics` decides what is allowed, the controller carries it out. This module turns requests into
specifications, and outcomes into responses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ottla.acls import Operation, ResourceType
from ottla.cluster.cluster import Cluster
from ottla.cluster.configs import DescribedConfig, describe_topic
from ottla.cluster.image import TopicImage
from ottla.cluster.topic_requests import TopicRequests
from ottla.cluster.topics import MAX_PARTITIONS_PER_REQUEST, TopicSpec
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import Context, Parts, Whole, denied_error, handles
from ottla.seams import Slot
from ottla.types import ZERO_UUID
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

_Created = CreateTopicsResponse.CreatableTopicResult
_Deleted = DeleteTopicsResponse.DeletableTopicResult
_Grown = CreatePartitionsResponse.CreatePartitionsTopicResult


def _by_name(topic: CreateTopicsRequest.CreatableTopic | CreatePartitionsRequest.CreatePartitionsTopic) -> str:
    return topic.name


def _by_name_or_id(topic: DeleteTopicsRequest.DeleteTopicState | str) -> tuple[str | None, bytes]:
    return (topic, ZERO_UUID) if isinstance(topic, str) else (topic.name, topic.topic_id)


AdmitMutations = Callable[[Slot, float, bool], None]
"""Records that a request creates or deletes partitions. Raises ApiError if it is strict and the quota is exceeded."""
_STRICT_CREATE, _STRICT_DELETE, _STRICT_GROW = 6, 5, 3
"""From these versions on a request gets THROTTLING_QUOTA_EXCEEDED; older ones are carried out, and then have to wait
(KIP-599)."""


class TopicHandlers:
    """Handles requests that change topics."""

    def __init__(self, cluster: Cluster, topics: TopicRequests, admit_mutations: AdmitMutations) -> None:
        """`admit_mutations`: the quota of creations and deletions of partitions."""
        self._cluster = cluster
        self._topics = topics
        self._admit_mutations = admit_mutations

    # -- CreateTopics ------------------------------------------------------------------------------------------

    @handles(
        ApiKey.CREATE_TOPICS,
        0,
        7,
        resource="Cluster",
        operation="Create",
        also=(("Topic", "Create"), ("Topic", "DescribeConfigs")),
        parts=Parts(cost_us=1_000, request=(("topics",),), response=(("topics",),), once=_by_name),
    )
    def create_topics(self, context: Context, request: CreateTopicsRequest) -> None:
        """Create topics, each independently. validate_only: return the topics that would be created.

        Needs Create on the cluster, or on the topic; and DescribeConfigs on the topic to see its settings.
        """
        may_create_all = context.is_allowed(Operation.CREATE, ResourceType.CLUSTER, logs=False)
        repeated = context.repeated_names(topic.name for topic in request.topics)
        gather: FanIn[_Created] = FanIn(lambda results: context.send_reply(CreateTopicsResponse(topics=results)))
        whole = context.whole or Whole()
        for name, topic in {topic.name: topic for topic in request.topics}.items():
            done = context.wrap_step(partial(self._on_created, context, name, gather.new_slot()))
            if hash(name) in repeated:
                done(_repeated_topic())
                continue
            if not may_create_all and not context.is_allowed(Operation.CREATE, ResourceType.TOPIC, name):
                done(denied_error(ResourceType.TOPIC))
                continue
            whole.count += max(topic.num_partitions, len(topic.assignments), 1)
            if whole.count > MAX_PARTITIONS_PER_REQUEST:
                done(ApiError(ErrorCode.POLICY_VIOLATION, _too_many_partitions()))
                continue
            try:
                if not request.validate_only:
                    self._admit_creation(context, topic)
                self._topics.create_topic(_topic_spec(topic), request.validate_only, request.timeout_ms, done)
            except ApiError as error:
                done(error.as_value())
        gather.close_slots()

    def _admit_creation(self, context: Context, topic: CreateTopicsRequest.CreatableTopic) -> None:
        """Raises ApiError THROTTLING_QUOTA_EXCEEDED."""
        if topic.name not in self._cluster.image.topics:  # else it fails, and costs nothing
            given = len(topic.assignments) or topic.num_partitions
            count = given if given > 0 else self._cluster.config.num_partitions
            self._admit_mutations(context.slot, count, context.api_version >= _STRICT_CREATE)

    def _on_created(
        self, context: Context, name: str, slot: Callable[[_Created], None], outcome: TopicImage | ApiError
    ) -> None:
        if isinstance(outcome, ApiError):
            slot(_Created(name=name, error_code=outcome.code, error_message=outcome.message))
            return
        if not context.is_allowed(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name, logs=False):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            slot(_Created(name=name, topic_id=outcome.topic_id, error_message=None, topic_config_error_code=code))
            return
        described = describe_topic(outcome.overrides, outcome.config, self._cluster.layers, None)
        slot(
            _Created(
                name=name,
                topic_id=outcome.topic_id,
                error_message=None,
                num_partitions=len(outcome.partitions),
                replication_factor=len(outcome.partitions[0].replicas),
                configs=[_created_config(one) for one in described],
            )
        )

    # -- DeleteTopics ------------------------------------------------------------------------------------------

    @handles(
        ApiKey.DELETE_TOPICS,
        0,
        6,
        resource="Topic",
        operation="Delete",
        parts=Parts(
            cost_us=50,
            request=(("topics",), ("topic_names",)),
            response=(("responses",), ("responses",)),
            once=_by_name_or_id,
        ),
    )
    def delete_topics(self, context: Context, request: DeleteTopicsRequest) -> None:
        """Delete topics by name or id."""
        states = request.topics
        if context.api_version < 6:
            states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]
        repeated = context.repeated_names(map(_by_name_or_id, request.topics or request.topic_names))
        gather: FanIn[_Deleted] = FanIn(lambda results: context.send_reply(DeleteTopicsResponse(responses=results)))
        for state in {(state.name, state.topic_id): state for state in states}.values():
            is_repeated = hash(_by_name_or_id(state)) in repeated
            self._delete_topic(context, state, is_repeated, request.timeout_ms, gather.new_slot())
        gather.close_slots()

    def _delete_topic(
        self,
        context: Context,
        state: DeleteTopicsRequest.DeleteTopicState,
        is_repeated: bool,
        timeout_ms: int,
        slot: Callable[[_Deleted], None],
    ) -> None:
        name, topic_id = state.name, state.topic_id

        def done(outcome: ApiError | None) -> None:
            if outcome is None:
                slot(_Deleted(name=name, topic_id=topic_id))
            else:
                slot(_Deleted(name=name, topic_id=topic_id, error_code=outcome.code, error_message=outcome.message))

        try:
            if is_repeated:
                raise _repeated_topic()
            name, topic_id = self._resolve_topic(context, name, topic_id)
            if not _may_delete(context, state, name):
                name, topic_id = state.name, state.topic_id  # neither of them is disclosed
                raise denied_error(ResourceType.TOPIC)
            present = self._topics.controller.image.topics.get(name)
            if present is not None:
                self._admit_mutations(context.slot, len(present.partitions), context.api_version >= _STRICT_DELETE)
        except ApiError as error:
            done(error.as_value())
            return
        self._topics.delete_topic(name, timeout_ms, context.wrap_step(done))

    def _resolve_topic(self, context: Context, name: str | None, topic_id: bytes) -> tuple[str, bytes]:
        """Name and id of the topic to delete. Raises ApiError."""
        # The controller's image, not this broker's, which follows it by an UpdateMetadata: the topic may have been
        # created a moment ago.
        image = self._topics.controller.image
        if not self._cluster.config.delete_topic_enable:
            code = ErrorCode.TOPIC_DELETION_DISABLED if context.api_version >= 3 else ErrorCode.INVALID_REQUEST
            raise ApiError(code, "delete.topic.enable is false")
        if (name is None) == (topic_id == ZERO_UUID):
            raise ApiError(ErrorCode.INVALID_REQUEST, "give either the name or the id of a topic")
        if name is not None:
            found = image.topics.get(name)
            return name, ZERO_UUID if found is None else found.topic_id
        found = image.topic_by_id(topic_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id")
        return found.name, topic_id

    # -- CreatePartitions --------------------------------------------------------------------------------------

    @handles(
        ApiKey.CREATE_PARTITIONS,
        0,
        3,
        resource="Topic",
        operation="Alter",
        parts=Parts(cost_us=50, request=(("topics",),), response=(("results",),), once=_by_name),
    )
    def create_partitions(self, context: Context, request: CreatePartitionsRequest) -> None:
        """Add partitions to topics."""
        repeated = context.repeated_names(topic.name for topic in request.topics)
        whole = context.whole or Whole()
        gather: FanIn[_Grown] = FanIn(lambda results: context.send_reply(CreatePartitionsResponse(results=results)))
        for topic in {topic.name: topic for topic in request.topics}.values():
            done = context.wrap_step(partial(_on_grown, topic.name, gather.new_slot()))
            present = self._cluster.image.topics.get(topic.name)
            if hash(topic.name) in repeated:
                done(_repeated_topic())
                continue
            if not context.is_allowed(Operation.ALTER, ResourceType.TOPIC, topic.name):
                done(denied_error(ResourceType.TOPIC))
                continue
            more = topic.count - (len(present.partitions) if present else 0)
            whole.count += max(0, more, len(topic.assignments or ()))
            if whole.count > MAX_PARTITIONS_PER_REQUEST:
                done(ApiError(ErrorCode.POLICY_VIOLATION, _too_many_partitions()))
            else:
                given = None if topic.assignments is None else [one.broker_ids for one in topic.assignments]
                try:
                    if not request.validate_only:
                        self._admit_growth(context, topic)
                except ApiError as error:
                    done(error.as_value())
                    continue
                self._topics.add_partitions(
                    topic.name, topic.count, given, request.validate_only, request.timeout_ms, done
                )
        gather.close_slots()

    def _admit_growth(self, context: Context, topic: CreatePartitionsRequest.CreatePartitionsTopic) -> None:
        """Raises ApiError THROTTLING_QUOTA_EXCEEDED."""
        present = self._cluster.image.topics.get(topic.name)
        more = 0 if present is None else topic.count - len(present.partitions)
        if more > 0:
            self._admit_mutations(context.slot, more, context.api_version >= _STRICT_GROW)


def _on_grown(name: str, slot: Callable[[_Grown], None], outcome: TopicImage | ApiError) -> None:
    if isinstance(outcome, ApiError):
        slot(_Grown(name=name, error_code=outcome.code, error_message=outcome.message))
    else:
        slot(_Grown(name=name))


def _may_delete(context: Context, state: DeleteTopicsRequest.DeleteTopicState, name: str) -> bool:
    """Whether the client may delete a topic, and, if it knows only the id, may know its name."""
    if state.name is None and not context.is_allowed(Operation.DESCRIBE, ResourceType.TOPIC, name):
        return False
    return context.is_allowed(Operation.DELETE, ResourceType.TOPIC, name)


def _repeated_topic() -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")


def _too_many_partitions() -> str:
    return f"a request may create at most {MAX_PARTITIONS_PER_REQUEST} partitions"


def _topic_spec(topic: CreateTopicsRequest.CreatableTopic) -> TopicSpec:
    """The requested topic. Raises ApiError for a setting without a value, or a partition that is assigned twice."""
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{config.name[:100]}: a value is needed")
        configs[config.name] = config.value
    assignments = {one.partition_index: tuple(one.broker_ids) for one in topic.assignments}
    if len(assignments) != len(topic.assignments):
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "a partition is assigned more than once")
    return TopicSpec(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


def _created_config(one: DescribedConfig) -> CreateTopicsResponse.CreatableTopicConfigs:
    return CreateTopicsResponse.CreatableTopicConfigs(
        name=one.row.name,
        value=one.value,
        read_only=one.read_only,
        config_source=one.source,
        is_sensitive=one.row.sensitive,
    )
