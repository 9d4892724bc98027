"""CreatePartitions (key 37) and DeleteRecords (key 21).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, int64, nullable_string, string


class CreatePartitionsRequest(Message, api_key=37, versions="0-3", flexible="2+"):
    """New partition counts (KIP-195), optionally with the replicas of the new ones."""

    class CreatePartitionsAssignment(Struct):
        broker_ids: list[int] = array("0+", "int32", most=1_000)

    class CreatePartitionsTopic(Struct):
        name: str = string("0+")
        count: int = int32("0+")
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = array("0+", nullable="0+")

    topics: list[CreatePartitionsTopic] = array("0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


class CreatePartitionsResponse(Message, api_key=37, versions="0-3", flexible="2+"):
    """The outcome for every topic."""

    class CreatePartitionsTopicResult(Struct):
        name: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array("0+")


class DeleteRecordsRequest(Message, api_key=21, versions="0-2", flexible="2+"):
    """Offsets below which records are dropped (KIP-107); -1 means up to the high watermark."""

    class DeleteRecordsPartition(Struct):
        partition_index: int = int32("0+")
        offset: int = int64("0+")

    class DeleteRecordsTopic(Struct):
        name: str = string("0+")
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = array("0+")

    topics: list[DeleteRecordsTopic] = array("0+")
    timeout_ms: int = int32("0+")


class DeleteRecordsResponse(Message, api_key=21, versions="0-2", flexible="2+"):
    """The low watermark of every partition afterwards."""

    class DeleteRecordsPartitionResult(Struct):
        partition_index: int = int32("0+")
        low_watermark: int = int64("0+")
        error_code: int = int16("0+")

    class DeleteRecordsTopicResult(Struct):
        name: str = string("0+")
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = array("0+")

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array("0+")
