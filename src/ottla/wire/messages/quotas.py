"""DescribeClientQuotas (key 48) and AlterClientQuotas (key 49).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, float64, int8, int16, int32, nullable_string, string


class DescribeClientQuotasRequest(Message, api_key=48, versions="0-1", flexible="1+"):
    """A filter on quota entities (KIP-546)."""

    class ComponentData(Struct):
        entity_type: str = string("0+")
        match_type: int = int8("0+")
        match: str | None = nullable_string("0+", "0+", "")

    components: list[ComponentData] = array("0+", most=100)
    strict: bool = boolean("0+")


class DescribeClientQuotasResponse(Message, api_key=48, versions="0-1", flexible="1+"):
    """Entities and their quotas; null entries when the filter failed."""

    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = nullable_string("0+", "0+", "")

    class ValueData(Struct):
        key: str = string("0+")
        value: float = float64("0+")

    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData] = array("0+")
        values: list[DescribeClientQuotasResponse.ValueData] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")
    entries: list[EntryData] | None = array("0+", nullable="0+")


class AlterClientQuotasRequest(Message, api_key=49, versions="0-1", flexible="1+"):
    """Quotas to set or remove by entity (KIP-546)."""

    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = nullable_string("0+", "0+", "")

    class OpData(Struct):
        key: str = string("0+")
        value: float = float64("0+")
        remove: bool = boolean("0+")

    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = array("0+", most=16)
        ops: list[AlterClientQuotasRequest.OpData] = array("0+", most=64)

    entries: list[EntryData] = array("0+")
    validate_only: bool = boolean("0+")


class AlterClientQuotasResponse(Message, api_key=49, versions="0-1", flexible="1+"):
    """The outcome for every entity."""

    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = nullable_string("0+", "0+", "")

    class EntryData(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")
        entity: list[AlterClientQuotasResponse.EntityData] = array("0+")

    throttle_time_ms: int = int32("0+")
    entries: list[EntryData] = array("0+")
