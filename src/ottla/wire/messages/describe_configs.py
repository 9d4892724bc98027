"""DescribeConfigs (key 32) and ListConfigResources (key 74): configuration, read.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, nullable_string, string


class DescribeConfigsRequest(Message, api_key=32, versions="0-4", flexible="4+"):
    """Resources and the keys wanted of each; null means all.

    v1: synonyms (KIP-226). v3: documentation (KIP-569).
    """

    class DescribeConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configuration_keys: list[str] | None = array("0+", "string", nullable="0+", most=1_000)

    resources: list[DescribeConfigsResource] = array("0+")
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")


class DescribeConfigsResponse(Message, api_key=32, versions="0-4", flexible="4+"):
    """Values with their source. v0 has only a flag for default values."""

    class DescribeConfigsSynonym(Struct):
        name: str = string("1+")
        value: str | None = nullable_string("1+", "0+", "")
        source: int = int8("1+")

    class DescribeConfigsResourceResult(Struct):
        name: str = string("0+")
        value: str | None = nullable_string("0+", "0+", "")
        read_only: bool = boolean("0+")
        is_default: bool = boolean("0")
        config_source: int = int8("1+", -1)
        is_sensitive: bool = boolean("0+")
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = array("1+")
        config_type: int = int8("3+")
        documentation: str | None = nullable_string("3+", "0+", "")

    class DescribeConfigsResult(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = array("0+")

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array("0+")


class ListConfigResourcesRequest(Message, api_key=74, versions="0-1", flexible="0+"):
    """Types of resources; v0 lists client metrics only (KIP-714), v1 every type (KIP-1142)."""

    resource_types: list[int] = array("1+", "int8", most=100)


class ListConfigResourcesResponse(Message, api_key=74, versions="0-1", flexible="0+"):
    """The names of the resources of each type."""

    class ConfigResource(Struct):
        resource_name: str = string("0+")
        resource_type: int = int8("1+", 16)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ConfigResource] = array("0+")
