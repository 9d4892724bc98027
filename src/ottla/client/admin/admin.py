"""Managing a cluster: topics, partitions, offsets.

Zone: real. Calls return a result per item: its value, or its error (see `errors.values_of`). An error of the whole
request is raised. One thread per object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from ottla.client.admin.partitions import PartitionAdmin
from ottla.client.admin.types import (
    MAX_TIMESTAMP,
    TIERED_TIMESTAMPS,
    ClusterDescription,
    NewTopic,
    OffsetFound,
    TopicCreated,
    list_of_names,
    setting_text,
)
from ottla.client.cluster import CONTROLLER
from ottla.client.connections.connection import Connection
from ottla.client.errors import ClientError, MalformedReplyError, RefusedError, refused_error
from ottla.client.metadata import NodeView, TopicView
from ottla.client.per_leader_requests import LeaderRequest, SentRequest, ask_leaders
from ottla.client.retry import Deadline, timeout_ms
from ottla.client.settings import ISOLATION
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)


_FIRST_VERSIONS: Final = {MAX_TIMESTAMP: 7, **TIERED_TIMESTAMPS}


class _Item(NamedTuple):
    """The result of one item in a response about several items."""

    name: str
    error_code: int
    error_message: str | None


class Admin(PartitionAdmin):
    """Admin calls over a Cluster, which the caller closes. Every call takes at most `default.api.timeout.ms`, or until
    the deadline given.

    Each call may raise DeadlineError, UnreachableError, MalformedReplyError, UnsupportedVersionError.
    """

    __slots__ = ()

    def list_topics(self, *, internal: bool = False, deadline: Deadline | None = None) -> list[TopicView]:
        """All topics, sorted by name; `internal=True` includes the internal ones (`__consumer_offsets` …)."""
        view = self._cluster.refresh(None, deadline)
        found = [topic for topic in view.topics.values() if isinstance(topic, TopicView)]
        return sorted((topic for topic in found if internal or not topic.internal), key=lambda topic: topic.name)

    def describe_topics(
        self, names: Iterable[str], deadline: Deadline | None = None
    ) -> dict[str, TopicView | ClientError]:
        """Metadata of each topic."""
        wanted = list_of_names("describe_topics", names)
        view = self._cluster.refresh(wanted, deadline) if wanted else self._cluster.view
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return {name: view.topics.get(name) or RefusedError(unknown, f"topic {name}") for name in wanted}

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, deadline: Deadline | None = None
    ) -> dict[str, TopicCreated | ClientError]:
        """Create topics. validate_only: check the request and return what it would create, without creating it."""
        wanted = {topic.name: topic for topic in topics}
        created: dict[str, TopicCreated] = {}

        def ask(names: Sequence[str], deadline: Deadline) -> Iterator[_Item]:
            request = CreateTopicsRequest(
                topics=[_creatable_topic(wanted[name]) for name in names],
                timeout_ms=timeout_ms(deadline),
                validate_only=validate_only,
            )
            answer = self._ask_controller(ApiKey.CREATE_TOPICS, lambda _: request, CreateTopicsResponse, deadline)
            for topic in answer.topics:
                created[topic.name] = TopicCreated(
                    topic.name, topic.topic_id, topic.num_partitions, topic.replication_factor
                )
                yield _Item(topic.name, topic.error_code, topic.error_message)

        failed = self._per_name("create topic", list(wanted), ask, deadline)
        self._cluster.forget_topics(wanted)
        return {name: failed.get(name) or created[name] for name in wanted}

    def delete_topics(self, names: Iterable[str], deadline: Deadline | None = None) -> dict[str, ClientError | None]:
        """Delete topics; the result is None for each topic that was deleted."""

        def build(names: Sequence[str], deadline: Deadline) -> Callable[[int], DeleteTopicsRequest]:
            states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
            return lambda version: DeleteTopicsRequest(
                # Version 6 replaced the list of names with states, which may name a topic by its id.
                topics=states if version >= 6 else [],
                topic_names=[] if version >= 6 else list(names),
                timeout_ms=timeout_ms(deadline),
            )

        def ask(names: Sequence[str], deadline: Deadline) -> Iterator[_Item]:
            answer = self._ask_controller(ApiKey.DELETE_TOPICS, build(names, deadline), DeleteTopicsResponse, deadline)
            return (_Item(item.name or "", item.error_code, item.error_message) for item in answer.responses)

        wanted = list_of_names("delete_topics", names)
        failed = self._per_name("delete topic", wanted, ask, deadline)
        self._cluster.forget_topics(wanted)
        return {name: failed.get(name) for name in wanted}

    def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] = {},
        validate_only: bool = False,
        deadline: Deadline | None = None,
    ) -> dict[str, ClientError | None]:
        """Raise the number of partitions of topics to the given totals; None for each topic that was changed.

        assignments: the replicas of each partition that is added; the broker chooses those of the other topics.
        """

        def ask(names: Sequence[str], deadline: Deadline) -> Iterator[_Item]:
            request = CreatePartitionsRequest(
                topics=[
                    CreatePartitionsRequest.CreatePartitionsTopic(
                        name=name, count=totals[name], assignments=_added_replicas(assignments.get(name))
                    )
                    for name in names
                ],
                timeout_ms=timeout_ms(deadline),
                validate_only=validate_only,
            )
            answer = self._ask_controller(
                ApiKey.CREATE_PARTITIONS, lambda _: request, CreatePartitionsResponse, deadline
            )
            return (_Item(item.name, item.error_code, item.error_message) for item in answer.results)

        failed = self._per_name("add partitions to topic", list(totals), ask, deadline)
        self._cluster.forget_topics(totals)
        return {name: failed.get(name) for name in totals}

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> dict[TopicPartition, OffsetFound | ClientError]:
        """The first offset whose record has at least that timestamp (ms), or EARLIEST, LATEST, MAX_TIMESTAMP, or
        one of `TIERED_TIMESTAMPS`.

        LATEST respects `isolation.level`: the last stable offset under read_committed.
        """
        isolation = ISOLATION[self._cluster.config.isolation_level]
        # Version 1 returns one offset per timestamp, 2 adds the isolation level, 7 adds MAX_TIMESTAMP (KIP-734). An
        # older broker would ignore what it does not know, so the request is refused here instead.
        at_least = max((_FIRST_VERSIONS.get(each, 1) for each in timestamps.values()), default=1)
        at_least = max(at_least, 2 if isolation else 1)

        def send(connection: Connection, asked: Sequence[TopicPartition]) -> Iterator[SentRequest[ListOffsetsResponse]]:
            version = connection.choose_version(ApiKey.LIST_OFFSETS, at_least=at_least)
            by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = {}
            for tp in asked:
                part = ListOffsetsRequest.ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamps[tp])
                by_topic.setdefault(tp.topic, []).append(part)
            topics = [ListOffsetsRequest.ListOffsetsTopic(name=n, partitions=parts) for n, parts in by_topic.items()]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=topics,
                timeout_ms=self._cluster.config.request_timeout_ms if version >= 10 else 0,
            )
            yield connection.send_request(request, version, ListOffsetsResponse), asked

        question: LeaderRequest[ListOffsetsResponse, OffsetFound] = LeaderRequest("list offsets", send, _offset_results)
        return ask_leaders(self._cluster, timestamps, question, deadline or self._cluster.deadline())

    def delete_records(
        self, before: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> dict[TopicPartition, int | ClientError]:
        """Delete all records before an offset (-1: before the high watermark). Returns the new log start offsets."""
        deadline = deadline or self._cluster.deadline()

        def send(
            connection: Connection, asked: Sequence[TopicPartition]
        ) -> Iterator[SentRequest[DeleteRecordsResponse]]:
            by_topic: dict[str, list[DeleteRecordsRequest.DeleteRecordsPartition]] = {}
            for tp in asked:
                part = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=tp.partition, offset=before[tp])
                by_topic.setdefault(tp.topic, []).append(part)
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=parts)
                    for name, parts in by_topic.items()
                ],
                timeout_ms=timeout_ms(deadline.within_ms(self._cluster.config.request_timeout_ms)),
            )
            yield (
                connection.send_request(
                    request, connection.choose_version(ApiKey.DELETE_RECORDS), DeleteRecordsResponse
                ),
                asked,
            )

        question: LeaderRequest[DeleteRecordsResponse, int] = LeaderRequest("delete records", send, _low_watermarks)
        return ask_leaders(self._cluster, before, question, deadline)

    def describe_cluster(self, deadline: Deadline | None = None) -> ClusterDescription:
        """The cluster's id, controller and brokers. Raises RefusedError CLUSTER_AUTHORIZATION_FAILED."""
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_CLUSTER,
            lambda _: DescribeClusterRequest(),
            DescribeClusterResponse,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "cluster", answer.error_message),
        )
        nodes = [NodeView(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers]
        return ClusterDescription(answer.cluster_id, answer.controller_id, tuple(sorted(nodes)))

    def _ask_controller(self, key: ApiKey, build: Callable[[int], Message], response: type[R], deadline: Deadline) -> R:
        return self._cluster.send_request(key, build, response, node=CONTROLLER, deadline=deadline)

    def _per_name(
        self,
        what: str,
        names: Sequence[str],
        ask: Callable[[Sequence[str], Deadline], Iterator[_Item]],
        deadline: Deadline | None,
    ) -> dict[str, ClientError]:
        """The names that failed, and why. NOT_CONTROLLER (the controller moved) is retried at the new controller."""
        deadline = deadline or self._cluster.deadline()
        retries = self._cluster.retries(what, deadline)
        failed: dict[str, ClientError] = {}
        left = list(names)
        while left:
            found = {
                item.name: refused_error(item.error_code, f"topic {item.name}", item.error_message)
                for item in ask(left, deadline)
            }
            # A topic without a result would otherwise count as created or deleted.
            if set(found) != set(left):
                raise MalformedReplyError(f"the response to {what} does not list the requested topics")
            failed |= {name: error for name, error in found.items() if error is not None}
            # Only NOT_CONTROLLER is retried: the old controller did nothing for these topics. Any other error is the
            # result of its topic.
            left = [name for name, error in found.items() if error and error.code is ErrorCode.NOT_CONTROLLER]
            if left:
                retries.wait_backoff(failed.pop(left[0]))
                self._cluster.refresh((), deadline)
        return failed


def _creatable_topic(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
        for number, replicas in (topic.assignment or {}).items()
    ]
    configs = [
        CreateTopicsRequest.CreatableTopicConfig(name=name, value=setting_text(name, value))
        for name, value in topic.configs.items()
    ]
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        # The protocol takes either numbers or an assignment: with an assignment both numbers must be -1.
        num_partitions=-1 if assignments else topic.partitions,
        replication_factor=-1 if assignments else topic.replication_factor,
        assignments=assignments,
        configs=configs,
    )


def _added_replicas(
    replicas: Sequence[Sequence[int]] | None,
) -> list[CreatePartitionsRequest.CreatePartitionsAssignment] | None:
    if replicas is None:
        return None
    return [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(each)) for each in replicas]


def _offset_results(answer: ListOffsetsResponse) -> Iterator[tuple[TopicPartition, OffsetFound | RefusedError]]:
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            error = refused_error(part.error_code, f"offsets of {tp}")
            yield tp, error or OffsetFound(part.offset, part.timestamp, part.leader_epoch)


def _low_watermarks(answer: DeleteRecordsResponse) -> Iterator[tuple[TopicPartition, int | RefusedError]]:
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            error = refused_error(part.error_code, f"delete records of {tp}")
            yield tp, part.low_watermark if error is None else error
