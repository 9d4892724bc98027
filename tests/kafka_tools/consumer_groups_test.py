"""kafka-consumer-groups with a group of the consumer protocol (KIP-848) while its members move partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.errors import ErrorCode
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    ListOffsetsResponse,
    OffsetFetchResponse,
)

TOPIC = "a-topic-whose-name-is-long"
MEMBERS = (("m", 7, [3, 0, 1], [0, 1], 1), ("a", 6, [2], [3], 0))
"""Ids, epochs, partitions, those that the members are to have, and types."""


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    row = FindCoordinatorResponse.Coordinator(key="g", node_id=0, host="127.0.0.1", port=scripted.port)
    scripted.on[ApiKey.FIND_COORDINATOR] = lambda request: request.reply(FindCoordinatorResponse(coordinators=[row]))
    scripted.on[ApiKey.DESCRIBE_GROUPS] = no_group
    scripted.on[ApiKey.CONSUMER_GROUP_DESCRIBE] = moving_group
    yield scripted
    scripted.close()


def no_group(request: Request) -> bytes:
    message = request.message()
    assert isinstance(message, DescribeGroupsRequest)
    code = int(ErrorCode.GROUP_ID_NOT_FOUND)
    row = DescribeGroupsResponse.DescribedGroup(group_id=message.groups[0], error_code=code)
    return request.reply(DescribeGroupsResponse(groups=[row]))


def moving_group(request: Request) -> bytes:
    message = request.message()
    assert isinstance(message, ConsumerGroupDescribeRequest)
    response = ConsumerGroupDescribeResponse

    def assignment(partitions: list[int]) -> ConsumerGroupDescribeResponse.Assignment:
        row = response.TopicPartitions(topic_id=b"\1" * 16, topic_name=TOPIC, partitions=partitions)
        return response.Assignment(topic_partitions=[row])

    members = [
        response.Member(
            member_id=name,
            member_epoch=epoch,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=[TOPIC],
            assignment=assignment(now),
            target_assignment=assignment(later),
            member_type=kind,
        )
        for name, epoch, now, later, kind in MEMBERS
    ]
    group = response.DescribedGroup(
        group_id=message.group_ids[0],
        group_state="Reconciling",
        group_epoch=9,
        assignment_epoch=8,
        assignor_name="uniform",
        members=members,
    )
    return request.reply(response(groups=[group]))


def run(broker: ScriptedBroker, words: str) -> int:
    return run_tool(load_tool("kafka-consumer-groups"), ["--bootstrap-server", broker.bootstrap, *words.split()])


def test_members_of_both_protocols(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broker, "--describe --members --verbose --group g") == 0
    printed = capsys.readouterr()
    assert printed.err == "\nWarning: Consumer group 'g' is rebalancing.\n", "scripts read the table on standard output"
    empty, titles, *rows = printed.out.splitlines()
    assert not empty
    assert [row.split() for row in rows] == [
        ["g", "m", "/h", "c", "3", "7", f"{TOPIC}:0,1,3", "8", f"{TOPIC}:0,1", "true"],
        ["g", "a", "/h", "c", "1", "6", f"{TOPIC}:2", "8", f"{TOPIC}:3", "false"],
    ]
    for title, cells in {"CURRENT-EPOCH": "76", "TARGET-EPOCH": "88", "UPGRADED": "tf"}.items():
        assert [row[titles.index(title)] for row in rows] == list(cells)


def test_partitions_in_the_order_of_members(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.topics = {TOPIC: 4}
    nothing = OffsetFetchResponse(groups=[OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g")])
    end = ListOffsetsResponse.ListOffsetsPartitionResponse
    ends = [end(partition_index=number, offset=9, timestamp=-1) for number in range(4)]
    found = ListOffsetsResponse(topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name=TOPIC, partitions=ends)])
    broker.on[ApiKey.OFFSET_FETCH] = lambda request: request.reply(nothing)
    broker.on[ApiKey.LIST_OFFSETS] = lambda request: request.reply(found)
    assert run(broker, "--describe --group g") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("g ")]
    # The member with the most partitions is first.
    assert [(row[2], row[6]) for row in rows] == [("0", "m"), ("1", "m"), ("3", "m"), ("2", "a")]


def test_epochs_of_a_group(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broker, "--describe --state --verbose --group h --group g") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("g ", "h "))]
    coordinator = [f"127.0.0.1:{broker.port}", "(0)"]
    # As in Kafka's tool, in the order of their names.
    assert lines == [[name, *coordinator, "uniform", "Reconciling", "9", "8", "2"] for name in ("g", "h")]


def test_a_reset_while_members_move_partitions(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(broker, "--reset-offsets --group g --topic t --to-earliest --execute") == 0
    refusal = "Assignments can only be reset if the group 'g' is inactive, but the current state is Reconciling."
    assert refusal in capsys.readouterr().out
    assert broker.asked(ApiKey.OFFSET_COMMIT) == []
