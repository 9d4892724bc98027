"""kafka-share-groups with answers that no broker of the tests gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.errors import ErrorCode
from ottla.kafka_tools.java_errors import EXECUTION
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterShareGroupOffsetsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponse,
    FindCoordinatorResponse,
    ListGroupsResponse,
    ListOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

KAFKA = "org.apache.kafka.common.errors"
FAILED = "Executing share group command failed due to"


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()

    def coordinator(request: Request) -> bytes:
        row = FindCoordinatorResponse.Coordinator(key="g", node_id=0, host="127.0.0.1", port=scripted.port)
        return request.reply(FindCoordinatorResponse(coordinators=[row]))

    scripted.on[ApiKey.FIND_COORDINATOR] = coordinator
    yield scripted
    scripted.close()


def run(broker: ScriptedBroker, words: str) -> int:
    return run_tool(load_tool("kafka-share-groups"), ["--bootstrap-server", broker.bootstrap, *words.split()])


def list_states(broker: ScriptedBroker, states: Mapping[str, str]) -> None:
    group = ListGroupsResponse.ListedGroup
    rows = [group(group_id=n, protocol_type="share", group_state=s, group_type="share") for n, s in states.items()]
    broker.on[ApiKey.LIST_GROUPS] = lambda request: request.reply(ListGroupsResponse(groups=rows))


def describe(broker: ScriptedBroker, state: str) -> None:
    def group(request: Request) -> bytes:
        message = request.message()
        assert isinstance(message, ShareGroupDescribeRequest)
        row = ShareGroupDescribeResponse.DescribedGroup(
            group_id=message.group_ids[0],
            group_state=state,
            group_epoch=12345,
            assignment_epoch=12344,
            assignor_name="simple",
            members=[],
        )
        return request.reply(ShareGroupDescribeResponse(groups=[row]))

    broker.on[ApiKey.SHARE_GROUP_DESCRIBE] = group


def answer_offsets(broker: ScriptedBroker, *rows: tuple[int, int, int, int, ErrorCode]) -> None:
    response = DescribeShareGroupOffsetsResponse
    partitions = [
        response.DescribeShareGroupOffsetsResponsePartition(
            partition_index=number, start_offset=start, leader_epoch=epoch, lag=lag, error_code=int(code)
        )
        for number, start, epoch, lag, code in rows
    ]
    topic = response.DescribeShareGroupOffsetsResponseTopic(topic_name="t", topic_id=b"\1" * 16, partitions=partitions)
    group = response.DescribeShareGroupOffsetsResponseGroup(group_id="g", topics=[topic])
    broker.on[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = lambda request: request.reply(response(groups=[group]))


def test_deletions(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    list_states(broker, {"a": "Empty", "b": "Dead", "c": "Stable", "d": "Empty", "e": "Empty"})
    asked: list[str] = []

    def delete(request: Request) -> bytes:
        message = request.message()
        assert isinstance(message, DeleteGroupsRequest)
        (name,) = message.groups_names
        asked.append(name)
        code = int(ErrorCode.NON_EMPTY_GROUP if name == "d" else ErrorCode.NONE)
        row = DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=code)
        return request.reply(DeleteGroupsResponse(results=[row]))

    broker.on[ApiKey.DELETE_GROUPS] = delete
    assert run(broker, "--delete --all-groups") == 0
    assert capsys.readouterr().out == (
        "\nError: Deletion of some share groups failed:\n"
        "* Group 'b' could not be deleted due to: java.lang.IllegalStateException: "
        "Share group 'b' group state is DEAD.\n"
        f"* Group 'c' could not be deleted due to: {KAFKA}.GroupNotEmptyException: Share group 'c' is not EMPTY.\n"
        f"* Group 'd' could not be deleted due to: {KAFKA}.GroupNotEmptyException: The group is not empty.\n"
        "\nThese share groups were deleted successfully: 'a', 'e'\n"
    )
    assert run(broker, "--delete --group e --group a --group e") == 0
    assert capsys.readouterr().out == "Deletion of requested share groups ('a', 'e') was successful.\n"
    assert run(broker, "--delete --group of-consumers") == 0
    assert "Group 'of-consumers' is not a share group." in capsys.readouterr().out
    assert asked == ["a", "d", "e", "a", "e"]


def test_offsets_that_cannot_be_read(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    describe(broker, "Stable")
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer_offsets(broker, (0, 7, -1, -1, ErrorCode.NONE), (1, 0, 0, 0, refused), (2, -1, 3, -1, ErrorCode.NONE))
    assert run(broker, "--describe --verbose --group g") == 0
    shown = capsys.readouterr()
    titles, *rows = (line.split() for line in shown.out.splitlines()[1:])
    assert titles == ["GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "START-OFFSET", "LAG"]
    assert rows == [["g", "t", "0", "-", "7", "-"], ["g", "t", "2", "-", "-", "-"]]
    assert shown.err == (
        f"WARN The offset of t-1 is left out: {KAFKA}.TopicAuthorizationException: Topic authorization failed.\n"
    )


def test_a_dead_group(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    describe(broker, "Dead")
    assert run(broker, "--describe --members --group g") == 0
    assert capsys.readouterr().out == "\nError: Share group 'g' does not exist.\n"
    assert run(broker, "--describe --state --verbose --group g --group a-group-whose-name-is-long") == 0
    shown = capsys.readouterr().out.splitlines()
    at = f"127.0.0.1:{broker.port}  (0)"
    assert [line.split() for line in shown[3:5]] == [
        ["GROUP", "COORDINATOR", "(ID)", "STATE", "GROUP-EPOCH", "ASSIGNMENT-EPOCH", "#MEMBERS"],
        ["a-group-whose-name-is-long", *at.split(), "Dead", "12345", "12344", "0"],
    ]
    rows = ((shown[3], shown[4]), (shown[-2], shown[-1]))
    assert [row.index("Dead") for _, row in rows] == [titles.index("STATE") for titles, _ in rows]


def test_resets_that_are_refused(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    describe(broker, "Empty")
    broker.topics = {"t": 2}
    row = ListOffsetsResponse.ListOffsetsPartitionResponse
    topic = ListOffsetsResponse.ListOffsetsTopicResponse(
        name="t", partitions=[row(partition_index=number, offset=5, timestamp=-1) for number in (0, 1)]
    )
    broker.on[ApiKey.LIST_OFFSETS] = lambda request: request.reply(ListOffsetsResponse(topics=[topic]))
    part = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition
    codes = {0: ErrorCode.NONE, 1: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    answer = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic(
        topic_name="t",
        topic_id=b"\1" * 16,
        partitions=[part(partition_index=number, error_code=int(code)) for number, code in codes.items()],
    )
    response = AlterShareGroupOffsetsResponse(responses=[answer])
    broker.on[ApiKey.ALTER_SHARE_GROUP_OFFSETS] = lambda request: request.reply(response)
    assert run(broker, "--reset-offsets --group g --topic t --to-latest --dry-run") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "GROUP           TOPIC           PARTITION  NEW-OFFSET",
        "g               t               0          5",
        "g               t               1          5",
    ]
    assert not broker.asked(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    assert run(broker, "--reset-offsets --group g --topic t --to-latest --execute") == 0
    message = "Failed altering group offsets for the following partitions: [t-1]"
    assert capsys.readouterr() == (
        f"\nError: {FAILED} {message}\n",
        f"{KAFKA}.TopicAuthorizationException: {message}\n",
    )
    broker.on[ApiKey.METADATA] = lambda request: request.reply(broker.metadata_of(["t"], leader=-1))
    assert run(broker, "--reset-offsets --group g --topic t:1 --to-latest --execute --timeout 2000") == 0
    assert capsys.readouterr().out == f'\nError: {FAILED} The partitions "t-1" have no leader\n'


@pytest.mark.parametrize("state", ["Stable", "Unknown"])
def test_resets_of_a_group_in_use(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], state: str) -> None:
    describe(broker, state)
    assert run(broker, "--reset-offsets --group g --topic t --to-latest --execute") == 1
    assert capsys.readouterr() == ("", "Share group 'g' is not empty.\n")
    assert not broker.asked(ApiKey.ALTER_SHARE_GROUP_OFFSETS)


def test_deleted_offsets_that_are_refused(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    response = DeleteShareGroupOffsetsResponse(error_code=code, error_message="Not allowed.")
    broker.on[ApiKey.DELETE_SHARE_GROUP_OFFSETS] = lambda request: request.reply(response)
    assert run(broker, "--delete-offsets --group g --topic t --topic s") == 0
    assert capsys.readouterr().out.splitlines() == [
        "",
        f"Error: Encounter some unknown error: {KAFKA}.TopicAuthorizationException: Not allowed.",
        "",
        "TOPIC           STATUS",
        "s               Error: Not allowed.",
        "t               Error: Not allowed.",
    ]


@pytest.mark.parametrize(
    ("words", "code", "message", "java_class"),
    [
        (
            "--list",
            0,
            f"{EXECUTION}: org.apache.kafka.common.KafkaException: Failed to find brokers to send ListGroups. ",
            "java.lang.RuntimeException",
        ),
        (
            "--describe --group g",
            0,
            f"{KAFKA}.TimeoutException: Timed out waiting for a node assignment. ",
            EXECUTION,
        ),
        ("--reset-offsets --group g --topic t --to-latest --dry-run", 1, "", ""),
    ],
)
def test_an_address_without_a_broker(
    capsys: pytest.CaptureFixture[str], words: str, code: int, message: str, java_class: str
) -> None:
    line = ["--bootstrap-server", "127.0.0.1:1", *words.split(), "--timeout", "300"]
    assert run_tool(load_tool("kafka-share-groups"), line) == code
    shown = capsys.readouterr()
    if java_class:
        assert shown.out.startswith(f"\nError: {FAILED} {message}")
        assert shown.err.startswith(f"{java_class}: {message}")
    else:
        assert (shown.out, shown.err[:41]) == ("", "Timed out waiting for a node assignment. ")
