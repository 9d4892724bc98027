"""AddPartitionsToTxn with hundreds of partitions: checked in slices, then added all together or not at all.

Zone: deterministic. One partition that cannot be added prevents all others of the request from being added, so all are
checked before any is submitted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, InPieces, Steps
from ottla.transactions.commands import AddPartitions
from ottla.transactions.messages import code_for
from ottla.transactions.state import UNBUMPED, ProducerIdentity
from ottla.types import TopicPartition
from ottla.wire.limits import SLICE
from ottla.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from ottla.wire.slices import count_elements, split_struct

PATH: Final = ("v3_and_below_topics", "partitions")
_ANSWER_PATH: Final = ("results_by_topic_v3_and_below", "results_by_partition")
_CHECK_US: Final = 5
_Topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
_Row = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

Refusal = Callable[[TopicPartition, bool], ErrorCode]
"""The error for a partition that cannot join a transaction: (partition, by a client) → error; NONE when it can."""


def is_large(request: AddPartitionsToTxnRequest) -> bool:
    """Whether a request of a client is processed in slices."""
    return count_elements(request, PATH) > SLICE


class ManyPartitionsRequest:
    """One large request of a client. A partition that it repeats is repeated in the response."""

    def __init__(self, context: Context, request: AddPartitionsToTxnRequest, refusal: Refusal) -> None:
        self._context = context
        self._request = request
        self._refusal = refusal
        self._parts: list[AddPartitionsToTxnRequest] = []
        """The slices of the request that are checked."""
        self._codes = array("h")
        """The error code of each partition that is checked, in the order of the request."""
        self._known: dict[TopicPartition, None] = {}
        """The partitions to add, each once: existing partitions only, however many a request names."""

    def run_steps(self, submit: Callable[[AddPartitions], None]) -> Steps:
        """Check all partitions. If none is refused, `submit` adds them; else the response has the errors."""
        for part in split_struct(self._request, PATH, SLICE):
            self._check_part(part)
            yield _CHECK_US * count_elements(part, PATH)
        if any(self._codes):
            return InPieces(_ANSWER_PATH, self._refused_pieces())
        request = self._request
        identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        name = request.v3_and_below_transactional_id
        submit(AddPartitions(name, identity, list(self._known), UNBUMPED, self._send_response))
        return None

    def _check_part(self, part: AddPartitionsToTxnRequest) -> None:
        self._parts.append(part)
        for tp in _partitions_of(part):
            code = self._refusal(tp, True)
            self._codes.append(code)
            if not code:
                self._known[tp] = None

    def _send_response(self, outcome: ApiError | None) -> None:
        code = ErrorCode.NONE
        if outcome is not None:
            code = code_for(self._context.api_key, self._context.api_version, outcome)
        pieces = (_slice_response(part, lambda _: code) for part in self._parts)
        self._context.send_reply(InPieces(_ANSWER_PATH, pieces))

    def _refused_pieces(self) -> Generator[AddPartitionsToTxnResponse, None, None]:
        codes = iter(self._codes)
        for part in self._parts:
            # Partitions without a fault of their own were not added either.
            yield _slice_response(part, lambda _: next(codes) or ErrorCode.OPERATION_NOT_ATTEMPTED)


def _partitions_of(part: AddPartitionsToTxnRequest) -> Iterator[TopicPartition]:
    for topic in part.v3_and_below_topics:
        for index in topic.partitions:
            yield TopicPartition(topic.name, index)


def _slice_response(part: AddPartitionsToTxnRequest, code_of: Callable[[int], int]) -> AddPartitionsToTxnResponse:
    """The response rows of a slice, in its order."""
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            _Topic(
                name=topic.name,
                results_by_partition=[
                    _Row(partition_index=index, partition_error_code=code_of(index)) for index in topic.partitions
                ],
            )
            for topic in part.v3_and_below_topics
        ]
    )
