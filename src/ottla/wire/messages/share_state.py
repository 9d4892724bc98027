"""InitializeShareGroupState (key 83), DeleteShareGroupState (key 86), ReadShareGroupStateSummary (key 87).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, int64, nullable_string, string, uuid


class InitializeShareGroupStateRequest(Message, api_key=83, versions="0", flexible="0+", between_brokers=True):
    """First state of share partitions, from the group coordinator to the share coordinator (KIP-932)."""

    class PartitionData(Struct):
        partition: int = int32("0+")
        state_epoch: int = int32("0+")
        start_offset: int = int64("0+")

    class InitializeStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[InitializeShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[InitializeStateData] = array("0+")


class InitializeShareGroupStateResponse(Message, api_key=83, versions="0", flexible="0+", between_brokers=True):
    """The outcome for every partition."""

    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    class InitializeStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[InitializeShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[InitializeStateResult] = array("0+")


class DeleteShareGroupStateRequest(Message, api_key=86, versions="0", flexible="0+", between_brokers=True):
    """State of share partitions to drop (KIP-932)."""

    class PartitionData(Struct):
        partition: int = int32("0+")

    class DeleteStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[DeleteShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[DeleteStateData] = array("0+")


class DeleteShareGroupStateResponse(Message, api_key=86, versions="0", flexible="0+", between_brokers=True):
    """The outcome for every partition."""

    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    class DeleteStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[DeleteShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[DeleteStateResult] = array("0+")


class ReadShareGroupStateSummaryRequest(Message, api_key=87, versions="0-1", flexible="0+", between_brokers=True):
    """Share partitions whose start offset is wanted (KIP-932)."""

    class PartitionData(Struct):
        partition: int = int32("0+")
        leader_epoch: int = int32("0+")

    class ReadStateSummaryData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[ReadStateSummaryData] = array("0+")


class ReadShareGroupStateSummaryResponse(Message, api_key=87, versions="0-1", flexible="0+", between_brokers=True):
    """Start offset and epochs, without delivery states."""

    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)
        state_epoch: int = int32("0+")
        leader_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        delivery_complete_count: int = int32("1+", -1)

    class ReadStateSummaryResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = array("0+")

    results: list[ReadStateSummaryResult] = array("0+")
