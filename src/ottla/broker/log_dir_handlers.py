"""DescribeLogDirs and AlterReplicaLogDirs: which replica is in which log directory, and moving it to another (KIP-113).

Zone: deterministic. Each directory and each partition is answered for itself.
"""

from __future__ import annotations

from ottla.broker.log_handlers import by_topic, check_count
from ottla.errors import ApiError, ErrorCode
from ottla.replication.moves import ReplicaMoves
from ottla.requests import Context, Parts, handles
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

_Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
_Described = DescribeLogDirsResponse.DescribeLogDirsPartition


class LogDirHandlers:
    """Questions about the log directories of this broker, and moves between them."""

    def __init__(self, logs: LogManager, moves: ReplicaMoves) -> None:
        self._logs = logs
        self._moves = moves

    @handles(
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        0,
        2,
        resource="Cluster",
        operation="Alter",
        parts=Parts(cost_us=20, request=(("dirs", "topics", "partitions"),), response=(("results", "partitions"),)),
    )
    def alter_replica_log_dirs(
        self, _context: Context, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse:
        """Begin to move replicas; who asked sees in DescribeLogDirs how far they are."""
        check_count(len(topic.partitions) for each in request.dirs for topic in each.topics)
        results = [
            (topic.name, _Moved(partition_index=index, error_code=self._alter(topic.name, index, each.path)))
            for each in request.dirs
            for topic in each.topics
            for index in topic.partitions
        ]
        topic_result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
        return AlterReplicaLogDirsResponse(
            results=[topic_result(topic_name=name, partitions=partitions) for name, partitions in by_topic(results)]
        )

    def _alter(self, topic: str, index: int, path: str) -> ErrorCode:
        try:
            self._moves.alter(TopicPartition(topic, index), path)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    @handles(ApiKey.DESCRIBE_LOG_DIRS, 0, 4, resource="Cluster", operation="Describe")
    def describe_log_dirs(self, _context: Context, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """Log directories with the size of every partition in them, or of those that are asked for."""
        wanted = None
        if request.topics is not None:
            wanted = {(topic.topic, partition) for topic in request.topics for partition in topic.partitions}
        return DescribeLogDirsResponse(results=[self._describe(each, wanted) for each in self._logs.dirs])

    def _describe(
        self, each: LogDir, wanted: set[tuple[str, int]] | None
    ) -> DescribeLogDirsResponse.DescribeLogDirsResult:
        if each.offline is not None:
            return DescribeLogDirsResponse.DescribeLogDirsResult(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=each.name
            )
        found = {tp: self._copied(log) for tp, log in each.moves.futures.items()}
        found.update((tp, _present(log)) for tp, log in each.logs.items())
        rows = [(tp.topic, found[tp]) for tp in sorted(found) if wanted is None or tp in wanted]
        total, usable = each.space
        return DescribeLogDirsResponse.DescribeLogDirsResult(
            log_dir=each.name,
            total_bytes=total,
            usable_bytes=usable,
            topics=[
                DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
                for name, partitions in by_topic(rows)
            ],
        )

    def _copied(self, copy: Log) -> _Described:
        """A replica on its way here: how far it is behind the one that is served."""
        log = self._logs.get(copy.tp)
        lag = 0 if log is None else max(0, log.end_offset - copy.end_offset)
        return _Described(
            partition_index=copy.tp.partition, partition_size=copy.size, offset_lag=lag, is_future_key=True
        )


def _present(log: Log) -> _Described:
    return _Described(
        partition_index=log.tp.partition,
        partition_size=log.size,
        offset_lag=max(0, log.high_watermark - log.end_offset),
    )
