"""DescribeTopicPartitions: topics and their partitions in pages.

Zone: deterministic. Responses come from the image alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ottla.acls import Operation, ResourceType
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from ottla.cluster.topics import is_valid_name
from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, InPieces, handles
from ottla.wire.apis import ApiKey
from ottla.wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

MAX_NAMED: Final = 20_000
"""Limit of topics in one DescribeTopicPartitions. Metadata has none, because it is handled in parts."""
_SHOWN: Final = 250
"""Topics and partitions in one piece of a response."""
_DENIED_MAX: Final = 2_000
"""Topics that the client may not describe, after which a page ends with a cursor: each of them costs a decision."""
_TopicPage = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_PartitionPage = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


class TopicPageHandlers:
    """Handles DescribeTopicPartitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._names_of: Mapping[str, TopicImage] = {}
        self._names: list[str] = []

    @handles(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        0,
        resource="Topic",
        operation="Describe",
        undivided="the response is a page of at most max.request.partition.size.limit partitions",
    )
    def describe_topic_partitions(
        self, context: Context, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse | InPieces:
        """Return topics by name, in pages of at most max.request.partition.size.limit partitions.

        A topic that the client may not describe has an error if the request names it, and is left out otherwise.
        """
        if len(request.topics) > MAX_NAMED:
            return InPieces(("topics", "partitions"), _refused_pieces(request.topics))
        image = self._cluster.image
        asked = dict.fromkeys(topic.name for topic in request.topics)
        names = sorted(asked) if asked else self._sorted_names(image)
        first = start = 0
        if request.cursor is not None:
            if request.cursor.partition_index < 0:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
            # If the topic of the cursor was deleted since, the page begins with the next one, from its first partition.
            first = bisect_left(names, request.cursor.topic_name)
            start = request.cursor.partition_index if names[first : first + 1] == [request.cursor.topic_name] else 0
        left = max(1, min(request.response_partition_limit, self._cluster.config.max_request_partition_size_limit))
        found = _find_described(context, image, islice(names, first, None), is_named=bool(asked))
        plan, cursor = _plan_page(found, start, left)
        pieces = _page_pieces(context, image, plan, cursor)
        is_large = len(plan) + sum(each.end - each.begin for each in plan) > _SHOWN
        return InPieces(("topics", "partitions"), pieces) if is_large else next(pieces)

    def _sorted_names(self, image: ClusterImage) -> list[str]:
        """The names of all topics, sorted once per image for all pages."""
        if self._names_of is not image.topics:
            self._names_of, self._names = image.topics, sorted(image.topics)
        return self._names


class _Planned(NamedTuple):
    """The partitions of a topic on a page."""

    name: str
    topic: TopicImage | None
    begin: int
    end: int
    is_denied: bool = False


class _Found(NamedTuple):
    """A name on its way to a page."""

    name: str
    topic: TopicImage | None
    is_denied: bool
    is_shown: bool


def _find_described(context: Context, image: ClusterImage, names: Iterable[str], *, is_named: bool) -> Iterator[_Found]:
    """Look up topics. A denied one has no topic, whether it exists or not, and is shown only if it `is_named`."""
    for name in names:
        if context.is_allowed(Operation.DESCRIBE, ResourceType.TOPIC, name, logs=is_named):
            yield _Found(name, image.topics.get(name), False, True)
        else:
            yield _Found(name, None, True, is_named)


def _plan_page(
    names: Iterable[_Found], start: int, left: int
) -> tuple[list[_Planned], DescribeTopicPartitionsResponse.Cursor | None]:
    """The topics on a page, and the cursor of the next page."""
    plan: list[_Planned] = []
    denied = 0
    for name, found, is_denied, is_shown in names:
        if left == 0 or denied == _DENIED_MAX:
            return plan, DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
        denied += is_denied
        if not is_shown:
            start = 0
            continue
        count = 0 if found is None else len(found.partitions)
        begin = min(start, count)
        end = min(count, begin + left)
        left -= end - begin
        plan.append(_Planned(name, found, begin, end, is_denied))
        if end < count:
            return plan, DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
        start = 0
    return plan, None


def _page_pieces(
    context: Context,
    image: ClusterImage,
    plan: Iterable[_Planned],
    cursor: DescribeTopicPartitionsResponse.Cursor | None,
) -> Generator[DescribeTopicPartitionsResponse, None, None]:
    """The page in pieces, at least one. A topic may be in several pieces."""
    topics: list[_TopicPage] = []
    made = 0
    for each in plan:
        topics.append(_topic_page(context, each))
        made += 1
        for at in range(each.begin, each.end, _SHOWN):
            if made >= _SHOWN:
                yield DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
                topics, made = [_topic_page(context, each)], 0
            some = each.topic.partitions[at : min(each.end, at + _SHOWN)] if each.topic is not None else ()
            topics[-1].partitions = [_partition_page(partition, image) for partition in some]
            made += len(some)
        if made >= _SHOWN:
            yield DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
            topics, made = [], 0
    yield DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _topic_page(context: Context, each: _Planned) -> _TopicPage:
    if each.is_denied:
        return _TopicPage(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=each.name)
    if each.topic is None:
        known = is_valid_name(each.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.INVALID_TOPIC_EXCEPTION
        return _TopicPage(error_code=code, name=each.name)
    return _TopicPage(
        name=each.name,
        topic_id=each.topic.topic_id,
        is_internal=each.topic.is_internal,
        topic_authorized_operations=context.authorized_operations(ResourceType.TOPIC, each.name),
    )


def _partition_page(partition: PartitionImage, image: ClusterImage) -> _PartitionPage:
    return _PartitionPage(
        error_code=ErrorCode.NONE if partition.leader in image.brokers else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=partition.partition,
        leader_id=partition.leader if partition.leader in image.brokers else NO_LEADER,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=_offline_replicas(partition, image),
    )


def _refused_pieces(
    asked: Sequence[DescribeTopicPartitionsRequest.TopicRequest],
) -> Generator[DescribeTopicPartitionsResponse, None, None]:
    """An error for each topic: the response has none for the whole request."""
    for begin in range(0, len(asked), _SHOWN):
        some = asked[begin : begin + _SHOWN]
        yield DescribeTopicPartitionsResponse(
            topics=[_TopicPage(error_code=ErrorCode.INVALID_REQUEST, name=topic.name) for topic in some]
        )


def _offline_replicas(partition: PartitionImage, image: ClusterImage) -> list[int]:
    return [broker for broker in partition.replicas if broker not in image.brokers or broker in partition.offline]
