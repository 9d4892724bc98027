"""Metadata and DescribeCluster: the cluster image for clients.

Zone: deterministic. Responses come from the image alone; missing topics are created first if that is allowed. Encoded
responses to frequent requests are cached as long as the image stays the same.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from ottla.acls import Operation, ResourceType
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import INTERNAL_TOPICS, NO_LEADER, BrokerImage, ClusterImage, TopicImage
from ottla.cluster.topic_bytes import HIDDEN, HiddenTopic, TopicSlices
from ottla.cluster.topic_requests import TopicRequests
from ottla.cluster.topics import TopicSpec, is_valid_name
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import EVERY_OPERATION_OF, NOT_ASKED, Context, Encoded, InPieces, Parts, handles
from ottla.types import ZERO_UUID
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from ottla.wire.slices import Joined

MAX_AWAITED: Final = 10
"""Limit of missing topics for whose creation a response waits; with more of them it does not wait."""
HOLD_MS: Final = 100
"""How long a response waits for the next leader. With a store on the same machine an election takes less."""
_CACHED_TOPICS: Final = 8
"""Limit of named topics in a response that is cached."""
_NULL_NAMES_SINCE: Final = 12
_CACHED_BYTES: Final = 1024 * 1024
_CACHE_ENTRIES: Final = 64
_BROKERS: Final = 1
"""Endpoint type of DescribeCluster; 2 would be Raft controllers."""

_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
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
        4. The image lacks a topic that existed when this broker joined: it has LEADER_NOT_AVAILABLE, because clients
           would discard the partitions of a topic that is UNKNOWN_TOPIC_OR_PARTITION.
        5. No topic is missing.
        """
        names = _wanted_names(context.api_version, request)
        denied = context.denied_names(Operation.DESCRIBE, ResourceType.TOPIC, names or ())
        # Denied topics must not change the time of the response either: that would disclose whether they exist.
        known = names if names is None or not denied else [name for name in names if name not in denied]
        if not self._cluster.is_doubtful(known):
            return self._find_or_create(context, request, names, denied)

        def reply_known() -> None:
            answer = self._find_or_create(context, request, names, denied)
            if answer is not None:
                context.send_reply(answer)

        self._cluster.wait_for_image(
            lambda _: not self._cluster.is_doubtful(known), HOLD_MS, context.wrap_step(reply_known)
        )
        return None

    def _find_or_create(
        self, context: Context, request: MetadataRequest, names: list[str] | None, denied: AbstractSet[str]
    ) -> _Answer | None:
        expected = self._cluster.expected_topics
        refused = {name: ErrorCode.LEADER_NOT_AVAILABLE for name in names or () if name in expected}
        refused.update(dict.fromkeys(denied, _DENIED))
        missing = self._missing_topics(names, context.api_version, request) if names else []
        if context.rights is not None and missing:
            missing = _creatable_topics(context, missing, refused)
        if context.is_part or len(missing) > MAX_AWAITED:
            begun = self._topics.create_topics(missing) if missing else ()
            refused.update(dict.fromkeys(begun, ErrorCode.LEADER_NOT_AVAILABLE))
            return self._send_response(context, request, names, refused)
        if not missing:
            return self._send_response(context, request, names, refused)

        def made(outcomes: list[TopicImage | ApiError]) -> None:
            refused.update(_creation_errors(missing, outcomes))
            context.send_reply(self._send_response(context, request, names, refused))

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
        topics, expected = self._cluster.image.topics, self._cluster.expected_topics
        return [name for name in names if name not in topics and name not in expected and is_valid_name(name)]

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
        # With an authorizer, the topics that a client may see and its operations are its own.
        if context.rights is not None and (names is None or request.include_topic_authorized_operations):
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
        asked = request.include_topic_authorized_operations
        operations = EVERY_OPERATION_OF[ResourceType.TOPIC] if asked else NOT_ASKED
        form = self._cluster.kept_topics.form_for(context.api_version, context.peer.listener, operations, image.brokers)
        wanted = _all_topics(context, image) if names is None else _find_topics(context, image, names, request, refused)
        own = partial(_operations_at, context) if asked and context.rights is not None else None
        slices = TopicSlices(form, wanted, self._cluster.without_silent_leaders, own)
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
        # Only responses without denied topics are shared.
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
            cluster_authorized_operations=_cluster_operations(context, request.include_cluster_authorized_operations),
        )

    # -- DescribeCluster ---------------------------------------------------------------------------------------

    @handles(ApiKey.DESCRIBE_CLUSTER, 0, 2, resource="Cluster", operation="Describe", checks_itself=True)
    def describe_cluster(self, context: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """Return the brokers with their endpoints for the client's listener.

        Describe is needed for the authorized operations only, as in Kafka.
        """
        if request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="there are no Raft controllers to describe; ask for brokers",
                endpoint_type=request.endpoint_type,
                cluster_id=self._cluster.image.cluster_id or "",
            )
        image = self._cluster.image
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
            cluster_authorized_operations=_cluster_operations(context, request.include_cluster_authorized_operations),
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


