"""`ottla cluster health`, `ottla api-versions` and `--watch`, against a broker and against scripted clusters."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import click
import pytest
from tests.client.conftest import Request, ScriptedBroker

from ottla.cli.views.watch import watch_view
from ottla.client.errors import UnreachableError
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DescribeConfigsResponse,
    ListPartitionReassignmentsResponse,
    MetadataResponse,
)

PARTITION = MetadataResponse.MetadataResponsePartition


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    """A scripted broker."""
    broker = ScriptedBroker()
    yield broker
    broker.close()


@pytest.fixture
def closed_port() -> int:
    """A port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def serve_cluster(
    broker: ScriptedBroker,
    partitions: list[tuple[int, list[int], list[int]]],
    *,
    more: dict[int, int] | None = None,
    controller: int = 0,
    min_isr: int = 1,
    adding: dict[int, list[int]] | None = None,
) -> None:
    """A cluster with the topic `t`. partitions: (leader, replicas, ISR); more: ports of further brokers by id."""

    def metadata(request: Request) -> bytes:
        answer = broker.metadata_of([])
        answer.controller_id = controller
        answer.brokers += [
            MetadataResponse.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=port)
            for node, port in (more or {}).items()
        ]
        parts = [
            PARTITION(partition_index=number, leader_id=leader, replica_nodes=replicas, isr_nodes=isr, leader_epoch=0)
            for number, (leader, replicas, isr) in enumerate(partitions)
        ]
        topic = MetadataResponse.MetadataResponseTopic(name="t", topic_id=b"t" * 16, partitions=parts)
        answer.topics = [topic] if request.message().topics is None else []  # type: ignore[attr-defined]
        return request.reply(answer)

    def configs(request: Request) -> bytes:
        made = DescribeConfigsResponse
        entry = made.DescribeConfigsResourceResult(name="min.insync.replicas", value=str(min_isr))
        result = made.DescribeConfigsResult(resource_type=2, resource_name="t", configs=[entry])
        return request.reply(made(results=[result]))

    def reassignments(request: Request) -> bytes:
        made = ListPartitionReassignmentsResponse
        parts = [
            made.OngoingPartitionReassignment(partition_index=number, replicas=[], adding_replicas=nodes)
            for number, nodes in (adding or {}).items()
        ]
        return request.reply(made(topics=[made.OngoingTopicReassignment(name="t", partitions=parts)]))

    broker.on[ApiKey.METADATA] = metadata
    broker.on[ApiKey.DESCRIBE_CONFIGS] = configs
    broker.on[ApiKey.LIST_PARTITION_REASSIGNMENTS] = reassignments


def read_problems(ottla: Callable[..., Any], bootstrap: str) -> tuple[int, list[tuple[str, str, str]]]:
    """The exit code, and the problems as (severity, kind, subject)."""
    result = ottla("-b", bootstrap, "cluster", "health", "-o", "json")
    document = json.loads(result.stdout)
    assert document["healthy"] is (result.exit_code == 0)
    assert all(each["next_step"] for each in document["problems"])
    return result.exit_code, [(each["severity"], each["kind"], each["subject"]) for each in document["problems"]]


