"""AlterConfigs (key 33) and IncrementalAlterConfigs (key 44): configuration, written.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, nullable_string, string


class AlterConfigsRequest(Message, api_key=33, versions="0-2", flexible="2+"):
    """The whole new configuration of resources (KIP-133): keys that are not named get their default."""

    class AlterableConfig(Struct):
        name: str = string("0+")
        value: str | None = nullable_string("0+", "0+", "")

    class AlterConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[AlterConfigsRequest.AlterableConfig] = array("0+", most=500)

    resources: list[AlterConfigsResource] = array("0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResponse(Message, api_key=33, versions="0-2", flexible="2+"):
    """The outcome for every resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array("0+")


class IncrementalAlterConfigsRequest(Message, api_key=44, versions="0-1", flexible="1+"):
    """Changes key by key: 0 set, 1 delete, 2 append, 3 subtract (KIP-339)."""

    class AlterableConfig(Struct):
        name: str = string("0+")
        config_operation: int = int8("0+")
        value: str | None = nullable_string("0+", "0+", "")

    class AlterConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = array("0+", most=500)

    resources: list[AlterConfigsResource] = array("0+")
    validate_only: bool = boolean("0+")


class IncrementalAlterConfigsResponse(Message, api_key=44, versions="0-1", flexible="1+"):
    """The outcome for every resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array("0+")
