"""A request cut into parts has all its elements, and responses joined are what one response would have been.

Zone: pure.
"""

from __future__ import annotations

import pytest

from ottla.wire.codec import decode, decode_sliced, encode_bytes
from ottla.wire.limits import NUMBERS_PER_ELEMENT, SLICE, SLICE_BYTES, TAGS_PER_ELEMENT
from ottla.wire.messages import (
    AlterPartitionReassignmentsRequest,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    OffsetFetchResponse,
)
from ottla.wire.messages.end_txn import WriteTxnMarkersRequest
from ottla.wire.primitives import uvarint
from ottla.wire.slices import Elements, Joined, count_elements, path_in, split_struct

_Topic = DeleteRecordsRequest.DeleteRecordsTopic
_Partition = DeleteRecordsRequest.DeleteRecordsPartition
PATH = ("topics", "partitions")
NUMBERS = SLICE * NUMBERS_PER_ELEMENT
"""Numbers of a slice."""


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
    parts = list(split_struct(_request(*sizes), PATH, size))
    assert [each for part in parts for each in _elements(part)] == _elements(_request(*sizes))
    assert all(part.timeout_ms == 77 for part in parts)
    assert all(count_elements(part, PATH) <= size + 1 for part in parts), (
        "one element of the outer array may come on top"
    )


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
    for part in split_struct(whole, PATH, 16):
        joined.add_response(response(_elements(part)))
    assert b"".join(joined.final_parts()) == expected  # type: ignore[arg-type]  # bytes


def test_three_levels_are_joined() -> None:
    group, topic = OffsetFetchResponse.OffsetFetchResponseGroup, OffsetFetchResponse.OffsetFetchResponseTopics
    row = OffsetFetchResponse.OffsetFetchResponsePartitions

    def response(indexes: range) -> OffsetFetchResponse:
        rows = [row(partition_index=each, committed_offset=each, metadata="m") for each in indexes]
        return OffsetFetchResponse(groups=[group(group_id="g", topics=[topic(name="t", partitions=rows)])])

    joined = Joined(OffsetFetchResponse, 8, ("groups", "topics", "partitions"))
    for start in range(0, 1000, 100):
        joined.add_response(response(range(start, start + 100)))
    assert b"".join(joined.final_parts()) == encode_bytes(response(range(1000)), 8)  # type: ignore[arg-type]  # bytes


def test_equal_elements_of_one_part_stay_two() -> None:
    group = OffsetFetchResponse.OffsetFetchResponseGroup
    response = OffsetFetchResponse(groups=[group(group_id="g"), group(group_id="g")])
    joined = Joined(OffsetFetchResponse, 8, ("groups", "topics", "partitions"))
    joined.add_response(response)
    assert b"".join(joined.final_parts()) == encode_bytes(response, 8)  # type: ignore[arg-type]  # bytes


def test_the_first_error_of_the_whole_counts() -> None:
    joined = Joined(FindCoordinatorResponse, 4, ("coordinators",))
    joined.add_response(FindCoordinatorResponse())
    row = FindCoordinatorResponse.Coordinator(key="k", error_code=15)
    joined.add_response(FindCoordinatorResponse(coordinators=[row]))
    content = b"".join(joined.final_parts())  # type: ignore[arg-type]  # bytes
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


def elements_of(request, version, path):
    return Elements(type(request), version, memoryview(encode_bytes(request, version)), 0, path)


def walk(elements):
    """The slices, and the request without the elements."""
    slices = []
    steps = elements.iterate_slices()
    while True:
        try:
            slices.append(next(steps))
        except StopIteration as stop:
            return slices, stop.value


def test_elements_are_decoded_a_slice_at_a_time_and_as_often_as_they_are_walked() -> None:
    request = DescribeGroupsRequest(groups=[f"g{each}" for each in range(3 * SLICE + 1)])
    request.include_authorized_operations = True
    elements = elements_of(request, 5, ("groups",))
    slices, rest = walk(elements)
    assert [len(each) for each in slices] == [SLICE, SLICE, SLICE, 1]
    assert rest == DescribeGroupsRequest(groups=[], include_authorized_operations=True)
    assert list(elements) == list(elements) == request.groups


