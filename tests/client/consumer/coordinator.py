"""A broker with one group, which answers with the error codes that a test chooses, and counts the requests.

Zone: real. A scripted broker that leads one endless partition, and coordinates a group of one member.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.client.conftest import Request, ScriptedBroker

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    FetchRequest,
    FetchResponse,
    FindCoordinatorResponse,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

TOPIC = "t"
_VERSIONS = {
    ApiKey.FETCH: (4, 11),
    ApiKey.LIST_OFFSETS: (1, 5),
    ApiKey.FIND_COORDINATOR: (0, 2),
    ApiKey.JOIN_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 3),
    ApiKey.HEARTBEAT: (0, 3),
    ApiKey.LEAVE_GROUP: (0, 3),
    ApiKey.OFFSET_COMMIT: (2, 7),
    ApiKey.OFFSET_FETCH: (1, 5),
    ApiKey.METADATA: (0, 8),
}
"""Versions that every client supports, without topic ids."""


class ScriptedGroup:
    """The broker; it refuses requests with the error in `codes`."""

    def __init__(self) -> None:
        self.broker = ScriptedBroker()
        self.broker.topics[TOPIC] = 1
        self.broker.versions = {
            key: _VERSIONS.get(ApiKey(key), span)
            for key, span in self.broker.versions.items()
            if key in _VERSIONS or key in (ApiKey.API_VERSIONS, ApiKey.PRODUCE)  # librdkafka needs this one to fetch
        }
        self.codes: dict[ApiKey, ErrorCode] = {}
        self.given: Counter[tuple[ApiKey, ErrorCode]] = Counter()
        """Number of answers by request and code."""
        self.assignment: bytes | None = None
        """The assignment of every member; None: that of the leader's SyncGroup."""
        self.generation = 0
        self.commits: list[tuple[int, str]] = []
        """(generation, member id) of accepted commits."""
        self.stale = 0
        """Number of accepted commits with another generation than the group's."""
        self._members = 0
        handlers: dict[ApiKey, Callable[[Request], bytes]] = {
            ApiKey.FIND_COORDINATOR: self._find,
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._beat,
            ApiKey.LEAVE_GROUP: lambda request: request.reply(LeaveGroupResponse()),
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._committed,
            ApiKey.LIST_OFFSETS: self._offsets,
            ApiKey.FETCH: self._fetch,
        }
        self.broker.on.update(handlers)

    @property
    def bootstrap(self) -> str:
        return self.broker.bootstrap

    def asked(self, key: ApiKey) -> int:
        """Number of requests."""
        return len(self.broker.asked(key))

    def close(self) -> None:
        self.broker.close()

    def _code(self, key: ApiKey) -> int:
        code = self.codes.get(key, ErrorCode.NONE)
        self.given[key, code] += 1
        return int(code)

    def _find(self, request: Request) -> bytes:
        code = self._code(ApiKey.FIND_COORDINATOR)
        return request.reply(
            FindCoordinatorResponse(error_code=code, node_id=0, host="127.0.0.1", port=self.broker.port)
        )

    def _join(self, request: Request) -> bytes:
        if code := self._code(ApiKey.JOIN_GROUP):
            return request.reply(JoinGroupResponse(error_code=code))
        message: Any = request.message()
        assert isinstance(message, JoinGroupRequest)
        self.generation += 1
        self._members += not message.member_id
        me = message.member_id or f"member-{self._members}"
        first = message.protocols[0]
        row = JoinGroupResponse.JoinGroupResponseMember(member_id=me, metadata=bytes(first.metadata))
        return request.reply(
            JoinGroupResponse(
                generation_id=self.generation, protocol_name=first.name, leader=me, member_id=me, members=[row]
            )
        )

    def _sync(self, request: Request) -> bytes:
        if code := self._code(ApiKey.SYNC_GROUP):
            return request.reply(SyncGroupResponse(error_code=code))
        message: Any = request.message()
        assert isinstance(message, SyncGroupRequest)
        given = self.assignment
        if given is None:
            given = bytes(message.assignments[0].assignment) if message.assignments else b""
        return request.reply(SyncGroupResponse(assignment=given))

    def _beat(self, request: Request) -> bytes:
        return request.reply(HeartbeatResponse(error_code=self._code(ApiKey.HEARTBEAT)))

    def _commit(self, request: Request) -> bytes:
        code = self._code(ApiKey.OFFSET_COMMIT)
        message: Any = request.message()
        assert isinstance(message, OffsetCommitRequest)
        if not code:
            self.stale += message.generation_id_or_member_epoch != self.generation
            self.commits.append((message.generation_id_or_member_epoch, message.member_id))
        part = OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return request.reply(
            OffsetCommitResponse(topics=[OffsetCommitResponse.OffsetCommitResponseTopic(name=TOPIC, partitions=[part])])
        )

    def _committed(self, request: Request) -> bytes:
        message: Any = request.message()
        assert isinstance(message, OffsetFetchRequest)
        part = OffsetFetchResponse.OffsetFetchResponsePartition(
            partition_index=0, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=0
        )
        return request.reply(
            OffsetFetchResponse(topics=[OffsetFetchResponse.OffsetFetchResponseTopic(name=TOPIC, partitions=[part])])
        )

    def _offsets(self, request: Request) -> bytes:
        part = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, offset=0)
        return request.reply(
            ListOffsetsResponse(topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name=TOPIC, partitions=[part])])
        )

    def _fetch(self, request: Request) -> bytes:
        """Some records from the requested offset on."""
        message: Any = request.message()
        assert isinstance(message, FetchRequest)
        time.sleep(0.01)
        rows = []
        for topic in message.topics:
            offset = topic.partitions[0].fetch_offset
            end = offset + 3
            records = [Record(at, 0, None, b"%d" % at) for at in range(offset, end)]
            data = bytes(encode_batch(records, base_offset=offset))
            part = FetchResponse.PartitionData(high_watermark=end, last_stable_offset=end, records=data)
            rows.append(FetchResponse.FetchableTopicResponse(topic=topic.topic, partitions=[part]))
        return request.reply(FetchResponse(responses=rows))
