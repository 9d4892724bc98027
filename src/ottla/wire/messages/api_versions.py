"""ApiVersions (key 18): the APIs and versions that a broker supports.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, int64, nullable_string, string


class ApiVersionsRequest(Message, api_key=18, versions="0-5", flexible="3+"):
    """Names the client software (v3, KIP-511). v5: cluster and node that the client means to reach (KIP-1242)."""

    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)
    cluster_id: str | None = nullable_string("5+", "5+", None, ignorable=True)
    node_id: int = int32("5+", -1, ignorable=True)


class ApiVersionsResponse(Message, api_key=18, versions="0-5", flexible="3+"):
    """The versions of every API, and from v3 the features.

    Its response header is v0 in every version, and the response to an unknown version is v0 with UNSUPPORTED_VERSION,
    because the client does not know the supported versions yet (KIP-511).
    """

    class ApiVersion(Struct):
        api_key: int = int16("0+")
        min_version: int = int16("0+")
        max_version: int = int16("0+")

    class SupportedFeatureKey(Struct):
        name: str = string("3+")
        min_version: int = int16("3+")
        max_version: int = int16("3+")

    class FinalizedFeatureKey(Struct):
        name: str = string("3+")
        max_version_level: int = int16("3+")
        min_version_level: int = int16("3+")

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array("0+")
    throttle_time_ms: int = int32("1+")
    supported_features: list[SupportedFeatureKey] = array("3+", tag=0)
    finalized_features_epoch: int = int64("3+", -1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array("3+", tag=2)
    zk_migration_ready: bool = boolean("3+", tag=3)
