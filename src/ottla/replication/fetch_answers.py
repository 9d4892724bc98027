"""The rare answers to a Fetch: logs that part, and leaders that are elsewhere. Written by the compiled codec.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ottla.errors import ErrorCode
from ottla.replication.fetch_session import FetchPartition, Row
from ottla.replication.hosted import Hosted
from ottla.replication.leaders import Leaders, current_leader
from ottla.seams import Part
from ottla.wire.codec import encode
from ottla.wire.messages import FetchResponse

LEADER_VERSION: Final = 16
"""From here on an answer says where the leader is (KIP-951)."""
_TOPIC_ID_VERSION: Final = 13
MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

Told = tuple[FetchPartition, Row]


def is_rare(version: int, each: FetchPartition, row: Row) -> bool:
    """Whether the hand-written encoder cannot say it."""
    return each.diverging is not None or (row[1] in MOVED and version >= LEADER_VERSION)


def rare_answer(
    told: Sequence[Told], version: int, session_id: int, hosted: Hosted, leaders: Leaders, listener: str
) -> list[Part]:
    """The body of an answer with diverging epochs, current leaders and their addresses."""
    response = FetchResponse(session_id=session_id)
    by_id = version >= _TOPIC_ID_VERSION
    topics: Any = hosted.by_id if by_id else hosted.by_name
    nodes: dict[int, None] = {}
    last: Any = None
    for each, row in told:
        if each.topic != last:
            last = each.topic
            named = {"topic_id": last} if by_id else {"topic": last}
            response.responses.append(FetchResponse.FetchableTopicResponse(**named))
        data = _partition(each, row)
        if version >= LEADER_VERSION and row[1] in MOVED:
            found = current_leader(topics, leaders, each.topic, each.index)
            if found is not None:
                data.current_leader = FetchResponse.LeaderIdAndEpoch(
                    leader_id=found.leader, leader_epoch=found.leader_epoch
                )
                nodes[found.leader] = None
        response.responses[-1].partitions.append(data)
    for node in nodes:
        at = leaders.address(node, listener)
        if at is not None:
            response.node_endpoints.append(FetchResponse.NodeEndpoint(**at._asdict()))
    return encode(response, version)


def _partition(each: FetchPartition, row: Row) -> FetchResponse.PartitionData:
    index, error, mark, stable, start, aborted, preferred, records = row
    data = FetchResponse.PartitionData(partition_index=index, error_code=error, high_watermark=mark)
    data.last_stable_offset, data.log_start_offset = stable, start
    data.preferred_read_replica, data.records = preferred, records
    if aborted is not None:
        data.aborted_transactions = [
            FetchResponse.AbortedTransaction(producer_id=producer, first_offset=first) for producer, first in aborted
        ]
    else:
        data.aborted_transactions = []
    if each.diverging is not None:
        data.diverging_epoch = FetchResponse.EpochEndOffset(
            epoch=each.diverging.epoch, end_offset=each.diverging.end_offset
        )
    return data
