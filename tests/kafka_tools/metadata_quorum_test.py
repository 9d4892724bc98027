"""kafka-metadata-quorum with quorums that no broker of the tests has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.conftest import ScriptedBroker

from ottla.errors import ErrorCode
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.wire.apis import ApiKey
from ottla.wire.messages import DescribeClusterResponse, DescribeQuorumResponse

TOOL = load_tool("kafka-metadata-quorum")
REPLICA = DescribeQuorumResponse.ReplicaState
NAMED = bytes(range(16))
TEXT = "AAECAwQFBgcICQoLDA0ODw"


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    cluster = DescribeClusterResponse(cluster_id="scripted", controller_id=0)
    scripted.on[ApiKey.DESCRIBE_CLUSTER] = lambda request: request.reply(cluster)
    yield scripted
    scripted.close()


def replica(number: int, end: int, fetched: int = -1, caught_up: int = -1, directory: bytes = bytes(16)) -> Any:
    return REPLICA(
        replica_id=number,
        replica_directory_id=directory,
        log_end_offset=end,
        last_fetch_timestamp=fetched,
        last_caught_up_timestamp=caught_up,
    )


def answer(broker: ScriptedBroker, *voters: Any, observers: Any = (), leader: int = 2, **fields: Any) -> None:
    part = DescribeQuorumResponse.PartitionData(
        leader_id=leader, leader_epoch=7, high_watermark=90, current_voters=list(voters), observers=list(observers)
    )
    topic = DescribeQuorumResponse.TopicData(topic_name="__cluster_metadata", partitions=[part])
    response = DescribeQuorumResponse(topics=[topic], **fields)
    broker.on[ApiKey.DESCRIBE_QUORUM] = lambda request: request.reply(response)


def run(broker: ScriptedBroker, *words: str) -> int:
    return run_tool(TOOL, ["--bootstrap-server", broker.bootstrap, "describe", *words])


def test_status(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    listener = DescribeQuorumResponse.Listener
    node = DescribeQuorumResponse.Node(
        node_id=1, listeners=[listener(name="C", host="h", port=1), listener(name="D", host="::1", port=2)]
    )
    observer = replica(4, 50, directory=NAMED)
    leader = replica(2, 100, 1_000, 1_000)
    answer(broker, replica(1, 80, 900, 700, NAMED), leader, replica(3, 80), observers=[observer], nodes=[node])
    assert run(broker, "--status") == 0
    assert capsys.readouterr().out == (
        "ClusterId:              scripted\n"
        "LeaderId:               2\n"
        "LeaderEpoch:            7\n"
        "HighWatermark:          90\n"
        "MaxFollowerLag:         20\n"
        "MaxFollowerLagTimeMs:   300\n"
        f'CurrentVoters:          [{{"id": 1, "directoryId": "{TEXT}", "endpoints": ["C://h:1", "D://[::1]:2"]}}, '
        '{"id": 2}, {"id": 3}]\n'
        f'CurrentObservers:       [{{"id": 4, "directoryId": "{TEXT}"}}]\n'
    )
    answer(broker, replica(3, 80), leader)
    assert run(broker, "--status") == 0
    assert "MaxFollowerLag:         20\nMaxFollowerLagTimeMs:   -1\n" in capsys.readouterr().out


@pytest.mark.parametrize("version", [0, 1, 2])
def test_replication(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], version: int) -> None:
    broker.versions[ApiKey.DESCRIBE_QUORUM] = (0, version)
    times = (1_700_000_000_000, 1_700_000_000_001) if version else ()
    directory = {"directory": NAMED} if version == 2 else {}
    answer(
        broker,
        replica(1, 80, *times, **directory),
        replica(2, 100, *times, **directory),
        observers=[replica(9, 60, *times, **directory)],
    )
    assert run(broker, "--replication") == 0
    shown = capsys.readouterr().out.splitlines()
    assert (
        shown[0]
        == "NodeId\tDirectoryId           \tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus  \t"
    )
    fetched, caught_up = map(str, times or (-1, -1))
    name = TEXT if version == 2 else "A" * 22
    assert [line.split() for line in shown[1:]] == [
        ["2", name, "100", "0", fetched, caught_up, "Leader"],
        ["1", name, "80", "20", fetched, caught_up, "Follower"],
        ["9", name, "60", "40", fetched, caught_up, "Observer"],
    ]


def test_a_clock_that_is_behind_the_leader(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    future = 4_000_000_000_000
    answer(broker, replica(2, 100, future, future))
    assert run(broker, "--replication", "--human-readable") == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("Error while computing relative time, possible drift in system clock.\nCurrent ")
    assert f"last fetch timestamp is {future}\norg.apache.kafka.common.KafkaException: Error" in shown.err
    assert run(broker, "--replication") == 0


def test_a_quorum_without_a_leader(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer(broker, replica(1, 80), leader=-1)
    for view in ("--status", "--replication"):
        assert run(broker, view) == 1
        assert capsys.readouterr().err == "No value present\njava.util.NoSuchElementException: No value present\n"


@pytest.mark.parametrize("whole", [True, False])
def test_a_refusal(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], whole: bool) -> None:
    code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if whole:
        response = DescribeQuorumResponse(error_code=code, error_message="Not allowed.")
    else:
        part = DescribeQuorumResponse.PartitionData(error_code=code, error_message="Not allowed.")
        topic = DescribeQuorumResponse.TopicData(topic_name="__cluster_metadata", partitions=[part])
        response = DescribeQuorumResponse(topics=[topic])
    broker.on[ApiKey.DESCRIBE_QUORUM] = lambda request: request.reply(response)
    assert run(broker, "--replication") == 1
    text = "org.apache.kafka.common.errors.ClusterAuthorizationException: Not allowed."
    assert capsys.readouterr().err == f"{text}\njava.util.concurrent.ExecutionException: {text}\n"


def test_a_response_about_another_log(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.on[ApiKey.DESCRIBE_QUORUM] = lambda request: request.reply(DescribeQuorumResponse())
    assert run(broker, "--replication") == 1
    assert "the response to DescribeQuorum is not about the metadata log" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["add-controller", "remove-controller"])
def test_commands_that_are_not_there(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run_tool(TOOL, ["--bootstrap-server", "127.0.0.1:1", name, "--dry-run"]) == 1
    reason = f"{name} is a command of Apache Kafka's tool that Ottla's does not have: it changes a quorum"
    assert f"kafka-metadata-quorum: error: {reason}" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(TOOL, ["-h"]) == 0
    shown = capsys.readouterr().out
    assert "{describe}" in shown
    assert "add-controller" not in shown
    assert run_tool(TOOL, ["describe", "-h"]) == 0
    assert "  --human-readable       Human-readable output" in capsys.readouterr().out
