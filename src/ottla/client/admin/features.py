"""Features of a cluster: the levels that brokers support and the cluster has finalized, and their changes.

Zone: real. Sends ApiVersions and UpdateFeatures (KIP-584, KIP-778).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from ottla.client.cluster import CONTROLLER, Cluster
from ottla.client.errors import RefusedError, UsageError, refused_error
from ottla.client.retry import Deadline, timeout_ms
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


class UpgradeType(IntEnum):
    """The kind of a change; the numbers are the protocol's."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureView(NamedTuple):
    """The levels of a feature. `finalized` 0: none."""

    name: str
    min_level: int
    max_level: int
    finalized: int


class FeaturesView(NamedTuple):
    """The features of a cluster. `epoch` rises with every change; -1: the broker does not report one."""

    epoch: int
    features: tuple[FeatureView, ...]


class FeatureAdmin:
    """Calls about features over a Cluster, which the caller closes. One thread per object."""

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe_features(self, deadline: Deadline | None = None, *, node: int = CONTROLLER) -> FeaturesView:
        """The features that a broker reports; by default the controller's."""
        answer = self._cluster.send_request(
            ApiKey.API_VERSIONS,
            lambda _: ApiVersionsRequest(client_software_name="ottla", client_software_version="admin"),
            ApiVersionsResponse,
            node=node,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "features", None),
        )
        finalized = {each.name: each.max_version_level for each in answer.finalized_features}
        supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
        views = [
            FeatureView(name, *supported.get(name, (0, 0)), finalized.get(name, 0))
            for name in sorted({*finalized, *supported})
        ]
        return FeaturesView(answer.finalized_features_epoch, tuple(views))

    def update_features(
        self,
        levels: Mapping[str, int],
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
        deadline: Deadline | None = None,
    ) -> None:
        """Finalize levels. Ottla and Kafka 4 do it for all or none, older ones for each feature alone.

        Raises RefusedError INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED, CLUSTER_AUTHORIZATION_FAILED; UsageError
        without a level.
        """
        results = self.update_each_feature(levels, upgrade_type, validate_only=validate_only, deadline=deadline)
        for error in filter(None, results.values()):
            raise error

    def update_each_feature(
        self,
        levels: Mapping[str, int],
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        *,
        validate_only: bool = False,
        deadline: Deadline | None = None,
    ) -> dict[str, RefusedError | None]:
        """As `update_features`; returns the refusal of each feature, None if its level is finalized.

        Raises a refusal of the whole request.
        """
        if not levels:
            raise UsageError("update_features needs a feature and its level", "Name one, as transaction.version=2")
        limit = deadline or self._cluster.deadline()
        answer = self._cluster.send_request(
            ApiKey.UPDATE_FEATURES,
            lambda version: _update_request(version, levels, upgrade_type, validate_only, timeout_ms(limit)),
            UpdateFeaturesResponse,
            node=CONTROLLER,
            deadline=limit,
            refused=lambda answer: refused_error(answer.error_code, "features", answer.error_message),
        )
        # From version 2 on an answer has no results of features: all were finalized.
        found = {
            each.feature: refused_error(each.error_code, f"feature {each.feature}", each.error_message)
            for each in answer.results
        }
        return {name: found.get(name) for name in levels}


def _update_request(
    version: int, levels: Mapping[str, int], upgrade_type: UpgradeType, validate_only: bool, timeout: int
) -> UpdateFeaturesRequest:
    if version == 0 and validate_only:
        raise UsageError("these brokers cannot validate an update only", "Update without validate_only")
    key = UpdateFeaturesRequest.FeatureUpdateKey
    updates = [key(feature=name, max_version_level=level) for name, level in levels.items()]
    for each in updates:
        if version == 0:
            each.allow_downgrade = upgrade_type is not UpgradeType.UPGRADE
        else:
            each.upgrade_type = upgrade_type
    return UpdateFeaturesRequest(timeout_ms=timeout, feature_updates=updates, validate_only=validate_only)
