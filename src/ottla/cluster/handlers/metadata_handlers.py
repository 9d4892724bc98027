"""Metadata, DescribeCluster, DescribeTopicPartitions: the cluster image for clients.

Zone: deterministic. Responses come from the image alone; missing topics are created first if that is allowed. Encoded
responses to frequent requests are cached as long as the image stays the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ottla.cluster.cluster import Cluster
from ottla.cluster.image import INTERNAL_TOPICS, NO_LEADER, BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla.cluster.topic_bytes import TopicSlices
from ottla.cluster.topic_requests import TopicRequests
from ottla.cluster.topics import TopicSpec, check_name
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import Context, Encoded, InPieces, Parts, handles
from ottla.types import ZERO_UUID
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from ottla.wire.slices import Joined

MAX_AWAITED: Final = 10
"""Limit of missing topics for whose creation a response waits; with more of them it does not wait."""
MAX_NAMED: Final = 20_000
"""Limit of topics in one DescribeTopicPartitions. Metadata has none, because it is handled in parts."""
HOLD_MS: Final = 100
"""How long a response waits for the next leader. With a store on the same machine an election takes less."""
_CACHED_TOPICS: Final = 8
"""Limit of named topics in a response that is cached."""
_SHOWN: Final = 250
"""Topics and partitions in one piece of a DescribeTopicPartitions response."""
_NULL_NAMES_SINCE: Final = 12
_CACHED_BYTES: Final = 1024 * 1024
_CACHE_ENTRIES: Final = 64
_BROKERS: Final = 1
"""Endpoint type of DescribeCluster; 2 would be Raft controllers."""

TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""Bits of Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs: all operations are allowed."""
CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""Bits of Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite."""
_NOT_ASKED: Final = -(2**31)

_Topic = MetadataResponse.MetadataResponseTopic
_Answer = MetadataResponse | Encoded | InPieces
_PATH: Final = ("topics",)
_CacheKey = tuple[int, str, tuple[str, ...] | None, bool]


def _by_name(topic: MetadataRequest.MetadataRequestTopic) -> object:
    return topic.topic_id if topic.name is None else topic.name


class MetadataHandlers:
    """Handles requests about brokers, topics and partitions."""

    def __init__(self, cluster: Cluster, topics: TopicRequests) -> None:
        self._cluster = cluster
        self._topics = topics
        self._cache: dict[_CacheKey, Encoded] = {}
        self._cache_epoch = -1
        self._names_of: Mapping[str, TopicImage] = {}
        self._names: list[str] = []
        self._building: dict[tuple[int, _CacheKey], list[tuple[Context, MetadataRequest]]] = {}
        """Responses that are being built in pieces → requests that wait for the same response."""

    # -- Metadata ----------------------------------------------------------------------------------------------

    @handles(
        ApiKey.METADATA,
        0,
        13,
        resource="Topic",
        operation="Describe",
        also=(("Topic", "Create"),),
        parts=Parts(cost_us=4, request=(("topics",),), response=(("topics",),), once=_by_name),
    )
    def metadata(self, context: Context, request: MetadataRequest) -> _Answer | None:
        """Return brokers and topics; missing topics are created first if request and broker allow it.

        1. A leader among the topics has just stopped responding. The client may have asked because it died, before the
           controller knows. With the old leader in the response it would not ask again for long. So the response
           waits HOLD_MS for the next leader, and then has none.
        2. Many topics are missing, or the request is handled in parts. The response does not wait: topics whose
           creation has begun have LEADER_NOT_AVAILABLE, others UNKNOWN_TOPIC_OR_PARTITION. Clients retry after both.
        3. Few topics are missing: the response waits for their creation.
        4. No topic is missing.
        """
        names = _wanted_names(context.api_version, request)
        if not self._cluster.is_doubtful(names):
            return self._find_or_create(context, request, names)

        def reply_known() -> None:
            answer = self._find_or_create(context, request, names)
            if answer is not None:
                context.send_reply(answer)

        self._cluster.wait_for_image(
            lambda _: not self._cluster.is_doubtful(names), HOLD_MS, context.wrap_step(reply_known)
        )
        return None

    def _find_or_create(self, context: Context, request: MetadataRequest, names: list[str] | None) -> _Answer | None:
        missing = self._missing_topics(names, context.api_version, request) if names else []
        if context.is_part or len(missing) > MAX_AWAITED:
            begun = (
                dict.fromkeys(self._topics.create_topics(missing), ErrorCode.LEADER_NOT_AVAILABLE) if missing else {}
            )
            return self._send_response(context, request, names, begun)
        if not missing:
            return self._send_response(context, request, names, {})

        def made(outcomes: list[TopicImage | ApiError]) -> None:
            context.send_reply(self._send_response(context, request, names, _creation_errors(missing, outcomes)))

        gather: FanIn[TopicImage | ApiError] = FanIn(context.wrap_step(made))
        for name in missing:
            slot = gather.new_slot()
            if name in INTERNAL_TOPICS[:2]:
                self._topics.find_internal_topic(name, slot)
            else:
                self._topics.find_or_create(TopicSpec(name), slot)
        gather.close_slots()
        return None

    def _missing_topics(self, names: Sequence[str], version: int, request: MetadataRequest) -> list[str]:
        """The missing topics that this request may create."""
        if not self._cluster.config.auto_create_topics_enable:
            return []
        if version >= 4 and not request.allow_auto_topic_creation:
            return []
        topics = self._cluster.image.topics
        return [name for name in names if name not in topics and _is_name(name)]

    def _send_response(
        self, context: Context, request: MetadataRequest, names: list[str] | None, refused: dict[str, ErrorCode]
    ) -> _Answer | None:
        key = self._cache_key(context, request, names, refused)
        if key is None:
            return self._build_response(context, request, names, refused, None)
        image = self._cluster.image
        if image.epoch != self._cache_epoch or len(self._cache) >= _CACHE_ENTRIES:
            self._cache.clear()
            self._cache_epoch = image.epoch
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        waiting = self._building.get((image.epoch, key))
        if waiting is None:
            return self._build_response(context, request, names, refused, key)
        waiting.append((context, request))
        return None

    def _cache_key(
        self, context: Context, request: MetadataRequest, names: list[str] | None, refused: dict[str, ErrorCode]
    ) -> _CacheKey | None:
        """The key of the response in the cache; None: it is not cached."""
        # Only frequent forms are cached: few names, no ids, no errors, and no leader that is doubted.
        if context.is_part or refused or request.include_cluster_authorized_operations:
            return None
        if names is not None and (len(names) > _CACHED_TOPICS or _wanted_ids(request)):
            return None
        if self._cluster.is_doubtful(names):
            return None
        wanted = None if names is None else tuple(names)
        return context.api_version, context.peer.listener, wanted, request.include_topic_authorized_operations

    def _build_response(
        self,
        context: Context,
        request: MetadataRequest,
        names: list[str] | None,
        refused: dict[str, ErrorCode],
        key: _CacheKey | None,
    ) -> _Answer:
        """The response if one slice is enough for it, else a generator of its pieces."""
        image = self._cluster.image
        operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else _NOT_ASKED
        form = self._cluster.kept_topics.form_for(context.api_version, context.peer.listener, operations, image.brokers)
        wanted = image.topics.values() if names is None else _find_topics(image, names, _wanted_ids(request), refused)
        slices = TopicSlices(form, wanted, self._cluster.without_silent_leaders)
        # 1. More than one slice: pieces in later turns, shared with equal requests. 2. A part of a large request: the
        # dispatch joins it. 3. One slice: encoded at once.
        first = self._with_topics(context, request, slices.take_slice(), image)
        if not slices.is_over:
            pieces = self._response_pieces(context, request, first, slices, image)
            return InPieces(_PATH, pieces) if key is None else self._share_pieces(pieces, image, key)
        if context.is_part:
            return first
        joined = Joined(MetadataResponse, context.api_version, _PATH)
        joined.add_response(first)
        encoded = Encoded(joined.final_parts())
        if key is not None:
            self._cache_response(key, encoded)
        return encoded

    def _cache_response(self, key: _CacheKey, encoded: Encoded) -> None:
        # Large responses would fill the memory, and the bytes of their topics are cached anyway.
        if sum(len(part) for part in encoded.parts if isinstance(part, bytes)) <= _CACHED_BYTES:
            self._cache[key] = encoded

    def _share_pieces(
        self, pieces: Generator[MetadataResponse, None, None], image: ClusterImage, key: _CacheKey
    ) -> InPieces:
        """Build the response in pieces for one client; clients with the same request wait for it."""
        building = (image.epoch, key)
        waiting = self._building[building] = []

        def keep(encoded: Encoded) -> None:
            del self._building[building]
            # The image may have changed during the pieces. Then the response is sent, but not cached.
            if self._cache_epoch == image.epoch:
                self._cache_response(key, encoded)
            for other, _ in waiting:
                other.send_reply(encoded)

        def on_dropped() -> None:
            del self._building[building]
            # The first client is gone. The first of the others builds the response, and the rest wait for it again.
            for other, its in waiting:
                other.wrap_step(self._reply_later)(other, its)

        return InPieces(_PATH, pieces, keep, on_dropped)

    def _reply_later(self, context: Context, request: MetadataRequest) -> None:
        answer = self._send_response(context, request, _wanted_names(context.api_version, request), {})
        if answer is not None:
            context.send_reply(answer)

    def _response_pieces(
        self,
        context: Context,
        request: MetadataRequest,
        first: MetadataResponse,
        slices: TopicSlices,
        image: ClusterImage,
    ) -> Generator[MetadataResponse, None, None]:
        yield first
        while not slices.is_over:
            yield self._with_topics(context, request, slices.take_slice(), image)

    def _with_topics(
        self, context: Context, request: MetadataRequest, topics: list[bytes], image: ClusterImage
    ) -> MetadataResponse:
        """A response, or a piece of it, around encoded topics."""
        return MetadataResponse(
            brokers=_reachable_brokers(self._cluster.listed_brokers, context.peer.listener),
            cluster_id=image.cluster_id,
            controller_id=_live_controller(image),
            topics=topics,  # type: ignore[arg-type]  # `Joined` takes elements that are bytes
            cluster_authorized_operations=(
                CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
            ),
        )

    # -- DescribeCluster ---------------------------------------------------------------------------------------

    @handles(ApiKey.DESCRIBE_CLUSTER, 0, 2, resource="Cluster", operation="Describe")
    def describe_cluster(self, context: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """Return the brokers with their endpoints for the client's listener."""
        if request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="there are no Raft controllers to describe; ask for brokers",
                endpoint_type=request.endpoint_type,
                cluster_id=self._cluster.image.cluster_id or "",
            )
        image = self._cluster.image
        asked = request.include_cluster_authorized_operations
        return DescribeClusterResponse(
            endpoint_type=_BROKERS,
            cluster_id=image.cluster_id or "",
            controller_id=_live_controller(image),
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in _reachable_brokers(image.brokers, context.peer.listener)
            ],
            cluster_authorized_operations=CLUSTER_OPERATIONS if asked else _NOT_ASKED,
        )

    # -- DescribeTopicPartitions -------------------------------------------------------------------------------

    @handles(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        0,
        resource="Topic",
        operation="Describe",
        undivided="the response is a page of at most max.request.partition.size.limit partitions",
    )
    def describe_topic_partitions(
        self, _context: Context, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse | InPieces:
        """Return topics by name, in pages of at most max.request.partition.size.limit partitions."""
        _check_count(len(request.topics))
        image = self._cluster.image
        asked = dict.fromkeys(topic.name for topic in request.topics)
        names = sorted(asked) if asked else self._sorted_names(image)
        first = start = 0
        if request.cursor is not None:
            if request.cursor.partition_index < 0:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the cursor's partition is negative")
            first = bisect_left(names, request.cursor.topic_name)
            start = request.cursor.partition_index if names[first : first + 1] == [request.cursor.topic_name] else 0
        left = max(1, min(request.response_partition_limit, self._cluster.config.max_request_partition_size_limit))
        plan, cursor = _plan_page(image, islice(names, first, None), start, left)
        pieces = _page_pieces(image, plan, cursor)
        is_large = len(plan) + sum(each.end - each.begin for each in plan) > _SHOWN
        return InPieces(("topics", "partitions"), pieces) if is_large else next(pieces)

    def _sorted_names(self, image: ClusterImage) -> list[str]:
        """The names of all topics, sorted once per image for all pages."""
        if self._names_of is not image.topics:
            self._names_of, self._names = image.topics, sorted(image.topics)
        return self._names


_TopicPage = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_PartitionPage = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


class _Planned(NamedTuple):
    """The partitions of a topic on a page."""

    name: str
    topic: TopicImage | None
    begin: int
    end: int


def _plan_page(
    image: ClusterImage, names: Iterable[str], start: int, left: int
) -> tuple[list[_Planned], DescribeTopicPartitionsResponse.Cursor | None]:
    """The topics on a page, and the cursor of the next page."""
    plan: list[_Planned] = []
    for name in names:
        if left == 0:
            return plan, DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
        found = image.topics.get(name)
        count = 0 if found is None else len(found.partitions)
        begin = min(start, count)
        end = min(count, begin + left)
        left -= end - begin
        plan.append(_Planned(name, found, begin, end))
        if end < count:
            return plan, DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=end)
        start = 0
    return plan, None


