"""AlterReplicaLogDirs (key 34) and DescribeLogDirs (key 35): the log directories of replicas.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, int64, string


class AlterReplicaLogDirsRequest(Message, api_key=34, versions="0-2", flexible="2+"):
    """Replicas to move to another log directory of the same broker (KIP-113)."""

    class AlterReplicaLogDirTopic(Struct):
        name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class AlterReplicaLogDir(Struct):
        path: str = string("0+")
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = array("0+")

    dirs: list[AlterReplicaLogDir] = array("0+")


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="0-2", flexible="2+"):
    """The outcome for every partition."""

    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: str = string("0+")
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = array("0+")

    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirTopicResult] = array("0+")


class DescribeLogDirsRequest(Message, api_key=35, versions="0-5", flexible="2+"):
    """Partitions of interest; null means all (KIP-113)."""

    class DescribableLogDirTopic(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    topics: list[DescribableLogDirTopic] | None = array("0+", nullable="0+")


class DescribeLogDirsResponse(Message, api_key=35, versions="0-5", flexible="2+"):
    """Sizes by log directory. v4: size of the volume (KIP-827). v5: cordoned directories (KIP-1066)."""

    class DescribeLogDirsPartition(Struct):
        partition_index: int = int32("0+")
        partition_size: int = int64("0+")
        offset_lag: int = int64("0+")
        is_future_key: bool = boolean("0+")

    class DescribeLogDirsTopic(Struct):
        name: str = string("0+")
        partitions: list[DescribeLogDirsResponse.DescribeLogDirsPartition] = array("0+")

    class DescribeLogDirsResult(Struct):
        error_code: int = int16("0+")
        log_dir: str = string("0+")
        topics: list[DescribeLogDirsResponse.DescribeLogDirsTopic] = array("0+")
        total_bytes: int = int64("4+", -1)
        usable_bytes: int = int64("4+", -1)
        is_cordoned: bool = boolean("5+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("3+")
    results: list[DescribeLogDirsResult] = array("0+")
