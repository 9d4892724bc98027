"""CreateTopics (key 19) and DeleteTopics (key 20).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, nullable_string, string, uuid


class CreateTopicsRequest(Message, api_key=19, versions="0-7", flexible="5+"):
    """Topics with partition count and replication factor, or with a manual assignment.

    v1: validation only. v4: -1 takes the broker's defaults (KIP-464).
    """

    class CreatableReplicaAssignment(Struct):
        partition_index: int = int32("0+")
        broker_ids: list[int] = array("0+", "int32", most=1_000)

    class CreatableTopicConfig(Struct):
        name: str = string("0+")
        value: str | None = nullable_string("0+", "0+", "")

    class CreatableTopic(Struct):
        name: str = string("0+")
        num_partitions: int = int32("0+")
        replication_factor: int = int16("0+")
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = array("0+")
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = array("0+", most=500)

    topics: list[CreatableTopic] = array("0+")
    timeout_ms: int = int32("0+", 60000)
    validate_only: bool = boolean("1+")


class CreateTopicsResponse(Message, api_key=19, versions="0-7", flexible="5+"):
    """The outcome for every topic. v1: error texts. v5: its configuration (KIP-525). v7: topic id."""

    class CreatableTopicConfigs(Struct):
        name: str = string("5+")
        value: str | None = nullable_string("5+", "5+", "")
        read_only: bool = boolean("5+")
        config_source: int = int8("5+", -1)
        is_sensitive: bool = boolean("5+")

    class CreatableTopicResult(Struct):
        name: str = string("0+")
        topic_id: bytes = uuid("7+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("1+", "0+", "")
        topic_config_error_code: int = int16("5+", tag=0)
        num_partitions: int = int32("5+", -1)
        replication_factor: int = int16("5+", -1)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = array("5+", nullable="5+")

    throttle_time_ms: int = int32("2+")
    topics: list[CreatableTopicResult] = array("0+")


class DeleteTopicsRequest(Message, api_key=20, versions="0-6", flexible="4+"):
    """Topics to delete, by name, or by id (v6)."""

    class DeleteTopicState(Struct):
        name: str | None = nullable_string("6+", "6+", None)
        topic_id: bytes = uuid("6+")

    topics: list[DeleteTopicState] = array("6+")
    topic_names: list[str] = array("0-5", "string", ignorable=True)
    timeout_ms: int = int32("0+")


class DeleteTopicsResponse(Message, api_key=20, versions="0-6", flexible="4+"):
    """The outcome for every topic. v5: error texts."""

    class DeletableTopicResult(Struct):
        name: str | None = nullable_string("0+", "6+", "")
        topic_id: bytes = uuid("6+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("5+", "5+", None)

    throttle_time_ms: int = int32("1+")
    responses: list[DeletableTopicResult] = array("0+")
