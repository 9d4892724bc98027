"""Log directories: list the replicas in them, and move replicas to another directory of the same broker (KIP-113).

Zone: real. The part of Admin that sends DescribeLogDirs and AlterReplicaLogDirs: each broker answers for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.admin.configs import ConfigAdmin
from ottla.client.admin.types import LogDir, LogDirReplica, Replica
from ottla.client.errors import ClientError, MalformedReplyError, RefusedError, refused_error
from ottla.client.retry import Deadline
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)


class LogDirError(RefusedError):
    """A log directory that its broker cannot use."""

    def __init__(self, error: RefusedError, path: str) -> None:
        super().__init__(error.code, error.subject, error.message)
        self.path = path


class LogDirAdmin(ConfigAdmin):
    """Calls about log directories over a Cluster."""

    __slots__ = ()

    def describe_log_dirs(
        self,
        topics: Iterable[TopicPartition] | None = None,
        deadline: Deadline | None = None,
        *,
        nodes: Iterable[int] | None = None,
    ) -> dict[int, list[LogDir | ClientError] | ClientError]:
        """The log directories of every broker, by node id.

        topics: partitions whose replicas to list (None: all). nodes: brokers to ask (None: all); asking one that does
        not answer takes until the deadline.
        """
        deadline = deadline or self._cluster.deadline()
        by_topic: dict[str, list[int]] = {}
        for tp in topics or ():
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        listed = [
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=parts)
            for name, parts in by_topic.items()
        ]
        request = DescribeLogDirsRequest(topics=None if topics is None else listed)
        results: dict[int, list[LogDir | ClientError] | ClientError] = {}
        for node in sorted(self._cluster.refresh((), deadline).nodes if nodes is None else nodes):
            try:
                results[node] = self._log_dirs(node, request, deadline)
            except ClientError as error:
                results[node] = error
        return results

    def _log_dirs(self, node: int, request: DescribeLogDirsRequest, deadline: Deadline) -> list[LogDir | ClientError]:
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_LOG_DIRS,
            lambda _: request,
            DescribeLogDirsResponse,
            node=node,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, f"log directories of broker {node}"),
        )
        return [_log_dir(node, found) for found in answer.results]

    def alter_replica_log_dirs(
        self, targets: Mapping[Replica, str], deadline: Deadline | None = None
    ) -> dict[Replica, ClientError | None]:
        """Move replicas to the given log directories of their brokers, by the brokers' paths; also to move them back.

        The call returns when the moves have begun; `describe_log_dirs` shows the copies (`is_future`) and how far they
        lag. REPLICA_NOT_AVAILABLE: the broker does not have the replica yet, and will create it in that directory.
        """
        deadline = deadline or self._cluster.deadline()
        self._cluster.refresh((), deadline)
        by_node: dict[int, dict[TopicPartition, str]] = {}
        for replica, path in targets.items():
            by_node.setdefault(replica.node_id, {})[replica.tp] = path
        results: dict[Replica, ClientError | None] = {}
        for node, wanted in sorted(by_node.items()):
            try:
                found = self._alter_on(node, wanted, deadline)
            except ClientError as error:
                found = dict.fromkeys(wanted, error)
            results.update((Replica(tp, node), outcome) for tp, outcome in found.items())
        return {replica: results[replica] for replica in targets}

    def _alter_on(
        self, node: int, wanted: Mapping[TopicPartition, str], deadline: Deadline
    ) -> dict[TopicPartition, ClientError | None]:
        """Move replicas on one broker. Raises ClientError."""
        answer = self._cluster.send_request(
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            lambda _: _alter_request(wanted),
            AlterReplicaLogDirsResponse,
            node=node,
            deadline=deadline,
        )
        results: dict[TopicPartition, ClientError | None] = {}
        for topic in answer.results:
            for part in topic.partitions:
                tp = TopicPartition(topic.topic_name, part.partition_index)
                results[tp] = refused_error(part.error_code, f"replica of {tp} on broker {node}")
        if set(results) != set(wanted):
            raise MalformedReplyError(f"the response of broker {node} does not list the requested replicas")
        return results


def _alter_request(wanted: Mapping[TopicPartition, str]) -> AlterReplicaLogDirsRequest:
    by_path: dict[str, dict[str, list[int]]] = {}
    for tp, path in wanted.items():
        by_path.setdefault(path, {}).setdefault(tp.topic, []).append(tp.partition)
    topic_type = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic
    return AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                path=path, topics=[topic_type(name=name, partitions=parts) for name, parts in topics.items()]
            )
            for path, topics in by_path.items()
        ]
    )


def _log_dir(node: int, found: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDir | ClientError:
    if error := refused_error(found.error_code, f"log directory {found.log_dir} of broker {node}"):
        return LogDirError(error, found.log_dir)
    replicas = tuple(
        LogDirReplica(
            TopicPartition(topic.name, part.partition_index), part.partition_size, part.offset_lag, part.is_future_key
        )
        for topic in found.topics
        for part in topic.partitions
    )
    return LogDir(found.log_dir, found.total_bytes, found.usable_bytes, replicas)
