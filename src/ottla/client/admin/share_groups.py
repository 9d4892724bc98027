"""Administration of share groups (KIP-932): describe them; read, change and delete their offsets.

Zone: real. Requests go to the coordinator of each group. Share groups are listed and deleted by `GroupAdmin`, as groups
of all types are. A broker that does not serve share groups, such as Ottla's, does not know these requests:
UnsupportedVersionError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.admin.types import list_of_names
from ottla.client.cluster import Cluster
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.errors import ClientError, MalformedReplyError, RefusedError, refused_error
from ottla.client.retry import Deadline
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


class ShareGroupMember(NamedTuple):
    """A member of a share group. Several members may have the same partition."""

    member_id: str
    member_epoch: int
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


class ShareGroupView(NamedTuple):
    """A share group."""

    group_id: str
    state: str
    """Empty, Stable or Dead."""
    group_epoch: int
    assignment_epoch: int
    """The epoch of the group for which the assignment was made."""
    coordinator: int
    members: tuple[ShareGroupMember, ...]


class ShareOffset(NamedTuple):
    """The position of a share group in a partition."""

    start_offset: int
    """All records before it are done; so may be later ones, and the offset follows them when members read on."""
    leader_epoch: int
    """-1 if the broker does not report it."""
    lag: int
    """Records that are not done. -1 if the broker does not report it, as before Kafka 4.2."""


class ShareGroupAdmin:
    """Calls about share groups over a Cluster."""

    __slots__ = ("_ask", "_find_coordinator")

    def __init__(self, cluster: Cluster) -> None:
        calls = CoordinatorCalls(cluster, CoordinatorKind.GROUP)
        self._ask = calls.send_to_coordinator
        self._find_coordinator = calls.find_coordinator

    def describe_share_group(self, group_id: str, deadline: Deadline | None = None) -> ShareGroupView:
        """One share group. Raises RefusedError GROUP_ID_NOT_FOUND, also for a group of another type, and others."""

        def refused(answer: ShareGroupDescribeResponse) -> RefusedError | None:
            if len(answer.groups) != 1:
                raise MalformedReplyError("the response to ShareGroupDescribe is not about the requested group")
            return refused_error(answer.groups[0].error_code, f"group {group_id}", answer.groups[0].error_message)

        answer = self._ask(
            group_id,
            ApiKey.SHARE_GROUP_DESCRIBE,
            lambda _: ShareGroupDescribeRequest(group_ids=[group_id]),
            ShareGroupDescribeResponse,
            refused,
            deadline,
        )
        group = answer.groups[0]
        members = tuple(_share_group_member(each) for each in group.members)
        # Looked up again, because the request may have followed the coordinator to another broker.
        node = self._find_coordinator(group_id, deadline)
        return ShareGroupView(group_id, group.group_state, group.group_epoch, group.assignment_epoch, node, members)

    def share_group_offsets(
        self, group_id: str, deadline: Deadline | None = None
    ) -> dict[TopicPartition, ShareOffset | ClientError | None]:
        """The positions of a share group; none for an unknown group. None: the partition has no start offset yet.

        Raises ClientError.
        """

        def refused(answer: DescribeShareGroupOffsetsResponse) -> RefusedError | None:
            if len(answer.groups) != 1:
                raise MalformedReplyError("the response to DescribeShareGroupOffsets is not about the requested group")
            group = answer.groups[0]
            return refused_error(group.error_code, f"offsets of group {group_id}", group.error_message)

        # null topics mean all topics of the group; an empty list would mean none.
        everything = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(
            group_id=group_id, topics=None
        )
        answer = self._ask(
            group_id,
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
            lambda _: DescribeShareGroupOffsetsRequest(groups=[everything]),
            DescribeShareGroupOffsetsResponse,
            refused,
            deadline,
        )
        rows = [
            (TopicPartition(topic.topic_name, part.partition_index), part)
            for topic in answer.groups[0].topics
            for part in topic.partitions
        ]
        return {tp: _share_offset(tp, part) for tp, part in sorted(rows, key=lambda row: row[0])}

    def alter_share_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], deadline: Deadline | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Set start offsets. A group that does not exist is created. Raises RefusedError NON_EMPTY_GROUP, others."""
        request = AlterShareGroupOffsetsRequest
        topics: dict[str, list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition]] = {}
        for tp, offset in offsets.items():
            part = request.AlterShareGroupOffsetsRequestPartition(partition_index=tp.partition, start_offset=offset)
            topics.setdefault(tp.topic, []).append(part)
        rows = [request.AlterShareGroupOffsetsRequestTopic(topic_name=n, partitions=p) for n, p in topics.items()]
        answer = self._ask(
            group_id,
            ApiKey.ALTER_SHARE_GROUP_OFFSETS,
            lambda _: request(group_id=group_id, topics=rows),
            AlterShareGroupOffsetsResponse,
            lambda answer: refused_error(answer.error_code, f"group {group_id}", answer.error_message),
            deadline,
        )
        results: dict[TopicPartition, ClientError | None] = {}
        for topic in answer.responses:
            for found in topic.partitions:
                tp = TopicPartition(topic.topic_name, found.partition_index)
                results[tp] = refused_error(found.error_code, f"start offset of {tp}", found.error_message)
        return results

    def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str], deadline: Deadline | None = None
    ) -> dict[str, ClientError | None]:
        """Delete the offsets of topics. Raises RefusedError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND and others."""
        request = DeleteShareGroupOffsetsRequest
        names = list_of_names("delete_share_group_offsets", topics)
        rows = [request.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
        answer = self._ask(
            group_id,
            ApiKey.DELETE_SHARE_GROUP_OFFSETS,
            lambda _: request(group_id=group_id, topics=rows),
            DeleteShareGroupOffsetsResponse,
            lambda answer: refused_error(answer.error_code, f"group {group_id}", answer.error_message),
            deadline,
        )
        # A broker may answer in an order of its own, and a topic without an answer must not count as deleted.
        results = {each.topic_name: each for each in answer.responses}
        if missing := [name for name in names if name not in results]:
            raise MalformedReplyError(f"the response to DeleteShareGroupOffsets has no result for {missing[0]}")
        return {
            name: refused_error(results[name].error_code, f"topic {name}", results[name].error_message)
            for name in names
        }


def _share_group_member(row: ShareGroupDescribeResponse.Member) -> ShareGroupMember:
    assignment = tuple(
        TopicPartition(topic.topic_name, partition)
        for topic in row.assignment.topic_partitions
        for partition in topic.partitions
    )
    return ShareGroupMember(row.member_id, row.member_epoch, row.client_id, row.client_host, assignment)


def _share_offset(
    tp: TopicPartition, row: DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition
) -> ShareOffset | ClientError | None:
    error = refused_error(row.error_code, f"start offset of {tp}", row.error_message)
    if error is not None:
        return error
    # No member has read from the partition yet, and no tool has set an offset.
    return ShareOffset(row.start_offset, row.leader_epoch, row.lag) if row.start_offset >= 0 else None
