"""UpdateFeatures (key 57): the finalized feature levels of a cluster.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, nullable_string, string


class UpdateFeaturesRequest(Message, api_key=57, versions="0-2", flexible="0+"):
    """Feature levels to finalize (KIP-584). v1: kinds of downgrade and validation only (KIP-778)."""

    class FeatureUpdateKey(Struct):
        feature: str = string("0+")
        max_version_level: int = int16("0+")
        allow_downgrade: bool = boolean("0")
        upgrade_type: int = int8("1+", 1)

    timeout_ms: int = int32("0+", 60000)
    feature_updates: list[FeatureUpdateKey] = array("0+")
    validate_only: bool = boolean("1+")


class UpdateFeaturesResponse(Message, api_key=57, versions="0-2", flexible="0+"):
    """The outcome; for every feature up to v1."""

    class UpdatableFeatureResult(Struct):
        feature: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")
    results: list[UpdatableFeatureResult] = array("0-1")