def test_a_healthy_cluster(ottla, brokers: str) -> None:
    result = ottla("cluster", "health", "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["healthy"], document["controller"], document["problems"]) == (0, True, 1, [])
    (broker,) = document["brokers"]
    assert (broker["id"], broker["address"], broker["reachable"], broker["error"]) == (1, brokers, True, None)
    assert ottla("cluster", "health").stdout.splitlines()[0].split() == ["Healthy:", "yes"]


def test_partitions_are_named_by_the_worst_that_they_have(ottla, scripted: ScriptedBroker) -> None:
    serve_cluster(
        scripted,
        [(0, [0], [0]), (-1, [7], [7]), (0, [0, 7, 8], [0]), (0, [0, 7, 8], [0, 8]), (0, [8, 0], [0, 8])],
        min_isr=2,
    )
    code, found = read_problems(ottla, scripted.bootstrap)
    assert code == 1
    assert found == [
        ("error", "dead_broker", "broker 7"),
        ("error", "dead_broker", "broker 8"),
        ("error", "offline", "t-1"),
        ("error", "under_min_isr", "t-2"),
        ("error", "under_replicated", "t-3"),
        ("warning", "not_preferred", "t-4"),
    ]
    text = ottla("-b", scripted.bootstrap, "cluster", "health").stdout
    assert "error    t-1: no leader: leader -1, replicas 7, ISR 7" in text
    assert "replicas 0,7,8, ISR 0" in text


def test_a_table_shows_a_few_of_many(ottla, scripted: ScriptedBroker) -> None:
    serve_cluster(scripted, [(-1, [0], [0])] * 25)
    text = ottla("-b", scripted.bootstrap, "cluster", "health").stdout
    assert (text.count("no leader"), "and 5 more: see -o json" in text) == (20, True)
    assert len(read_problems(ottla, scripted.bootstrap)[1]) == 25


def test_settings_are_read_only_of_topics_that_lack_replicas(ottla, scripted: ScriptedBroker) -> None:
    serve_cluster(scripted, [(0, [0], [0])])
    assert read_problems(ottla, scripted.bootstrap) == (0, [])
    assert scripted.asked(ApiKey.DESCRIBE_CONFIGS) == scripted.asked(ApiKey.LIST_PARTITION_REASSIGNMENTS) == []


def test_leaders_elsewhere_are_a_warning(ottla, scripted: ScriptedBroker) -> None:
    second = ScriptedBroker()
    try:
        serve_cluster(scripted, [(0, [1, 0], [0, 1])], more={1: second.port})
        assert read_problems(ottla, scripted.bootstrap) == (0, [("warning", "not_preferred", "t-0")])
    finally:
        second.close()


def test_replicas_that_a_reassignment_adds_are_no_fault(ottla, scripted: ScriptedBroker) -> None:
    second = ScriptedBroker()
    try:
        serve_cluster(scripted, [(0, [0, 1], [0])], more={1: second.port}, adding={0: [1]})
        assert read_problems(ottla, scripted.bootstrap) == (0, [])
        serve_cluster(scripted, [(0, [0, 1], [0])], more={1: second.port})
        assert read_problems(ottla, scripted.bootstrap) == (1, [("error", "under_replicated", "t-0")])
    finally:
        second.close()


def test_a_dead_controller_does_not_hide_the_rest(ottla, scripted: ScriptedBroker, closed_port: int) -> None:
    serve_cluster(scripted, [(0, [0, 1], [0])], more={1: closed_port}, controller=1)
    result = ottla("-b", scripted.bootstrap, "cluster", "health")
    assert result.exit_code == 1
    assert "broker 1: the controller, does not answer" in result.stdout
    assert "t-0: under-replicated" in result.stdout
    serve_cluster(scripted, [(0, [0], [0])], controller=-1)
    assert read_problems(ottla, scripted.bootstrap) == (1, [("error", "no_controller", "cluster")])


def test_a_dead_bootstrap_address_beside_one_that_answers(ottla, scripted: ScriptedBroker, closed_port: int) -> None:
    serve_cluster(scripted, [(0, [0], [0])])
    dead = f"127.0.0.1:{closed_port}"
    assert read_problems(ottla, f"{dead},{scripted.bootstrap}") == (1, [("error", "dead_bootstrap", dead)])


def test_an_advertised_address_that_cannot_be_reached(ottla, scripted: ScriptedBroker, closed_port: int) -> None:
    scripted.advertised = ("127.0.0.1", closed_port)
    serve_cluster(scripted, [(0, [0], [0])])
    result = ottla("-b", scripted.bootstrap, "cluster", "health")
    assert result.exit_code == 1
    assert f"advertised.listeners points at 127.0.0.1:{closed_port}" in result.stdout


def test_no_broker_at_all(ottla, closed_port: int) -> None:
    dead = f"127.0.0.1:{closed_port}"
    assert read_problems(ottla, dead) == (1, [("error", "no_answer", dead)])
    assert ottla("-b", "a:b", "cluster", "health").exit_code == 2
    assert ottla("-b", dead, "api-versions").exit_code == 1


def test_a_refusal_of_topics_is_a_problem_and_not_the_end(ottla, scripted: ScriptedBroker) -> None:
    serve_cluster(scripted, [(0, [0, 1], [0])])
    answer = scripted.on[ApiKey.METADATA]
    scripted.on[ApiKey.METADATA] = lambda request: None if request.message().topics is None else answer(request)  # type: ignore[attr-defined]
    result = ottla("-b", scripted.bootstrap, "--timeout", "0.2", "cluster", "health", "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["topics"]) == (1, None)
    assert [each["kind"] for each in document["problems"]] == ["no_answer"]


# -- versions ----------------------------------------------------------------------------------------------------------


def test_versions_of_a_broker(ottla) -> None:
    (broker,) = json.loads(ottla("api-versions", "-o", "json").stdout)
    apis = {each["name"]: each for each in broker["apis"]}
    assert (broker["id"], broker["error"]) == (1, None)
    assert apis["Metadata"]["key"] == 3
    assert apis["Metadata"]["min"] <= apis["Metadata"]["used"] <= apis["Metadata"]["max"]
    assert {"name": "transaction.version", "min": 0, "max": 2, "finalized": 2} in broker["features"]
    lines = ottla("api-versions", "1").stdout.splitlines()
    assert lines[1].split() == ["KEY", "API", "MIN", "MAX", "USED"]
    assert ottla("api-versions", "9").exit_code == 3


def test_apis_that_the_client_cannot_use(ottla, scripted: ScriptedBroker) -> None:
    scripted.versions |= {0: (90, 99), 52: (0, 1), 999: (0, 0)}
    (broker,) = json.loads(ottla("-b", scripted.bootstrap, "api-versions", "-o", "json").stdout)
    apis = {each["key"]: each for each in broker["apis"]}
    assert (apis[0]["name"], apis[0]["used"]) == ("Produce", None)
    assert (apis[52]["name"], apis[999]["name"]) == ("Vote", None)


def test_a_broker_without_an_answer_is_among_the_others(ottla, scripted: ScriptedBroker, closed_port: int) -> None:
    serve_cluster(scripted, [], more={1: closed_port})
    result = ottla("-b", scripted.bootstrap, "api-versions", "-o", "json")
    alive, dead = json.loads(result.stdout)
    assert (result.exit_code, alive["error"], dead["id"], dead["apis"]) == (1, None, 1, [])
    assert f"127.0.0.1:{closed_port}" in dead["error"]
    shown = ottla("-b", scripted.bootstrap, "api-versions")
    assert "ottla: broker 1: advertised.listeners points at" in shown.stderr


# -- watching ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_watching_shows_a_cluster_that_changes(process, scripted: ScriptedBroker) -> None:
    serve_cluster(scripted, [(0, [0], [0])])
    child = process("-b", scripted.bootstrap, "cluster", "health", "--watch", "0.1", "-o", "jsonl")
    assert json.loads(child.stdout.readline())["healthy"] is True
    serve_cluster(scripted, [(-1, [0], [0])])
    for _ in range(1000):
        if not json.loads(child.stdout.readline())["healthy"]:
            return
    pytest.fail("the change is not shown")


@pytest.mark.slow
def test_watching_a_group_waits_for_one_that_does_not_exist_yet(ottla, process) -> None:
    child = process("group", "describe", "watched", "--watch", "0.1", "-o", "jsonl")
    assert ErrorCode.GROUP_ID_NOT_FOUND.name in child.stderr.readline().decode()
    ottla("produce", "watched", stdin="a\n")
    assert ottla("consume", "watched", "-g", "watched", "--offset", "start", "-n", "1").exit_code == 0
    assert json.loads(child.stdout.readline())["group"] == "watched"


def test_a_round_that_fails_is_one_line_and_a_closed_pipe_is_the_end(capsys) -> None:
    rounds = iter([UnreachableError("no broker"), "seen", BrokenPipeError()])

    def read() -> str:
        found = next(rounds)
        if isinstance(found, Exception):
            raise found
        return found

    with click.Context(click.Command("x")), pytest.raises(BrokenPipeError):
        watch_view(0.001, read, print)
    printed = capsys.readouterr()
    assert (printed.err, printed.out.splitlines()[1:]) == ("ottla: no broker\n", ["seen"])
