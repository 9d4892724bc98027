"""ApiVersions and FindCoordinator: the first requests of clients.

Zone: deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ottla.acls import Operation, ResourceType
from ottla.cluster.cluster import Cluster
from ottla.cluster.coordinators import partition_for
from ottla.cluster.features.feature_levels import SUPPORTED, FinalizedFeatures
from ottla.cluster.features.feature_store import FeatureStore
from ottla.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicImage
from ottla.cluster.topic_requests import TopicRequests
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import AUTHORIZATION_ERRORS, Context, Encoded, Parts, handles
from ottla.seams import Peer
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode
from ottla.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""Names and versions of client software (KIP-511)."""
_TOPIC_BY_TYPE: Final = {0: CONSUMER_OFFSETS, 1: TRANSACTION_STATE}
_RESOURCE_BY_TYPE: Final = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
_NOBODY: Final = -1
_SOFTWARE_VERSION: Final = 3
"""The first version of ApiVersions that names the client's software."""
_FEATURES_VERSION: Final = 3
"""The first version of ApiVersions with fields for features."""
_ZERO_VERSION: Final = 4
"""The first version whose clients accept features with a minimum of 0."""

Ranges = Callable[[], Mapping[int, tuple[int, int]]]
"""API key → (lowest, highest version) that the broker serves."""
OnClientSoftware = Callable[[Peer, str, str], None]
"""Receives the name and version of the software of a connection's client."""


class _Found(NamedTuple):
    """The coordinator of one name, or the error."""

    code: ErrorCode
    message: str
    node_id: int = _NOBODY
    host: str = ""
    port: int = _NOBODY


class ClientHandlers:
    """Handles ApiVersions and FindCoordinator."""

    def __init__(
        self,
        cluster: Cluster,
        topics: TopicRequests,
        ranges: Ranges,
        on_client_software: OnClientSoftware,
        features: FeatureStore,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._ranges = ranges
        self._on_client_software = on_client_software
        self._features = features
        self._announced = features.finalized
        self._versions_answers: dict[int, Encoded] = {}
        """ApiVersions' version → the answer. It changes with the finalized features only: APIs are registered before
        the first request."""

    @handles(ApiKey.API_VERSIONS, 0, 4)
    def api_versions(self, context: Context, request: ApiVersionsRequest) -> Encoded | ApiVersionsResponse:
        """Return the API versions of this broker, and the features of the cluster."""
        version = context.api_version
        if version >= _SOFTWARE_VERSION:
            names = request.client_software_name, request.client_software_version
            if not all(map(_SOFTWARE.fullmatch, names)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            self._on_client_software(context.peer, *names)
        if self._announced is not self._features.finalized:
            self._announced = self._features.finalized
            self._versions_answers.clear()
        if version not in self._versions_answers:
            # Encoding takes ten times as long as the rest of the request, and each new connection sends one.
            self._versions_answers[version] = Encoded(encode(self._versions_of(version), version))
        return self._versions_answers[version]

    def _versions_of(self, version: int) -> ApiVersionsResponse:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in sorted(self._ranges().items())
        ]
        response = ApiVersionsResponse(api_keys=keys)
        if version >= _FEATURES_VERSION:
            _announce_features(response, version, self._announced)
        return response

    # -- FindCoordinator ---------------------------------------------------------------------------------------

    @handles(
        ApiKey.FIND_COORDINATOR,
        0,
        6,
        resource="Group",
        operation="Describe",
        also=(("TransactionalId", "Describe"),),
        parts=Parts(cost_us=20, request=(("coordinator_keys",),), response=(("coordinators",),)),
    )
    def find_coordinator(self, context: Context, request: FindCoordinatorRequest) -> None:
        """Return the leader of the partition of a group or transactional id; creates the topic on first use."""
        old = context.api_version < 4
        keys = [request.key] if old else list(dict.fromkeys(request.coordinator_keys))

        def send_response(found: list[_Found]) -> None:
            context.send_reply(_old_response(found[0]) if old else _new_response(keys, found))

        gather = FanIn(send_response)
        slots = [gather.new_slot() for _ in keys]
        gather.close_slots()
        topic = _TOPIC_BY_TYPE.get(request.key_type)
        if topic is None:
            unknown = _Found(ErrorCode.INVALID_REQUEST, f"unknown type of coordinator: {request.key_type}")
            for slot in slots:
                slot(unknown)
            return
        resource = _RESOURCE_BY_TYPE[request.key_type]
        denied = context.denied_names(Operation.DESCRIBE, resource, keys)
        wanted: dict[str, Callable[[_Found], None]] = {}
        for key, slot in zip(keys, slots, strict=True):
            if key in denied:
                slot(_Found(AUTHORIZATION_ERRORS[resource], f"{resource.title} authorization failed."))
            else:
                wanted[key] = slot
        if wanted:
            found = context.wrap_step(lambda outcome: self._on_found(context, wanted, outcome))
            self._topics.find_internal_topic(topic, found)

    def _on_found(
        self,
        context: Context,
        wanted: Mapping[str, Callable[[_Found], None]],
        outcome: TopicImage | ApiError,
    ) -> None:
        for key, slot in wanted.items():
            if isinstance(outcome, ApiError):
                slot(_Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, outcome.message))
            else:
                slot(self._find_coordinator(context, outcome, key))

    def _find_coordinator(self, context: Context, topic: TopicImage, key: str) -> _Found:
        partition = topic.partitions[partition_for(key, len(topic.partitions))]
        broker = self._cluster.image.brokers.get(partition.leader)
        endpoint = None if broker is None else broker.endpoint_of(context.peer.listener)
        if endpoint is None:
            return _Found(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "the coordinator's partition has no leader at the moment; try again",
            )
        return _Found(ErrorCode.NONE, "", partition.leader, endpoint.host, endpoint.port)


def _announce_features(response: ApiVersionsResponse, version: int, features: FinalizedFeatures) -> None:
    """Add what this broker supports, and what the cluster has finalized; 0 is not finalized, as in Kafka.

    Clients of version 3 reject a feature with a minimum of 0, and receive only its finalized level (KAFKA-17011).
    """
    supported, finalized = ApiVersionsResponse.SupportedFeatureKey, ApiVersionsResponse.FinalizedFeatureKey
    response.finalized_features_epoch = features.epoch
    for name, own in SUPPORTED.items():
        level = features.level_of(name)
        if version >= _ZERO_VERSION or own.min_level:
            each = supported(name=name, min_version=own.min_level, max_version=own.max_level)
            response.supported_features.append(each)
        if level:
            response.finalized_features.append(finalized(name=name, max_version_level=level, min_version_level=level))


def _old_response(found: _Found) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=found.code,
        error_message=found.message or None,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _new_response(keys: list[str], found: list[_Found]) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key,
                node_id=one.node_id,
                host=one.host,
                port=one.port,
                error_code=one.code,
                error_message=one.message or None,
            )
            for key, one in zip(keys, found, strict=True)
        ]
    )
