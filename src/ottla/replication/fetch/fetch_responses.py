"""Fetch responses. The compiled codec encodes the rare ones, with diverging epochs or current leaders.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.replication.fetch.fetch_session import FetchPartition, Row, has_news, with_latest_mark
from ottla.replication.fetch.pending_fetch import NO_REPLICA, PendingFetch
from ottla.replication.leaders import Leaders, current_leader
from ottla.replication.partition_registry import PartitionRegistry
from ottla.seams import Gate, Network, Part, Slot
from ottla.wire import hot
from ottla.wire.codec import encode
from ottla.wire.header import response_header
from ottla.wire.messages import FetchResponse

LEADER_VERSION: Final = 16
"""From this version on a response names the current leader (KIP-951)."""
_TOPIC_ID_VERSION: Final = 13
_ERROR_VERSION: Final = 7
"""From this version on a response has a field for an error of the whole request."""
MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)

# An int32, an int16, an int32, and one byte for an empty compact array.
_BEFORE_TAGS: Final = 11
"""Bytes before the tags of a response without topics: throttle time, error, session, empty array."""

LeaderHint = tuple[FetchPartition, Row]


FetchResponses = Sequence[tuple[Any, bytes, Collection[Row]]]
"""(name, id, rows) of each topic."""


class FetchResponder:
    """Sends responses."""

    def __init__(self, network: Network, hosted: PartitionRegistry, leaders: Leaders, max_version: int) -> None:
        """`leaders`: for responses that name other brokers."""
        self._network = network
        self.hosted = hosted
        self.leaders = leaders
        self._encode = [hot.encode_fetch(version) for version in range(max_version + 1)]
        self._header = [response_header(1, version, 0)[4:] for version in range(max_version + 1)]

    def send_rare(self, pending: PendingFetch, told: Sequence[LeaderHint]) -> None:
        """Send a response with diverging epochs or current leaders."""
        slot, version = pending.slot, pending.version
        session_id, listener = pending.session.session_id, slot.peer.listener
        body = encode_rare_response(told, version, session_id, self.hosted, self.leaders, listener)
        self.send_body(slot, version, pending.correlation_id, body)

    def send_body(self, slot: Slot, version: int, correlation_id: int, body: Sequence[Part]) -> None:
        """Send a response with an encoded body."""
        head = correlation_id.to_bytes(4, "big", signed=True) + self._header[version]
        self._network.send_reply(slot, [head, *body])

    def send_rows(
        self,
        slot: Slot,
        version: int,
        correlation_id: int,
        topics: FetchResponses,
        error: int,
        session_id: int,
    ) -> None:
        """Send a response with these rows, or with an error for the whole request."""
        head = correlation_id.to_bytes(4, "big", signed=True) + self._header[version]
        self._network.send_reply(slot, [head, *self._encode[version](topics, 0, error, session_id)])

    def refuse_request(self, slot: Slot, version: int, correlation_id: int, error: ApiError) -> Gate:
        """Answer an error for the whole request; versions that have no field for it close the connection."""
        if version < _ERROR_VERSION:
            self._network.close_connection(slot.peer, f"Fetch failed: {error}")
            return Gate.WAIT
        self.send_rows(slot, version, correlation_id, [], error.code, 0)
        return Gate.NEXT


def rows_to_send(
    pending: PendingFetch, partitions: Iterable[FetchPartition], told: list[LeaderHint]
) -> tuple[FetchResponses, bool]:
    """The rows to send for these partitions, and whether they need the compiled codec.

    Adds the rows to `told`, and records in the session that the reader has them. Hot.
    """
    session, version = pending.session, pending.version
    dirty = session.dirty
    topics: list[tuple[Any, bytes, list[Row]]] = []
    rows: list[Row] = []
    last: Any = None
    by_id, rare = version >= _TOPIC_ID_VERSION, False
    for each in partitions:
        row = each.row
        assert row is not None, "every partition that was read has a row"
        # A follower learns the latest high watermark; while that is below its own end, each fetch looks again.
        if pending.replica_id != NO_REPLICA:
            row = with_latest_mark(each, row)
            if 0 <= row[2] < each.fetch_offset:
                session.awaits_commit[each] = None
        # An incremental response leaves out rows without news; the reader keeps what it has.
        if not pending.full and not has_news(each, row):
            continue
        if each.topic != last:
            last = each.topic
            rows = []
            topics.append(("", last, rows) if by_id else (last, bytes(16), rows))
        rows.append(row)
        told.append((each, row))
        rare = rare or each.diverging is not None or (row[1] in MOVED and version >= LEADER_VERSION)
        each.sent_high_watermark = row[2]
        each.sent_log_start = row[4]
        if each.region is not None:  # it moves to the end, so that the next response serves other partitions first
            each.region = None
            dirty.pop(each, None)  # absent if the session was closed meanwhile
            dirty[each] = None
    return topics, rare


def encode_rare_response(
    told: Sequence[LeaderHint],
    version: int,
    session_id: int,
    hosted: PartitionRegistry,
    leaders: Leaders,
    listener: str,
) -> list[Part]:
    """The body of a response with diverging epochs, current leaders and their addresses."""
    nodes: dict[int, None] = {}
    response = rare_topics(told, version, hosted, leaders, nodes)
    response.session_id = session_id
    response.node_endpoints = _node_endpoints(nodes, leaders, listener)
    return encode(response, version)


def rare_topics(
    told: Sequence[LeaderHint], version: int, hosted: PartitionRegistry, leaders: Leaders, nodes: dict[int, None]
) -> FetchResponse:
    """A response without addresses: adds the brokers whose addresses it needs to `nodes`."""
    response = FetchResponse()
    by_id = version >= _TOPIC_ID_VERSION
    topics: Any = hosted.by_id if by_id else hosted.by_name
    last: Any = None
    for each, row in told:
        if each.topic != last:
            last = each.topic
            named = {"topic_id": last} if by_id else {"topic": last}
            response.responses.append(FetchResponse.FetchableTopicResponse(**named))
        data = _partition_data(each, row)
        if version >= LEADER_VERSION and row[1] in MOVED:
            found = current_leader(topics, leaders, each.topic, each.index)
            if found is not None:
                data.current_leader = FetchResponse.LeaderIdAndEpoch(
                    leader_id=found.leader, leader_epoch=found.leader_epoch
                )
                nodes[found.leader] = None
        response.responses[-1].partitions.append(data)
    return response


def encode_tail(nodes: Iterable[int], version: int, leaders: Leaders, listener: str) -> bytes:
    """The tags of a response, from version 12 on: the addresses of these brokers."""
    response = FetchResponse(node_endpoints=_node_endpoints(nodes, leaders, listener))
    return b"".join(bytes(part) for part in encode(response, version))[_BEFORE_TAGS:]  # type: ignore[arg-type]


def _node_endpoints(nodes: Iterable[int], leaders: Leaders, listener: str) -> list[FetchResponse.NodeEndpoint]:
    found = (leaders.broker_address(node, listener) for node in nodes)
    return [FetchResponse.NodeEndpoint(**at._asdict()) for at in found if at is not None]


def _partition_data(each: FetchPartition, row: Row) -> FetchResponse.PartitionData:
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