def _creatable_topics(context: Context, missing: list[str], refused: dict[str, ErrorCode]) -> list[str]:
    """The missing topics that the client may have created and see. Adds the others to `refused`."""
    wanted = [name for name in missing if name not in refused]
    if context.is_allowed(Operation.CREATE, ResourceType.CLUSTER, logs=False):
        return wanted
    denied = context.denied_names(Operation.CREATE, ResourceType.TOPIC, wanted)
    refused.update(dict.fromkeys(denied, _DENIED))
    return [name for name in wanted if name not in denied]


def _may_describe(context: Context, name: str) -> bool:
    return context.is_allowed(Operation.DESCRIBE, ResourceType.TOPIC, name, logs=False)


def _operations_at(context: Context, topic: TopicImage) -> int:
    return context.authorized_operations(ResourceType.TOPIC, topic.name)


def _cluster_operations(context: Context, is_asked: bool) -> int:
    if not is_asked:
        return NOT_ASKED
    may_describe = context.is_allowed(Operation.DESCRIBE, ResourceType.CLUSTER, logs=False)
    return context.authorized_operations(ResourceType.CLUSTER) if may_describe else 0


def _all_topics(context: Context, image: ClusterImage) -> Iterable[TopicImage | HiddenTopic]:
    """All topics. Those that the client may not describe are hidden, which costs as much as a decision."""
    if context.rights is None:
        return image.topics.values()
    return (topic if _may_describe(context, topic.name) else HIDDEN for topic in image.topics.values())


def _find_topics(
    context: Context,
    image: ClusterImage,
    names: Sequence[str],
    request: MetadataRequest,
    refused: Mapping[str, ErrorCode],
) -> Iterator[TopicImage | _Topic]:
    """The topics of these names, and those that the request has by id, or errors in their place."""
    for name in names:
        found = image.topics.get(name)
        if refused.get(name) is _DENIED:
            yield _Topic(error_code=_DENIED, name=name)
        elif found is not None:
            yield found
        elif not is_valid_name(name):
            yield _Topic(error_code=ErrorCode.INVALID_TOPIC_EXCEPTION, name=name)
        else:
            code = refused.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            yield _Topic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)
    for topic_id in _wanted_ids(request):
        known = image.topic_by_id(topic_id)
        if known is None:
            yield _Topic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        elif context.is_allowed(Operation.DESCRIBE, ResourceType.TOPIC, known.name):
            yield known
        else:  # as in Kafka: ids are not secret, names are
            yield _Topic(error_code=_DENIED, name=None, topic_id=topic_id)


def _live_controller(image: ClusterImage) -> int:
    """The controller; -1 after its death, until another one sends an update."""
    return image.controller_id if image.controller_id in image.brokers else NO_LEADER
