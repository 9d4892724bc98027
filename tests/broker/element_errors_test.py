"""Requests about too many things are answered for each of them; the connection stays.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.broker.element_errors import ELEMENTS_MAX, element_errors
from ottla.errors import ApiError, ErrorCode
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.messages import (
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
)

MANY = 10_001


def places(response) -> list[int]:
    """Every error code of the innermost elements that have one."""
    found = []
    for field in response.FIELDS:
        value = getattr(response, field.name)
        if field.type == "array" and field.of == "struct":
            found += [code for element in value for code in (places(element) or [getattr(element, "error_code", None)])]
    return [code for code in found if code is not None]


def list_offsets():
    partitions = [ListOffsetsRequest.ListOffsetsPartition(partition_index=at) for at in range(50_001)]
    return ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=partitions)])


REQUESTS = {
    "DescribeConfigs": lambda: (
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=2, resource_name=f"topic-of-an-application-{at}"
                )
                for at in range(MANY)
            ]
        ),
        4,
    ),
    "DescribeGroups": lambda: (
        DescribeGroupsRequest(groups=[f"group-of-an-application-{at}" for at in range(MANY)]),
        5,
    ),
    "DescribeTransactions": lambda: (
        DescribeTransactionsRequest(transactional_ids=[f"id-of-an-application-{at}" for at in range(MANY)]),
        0,
    ),
    "FindCoordinator": lambda: (
        FindCoordinatorRequest(coordinator_keys=[f"group-of-an-application-{at}" for at in range(MANY)]),
        4,
    ),
    "Metadata": lambda: (
        MetadataRequest(
            topics=[
                MetadataRequest.MetadataRequestTopic(name=f"topic-of-an-application-{at}") for at in range(2 * MANY)
            ],
            allow_auto_topic_creation=False,
        ),
        12,
    ),
    "OffsetFetch": lambda: (
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(group_id=f"group-of-an-application-{at}")
                for at in range(MANY)
            ]
        ),
        8,
    ),
    "DeleteTopics": lambda: (
        DeleteTopicsRequest(topic_names=[f"topic-of-an-application-{at}" for at in range(MANY)]),
        4,
    ),
    "ListOffsets": lambda: (list_offsets(), 7),
}

EXPECTED = {
    "DescribeConfigs": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    "DescribeGroups": {ErrorCode.NOT_COORDINATOR},
    "DescribeTransactions": {ErrorCode.NOT_COORDINATOR},
    "Metadata": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    "ListOffsets": {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},  # partition 0 is here
    "FindCoordinator": {ErrorCode.NONE},
    "DeleteTopics": {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    "OffsetFetch": {ErrorCode.NOT_COORDINATOR},
}
"""What each element is answered: these requests are handled in parts, each of an allowed size."""


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_requests_about_many_elements_are_answered_for_each_and_the_connection_stays(node, name):
    request, version = REQUESTS[name]()
    answer = node.ask(request, version)
    codes = places(answer)
    assert len(codes) >= MANY
    assert set(codes) == EXPECTED[name]
    assert node.network.closed == []
    first = encode_bytes(answer, version)
    assert len(first) > 2 * MANY


@pytest.mark.parametrize("key", [key for key, api in API_TABLE.items() if not hasattr(api.response(), "error_code")])
def test_every_response_without_a_code_of_its_own_can_be_refused_by_element(key):
    """Built from the declarations: one element in each array of the request."""
    api = API_TABLE[key]
    if not any(field.type == "array" for field in api.request.FIELDS):
        return
    for version in api.response.VERSIONS:
        request = one_of_each(api.request, version)
        response = element_errors(key, version, request, ApiError(ErrorCode.INVALID_REQUEST, "too many"))
        if response is None:
            continue
        assert set(places(response)) == {ErrorCode.INVALID_REQUEST}, version
        again, _ = decode(api.response, version, memoryview(bytearray(encode_bytes(response, version))))
        assert places(again) == places(response)


def one_of_each(kind, version):
    from ottla.wire.schema import struct_class

    made = kind()
    for field in kind.FIELDS:
        if field.type == "array" and field.exists_in(version):
            plain = {"string": "a", "int32": 3, "int64": 3, "uuid": bytes(16), "bytes": b""}
            setattr(
                made,
                field.name,
                [one_of_each(struct_class(kind, field), version) if field.of == "struct" else plain.get(field.of, 0)],
            )
    return made


def test_a_request_about_far_too_many_elements_gets_no_response():
    request = DescribeGroupsRequest(groups=["group-of-an-application"] * (ELEMENTS_MAX + 1))
    error = ApiError(ErrorCode.INVALID_REQUEST, "too many")
    assert element_errors(ApiKey.DESCRIBE_GROUPS, 5, request, error) is None
    request.groups.pop()
    assert element_errors(ApiKey.DESCRIBE_GROUPS, 5, request, error) is not None
    tiny = DescribeGroupsRequest(groups=["g"] * 50_000)
    assert element_errors(ApiKey.DESCRIBE_GROUPS, 5, tiny, error) is None, (
        "the answer is much larger than what is asked"
    )


@pytest.mark.parametrize("version", [10, 11, 12])
def test_a_topic_without_a_name_is_refused_where_names_cannot_be_null(node, version: int) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=None, topic_id=b"\1" * 16)]
    answer = node.ask(MetadataRequest(topics=topics), version)
    (topic,) = answer.topics
    expected = (None, ErrorCode.UNKNOWN_TOPIC_ID) if version >= 12 else ("", ErrorCode.INVALID_REQUEST)
    assert (topic.name, topic.error_code) == expected
    assert not node.network.closed


NAMES = ("name", "topic", "group_id", "resource_name", "topic_id")
PARTITIONS = ("index", "partition", "partition_index")
PAIRED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.DELETE_RECORDS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.ELECT_LEADERS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_GROUPS,
)


def named(request, version, mark):
    """Give the elements of a request names of their own."""
    for field in request.FIELDS:
        if field.type == "array" and field.exists_in(version):
            for at, element in enumerate(getattr(request, field.name)):
                if hasattr(type(element), "FIELDS"):
                    for each in element.FIELDS:
                        if each.exists_in(version) and each.name in NAMES:
                            setattr(element, each.name, mark * 16 if each.type == "uuid" else "marked")
                        if each.exists_in(version) and each.name in PARTITIONS:
                            setattr(element, each.name, 3)
                    named(element, version, mark)
                elif isinstance(element, str):
                    getattr(request, field.name)[at] = "marked"
    return request


@pytest.mark.parametrize("key", PAIRED)
def test_each_element_is_refused_by_its_own_name(key):
    """A client looks its partitions and topics up in the answer."""
    api = API_TABLE[key]
    for version in api.response.VERSIONS:
        request = named(one_of_each(api.request, version), version, b"\7")
        response = element_errors(key, version, request, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "a defect"))
        if response is None:
            assert any(field.name == "error_code" and field.exists_in(version) for field in api.response.FIELDS)
            continue
        text = repr(shown(response, version))
        assert "marked" in text or repr(b"\7" * 16) in text, version
        if any(field.name in PARTITIONS for field in places_of(response)):
            assert "(3, -1)" in text, version


def places_of(element):
    """The fields of the innermost element."""
    for field in element.FIELDS:
        value = getattr(element, field.name)
        if field.type == "array" and field.of == "struct" and value:
            return places_of(value[0])
    return element.FIELDS


def shown(element, version):
    """The identity and the code of each element."""
    told, inner, index, code = [], [], None, None
    for field in element.FIELDS:
        value = getattr(element, field.name)
        if not field.exists_in(version):
            continue
        if field.type == "array" and field.of == "struct":
            inner += [shown(each, version) for each in value]
        elif field.name in PARTITIONS:
            index = value
        elif field.name in ("error_code", "partition_error_code"):
            code = value
        elif field.type in ("string", "uuid"):
            told.append(value)
    return [told, inner, (index, code)]
