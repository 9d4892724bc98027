"""A member of a classic group: joins, makes and gets assignments, sends heartbeats, commits and fetches positions.

Zone: deterministic. A commit without an answer may still arrive, and must not overwrite a later one. So a member that
gets no answer to a commit joins again as a new member, in a new generation.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.errors import ErrorCode
from ottla.record.internal.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.entropy import Stream
from ottla.sim.networks.wire_client import Route
from ottla.sim.transactions.finding import GROUP, CoordinatorFinder
from ottla.sim.transactions.history import Committed, Owned, Position, TransactionHistory
from ottla.sim.transactions.producers import EVICTED, Evicted, Membership
from ottla.sim.transactions.steps import RETRY_NS, Steps, pause_client
from ottla.sim.workload.catalog import Topic
from ottla.sim.world import MS
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

BEAT_NS: Final = 400 * MS
REBALANCE_TIMEOUT_MS: Final = 1500
"""Shorter than the time that a client waits for an answer."""
_VERSION: Final = struct.pack(">h", 0)
_FORGOTTEN: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class Member(Membership):
    """One member of a group that reads one topic. Methods are steps of its client."""

    def __init__(
        self,
        client: ClusterClient,
        coordinators: CoordinatorFinder,
        random: Stream,
        history: TransactionHistory,
        group: str,
        topic: Topic,
        instance_id: str | None = None,
    ) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.instance_id = instance_id
        self.session_ms = random.choice((2500, 4000))
        self._coordinators = coordinators
        self._random = random
        self._history = history
        self._beat_ns = 0
        self._commits = 0

    def reset_identity(self) -> None:
        """Forget member id and generation, to join as a new member."""
        self.member_id, self.generation = "", -1

    @property
    def _owner_name(self) -> str:
        """Its name in the history. A static member keeps it in its next life, which gets its generation (KIP-345)."""
        return self.instance_id or self.member_id

    # ---- generations ----

    def join_group(self) -> Steps[tuple[Route, ...]]:
        """Join a generation of the group. Returns the assigned partitions."""
        while True:
            joined = yield from self._send_join()
            if joined is None:
                continue
            assignment = yield from self._send_sync(joined)
            if assignment is not None:
                self._beat_ns = self.client.timeline.now_ns
                told_ns = self.client.timeline.now_ns
                self._history.owned.append(Owned(self.group, self.generation, self._owner_name, assignment, told_ns))
                return assignment

    def _send_join(self) -> Steps[JoinGroupResponse | None]:
        subscription = ConsumerProtocolSubscription(topics=[self.topic.name])
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=_VERSION + encode_bytes(subscription, 0)
        )
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self.session_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        version = self._random.choice((5, 7, 9) if self.instance_id else (2, 4, 5, 9))
        answer = yield from self._coordinators.send_to_coordinator(
            GROUP, self.group, request, version, JoinGroupResponse
        )
        code = ErrorCode.NETWORK_EXCEPTION if answer is None else ErrorCode(answer.error_code)
        if answer is not None and code is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            return answer
        if answer is not None and code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code in _FORGOTTEN:
            self.reset_identity()
        yield from self._coordinators.wait_to_retry(GROUP, self.group, code)
        return None

    def _send_sync(self, joined: JoinGroupResponse) -> Steps[tuple[Route, ...] | None]:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=self._plan_assignment(joined) if joined.leader == self.member_id else [],
        )
        version = 5 if self.instance_id else self._random.choice((1, 3, 5))
        answer = yield from self._coordinators.send_to_coordinator(
            GROUP, self.group, request, version, SyncGroupResponse
        )
        code = ErrorCode.NETWORK_EXCEPTION if answer is None else ErrorCode(answer.error_code)
        if answer is not None and code is ErrorCode.NONE:
            return _decode_assignment(answer.assignment)
        if code in _FORGOTTEN:
            self.reset_identity()
        yield from self._coordinators.wait_to_retry(GROUP, self.group, code)
        return None

    def _plan_assignment(self, joined: JoinGroupResponse) -> list[SyncGroupRequest.SyncGroupRequestAssignment]:
        """Assign the partitions to the members in turn, as round-robin does."""
        members = sorted(member.member_id for member in joined.members)
        row = ConsumerProtocolAssignment.TopicPartition
        plan = []
        for at, member_id in enumerate(members):
            mine = list(range(at, self.topic.partitions, len(members)))
            topics = [row(topic=self.topic.name, partitions=mine)] if mine else []
            data = _VERSION + encode_bytes(ConsumerProtocolAssignment(assigned_partitions=topics), 0)
            plan.append(SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=data))
        return plan

    def send_heartbeat(self) -> Steps[None]:
        """Send a heartbeat when one is due. Raises Evicted when a rebalance has begun, or is over."""
        now_ns = self.client.timeline.now_ns
        if now_ns - self._beat_ns < BEAT_NS:
            return
        self._beat_ns = now_ns
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        version = self._random.choice((3, 4)) if self.instance_id else self._random.random_below(5)
        answer = yield from self._coordinators.send_to_coordinator(
            GROUP, self.group, request, version, HeartbeatResponse
        )
        code = ErrorCode.NETWORK_EXCEPTION if answer is None else ErrorCode(answer.error_code)
        if code in EVICTED:
            raise Evicted(code)
        if code:
            yield from self._coordinators.wait_to_retry(GROUP, self.group, code)

    def on_evicted(self, code: ErrorCode) -> None:
        """Handle Evicted: if the group does not know this member any more, join as a new one."""
        if code in _FORGOTTEN:
            self.reset_identity()

    def leave_group(self) -> Steps[None]:
        """Leave the group, so that the others need not wait for the session timeout."""
        version = self._random.choice((3, 4, 5) if self.instance_id else (0, 1, 2, 3, 5))
        request = LeaveGroupRequest(group_id=self.group)
        if version < 3:
            request.member_id = self.member_id
        else:
            row = LeaveGroupRequest.MemberIdentity
            request.members = [row(member_id=self.member_id, group_instance_id=self.instance_id)]
        yield from self._coordinators.send_to_coordinator(GROUP, self.group, request, version, LeaveGroupResponse)
        self.reset_identity()

    # ---- positions ----

    def commit_positions(self, positions: Mapping[Route, int]) -> Steps[None]:
        """Commit positions. Raises Evicted, also when there is no answer."""
        self._commits += 1
        name = f"{self.client.name} commit {self._commits}"
        request = _commit_request(self.group, self, positions, name)
        version = self._random.choice((7, 8, 9) if self.instance_id else (1, 2, 5, 6, 8, 9))
        while True:
            asked_ns = self.client.timeline.now_ns
            answer = yield from self._coordinators.send_to_coordinator(
                GROUP, self.group, request, version, OffsetCommitResponse
            )
            code = ErrorCode.NETWORK_EXCEPTION if answer is None else _first_error(answer)
            if code is ErrorCode.NONE:
                break
            if code in EVICTED:
                raise Evicted(code)
            # 1. Evicted: a newer generation has begun.
            # 2. Without a definite answer the commit may still be applied: never commit again in this generation.
            # 3. Other errors (the coordinator loads, or a transaction is pending): retry.
            if code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
                raise Evicted(ErrorCode.UNKNOWN_MEMBER_ID)  # the commit may be applied, now or later
            yield from self._coordinators.wait_to_retry(GROUP, self.group, code)
        now_ns = self.client.timeline.now_ns
        for route, offset in positions.items():
            self._history.commits.append(Committed(self.group, route, offset, name, self.generation, asked_ns, now_ns))


def _commit_request(group: str, member: Membership, positions: Mapping[Route, int], name: str) -> OffsetCommitRequest:
    row = OffsetCommitRequest.OffsetCommitRequestPartition
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in positions.items():
        one = row(partition_index=partition, committed_offset=offset, committed_metadata=name)
        topics.setdefault(topic, []).append(one)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()
        ],
    )


def _first_error(answer: OffsetCommitResponse) -> ErrorCode:
    codes = [row.error_code for topic in answer.topics for row in topic.partitions if row.error_code]
    return ErrorCode(codes[0]) if codes else ErrorCode.NONE


def _decode_assignment(data: bytes) -> tuple[Route, ...]:
    if not data:
        return ()
    view = memoryview(bytes(data))
    assignment, _ = decode(ConsumerProtocolAssignment, 0, view, 2)
    return tuple((part.topic, partition) for part in assignment.assigned_partitions for partition in part.partitions)


def fetch_positions(
    client: ClusterClient,
    coordinators: CoordinatorFinder,
    random: Stream,
    history: TransactionHistory,
    group: str,
    routes: Sequence[Route],
    stable: bool = True,
) -> Steps[dict[Route, int]]:
    """Positions of a group; 0 where there is none. `stable`: wait for pending transactional offsets (KIP-447)."""
    topics: dict[str, list[int]] = {}
    for topic, partition in routes:
        topics.setdefault(topic, []).append(partition)
    while True:
        version = random.choice((7, 8, 9))
        request = _fetch_request(version, group, topics, stable)
        asked_ns = client.timeline.now_ns
        answer = yield from coordinators.send_to_coordinator(GROUP, group, request, version, OffsetFetchResponse)
        code, rows = (ErrorCode.NETWORK_EXCEPTION, []) if answer is None else _offset_rows(version, answer)
        if code is ErrorCode.NONE:
            break
        yield from coordinators.wait_to_retry(GROUP, group, code)
    found = {}
    for route, offset, metadata in rows:
        now_ns = client.timeline.now_ns
        history.positions.append(Position(group, route, offset, metadata, asked_ns, now_ns, stable))
        found[route] = max(0, offset)
    return found


def _fetch_request(version: int, group: str, topics: Mapping[str, list[int]], stable: bool) -> OffsetFetchRequest:
    if version < 8:
        old = OffsetFetchRequest.OffsetFetchRequestTopic
        rows = [old(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
        return OffsetFetchRequest(group_id=group, topics=rows, require_stable=stable)
    new = OffsetFetchRequest.OffsetFetchRequestTopics
    wanted = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=group, topics=[new(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    )
    return OffsetFetchRequest(groups=[wanted], require_stable=stable)


def _offset_rows(version: int, answer: OffsetFetchResponse) -> tuple[ErrorCode, list[tuple[Route, int, str]]]:
    found = answer if version < 8 else answer.groups[0]
    if found.error_code:
        return ErrorCode(found.error_code), []
    rows = []
    for topic in found.topics or ():
        for row in topic.partitions:
            if row.error_code:
                return ErrorCode(row.error_code), []
            rows.append(((topic.name, row.partition_index), row.committed_offset, row.metadata or ""))
    return ErrorCode.NONE, rows


def pause_a_moment(random: Stream) -> Steps[None]:
    """Wait between two polls of a log without new records."""
    yield from pause_client(RETRY_NS // 2 + random.random_below(2 * RETRY_NS))
