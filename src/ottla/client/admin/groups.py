"""Administration of consumer groups: list and describe them, read, change and delete committed offsets.

Zone: real. Requests go to the coordinator of each group. A coordinator may move, so a retriable error is retried until
the deadline. Errors of single groups or partitions are returned in place of their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ottla.client.admin.types import list_of_names
from ottla.client.cluster import Cluster
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.errors import ClientError, MalformedReplyError, RefusedError, UnsupportedVersionError, refused_error
from ottla.client.positions import OffsetAndMetadata
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.record.errors import CorruptRecord
from ottla.record.internal.consumer_protocol import ConsumerProtocolAssignment
from ottla.record.internal.parsing import parse_versioned
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_BY_NAME = 9
"""The last version of OffsetCommit and OffsetFetch that names topics by their names."""
_OTHER_PROTOCOL = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
"""Codes of ConsumerGroupDescribe for a group of another type, and from a broker on which this type is not enabled."""


class GroupListed(NamedTuple):
    """A group in the list of its coordinator."""

    group_id: str
    protocol_type: str
    state: str
    kind: str
    """classic, consumer, …; empty if the broker does not report it."""
    coordinator: int


class GroupMember(NamedTuple):
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    """Also empty if the assignment is not in the consumer's format."""
    member_epoch: int | None = None
    """The epoch of the assignment that the member has; None in a classic group."""
    target_assignment: tuple[TopicPartition, ...] = ()
    """The partitions that the member is to have; empty in a classic group."""
    upgraded: bool | None = None
    """Whether the member uses the consumer protocol, not the classic one; None where the broker does not report it."""


class GroupView(NamedTuple):
    """A group."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor that the coordinator or the members use."""
    coordinator: int
    members: tuple[GroupMember, ...]
    group_epoch: int | None = None
    """It grows when members, subscriptions or topics change; None in a classic group."""
    assignment_epoch: int | None = None
    """The epoch of the group for which the target assignment was made; None in a classic group."""


