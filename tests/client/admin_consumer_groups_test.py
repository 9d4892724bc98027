"""Groups of the consumer protocol (KIP-848), with a scripted broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.client import ClientConfig, Cluster, MalformedReplyError, RefusedError
from ottla.client.admin import GroupAdmin
from ottla.client.admin.groups import GroupMember
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import ConsumerGroupDescribeResponse, DescribeGroupsResponse, FindCoordinatorResponse
from ottla.wire.schema import Message

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def admin(broker: ScriptedBroker) -> Iterator[GroupAdmin]:
    def coordinator(request: Request) -> bytes:
        row = FindCoordinatorResponse.Coordinator(key="g", node_id=0, host="127.0.0.1", port=broker.port)
        return request.reply(FindCoordinatorResponse(coordinators=[row]))

    broker.on[ApiKey.FIND_COORDINATOR] = coordinator
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 1})) as made:
        yield GroupAdmin(made)


def answer(broker: ScriptedBroker, key: ApiKey, *messages: Message) -> None:
    """Answers one request with each message, and all later ones with the last."""
    left = list(messages)
    broker.on[key] = lambda request: request.reply(left.pop(0) if len(left) > 1 else left[0])


def classic(code: ErrorCode = ErrorCode.NONE, state: str = "Stable") -> DescribeGroupsResponse:
    group = DescribeGroupsResponse.DescribedGroup(
        error_code=int(code), group_id="g", group_state=state, protocol_type="consumer", protocol_data="range"
    )
    return DescribeGroupsResponse(groups=[group])


def described(code: ErrorCode = ErrorCode.NONE, message: str | None = None) -> ConsumerGroupDescribeResponse:
    response = ConsumerGroupDescribeResponse

    def topics(**partitions: list[int]) -> ConsumerGroupDescribeResponse.Assignment:
        rows = [
            response.TopicPartitions(topic_id=b"\1" * 16, topic_name=name, partitions=numbers)
            for name, numbers in partitions.items()
        ]
        return response.Assignment(topic_partitions=rows)

    def member(name: str, kind: int, instance: str | None = None) -> ConsumerGroupDescribeResponse.Member:
        return response.Member(
            member_id=name,
            instance_id=instance,
            member_epoch=4,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t", "u"],
            assignment=topics(t=[0, 1]),
            target_assignment=topics(t=[0], u=[0]),
            member_type=kind,
        )

    group = response.DescribedGroup(
        error_code=int(code),
        error_message=message,
        group_id="g",
        group_state="Reconciling",
        group_epoch=6,
        assignment_epoch=5,
        assignor_name="uniform",
        members=[member("m", 1, "i"), member("n", 0)],
    )
    return response(groups=[group])


def test_a_group_and_its_members(broker: ScriptedBroker, admin: GroupAdmin) -> None:
    answer(broker, ApiKey.DESCRIBE_GROUPS, classic(ErrorCode.GROUP_ID_NOT_FOUND))
    answer(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, described(ErrorCode.NOT_COORDINATOR), described())
    group = admin.describe_group("g")
    assert (group.state, group.protocol_type, group.protocol) == ("Reconciling", "consumer", "uniform")
    assert (group.group_epoch, group.assignment_epoch, group.coordinator) == (6, 5, 0)
    assert group.members == (
        GroupMember("m", "i", "c", "/h", (T0, T1), 4, (T0, U0), upgraded=True),
        GroupMember("n", None, "c", "/h", (T0, T1), 4, (T0, U0), upgraded=False),
    )
    first, again = broker.asked(ApiKey.CONSUMER_GROUP_DESCRIBE)
    assert first.message() == again.message()
    assert first.message().group_ids == ["g"]


def test_brokers_before_kafka_4(broker: ScriptedBroker, admin: GroupAdmin) -> None:
    broker.versions[ApiKey.DESCRIBE_GROUPS] = (0, 5)
    broker.versions[ApiKey.CONSUMER_GROUP_DESCRIBE] = (0, 0)
    answer(broker, ApiKey.DESCRIBE_GROUPS, classic(state="Dead"))
    answer(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, described())
    assert [member.upgraded for member in admin.describe_group("g").members] == [None, None]


def test_a_classic_group_takes_one_request(broker: ScriptedBroker, admin: GroupAdmin) -> None:
    answer(broker, ApiKey.DESCRIBE_GROUPS, classic())
    group = admin.describe_group("g")
    assert (group.protocol, group.group_epoch, group.assignment_epoch) == ("range", None, None)
    assert broker.asked(ApiKey.CONSUMER_GROUP_DESCRIBE) == []


@pytest.mark.parametrize("code", [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION, None])
def test_a_group_that_is_not_there(broker: ScriptedBroker, admin: GroupAdmin, code: ErrorCode | None) -> None:
    unknown = classic(ErrorCode.GROUP_ID_NOT_FOUND)
    unknown.groups[0].error_message = "Group g not found."
    answer(broker, ApiKey.DESCRIBE_GROUPS, unknown)
    if code is None:  # as Ottla's brokers
        del broker.versions[ApiKey.CONSUMER_GROUP_DESCRIBE]
    else:
        answer(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, described(code, "Group g is not a consumer group."))
    with pytest.raises(RefusedError, match="group g: GROUP_ID_NOT_FOUND") as refused:
        admin.describe_group("g")
    assert refused.value.message == "Group g not found."


def test_refusals(broker: ScriptedBroker, admin: GroupAdmin) -> None:
    answer(broker, ApiKey.DESCRIBE_GROUPS, classic(ErrorCode.GROUP_ID_NOT_FOUND))
    answer(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, described(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "m"))
    with pytest.raises(RefusedError, match="group g: TOPIC_AUTHORIZATION_FAILED: m"):
        admin.describe_group("g")
    answer(broker, ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeResponse())
    with pytest.raises(MalformedReplyError, match="is not about the requested group"):
        admin.describe_group("g")
    answer(broker, ApiKey.DESCRIBE_GROUPS, classic(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(RefusedError, match="group g: GROUP_AUTHORIZATION_FAILED"):
        admin.describe_group("g")
    assert len(broker.asked(ApiKey.CONSUMER_GROUP_DESCRIBE)) == 2, "no other request after another error"