def _page_pieces(
    image: ClusterImage, plan: Iterable[_Planned], cursor: DescribeTopicPartitionsResponse.Cursor | None
) -> Generator[DescribeTopicPartitionsResponse, None, None]:
    """The page in pieces, at least one. A topic may be in several pieces."""
    topics: list[_TopicPage] = []
    made = 0
    for each in plan:
        topics.append(_topic_page(each))
        made += 1
        for at in range(each.begin, each.end, _SHOWN):
            if made >= _SHOWN:
                yield DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
                topics, made = [_topic_page(each)], 0
            some = each.topic.partitions[at : min(each.end, at + _SHOWN)] if each.topic is not None else ()
            topics[-1].partitions = [_partition_page(partition, image) for partition in some]
            made += len(some)
        if made >= _SHOWN:
            yield DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)
            topics, made = [], 0
    yield DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _topic_page(each: _Planned) -> _TopicPage:
    if each.topic is None:
        known = _is_name(each.name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known else ErrorCode.INVALID_TOPIC_EXCEPTION
        return _TopicPage(error_code=code, name=each.name)
    return _TopicPage(
        name=each.name,
        topic_id=each.topic.topic_id,
        is_internal=each.topic.is_internal,
        topic_authorized_operations=TOPIC_OPERATIONS,
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


def _wanted_names(version: int, request: MetadataRequest) -> list[str] | None:
    """The names in the request, each once. None: all topics, which version 0 requests by an empty list."""
    if request.topics is None or (version == 0 and not request.topics):
        return None
    for topic in request.topics:
        if topic.name is None and topic.topic_id == ZERO_UUID:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a topic in the request has neither a name nor an id")
        if topic.name is None and version < _NULL_NAMES_SINCE:  # the response needs a null name if the id is unknown
            raise ApiError(ErrorCode.INVALID_REQUEST, f"version {version} cannot request topics by id")
    return list(dict.fromkeys(topic.name for topic in request.topics if topic.name is not None))


def _check_count(count: int) -> None:
    if count > MAX_NAMED:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a request may name {MAX_NAMED} topics, not {count}")


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except ApiError:
        return False
    return True


def _creation_errors(names: Iterable[str], outcomes: Iterable[TopicImage | ApiError]) -> dict[str, ErrorCode]:
    """The errors of topics that were not created; a topic that exists by now has none."""
    return {
        name: outcome.code
        for name, outcome in zip(names, outcomes, strict=True)
        if isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS
    }


def _reachable_brokers(
    brokers: Mapping[int, BrokerImage], listener: str
) -> list[MetadataResponse.MetadataResponseBroker]:
    """The brokers that have an endpoint for this listener."""
    found = []
    for node_id in sorted(brokers):
        broker = brokers[node_id]
        endpoint = broker.endpoint_of(listener)
        if endpoint is not None:
            found.append(
                MetadataResponse.MetadataResponseBroker(
                    node_id=node_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    return found


def _wanted_ids(request: MetadataRequest) -> list[bytes]:
    """The ids of topics that are requested without a name, each once."""
    return list(dict.fromkeys(topic.topic_id for topic in request.topics or () if topic.name is None))


def _find_topics(
    image: ClusterImage, names: Sequence[str], ids: Sequence[bytes], refused: Mapping[str, ErrorCode]
) -> Iterator[TopicImage | _Topic]:
    """The topics of these names and ids, or errors in their place."""
    for name in names:
        found = image.topics.get(name)
        if found is not None:
            yield found
        elif not _is_name(name):
            yield _Topic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
        else:
            code = refused.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            yield _Topic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)
    for topic_id in ids:
        known = image.topic_by_id(topic_id)
        yield known or _Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)


def _offline_replicas(partition: PartitionImage, image: ClusterImage) -> list[int]:
    return [broker for broker in partition.replicas if broker not in image.brokers or broker in partition.offline]


def _live_controller(image: ClusterImage) -> int:
    """The controller; -1 after its death, until another one sends an update."""
    return image.controller_id if image.controller_id in image.brokers else NO_LEADER
