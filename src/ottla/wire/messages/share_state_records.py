"""ReadShareGroupState (key 84) and WriteShareGroupState (key 85): delivery state, read and written.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int8, int16, int32, int64, nullable_string, string, uuid


class ReadShareGroupStateRequest(Message, api_key=84, versions="0", flexible="0+", between_brokers=True):
    """Share partitions whose state is wanted, from their leader (KIP-932)."""

    class PartitionData(Struct):
        partition: int = int32("0+")
        leader_epoch: int = int32("0+")

    class ReadStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[ReadStateData] = array("0+")


class ReadShareGroupStateResponse(Message, api_key=84, versions="0", flexible="0+", between_brokers=True):
    """Start offset and delivery state by ranges."""

    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)
        state_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        state_batches: list[ReadShareGroupStateResponse.StateBatch] = array("0+")

    class ReadStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[ReadStateResult] = array("0+")


class WriteShareGroupStateRequest(Message, api_key=85, versions="0-1", flexible="0+", between_brokers=True):
    """State of share partitions to store (KIP-932)."""

    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    class PartitionData(Struct):
        partition: int = int32("0+")
        state_epoch: int = int32("0+")
        leader_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        delivery_complete_count: int = int32("1+", -1, ignorable=True)
        state_batches: list[WriteShareGroupStateRequest.StateBatch] = array("0+")

    class WriteStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[WriteShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[WriteStateData] = array("0+")


class WriteShareGroupStateResponse(Message, api_key=85, versions="0-1", flexible="0+", between_brokers=True):
    """The outcome for every partition."""

    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    class WriteStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[WriteShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[WriteStateResult] = array("0+")
