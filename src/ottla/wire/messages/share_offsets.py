"""DescribeShareGroupOffsets (key 90), AlterShareGroupOffsets (key 91), DeleteShareGroupOffsets (key 92).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, int64, nullable_string, string, uuid


class DescribeShareGroupOffsetsRequest(Message, api_key=90, versions="0-1", flexible="0+"):
    """Groups whose share-partition start offsets are wanted (KIP-932)."""

    class DescribeShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class DescribeShareGroupOffsetsRequestGroup(Struct):
        group_id: str = string("0+")
        topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = array(
            "0+", nullable="0+"
        )

    groups: list[DescribeShareGroupOffsetsRequestGroup] = array("0+")


class DescribeShareGroupOffsetsResponse(Message, api_key=90, versions="0-1", flexible="0+"):
    """Start offsets. v1: lag (KIP-1226)."""

    class DescribeShareGroupOffsetsResponsePartition(Struct):
        partition_index: int = int32("0+")
        start_offset: int = int64("0+")
        leader_epoch: int = int32("0+")
        lag: int = int64("1+", -1)
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: bytes = uuid("0+")
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = array("0+")

    class DescribeShareGroupOffsetsResponseGroup(Struct):
        group_id: str = string("0+")
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = array("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    throttle_time_ms: int = int32("0+")
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array("0+")


class AlterShareGroupOffsetsRequest(Message, api_key=91, versions="0", flexible="0+"):
    """Start offsets to set in an empty share group (KIP-932)."""

    class AlterShareGroupOffsetsRequestPartition(Struct):
        partition_index: int = int32("0+")
        start_offset: int = int64("0+")

    class AlterShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = array("0+")

    group_id: str = string("0+")
    topics: list[AlterShareGroupOffsetsRequestTopic] = array("0+")


class AlterShareGroupOffsetsResponse(Message, api_key=91, versions="0", flexible="0+"):
    """The outcome for every partition."""

    class AlterShareGroupOffsetsResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    class AlterShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: bytes = uuid("0+")
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array("0+")


class DeleteShareGroupOffsetsRequest(Message, api_key=92, versions="0", flexible="0+"):
    """Topics to drop from an empty share group (KIP-932)."""

    class DeleteShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")

    group_id: str = string("0+")
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array("0+")


class DeleteShareGroupOffsetsResponse(Message, api_key=92, versions="0", flexible="0+"):
    """The outcome for every topic."""

    class DeleteShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: bytes = uuid("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array("0+")
