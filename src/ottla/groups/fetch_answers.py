"""Responses to OffsetFetch, whole or in pieces: a group may have offsets of a hundred thousand partitions.

Zone: pure. This module builds rows and topics of responses; the handler submits the fetches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeVar

from ottla.errors import ApiError, ErrorCode
from ottla.groups.commands import FoundOffset
from ottla.groups.commits import AllFoundOffsets
from ottla.groups.offsets import PartitionKey
from ottla.requests import InPieces
from ottla.wire.messages import OffsetFetchResponse

R = TypeVar("R")
FetchOutcome = Iterable[FoundOffset] | ApiError
TopicOffsets = list[tuple[str, list[FoundOffset]]]
"""The offsets that were found, by topic."""
PIECE: Final = 500
"""The number of offsets that are sorted, or become rows, in one piece."""
_OldTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_OldRow = OffsetFetchResponse.OffsetFetchResponsePartition


def are_many(outcomes: Iterable[FetchOutcome]) -> bool:
    """Whether a response with all these offsets is built in pieces."""
    return sum(len(each) for each in outcomes if isinstance(each, AllFoundOffsets)) > PIECE


def topics_of(found: Iterable[FoundOffset]) -> TopicOffsets:
    """The offsets that were found, by topic."""
    topics: dict[str, list[FoundOffset]] = {}
    for each in found:
        topics.setdefault(each.topic, []).append(each)
    return list(topics.items())


def topics_in_pieces(found: Iterable[FoundOffset]) -> Iterator[TopicOffsets]:
    """The same in pieces. The first ones are empty: they sort a large result by topic, one slice per piece."""
    # Offsets are in the order of their first commits, and a response has each topic once: a large result is sorted
    # first.
    if not isinstance(found, AllFoundOffsets) or len(found) <= PIECE:
        yield topics_of(found)
        return
    topics: dict[str, list[PartitionKey]] = {}
    places = found.found_partitions()
    while some := list(islice(places, PIECE)):
        for place in filter(lambda place: found.shows(place[0]), some):
            topics.setdefault(place[0], []).append(place)
        yield []
    ordered = (place for of_topic in topics.values() for place in of_topic)
    while some := list(islice(ordered, PIECE)):
        yield topics_of([found.offset_of(place) for place in some])


def old_response(
    outcome: FetchOutcome, wanted: Sequence[tuple[str, Sequence[int]]], says_group_error: bool
) -> OffsetFetchResponse | InPieces:
    """The response of one group (versions 0 to 7).

    `says_group_error`: the version has an error of the whole group; others repeat it in every partition.
    """
    if isinstance(outcome, ApiError):
        code = outcome.code
        none = [FoundOffset(topic, each, None, code) for topic, partitions in wanted for each in partitions]
        return _old_piece(topics_of([] if says_group_error else none), code)
    if are_many((outcome,)):
        return InPieces(("topics", "partitions"), _old_pieces(outcome))
    return _old_piece(topics_of(outcome))


def _old_pieces(found: Iterable[FoundOffset]) -> Generator[OffsetFetchResponse, None, None]:
    for piece in topics_in_pieces(found):
        yield _old_piece(piece)


def _old_piece(topics: TopicOffsets, code: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponse:
    rows = [_OldTopic(name=name, partitions=[row_of(_OldRow, each) for each in found]) for name, found in topics]
    return OffsetFetchResponse(error_code=code, topics=rows)


def row_of(row_type: Callable[..., R], each: FoundOffset) -> R:
    """The row of one partition. `row_type`: the old and the new row have the same fields."""
    position = each.position
    return row_type(
        partition_index=each.partition,
        committed_offset=-1 if position is None else position.offset,
        committed_leader_epoch=-1 if position is None else position.leader_epoch,
        metadata="" if position is None else position.metadata,
        error_code=each.code,
    )