class GroupOffset(NamedTuple):
    """A committed position."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class MemberIdentity(NamedTuple):
    """A member of a group: by its member id, or by its instance id alone, which is that of a static member."""

    member_id: str
    instance_id: str | None = None

    def __str__(self) -> str:
        return f"instance {self.instance_id}" if self.instance_id is not None else f"member {self.member_id}"


class GroupAdmin:
    """Calls about groups over a Cluster."""

    __slots__ = ("_ask", "_cluster", "coordinator")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        calls = CoordinatorCalls(cluster, CoordinatorKind.GROUP)
        self._ask = calls.send_to_coordinator
        self.coordinator = calls.find_coordinator
        """The broker that coordinates a group. Raises RefusedError, DeadlineError."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def list_groups(
        self, states: Sequence[str] = (), deadline: Deadline | None = None, *, kinds: Sequence[str] = ()
    ) -> tuple[list[GroupListed], dict[int, ClientError]]:
        """(groups sorted by name, errors of brokers that did not answer).

        states: list only groups in these states. kinds: only groups of these types: classic, consumer, share, streams;
        brokers before Kafka 3.8 do not know types: UnsupportedVersionError.
        """
        deadline = deadline or self._cluster.deadline()
        found: dict[str, GroupListed] = {}
        failed: dict[int, ClientError] = {}
        for node in sorted(self._cluster.refresh((), deadline).nodes):
            try:
                answer = self._cluster.send_request(
                    ApiKey.LIST_GROUPS,
                    partial(_list_request, states, kinds),
                    ListGroupsResponse,
                    node=node,
                    deadline=deadline,
                    refused=lambda answer, node=node: refused_error(answer.error_code, f"groups of broker {node}"),  # type: ignore[misc]
                )
            except ClientError as error:
                failed[node] = error
                continue
            for each in answer.groups:
                found[each.group_id] = GroupListed(
                    each.group_id, each.protocol_type, each.group_state, each.group_type, node
                )
        return [found[name] for name in sorted(found)], failed

    def describe_group(self, group_id: str, deadline: Deadline | None = None) -> GroupView:
        """One group, of the classic or the consumer protocol (KIP-848).

        Raises RefusedError GROUP_ID_NOT_FOUND, also for groups of other types, and others.
        """
        deadline = deadline or self._cluster.deadline()
        try:
            return self._describe_classic_group(group_id, deadline)
        except RefusedError as error:
            # DescribeGroups does not know groups of the consumer protocol. Kafka's client asks ConsumerGroupDescribe
            # first; in this order classic groups, the only ones of Ottla's brokers, are described by one request.
            found = None
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                found = self._describe_consumer_group(group_id, deadline)
            if found is None:
                raise
            return found

    def _describe_classic_group(self, group_id: str, deadline: Deadline) -> GroupView:
        def refused(answer: DescribeGroupsResponse) -> RefusedError | None:
            if len(answer.groups) != 1:
                raise MalformedReplyError("the response to DescribeGroups is not about the requested group")
            group = answer.groups[0]
            code = group.error_code
            if not code and group.group_state == "Dead":
                code = 69  # GROUP_ID_NOT_FOUND: older brokers report it as the state Dead, without an error
            return refused_error(code, f"group {group_id}", group.error_message)

        answer = self._ask(
            group_id,
            ApiKey.DESCRIBE_GROUPS,
            lambda _: DescribeGroupsRequest(groups=[group_id]),
            DescribeGroupsResponse,
            refused,
            deadline,
        )
        group = answer.groups[0]
        members = tuple(_group_member(each) for each in group.members)
        node = self.coordinator(group_id, deadline)
        return GroupView(group_id, group.group_state, group.protocol_type, group.protocol_data, node, members)

    def _describe_consumer_group(self, group_id: str, deadline: Deadline) -> GroupView | None:
        """A group of the consumer protocol; None if there is none of that name. Raises ClientError."""

        def refused(answer: ConsumerGroupDescribeResponse) -> RefusedError | None:
            if len(answer.groups) != 1:
                raise MalformedReplyError("the response to ConsumerGroupDescribe is not about the requested group")
            return refused_error(answer.groups[0].error_code, f"group {group_id}", answer.groups[0].error_message)

        try:
            answer = self._ask(
                group_id,
                ApiKey.CONSUMER_GROUP_DESCRIBE,
                lambda _: ConsumerGroupDescribeRequest(group_ids=[group_id]),
                ConsumerGroupDescribeResponse,
                refused,
                deadline,
            )
        except UnsupportedVersionError:
            return None
        except RefusedError as error:
            if error.code not in _OTHER_PROTOCOL:
                raise
            return None
        group = answer.groups[0]
        members = tuple(_consumer_group_member(each) for each in group.members)
        node = self.coordinator(group_id, deadline)
        epochs = (group.group_epoch, group.assignment_epoch)
        return GroupView(group_id, group.group_state, "consumer", group.assignor_name, node, members, *epochs)

    def group_offsets(
        self, group_id: str, deadline: Deadline | None = None
    ) -> dict[TopicPartition, GroupOffset | ClientError]:
        """All committed offsets of a group. Raises ClientError."""

        def build(version: int) -> OffsetFetchRequest:
            if version >= 8:
                # null topics mean all partitions with a committed offset; an empty list would mean none.
                everything = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
                return OffsetFetchRequest(groups=[everything])
            return OffsetFetchRequest(group_id=group_id, topics=None)

        def refused(answer: OffsetFetchResponse) -> RefusedError | None:
            codes = [answer.error_code, *(each.error_code for each in answer.groups)]
            return next((refused_error(code, f"offsets of group {group_id}") for code in codes if code), None)

        answer = self._ask(group_id, ApiKey.OFFSET_FETCH, build, OffsetFetchResponse, refused, deadline, _BY_NAME)
        rows = [
            (TopicPartition(topic.name, part.partition_index), part)
            for topic in (answer.groups[0].topics if answer.groups else answer.topics)
            for part in topic.partitions
        ]
        found: dict[TopicPartition, GroupOffset | ClientError] = {}
        for tp, part in sorted(rows, key=lambda row: row[0]):
            error = refused_error(part.error_code, f"offset of {tp}")
            # A negative offset without an error means that nothing is committed for the partition.
            if error is not None or part.committed_offset >= 0:
                position = GroupOffset(part.committed_offset, part.committed_leader_epoch, part.metadata or "")
                found[tp] = error or position
        return found

    # -- changing ------------------------------------------------------------------------------------------------------

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        deadline: Deadline | None = None,
    ) -> dict[TopicPartition, ClientError | None]:
        """Commit offsets for a group without members; UNKNOWN_MEMBER_ID if the group has members."""
        topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
        for tp, given in offsets.items():
            position = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            part = OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch,
                committed_metadata=position.metadata,
            )
            topics.setdefault(tp.topic, []).append(part)
        request = OffsetCommitRequest(
            group_id=group_id,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
        )

        def refused(answer: OffsetCommitResponse) -> RefusedError | None:
            """Retry only if all partitions have the same retriable error."""
            codes = {part.error_code for topic in answer.topics for part in topic.partitions}
            # With several codes some partitions may be done: a retry of the whole request would hide their results.
            error = refused_error(next(iter(codes)), f"group {group_id}") if len(codes) == 1 else None
            return error if error is not None and error.retriable else None

        answer = self._ask(
            group_id, ApiKey.OFFSET_COMMIT, lambda _: request, OffsetCommitResponse, refused, deadline, _BY_NAME
        )
        rows = ((topic.name, part) for topic in answer.topics for part in topic.partitions)
        return {
            TopicPartition(name, part.partition_index): refused_error(
                part.error_code, f"offset of {name}-{part.partition_index}"
            )
            for name, part in rows
        }

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], deadline: Deadline | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Delete committed offsets; GROUP_SUBSCRIBED_TO_TOPIC if members consume the topic. Raises ClientError."""
        topics: dict[str, list[OffsetDeleteRequest.OffsetDeleteRequestPartition]] = {}
        for tp in partitions:
            part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=tp.partition)
            topics.setdefault(tp.topic, []).append(part)
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[OffsetDeleteRequest.OffsetDeleteRequestTopic(name=n, partitions=p) for n, p in topics.items()],
        )
        answer = self._ask(
            group_id,
            ApiKey.OFFSET_DELETE,
            lambda _: request,
            OffsetDeleteResponse,
            lambda answer: refused_error(answer.error_code, f"group {group_id}"),
            deadline,
        )
        rows = ((topic.name, part) for topic in answer.topics for part in topic.partitions)
        return {
            TopicPartition(name, part.partition_index): refused_error(
                part.error_code, f"offset of {name}-{part.partition_index}"
            )
            for name, part in rows
        }

    def delete_groups(
        self, group_ids: Iterable[str], deadline: Deadline | None = None
    ) -> dict[str, ClientError | None]:
        """Delete groups; NON_EMPTY_GROUP for a group with members, GROUP_ID_NOT_FOUND for an unknown one."""
        results: dict[str, ClientError | None] = {}
        for group_id in list_of_names("delete_groups", group_ids):
            try:
                self._ask(
                    group_id,
                    ApiKey.DELETE_GROUPS,
                    lambda _, group_id=group_id: DeleteGroupsRequest(groups_names=[group_id]),  # type: ignore[misc]
                    DeleteGroupsResponse,
                    lambda answer, group_id=group_id: next(  # type: ignore[misc]
                        (refused_error(each.error_code, f"group {group_id}") for each in answer.results), None
                    ),
                    deadline,
                )
                results[group_id] = None
            except ClientError as error:
                results[group_id] = error
        return results

    def remove_members(
        self, group_id: str, members: Iterable[MemberIdentity], reason: str = "", deadline: Deadline | None = None
    ) -> dict[MemberIdentity, ClientError | None]:
        """Remove members, whose partitions go to the others; UNKNOWN_MEMBER_ID for one that is not there.

        Brokers before Kafka 2.4 can remove only members without an instance id, by a request for each.
        """
        results: dict[MemberIdentity, ClientError | None] = {}
        for member in dict.fromkeys(members):
            subject = f"{member} of group {group_id}"
            try:
                self._ask(
                    group_id,
                    ApiKey.LEAVE_GROUP,
                    partial(_leave_request, group_id, member, reason),
                    LeaveGroupResponse,
                    partial(_leave_refusal, subject),
                    deadline,
                    at_least=0 if member.instance_id is None else 3,
                )
                results[member] = None
            except ClientError as error:
                results[member] = error
        return results


def _list_request(states: Sequence[str], kinds: Sequence[str], version: int) -> ListGroupsRequest:
    # Without the filter an older broker would list groups of other types as well.
    if kinds and version < 5:
        raise UnsupportedVersionError("the broker cannot list groups by type", "List groups of all types")
    return ListGroupsRequest(states_filter=list(states) if version >= 4 else [], types_filter=list(kinds))


def _leave_request(group_id: str, member: MemberIdentity, reason: str, version: int) -> LeaveGroupRequest:
    if version < 3:
        return LeaveGroupRequest(group_id=group_id, member_id=member.member_id)
    row = LeaveGroupRequest.MemberIdentity(
        member_id=member.member_id, group_instance_id=member.instance_id, reason=reason or None
    )
    return LeaveGroupRequest(group_id=group_id, members=[row])


def _leave_refusal(subject: str, answer: LeaveGroupResponse) -> RefusedError | None:
    codes = (answer.error_code, *(each.error_code for each in answer.members))
    return next((refused_error(code, subject) for code in codes if code), None)


def _group_member(row: DescribeGroupsResponse.DescribedGroupMember) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    if row.member_assignment:
        try:
            _, message = parse_versioned(ConsumerProtocolAssignment, bytes(row.member_assignment))
            assert isinstance(message, ConsumerProtocolAssignment)
            assignment = tuple(
                TopicPartition(each.topic, partition)
                for each in message.assigned_partitions
                for partition in each.partitions
            )
        except CorruptRecord:
            assignment = ()  # another kind of member (Kafka Connect, for instance) has its own format
    return GroupMember(row.member_id, row.group_instance_id, row.client_id, row.client_host, assignment)


def _consumer_group_member(row: ConsumerGroupDescribeResponse.Member) -> GroupMember:
    return GroupMember(
        row.member_id,
        row.instance_id,
        row.client_id,
        row.client_host,
        _assigned_partitions(row.assignment),
        row.member_epoch,
        _assigned_partitions(row.target_assignment),
        # 0: classic, 1: consumer; a broker without version 1 does not report it.
        None if row.member_type < 0 else row.member_type == 1,
    )


def _assigned_partitions(row: ConsumerGroupDescribeResponse.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, partition) for topic in row.topic_partitions for partition in topic.partitions
    )
