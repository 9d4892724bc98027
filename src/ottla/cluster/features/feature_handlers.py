"""UpdateFeatures: the controller finalizes levels of features (KIP-584, KIP-778).

Zone: deterministic. All updates of a request succeed or none, so the error is that of the whole response.

Version notes: 0 permits a downgrade by a flag, 1 has kinds of downgrade and validation only, 2 no result per feature.
"""

from __future__ import annotations

from typing import Final

from ottla.cluster.features.feature_levels import UPDATES_MAX, FeatureUpdate, FinalizedFeatures, UpgradeType
from ottla.cluster.features.feature_store import FeatureStore
from ottla.cluster.topic_requests import TopicRequests
from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, handles
from ottla.security.audit_log import AuditLog
from ottla.wire.apis import ApiKey
from ottla.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse

_BYTES_MAX: Final = 65_536
"""Most bytes of a request."""
_RESULTS_UP_TO: Final = 1
"""The last version with a result per feature."""


class FeatureHandlers:
    """Handles UpdateFeatures. The dispatch has checked the permission on the cluster."""

    def __init__(self, topics: TopicRequests, features: FeatureStore, audit: AuditLog) -> None:
        self._topics = topics
        self._features = features
        self._audit = audit

    @handles(
        ApiKey.UPDATE_FEATURES,
        0,
        2,
        resource="Cluster",
        operation="Alter",
        undivided="more than UPDATES_MAX features are refused, and more bytes than _BYTES_MAX",
        most_bytes=_BYTES_MAX,
    )
    def update_features(self, context: Context, request: UpdateFeaturesRequest) -> None:
        """Finalize levels. Answered when they are stored, and known to the controller's broker."""
        updates = _updates_of(request, context.api_version)

        def updated(outcome: FinalizedFeatures | ApiError) -> None:
            if isinstance(outcome, ApiError):
                context.send_reply(outcome)
                return
            # The controller's broker follows at once, so that a client that asks it again sees its own change.
            if not request.validate_only:
                # This broker does not wait for its own watch: the client may describe the features next.
                self._features.set_finalized(outcome)
                levels = ", ".join(f"{each.name}={each.level}" for each in updates)
                self._audit.log_change(context.peer, "feature", operation="finalize", levels=levels)
            context.send_reply(_response(updates, context.api_version))

        controller = self._topics.controller
        controller.update_features(updates, request.validate_only, request.timeout_ms, context.wrap_step(updated))


def _updates_of(request: UpdateFeaturesRequest, version: int) -> list[FeatureUpdate]:
    """Raises ApiError INVALID_REQUEST."""
    found = request.feature_updates
    if not 0 < len(found) <= UPDATES_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a request updates 1 to {UPDATES_MAX} features, not {len(found)}")
    if len({each.feature for each in found}) < len(found):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a feature is updated twice in the request; name it once")
    return [FeatureUpdate(each.feature, each.max_version_level, _upgrade_type(each, version)) for each in found]


def _upgrade_type(update: UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> int:
    if version > 0:
        return update.upgrade_type
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE


def _response(updates: list[FeatureUpdate], version: int) -> UpdateFeaturesResponse:
    if version > _RESULTS_UP_TO:
        return UpdateFeaturesResponse()
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    return UpdateFeaturesResponse(results=[result(feature=each.name) for each in updates])
