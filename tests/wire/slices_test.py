"""A request cut into parts has all its elements, and responses joined are what one response would have been.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.wire.codec import decode, decode_sliced, encode_bytes
from ottla.wire.limits import SLICE
from ottla.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeGroupsRequest,
    FindCoordinatorResponse,
    OffsetFetchResponse,
)
from ottla.wire.slices import Joined, path_in, split, weigh

_Topic = DeleteRecordsRequest.DeleteRecordsTopic
_Partition = DeleteRecordsRequest.DeleteRecordsPartition
PATH = ("topics", "partitions")


def _request(*sizes: int) -> DeleteRecordsRequest:
    topics = [
        _Topic(name=f"t{number}", partitions=[_Partition(partition_index=each, offset=each) for each in range(size)])
        for number, size in enumerate(sizes)
    ]
    return DeleteRecordsRequest(topics=topics, timeout_ms=77)


def _elements(request: DeleteRecordsRequest) -> list[tuple[str, int]]:
    return [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]


@pytest.mark.parametrize("sizes", [(), (0, 0, 0), (1,), (7, 0, 3), (250,), (9, 10, 11), (1,) * 40])
@pytest.mark.parametrize("size", [2, 10, 100])
def test_parts_are_small_and_have_every_element_in_order(sizes, size) -> None:
    parts = list(split(_request(*sizes), PATH, size))
    assert [each for part in parts for each in _elements(part)] == _elements(_request(*sizes))
    assert all(part.timeout_ms == 77 for part in parts)
    assert all(weigh(part, PATH) <= size + 1 for part in parts), "one element of the outer array may come on top"


@pytest.mark.parametrize("version", [0, 2], ids=["plain", "flexible"])
def test_a_topic_that_was_cut_is_whole_again_in_the_response(version) -> None:
    def response(rows: list[tuple[str, int]]) -> DeleteRecordsResponse:
        topics: dict[str, list[int]] = {}
        for name, index in rows:
            topics.setdefault(name, []).append(index)
        topic = DeleteRecordsResponse.DeleteRecordsTopicResult
        partition = DeleteRecordsResponse.DeleteRecordsPartitionResult
        return DeleteRecordsResponse(
            topics=[
                topic(name=name, partitions=[partition(partition_index=each, low_watermark=each) for each in indexes])
                for name, indexes in topics.items()
            ]
        )

    whole = _request(9, 300, 1, 2)
    expected = encode_bytes(response(_elements(whole)), version)
    joined = Joined(DeleteRecordsResponse, version, PATH)
    for part in split(whole, PATH, 16):
        joined.add(response(_elements(part)))
    assert b"".join(joined.parts()) == expected  # type: ignore[arg-type]  # bytes


def test_three_levels_are_joined() -> None:
    group, topic = OffsetFetchResponse.OffsetFetchResponseGroup, OffsetFetchResponse.OffsetFetchResponseTopics
    row = OffsetFetchResponse.OffsetFetchResponsePartitions

    def response(indexes: range) -> OffsetFetchResponse:
        rows = [row(partition_index=each, committed_offset=each, metadata="m") for each in indexes]
        return OffsetFetchResponse(groups=[group(group_id="g", topics=[topic(name="t", partitions=rows)])])

    joined = Joined(OffsetFetchResponse, 8, ("groups", "topics", "partitions"))
    for start in range(0, 1000, 100):
        joined.add(response(range(start, start + 100)))
    assert b"".join(joined.parts()) == encode_bytes(response(range(1000)), 8)  # type: ignore[arg-type]  # bytes


def test_equal_elements_of_one_part_stay_two() -> None:
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    response = OffsetFetchResponse(groups=[group(group_id="g"), group(group_id="g")])
    joined = Joined(OffsetFetchResponse, 8, ("groups", "topics", "partitions"))
    joined.add(response)
    assert b"".join(joined.parts()) == encode_bytes(response, 8)  # type: ignore[arg-type]  # bytes


def test_the_first_error_of_the_whole_counts() -> None:
    joined = Joined(FindCoordinatorResponse, 4, ("coordinators",))
    joined.add(FindCoordinatorResponse())
    row = FindCoordinatorResponse.Coordinator(key="k", error_code=15)
    joined.add(FindCoordinatorResponse(coordinators=[row]))
    content = b"".join(joined.parts())  # type: ignore[arg-type]  # bytes
    assert decode(FindCoordinatorResponse, 4, content)[0].coordinators == [row]


def test_the_first_version_of_a_path_counts() -> None:
    paths = (("groups", "topics"), ("topics",))
    assert path_in(OffsetFetchResponse, 8, paths) == ("groups", "topics")
    assert path_in(OffsetFetchResponse, 5, paths) == ("topics",)


def test_a_large_message_is_decoded_a_slice_at_a_time() -> None:
    request = DescribeGroupsRequest(groups=[f"g{each}" for each in range(10 * SLICE)])
    found = []

    def run():
        found.append((yield from decode_sliced(DescribeGroupsRequest, 5, encode_bytes(request, 5))))

    assert len(list(run())) == 10
    assert found == [request]
