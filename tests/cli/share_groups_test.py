"""`ottla group` with share groups, as answers of a scripted broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.client.conftest import ScriptedBroker

from ottla.cli.main import cli
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    ConsumerGroupDescribeResponse,
    DescribeGroupsResponse,
    DescribeShareGroupOffsetsResponse,
    FindCoordinatorResponse,
    ListOffsetsResponse,
    ShareGroupDescribeResponse,
)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker that has no consumers in a group g, and 9 records in each partition of t."""
    scripted = ScriptedBroker()
    scripted.topics = {"t": 3}
    row = FindCoordinatorResponse.Coordinator(key="g", node_id=0, host="127.0.0.1", port=scripted.port)
    unknown = DescribeGroupsResponse.DescribedGroup(group_id="g", error_code=int(ErrorCode.GROUP_ID_NOT_FOUND))
    other = ConsumerGroupDescribeResponse.DescribedGroup(group_id="g", error_code=int(ErrorCode.GROUP_ID_NOT_FOUND))
    end = ListOffsetsResponse.ListOffsetsPartitionResponse
    ends = [end(partition_index=number, offset=9, timestamp=-1) for number in range(3)]
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(name="t", partitions=ends)
    for key, message in (
        (ApiKey.FIND_COORDINATOR, FindCoordinatorResponse(coordinators=[row])),
        (ApiKey.DESCRIBE_GROUPS, DescribeGroupsResponse(groups=[unknown])),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeResponse(groups=[other])),
        (ApiKey.LIST_OFFSETS, ListOffsetsResponse(topics=[topic])),
    ):
        scripted.on[key] = lambda request, message=message: request.reply(message)  # type: ignore[misc]
    yield scripted
    scripted.close()


def describe(broker: ScriptedBroker, directory: Path) -> Result:
    env = {"OTTLA_BROKERS": broker.bootstrap, "OTTLA_CONFIG_DIR": str(directory)}
    return CliRunner().invoke(cli, ["group", "describe", "g", "-o", "json"], env=env)


def answer_group(broker: ScriptedBroker, code: ErrorCode = ErrorCode.NONE, **members: list[int]) -> None:
    response = ShareGroupDescribeResponse

    def member(name: str, partitions: list[int]) -> Any:
        topic = response.TopicPartitions(topic_id=b"\1" * 16, topic_name="t", partitions=partitions)
        return response.Member(
            member_id=name,
            member_epoch=1,
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t"],
            assignment=response.Assignment(topic_partitions=[topic]),
        )

    group = response.DescribedGroup(
        error_code=int(code),
        group_id="g",
        group_state="Stable",
        group_epoch=1,
        assignment_epoch=1,
        assignor_name="simple",
        members=[member(name, partitions) for name, partitions in members.items()],
    )
    broker.on[ApiKey.SHARE_GROUP_DESCRIBE] = lambda request: request.reply(response(groups=[group]))


def answer_offsets(broker: ScriptedBroker, *rows: tuple[int, int, int]) -> None:
    response = DescribeShareGroupOffsetsResponse
    part = response.DescribeShareGroupOffsetsResponsePartition
    parts = [part(partition_index=n, start_offset=start, leader_epoch=0, lag=lag) for n, start, lag in rows]
    topic = response.DescribeShareGroupOffsetsResponseTopic(topic_name="t", topic_id=b"\1" * 16, partitions=parts)
    group = response.DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=[topic])
    broker.on[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = lambda request: request.reply(response(groups=[group]))


def test_a_group_whose_members_share_a_partition(broker: ScriptedBroker, tmp_path: Path) -> None:
    answer_group(broker, a=[0, 1], b=[1, 2])
    # The lag as counted; one that is not counted, from the offsets; and a partition without an offset.
    answer_offsets(broker, (0, 2, 3), (1, 4, -1), (2, -1, -1))
    result = describe(broker, tmp_path)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    rows = [(e["current_offset"], e["log_end_offset"], e["lag"], e["consumer_id"]) for e in found["partitions"]]
    assert rows == [(2, 9, 3, "a"), (4, 9, 5, None), (None, 9, None, "b")]
    assert (found["protocol_type"], found["lag"], len(found["members"])) == ("share", 8, 2)
    assert (found["group_epoch"], found["assignment_epoch"]) == (1, 1)
    assert [each["member_epoch"] for each in found["members"]] == [1, 1]


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        (ErrorCode.GROUP_ID_NOT_FOUND, 3, "group g: GROUP_ID_NOT_FOUND"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, 4, "group g: GROUP_AUTHORIZATION_FAILED"),
    ],
)
def test_a_refusal(broker: ScriptedBroker, tmp_path: Path, code: ErrorCode, status: int, text: str) -> None:
    answer_group(broker, code)
    result = describe(broker, tmp_path)
    assert (result.exit_code, text in result.stderr) == (status, True), result.output


def test_a_broker_without_share_groups(broker: ScriptedBroker, tmp_path: Path) -> None:
    del broker.versions[ApiKey.SHARE_GROUP_DESCRIBE]
    result = describe(broker, tmp_path)
    assert (result.exit_code, "group g: GROUP_ID_NOT_FOUND" in result.stderr) == (3, True), result.output
