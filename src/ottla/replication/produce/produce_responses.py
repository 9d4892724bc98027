"""Produce responses: rows for the hand-written encoder, and compiled-codec messages for the rare ones.

Zone: deterministic.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.inspection import RefusedRecords
from ottla.replication.leaders import Leaders, current_leader
from ottla.replication.partition_registry import PartitionRegistry
from ottla.wire.messages import ProduceResponse

LEADER_VERSION: Final = 10
"""From this version on the response names the leader if the request reached another broker."""
TOPIC_ID_VERSION: Final = 13
Row = tuple[int, int, int, int, int]
"""(partition, error, base offset, log append time, log start offset): one partition of the answer."""
Responses = list[tuple[Any, bytes, list[Row]]]
"""(topic name, topic id, rows) per topic. For an unknown topic the name is what the request has: a name or an id."""
Refusals = dict[tuple[int, int], ApiError]
"""(1 + index of the topic, index of the row) → why it was refused."""


def with_topic_ids(answers: Responses, version: int) -> list[tuple[str, bytes, list[Row]]]:
    """The rows for the encoder, with the id of an unknown topic moved from the place of the name to that of the id."""
    if version < TOPIC_ID_VERSION:
        return [(str(name), topic_id, rows) for name, topic_id, rows in answers]
    return [("", name if isinstance(name, bytes) else topic_id, rows) for name, topic_id, rows in answers]


def map_storage_errors(answers: Responses) -> None:
    """Map KAFKA_STORAGE_ERROR to NOT_LEADER_OR_FOLLOWER for clients older than version 4, which do not know it."""
    for _, _, rows in answers:
        for at, row in enumerate(rows):
            if row[1] == ErrorCode.KAFKA_STORAGE_ERROR:
                rows[at] = (row[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, *row[2:])


def partition_response(row: Row, error: ApiError | None) -> ProduceResponse.PartitionProduceResponse:
    """The response for one partition, with the text of its error."""
    index, code, base_offset, append_time, log_start = row
    return ProduceResponse.PartitionProduceResponse(
        index=index,
        error_code=code,
        base_offset=base_offset,
        log_append_time_ms=append_time,
        log_start_offset=log_start,
        error_message=(error.message or None) if error is not None else None,
        record_errors=_record_errors(error) if isinstance(error, RefusedRecords) else [],
    )


def _record_errors(error: RefusedRecords) -> list[ProduceResponse.BatchIndexAndErrorMessage]:
    return [
        ProduceResponse.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=f"the record {why}")
        for index, why in error.records
    ]


class AnswersWithTexts:
    """Builds the responses that contain more than numbers: texts of errors, and current leaders."""

    __slots__ = ("_hosted", "_leaders")

    def __init__(self, hosted: PartitionRegistry, leaders: Leaders) -> None:
        self._hosted = hosted
        self._leaders = leaders

    def build_response(self, answers: Responses, refused: Refusals, version: int, listener: str) -> ProduceResponse:
        """The response with a text for each error (version 8 on) and current leaders (version 10 on)."""
        response = ProduceResponse()
        nodes: dict[int, None] = {}
        for at, (name, topic_id, rows) in enumerate(with_topic_ids(answers, version), 1):
            partitions = [partition_response(row, refused.get((at, place))) for place, row in enumerate(rows)]
            if version >= LEADER_VERSION:
                key = topic_id if version >= TOPIC_ID_VERSION else name
                for data in partitions:
                    if data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                        self._add_current_leader(key, data, nodes)
            response.responses.append(
                ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=partitions)
            )
        # A client can connect only to a broker that has an endpoint for the listener that it uses itself.
        for node in nodes:
            found = self._leaders.broker_address(node, listener)
            if found is not None:
                response.node_endpoints.append(ProduceResponse.NodeEndpoint(**found._asdict()))
        return response

    def _add_current_leader(
        self, key: str | bytes, data: ProduceResponse.PartitionProduceResponse, nodes: dict[int, None]
    ) -> None:
        topics: Any = self._hosted.by_id if isinstance(key, bytes) else self._hosted.by_name
        found = current_leader(topics, self._leaders, key, data.index)
        if found is not None:
            data.current_leader = ProduceResponse.LeaderIdAndEpoch(
                leader_id=found.leader, leader_epoch=found.leader_epoch
            )
            nodes[found.leader] = None
