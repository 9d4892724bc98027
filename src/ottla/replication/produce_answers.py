"""What a Produce is answered: rows of the hand-written encoder, and partitions of the compiled codec for the rare ones.

Zone: deterministic.
"""

from __future__ import annotations

from typing import Any, Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.inspection import RefusedRecords
from ottla.wire.messages import ProduceResponse

TOPIC_ID_VERSION: Final = 13
Row = tuple[int, int, int, int, int]
"""(partition, error, base offset, log append time, log start offset): one partition of the answer."""
Answers = list[tuple[Any, bytes, list[Row]]]
"""(topic name, topic id, rows): the parts of the answer; an unknown topic has what the client called it for a name."""
Refusals = dict[tuple[int, int], ApiError]
"""(1 + topic's place, row's place) → why it was refused."""


def named(answers: Answers, version: int) -> list[tuple[str, bytes, list[Row]]]:
    """An unknown topic id stands where the name was: put it where it belongs."""
    if version < TOPIC_ID_VERSION:
        return [(str(name), topic_id, rows) for name, topic_id, rows in answers]
    return [("", name if isinstance(name, bytes) else topic_id, rows) for name, topic_id, rows in answers]


def as_moved(answers: Answers) -> None:
    """Say NOT_LEADER_OR_FOLLOWER for KAFKA_STORAGE_ERROR to who does not know that."""
    for _, _, rows in answers:
        for at, row in enumerate(rows):
            if row[1] == ErrorCode.KAFKA_STORAGE_ERROR:
                rows[at] = (row[0], ErrorCode.NOT_LEADER_OR_FOLLOWER, *row[2:])


def partition_answer(row: Row, error: ApiError | None) -> ProduceResponse.PartitionProduceResponse:
    """The answer for one partition, with the text of its error."""
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
