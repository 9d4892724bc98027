"""Share groups, with a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.client import ClientConfig, Cluster, MalformedReplyError, RefusedError, UnsupportedVersionError
from ottla.client.admin import GroupAdmin, ShareGroupAdmin
from ottla.client.admin.share_groups import ShareGroupMember, ShareOffset
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
    FindCoordinatorResponse,
    ListGroupsResponse,
    ShareGroupDescribeResponse,
)
from ottla.wire.schema import Message

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster(broker: ScriptedBroker) -> Iterator[Cluster]:
    def coordinator(request: Request) -> bytes:
        row = FindCoordinatorResponse.Coordinator(key="g", node_id=0, host="127.0.0.1", port=broker.port)
        return request.reply(FindCoordinatorResponse(coordinators=[row]))

    broker.on[ApiKey.FIND_COORDINATOR] = coordinator
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 1})) as made:
        yield made


@pytest.fixture
def admin(cluster: Cluster) -> ShareGroupAdmin:
    return ShareGroupAdmin(cluster)


def answer(broker: ScriptedBroker, key: ApiKey, *messages: Message) -> None:
    """Answers one request with each message, and all later ones with the last."""
    left = list(messages)
    broker.on[key] = lambda request: request.reply(left.pop(0) if len(left) > 1 else left[0])


def described(code: ErrorCode = ErrorCode.NONE, message: str | None = None) -> ShareGroupDescribeResponse:
    response = ShareGroupDescribeResponse
    topics = [response.TopicPartitions(topic_id=b"\1" * 16, topic_name="t", partitions=[0, 1])]
    member = response.Member(
        member_id="m",
        member_epoch=4,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["t"],
        assignment=response.Assignment(topic_partitions=topics),
    )
    group = response.DescribedGroup(
        error_code=int(code),
        error_message=message,
        group_id="g",
        group_state="Stable",
        group_epoch=3,
        assignment_epoch=2,
        assignor_name="simple",
        members=[member],
    )
    return response(groups=[group])


def test_a_group_and_its_members(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    answer(broker, ApiKey.SHARE_GROUP_DESCRIBE, described(ErrorCode.NOT_COORDINATOR), described())
    group = admin.describe_share_group("g")
    assert (group.state, group.group_epoch, group.assignment_epoch, group.coordinator) == ("Stable", 3, 2, 0)
    assert group.members == (ShareGroupMember("m", 4, "c", "/h", (T0, T1)),)
    first, again = broker.asked(ApiKey.SHARE_GROUP_DESCRIBE)
    assert first.message() == again.message()
    assert len(broker.asked(ApiKey.FIND_COORDINATOR)) == 3, "once more after the error, and for the answer"


def test_a_group_that_is_not_there(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    answer(broker, ApiKey.SHARE_GROUP_DESCRIBE, described(ErrorCode.GROUP_ID_NOT_FOUND, "Group g not found."))
    with pytest.raises(RefusedError, match="group g: GROUP_ID_NOT_FOUND") as refused:
        admin.describe_share_group("g")
    assert refused.value.message == "Group g not found."


def offsets_response(*rows: tuple[int, int, int, int, int]) -> DescribeShareGroupOffsetsResponse:
    response = DescribeShareGroupOffsetsResponse
    partitions = [
        response.DescribeShareGroupOffsetsResponsePartition(
            partition_index=number, start_offset=start, leader_epoch=epoch, lag=lag, error_code=code
        )
        for number, start, epoch, lag, code in rows
    ]
    topic = response.DescribeShareGroupOffsetsResponseTopic(topic_name="t", topic_id=b"\1" * 16, partitions=partitions)
    return response(groups=[response.DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=[topic])])


def test_offsets(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    refused = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    rows = ((2, 0, 0, -1, refused), (1, -1, 0, -1, 0), (0, 7, 5, 2, 0))
    answer(broker, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, offsets_response(*rows))
    found = admin.share_group_offsets("g")
    assert list(found) == [T0, T1, TopicPartition("t", 2)]
    assert (found[T0], found[T1]) == (ShareOffset(7, 5, 2), None)
    error = found[TopicPartition("t", 2)]
    assert isinstance(error, RefusedError)
    assert error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    (request,) = broker.asked(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS)
    assert [(each.group_id, each.topics) for each in request.message().groups] == [("g", None)]


def test_a_broker_that_does_not_count_the_lag(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    broker.versions[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = (0, 0)
    answer(broker, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, offsets_response((0, 7, 5, -1, 0)))
    assert admin.share_group_offsets("g") == {T0: ShareOffset(7, 5, -1)}


def test_offsets_of_a_group_that_are_refused(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    response = DescribeShareGroupOffsetsResponse
    code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    group = response.DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=[], error_code=code)
    answer(broker, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, response(groups=[group]))
    with pytest.raises(RefusedError, match="offsets of group g: GROUP_AUTHORIZATION_FAILED"):
        admin.share_group_offsets("g")


@pytest.mark.parametrize("message", [ShareGroupDescribeResponse(), DescribeShareGroupOffsetsResponse()])
def test_a_response_about_no_group(broker: ScriptedBroker, admin: ShareGroupAdmin, message: Message) -> None:
    answer(broker, ApiKey.SHARE_GROUP_DESCRIBE, message)
    answer(broker, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, message)
    call = admin.describe_share_group if isinstance(message, ShareGroupDescribeResponse) else admin.share_group_offsets
    with pytest.raises(MalformedReplyError, match="is not about the requested group"):
        call("g")


def test_new_offsets(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    response = AlterShareGroupOffsetsResponse
    part = response.AlterShareGroupOffsetsResponsePartition
    codes = ((0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    rows = [part(partition_index=number, error_code=int(code), error_message="m") for number, code in codes]
    topic = response.AlterShareGroupOffsetsResponseTopic(topic_name="t", topic_id=b"\1" * 16, partitions=rows)
    answer(broker, ApiKey.ALTER_SHARE_GROUP_OFFSETS, response(responses=[topic]))
    results = admin.alter_share_group_offsets("g", {T0: 5, T1: 6})
    assert results[T0] is None
    assert str(results[T1]).startswith("start offset of t-1: UNKNOWN_TOPIC_OR_PARTITION: m")
    (request,) = broker.asked(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    (asked,) = request.message().topics
    assert [(each.partition_index, each.start_offset) for each in asked.partitions] == [(0, 5), (1, 6)]
    answer(broker, ApiKey.ALTER_SHARE_GROUP_OFFSETS, response(error_code=int(ErrorCode.NON_EMPTY_GROUP)))
    with pytest.raises(RefusedError, match="group g: NON_EMPTY_GROUP"):
        admin.alter_share_group_offsets("g", {T0: 5})


def test_deleted_offsets(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    response = DeleteShareGroupOffsetsResponse
    codes = (("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("t", ErrorCode.NONE))
    row = response.DeleteShareGroupOffsetsResponseTopic
    rows = [row(topic_name=name, topic_id=b"\1" * 16, error_code=int(code)) for name, code in codes]
    answer(broker, ApiKey.DELETE_SHARE_GROUP_OFFSETS, response(responses=rows))
    results = admin.delete_share_group_offsets("g", ["t", "u"])
    assert list(results) == ["t", "u"]
    assert (results["t"], str(results["u"])[:36]) == (None, "topic u: UNKNOWN_TOPIC_OR_PARTITION.")
    with pytest.raises(MalformedReplyError, match="has no result for v"):
        admin.delete_share_group_offsets("g", ["t", "u", "v"])
    answer(broker, ApiKey.DELETE_SHARE_GROUP_OFFSETS, response(error_code=int(ErrorCode.GROUP_ID_NOT_FOUND)))
    with pytest.raises(RefusedError, match="group g: GROUP_ID_NOT_FOUND"):
        admin.delete_share_group_offsets("g", ["t"])


def test_a_broker_without_share_groups(broker: ScriptedBroker, admin: ShareGroupAdmin) -> None:
    del broker.versions[ApiKey.SHARE_GROUP_DESCRIBE]
    with pytest.raises(UnsupportedVersionError, match="does not serve it") as missing:
        admin.describe_share_group("g")
    assert missing.value.missing_api == "SHARE_GROUP_DESCRIBE"


def test_groups_of_one_type(broker: ScriptedBroker, cluster: Cluster) -> None:
    answer(broker, ApiKey.LIST_GROUPS, ListGroupsResponse())
    assert GroupAdmin(cluster).list_groups(("Empty",), kinds=("share",)) == ([], {})
    (request,) = broker.asked(ApiKey.LIST_GROUPS)
    assert (request.message().states_filter, request.message().types_filter) == (["Empty"], ["share"])
    broker.versions[ApiKey.LIST_GROUPS] = (0, 4)
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": broker.bootstrap})) as older:
        assert GroupAdmin(older).list_groups() == ([], {})
        _, failed = GroupAdmin(older).list_groups(kinds=("share",))
    assert isinstance(failed[0], UnsupportedVersionError)
    assert (str(failed[0])[:41], failed[0].missing_api) == ("the broker cannot list groups by type. Li", "")
