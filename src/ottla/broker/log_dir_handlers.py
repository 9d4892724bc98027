"""DescribeLogDirs and AlterReplicaLogDirs: the log directories of replicas, and moves between them (KIP-113).

Zone: deterministic. Each directory and each partition has its own result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from ottla.acls import Operation, ResourceType
from ottla.broker.log_handlers import by_topic
from ottla.errors import ApiError, ErrorCode
from ottla.replication.moves import ReplicaMoves
from ottla.requests import Context, InPieces, Parts, handles
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
from ottla.wire.slices import Elements

_Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Answer = DescribeLogDirsResponse | InPieces
_PIECE: Final = 250
"""Partitions described per piece of a response."""
_LOOK: Final = 1_000
"""Partitions of a request looked up per step."""
_Described = DescribeLogDirsResponse.DescribeLogDirsPartition


class LogDirHandlers:
    """Describes the log directories of this broker, and begins moves between them."""

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
        checks_itself=True,
    )
    def alter_replica_log_dirs(
        self, context: Context, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse:
        """Begin to move replicas; DescribeLogDirs shows the progress."""
        is_allowed = context.is_allowed(Operation.ALTER, ResourceType.CLUSTER)
        alter = self._alter_topic if is_allowed else _refuse_topic
        results = [
            (topic.name, _Moved(partition_index=index, error_code=alter(topic.name, index, each.path)))
            for each in request.dirs
            for topic in each.topics
            for index in topic.partitions
        ]
        topic_result = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
        return AlterReplicaLogDirsResponse(
            results=[topic_result(topic_name=name, partitions=partitions) for name, partitions in by_topic(results)]
        )

    def _alter_topic(self, topic: str, index: int, path: str) -> ErrorCode:
        try:
            self._moves.alter_partition(TopicPartition(topic, index), path)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    @handles(
        ApiKey.DESCRIBE_LOG_DIRS,
        0,
        4,
        resource="Cluster",
        operation="Describe",
        undivided="a filter of the existing logs, decoded while the handler iterates over it",
        walked=("topics", "partitions"),
        checks_itself=True,
    )
    def describe_log_dirs(self, context: Context, request: DescribeLogDirsRequest) -> _Answer:
        """Log directories with the sizes of all partitions in them, or of the requested ones.

        Versions before 3 have no field for a missing permission, so their response is empty then, as in Kafka.
        """
        if not context.is_allowed(Operation.DESCRIBE, ResourceType.CLUSTER):
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        pieces = self._description_pieces(request)
        replicas = sum(len(each.logs) + len(each.moves.futures) for each in self._logs.dirs)
        if replicas > _PIECE or isinstance(request.topics, Elements):
            return InPieces(("results", "topics", "partitions"), pieces)
        return DescribeLogDirsResponse(results=[result for piece in pieces for result in piece.results])

    def _description_pieces(self, request: DescribeLogDirsRequest) -> Generator[DescribeLogDirsResponse, None, None]:
        """Pieces of the response: at least one per directory."""
        wanted = None
        if request.topics is not None:
            wanted = yield from self._wanted_partitions(request.topics)
        for each in self._logs.dirs:
            if each.offline is not None:
                # As in Kafka: a directory out of service has a result with an error and without partitions.
                code = ErrorCode.KAFKA_STORAGE_ERROR
                yield DescribeLogDirsResponse(results=[_Result(error_code=code, log_dir=each.name)])
                continue
            space, names = each.total_and_free_bytes, self._names_in(each, wanted)
            # At least one round, because a directory without partitions has a result as well.
            for begin in range(0, max(1, len(names)), _PIECE):
                chunk = names[begin : begin + _PIECE]
                rows = [(tp.topic, row) for tp in chunk if (row := self._describe_partition(each, tp)) is not None]
                yield DescribeLogDirsResponse(results=[_dir_result(each, space, rows)])

    def _wanted_partitions(
        self, topics: Iterable[DescribeLogDirsRequest.DescribableLogDirTopic]
    ) -> Generator[DescribeLogDirsResponse, None, set[TopicPartition]]:
        """The requested partitions that are here. Yields empty responses, so that the search takes several turns."""
        wanted: set[TopicPartition] = set()
        looked = 0
        for topic in topics:
            # At least once per topic: a request may have many topics without partitions.
            for begin in range(0, max(1, len(topic.partitions)), _LOOK):
                chunk = topic.partitions[begin : begin + _LOOK]
                wanted.update(tp for index in chunk if self._is_here(tp := TopicPartition(topic.topic, index)))
                looked += len(chunk)
                if looked >= _LOOK:
                    yield DescribeLogDirsResponse()
                    looked = 0
            looked += 1
        return wanted

    def _is_here(self, tp: TopicPartition) -> bool:
        return any(tp in each.logs or tp in each.moves.futures for each in self._logs.dirs)

    def _names_in(self, each: LogDir, wanted: set[TopicPartition] | None) -> list[TopicPartition]:
        names = {*each.logs, *each.moves.futures, *self._moves.waiting_for(each)}
        return sorted(names if wanted is None else (tp for tp in names if tp in wanted))

    def _describe_partition(self, each: LogDir, tp: TopicPartition) -> _Described | None:
        """The description of a partition; None if it was deleted meanwhile."""
        log = each.logs.get(tp)
        if log is not None:
            return _describe_log(log)
        copy = each.moves.futures.get(tp)
        if copy is not None:
            return self._describe_copy(tp, copy.segments.size, copy.end_offset)
        # A copy that waits for its turn is there without records, as in Kafka, where it is made with the request.
        log = self._logs.get_log(tp)
        return self._describe_copy(tp, 0, log.start_offset) if log and self._moves.is_waiting(tp, each) else None

    def _describe_copy(self, tp: TopicPartition, size: int, end_offset: int) -> _Described:
        """The description of a future replica, with its lag behind the present one."""
        log = self._logs.get_log(tp)
        lag = 0 if log is None else max(0, log.end_offset - end_offset)
        return _Described(partition_index=tp.partition, partition_size=size, offset_lag=lag, is_future_key=True)


def _refuse_topic(_topic: str, _index: int, _path: str) -> ErrorCode:
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _dir_result(each: LogDir, space: tuple[int, int], rows: list[tuple[str, _Described]]) -> _Result:
    return _Result(
        log_dir=each.name,
        total_bytes=space[0],
        usable_bytes=space[1],
        topics=[
            DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in by_topic(rows)
        ],
    )


def _describe_log(log: Log) -> _Described:
    return _Described(
        partition_index=log.tp.partition,
        partition_size=log.segments.size,
        # Kafka's definition for a replica that does not move. It is nearly always 0, and not the lag to the leader.
        offset_lag=max(0, log.high_watermark - log.end_offset),
    )
