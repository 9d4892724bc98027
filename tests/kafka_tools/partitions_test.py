"""kafka-leader-election and kafka-log-dirs with answers that one healthy broker does not give.

The expected lines are those that Apache Kafka's own tools print for these answers, in Ottla's order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.client.conftest import ScriptedBroker

from ottla.errors import ErrorCode
from ottla.kafka_tools.java_errors import java_class
from ottla.kafka_tools.main import load_tool, run_tool
from ottla.wire.apis import ApiKey
from ottla.wire.messages import DescribeClusterResponse, DescribeLogDirsResponse, ElectLeadersResponse

FAILED = "org.apache.kafka.tools.AdminCommandFailedException"
ERRORS = "org.apache.kafka.common.errors"
Dir = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    node = DescribeClusterResponse.DescribeClusterBroker(broker_id=0, host="127.0.0.1", port=scripted.port)
    described = DescribeClusterResponse(cluster_id="scripted", controller_id=0, brokers=[node])
    scripted.on[ApiKey.DESCRIBE_CLUSTER] = lambda request: request.reply(described)
    yield scripted
    scripted.close()


def elect(broker: ScriptedBroker, *words: str) -> int:
    at = ("--bootstrap-server", broker.bootstrap, "--election-type", "preferred")
    return run_tool(load_tool("kafka-leader-election"), [*at, *words])


def answer_elections(broker: ScriptedBroker, *items: tuple[int, ErrorCode], code: ErrorCode = ErrorCode.NONE) -> None:
    rows = [ElectLeadersResponse.PartitionResult(partition_id=number, error_code=int(each)) for number, each in items]
    topic = ElectLeadersResponse.ReplicaElectionResult(topic="t", partition_result=rows)
    answer = ElectLeadersResponse(error_code=int(code), replica_election_results=[topic])
    broker.on[ApiKey.ELECT_LEADERS] = lambda request: request.reply(answer)


def test_elections_that_change_leaders(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer_elections(broker, (10, ErrorCode.NONE), (1, ErrorCode.ELECTION_NOT_NEEDED), (2, ErrorCode.NONE))
    assert elect(broker, "--all-topic-partitions") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions t-2, t-10",
        "Valid replica already elected for partitions t-1",
    ]


def test_elections_that_fail(broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text(json.dumps({"partitions": [{"topic": "t", "partition": number} for number in range(3)]}))
    unavailable = (1, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    answer_elections(broker, (0, ErrorCode.NONE), unavailable, (2, ErrorCode.REQUEST_TIMED_OUT))
    assert elect(broker, "--path-to-json-file", str(file)) == 1
    start = "Error completing leader election (PREFERRED) for partition"
    shown = capsys.readouterr()
    assert f"{shown.out}{shown.err}".splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions t-0",
        f"{start}: t-1: {ERRORS}.PreferredLeaderNotAvailableException: The preferred leader was not available.",
        f"{start}: t-2: {ERRORS}.TimeoutException: The request timed out.",
        "2 replica(s) could not be elected",
        f"{FAILED}: 2 replica(s) could not be elected",
    ]


def test_an_election_without_authorization(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer_elections(broker, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert elect(broker, "--topic", "t", "--partition", "0") == 1
    refusal = "Not authorized to perform leader election"
    assert capsys.readouterr() == (f"{refusal}\n", f"{refusal}\n{FAILED}: {refusal}\n")


def test_an_election_that_is_refused(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer_elections(broker, code=ErrorCode.SECURITY_DISABLED)
    assert elect(broker, "--all-topic-partitions") == 1
    cause = (
        f"java.util.concurrent.ExecutionException: {ERRORS}.SecurityDisabledException: Security features are disabled."
    )
    assert capsys.readouterr() == ("", f"{cause}\njava.lang.RuntimeException: {cause}\n")


def test_an_election_that_takes_too_long(
    broker: ScriptedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.on[ApiKey.ELECT_LEADERS] = lambda _: b""
    settings = tmp_path / "settings"
    settings.write_text("default.api.timeout.ms=50\nrequest.timeout.ms=20\n")
    assert elect(broker, "--all-topic-partitions", "--admin.config", str(settings)) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1:] == ["Timeout waiting for election results"]
    assert f"{FAILED}: Timeout waiting for election results. " in shown.err


def describe(broker: ScriptedBroker, answer: DescribeLogDirsResponse, *words: str) -> int:
    broker.on[ApiKey.DESCRIBE_LOG_DIRS] = lambda request: request.reply(answer)
    at = ("--bootstrap-server", broker.bootstrap, "--describe")
    return run_tool(load_tool("kafka-log-dirs"), [*at, *words])


def test_a_log_dir_that_fails_and_a_replica_that_moves(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    part = DescribeLogDirsResponse.DescribeLogDirsPartition
    moving = part(partition_index=10, partition_size=5, offset_lag=2, is_future_key=True)
    topics = [Topic(name="t", partitions=[moving, part(partition_index=2)]), Topic(name="s", partitions=[part()])]
    failed = Dir(error_code=int(ErrorCode.KAFKA_STORAGE_ERROR), log_dir="/é")
    answer = DescribeLogDirsResponse(results=[failed, Dir(log_dir="/b", topics=topics)])
    assert describe(broker, answer, "--topic-list", "t", "--broker-list", "0") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Querying brokers for log directories information",
        "Received log directory information from brokers 0",
        '{"brokers":[{"broker":0,"logDirs":[{"partitions":[],"error":"' + ERRORS + '.KafkaStorageException",'
        '"logDir":"/é"},{"partitions":[{"partition":"t-2","size":0,"offsetLag":0,"isFuture":false},'
        '{"partition":"t-10","size":5,"offsetLag":2,"isFuture":true}],"error":null,"logDir":"/b"}]}],"version":1}',
    ]


def test_classes_of_errors() -> None:
    assert java_class(ErrorCode.SASL_AUTHENTICATION_FAILED) == f"{ERRORS}.SaslAuthenticationException"
    assert java_class(ErrorCode.GROUP_AUTHORIZATION_FAILED) == f"{ERRORS}.GroupAuthorizationException"
    assert java_class(ErrorCode.FEATURE_UPDATE_FAILED) == f"{ERRORS}.FeatureUpdateFailedException"


@pytest.mark.parametrize("code", [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.NONE])
def test_log_dirs_without_authorization(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str], code: ErrorCode
) -> None:
    assert describe(broker, DescribeLogDirsResponse(error_code=int(code))) == 1
    refusal = f"{ERRORS}.ClusterAuthorizationException: Cluster authorization failed."
    assert capsys.readouterr().err == f"{refusal}\njava.util.concurrent.ExecutionException: {refusal}\n"