def test_a_large_element_comes_in_pieces_along_the_path() -> None:
    one = AlterPartitionReassignmentsRequest.ReassignablePartition
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    sizes = {"a": 2, "b": 2 * SLICE + 3, "c": 0, "d": 1}
    request = AlterPartitionReassignmentsRequest(
        topics=[
            topic(name=name, partitions=[one(partition_index=index, replicas=[1, 2]) for index in range(size)])
            for name, size in sizes.items()
        ]
    )
    slices, _ = walk(elements_of(request, 0, ("topics", "partitions")))
    assert max(sum(1 + len(topic.partitions) for topic in each) for each in slices) <= SLICE + 1
    found = {name: [] for name in sizes}
    for each in slices:
        for piece in each:
            found[piece.name] += piece.partitions
    assert [topic(name=name, partitions=partitions) for name, partitions in found.items()] == request.topics


def test_long_texts_are_decoded_a_slice_at_a_time() -> None:
    request = DescribeGroupsRequest(groups=["é" * 16_000] * 100)
    slices, _ = walk(elements_of(request, 5, ("groups",)))
    assert max(32_000 * len(each) for each in slices) <= SLICE_BYTES + 64_000
    assert [group for each in slices for group in each] == request.groups


def test_an_element_with_many_tags_counts_as_many_elements() -> None:
    tags = uvarint(10_000) + b"".join(uvarint(tag) + b"\0" for tag in range(10_000))
    topics = 20
    body = uvarint(topics + 1) + (b"\2t\1" + tags) * topics + b"\0\0\0\7\0"
    slices, rest = walk(Elements(DeleteRecordsRequest, 2, memoryview(body), 0, PATH))
    assert len(slices) >= topics * 10_000 // TAGS_PER_ELEMENT // SLICE
    assert [topic.name for each in slices for topic in each] == ["t"] * topics
    assert rest == DeleteRecordsRequest(timeout_ms=7)


@pytest.mark.parametrize("sizes", [[10 * NUMBERS], [NUMBERS_PER_ELEMENT * 4] * SLICE, [0, 1, NUMBERS + 1, 0]])
def test_numbers_are_decoded_a_slice_at_a_time(sizes) -> None:
    topic = DescribeProducersRequest.TopicRequest
    topics = [topic(name=f"t{number}", partition_indexes=list(range(size))) for number, size in enumerate(sizes)]
    request = DescribeProducersRequest(topics=topics)
    slices, _ = walk(elements_of(request, 0, ("topics", "partition_indexes")))
    assert max(sum(len(topic.partition_indexes) for topic in each) for each in slices) <= NUMBERS * 5 // 4
    found = {topic.name: [] for topic in topics}
    for each in slices:
        for piece in each:
            found[piece.name] += piece.partition_indexes
    assert [topic(name=name, partition_indexes=indexes) for name, indexes in found.items()] == topics


def test_an_element_with_fields_behind_the_array_comes_as_a_whole() -> None:
    marker, topic = WriteTxnMarkersRequest.WritableTxnMarker, WriteTxnMarkersRequest.WritableTxnMarkerTopic
    topics = [topic(name=f"a-topic-{each}", partition_indexes=[each]) for each in range(2 * SLICE)]
    request = WriteTxnMarkersRequest(markers=[marker(topics=topics, coordinator_epoch=7)])
    elements = elements_of(request, 1, ("markers", "topics", "partition_indexes"))
    assert list(elements) == request.markers
    assert [len(each) for each in walk(elements)[0]] == [0, 0, 1]


def test_an_array_that_is_null_has_no_elements() -> None:
    slices, rest = walk(elements_of(MetadataRequest(topics=None), 8, ("topics",)))
    assert [each for each in slices if each] == []
    assert rest.topics is None


def test_small_answers_of_many_parts_are_kept_in_few_pieces() -> None:
    joined = Joined(OffsetFetchResponse, 5, ("topics", "partitions"))
    row = OffsetFetchResponse.OffsetFetchResponsePartition
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    for number in range(2_000):
        joined.add_response(OffsetFetchResponse(topics=[topic(name="t", partitions=[row(partition_index=number)])]))
    parts = joined.final_parts()
    assert len(parts) < 20
    response, _ = decode(OffsetFetchResponse, 5, b"".join(parts))
    (only,) = response.topics
    assert [each.partition_index for each in only.partitions] == list(range(2_000))
