"""What others use to look after a cluster, on both engines: Kafka's tools, and hands in the tree of ZooKeeper."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from testbench.apache_kafka import packages, tools
from testbench.clients import Confluent, Record
from testbench.trio import ENGINES, Trio, trio

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

KAFKA = "3.9.1"
RECORDS = [Record(b"%d" % number, b"v" * 100) for number in range(50)]


@pytest.fixture(scope="module", params=ENGINES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """One cluster of each engine for all tests; every test uses topics of its own."""
    with trio(request.param, tmp_path_factory.mktemp(f"trio-{request.param}")) as made:
        yield made


@pytest.fixture
def cluster(running: Trio) -> Iterator[Trio]:
    """Afterwards no broker may have complained."""
    yield running
    assert not running.complaints()


@pytest.fixture
def kafka(cluster: Trio) -> Callable[..., str]:
    """`kafka("kafka-topics", words…)`: what a tool of Apache Kafka prints; a failure of it fails the test."""
    try:
        packages.class_path(KAFKA, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")

    def run(name: str, *words: str) -> str:
        done = tools.run(KAFKA, name, *words, "--bootstrap-server", living(cluster))
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        assert "ERROR" not in done.stderr, done.stderr
        return done.stdout

    return run


@pytest.fixture
def hands(cluster: Trio) -> Iterator[KazooClient]:
    """Somebody with a ZooKeeper client."""
    with cluster.zookeeper() as client:
        yield client


def living(cluster: Trio) -> str:
    """Addresses of the brokers that are there: one that stands still would take a connection and never answer."""
    seen = cluster.wait_until("there is a controller", lambda seen: seen.controller_id in seen.brokers)
    return ",".join(f"{broker.host}:{broker.port}" for broker in seen.brokers.values())


def as_json(content: object) -> bytes:
    return json.dumps(content).encode()


def replicas(cluster: Trio, topic: str) -> dict[int, list[int]]:
    seen = cluster.metadata()
    assert seen is not None
    return {index: list(each.replicas) for index, each in seen.topics[topic].partitions.items()}


def leaders(cluster: Trio, topic: str) -> dict[int, int]:
    seen = cluster.metadata()
    assert seen is not None
    return {index: each.leader for index, each in seen.topics[topic].partitions.items()}


def assigned(topic: str, **partitions: list[int]) -> dict[str, object]:
    """Kafka's JSON of a reassignment; keywords `p0=[1, 2]`."""
    rows = [{"topic": topic, "partition": int(name[1:]), "replicas": ids} for name, ids in partitions.items()]
    return {"version": 1, "partitions": rows}


def test_topics(kafka, cluster: Trio, topic: str) -> None:
    kafka("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "1:2,2:3,3:1")
    cluster.wait_whole(topic)
    described = kafka("kafka-topics", "--describe", "--topic", topic)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 2", described)
    assert re.search(r"Partition: 1\s+Leader: 2\s+Replicas: 2,3\s+Isr: 2,3", described)
    kafka("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    cluster.wait_until("five partitions", lambda seen: len(seen.topics[topic].partitions) == 5)
    cluster.wait_whole(topic)
    Confluent().write(cluster.bootstrap, topic, RECORDS)
    assert kafka("kafka-topics", "--describe", "--under-replicated-partitions", "--topic", topic) == ""
    kafka("kafka-topics", "--delete", "--topic", topic)
    cluster.wait_until("no such topic", lambda seen: topic not in seen.topics)


def test_a_broker_that_is_away(kafka, cluster: Trio, topic: str) -> None:
    kafka("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "1:2,2:1")
    cluster.wait_whole(topic)
    broker = cluster.brokers[1]
    broker.pause()
    try:
        cluster.wait_until("broker 2 is gone", lambda seen: 2 not in seen.brokers)
        described = kafka("kafka-topics", "--describe", "--under-replicated-partitions", "--topic", topic)
        assert len(re.findall(r"Partition: \d\s+Leader: 1\s+Replicas: \d,\d\s+Isr: 1\s", described)) == 2
    finally:
        broker.resume()
    cluster.wait_whole(topic)


def test_reassignment(kafka, cluster: Trio, topic: str, tmp_path: Path) -> None:
    kafka("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "1:2,1:2")
    cluster.wait_whole(topic)
    Confluent().write(cluster.bootstrap, topic, RECORDS)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(assigned(topic, p0=[3, 1], p1=[2, 3, 1])))
    words = ("--reassignment-json-file", str(plan))
    said = kafka("kafka-reassign-partitions", "--execute", *words, "--throttle", "50000000")
    assert "Successfully started partition reassignments" in said
    cluster.wait_until("moved", lambda _: replicas(cluster, topic) == {0: [3, 1], 1: [2, 3, 1]})
    cluster.wait_whole(topic)
    said = kafka("kafka-reassign-partitions", "--verify", *words)
    assert len(re.findall(r"Reassignment of partition \S+ is completed", said)) == 2
    assert "Clearing broker-level throttles" in said
    assert "No partition reassignments found." in kafka("kafka-reassign-partitions", "--list")
    assert [each.key for each in Confluent().read(cluster.bootstrap, topic)] == [each.key for each in RECORDS]


def test_a_reassignment_is_cancelled(kafka, cluster: Trio, topic: str, tmp_path: Path) -> None:
    kafka("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "1:2")
    cluster.wait_whole(topic)
    broker = cluster.brokers[2]
    broker.pause()  # so that it cannot finish
    try:
        cluster.wait_until("broker 3 is gone", lambda seen: 3 not in seen.brokers)
        with cluster.zookeeper() as client:
            client.ensure_path("/admin")
            client.create("/admin/reassign_partitions", as_json(assigned(topic, p0=[1, 3])))
        cluster.wait_until("it is under way", lambda _: replicas(cluster, topic)[0] != [1, 2])
        said = kafka("kafka-reassign-partitions", "--list")
        assert f"{topic}-0: replicas: 1,3,2. adding: 3. removing: 2." in said
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps(assigned(topic, p0=[1, 3])))
        # Throttles are settings of brokers, and broker 3 takes no settings now.
        words = ("--reassignment-json-file", str(plan), "--preserve-throttles")
        assert "Successfully cancelled" in kafka("kafka-reassign-partitions", "--cancel", *words)
        cluster.wait_until("as before", lambda _: replicas(cluster, topic) == {0: [1, 2]})
    finally:
        broker.resume()
    cluster.wait_whole(topic)


def test_leader_election(kafka, cluster: Trio, topic: str) -> None:
    kafka("kafka-topics", "--create", "--topic", topic, "--replica-assignment", "2:3,3:2")
    cluster.wait_whole(topic)
    broker = cluster.brokers[1]
    broker.pause()
    try:
        cluster.wait_until("broker 3 leads", lambda _: leaders(cluster, topic) == {0: 3, 1: 3})
    finally:
        broker.resume()
    cluster.wait_whole(topic)
    assert leaders(cluster, topic) == {0: 3, 1: 3}
    words = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert f"Successfully completed leader election (PREFERRED) for partitions {topic}-0" in kafka(
        "kafka-leader-election", *words
    )
    cluster.wait_until("the preferred leader leads", lambda _: leaders(cluster, topic) == {0: 2, 1: 3})


def test_configs(kafka, cluster: Trio, topic: str) -> None:
    kafka("kafka-topics", "--create", "--topic", topic, "--partitions", "3", "--replication-factor", "3")
    cluster.wait_whole(topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    kafka("kafka-configs", "--alter", *entity, "--add-config", "max.message.bytes=500,retention.ms=5000000")
    assert "max.message.bytes=500" in kafka("kafka-configs", "--describe", *entity)
    for broker in ("1", "2", "3"):  # each learned it, whoever was asked
        words = ("--entity-type", "brokers", "--entity-name", broker)
        kafka("kafka-configs", "--alter", *words, "--add-config", "log.cleaner.threads=2")
        assert "log.cleaner.threads=2" in kafka("kafka-configs", "--describe", *words)
        kafka("kafka-configs", "--alter", *words, "--delete-config", "log.cleaner.threads")
    refused = 0
    for partition in range(3):
        refused += _too_large(cluster, topic, partition)
    assert refused == 3


def _too_large(cluster: Trio, topic: str, partition: int) -> int:
    from confluent_kafka import KafkaError, Producer

    errors: list[int] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    producer.produce(
        topic, b"x" * 1_000, partition=partition, on_delivery=lambda error, _: errors.append(error and error.code())
    )
    producer.flush(180)
    return int(errors == [KafkaError.MSG_SIZE_TOO_LARGE])


def test_a_topic_made_by_hand(cluster: Trio, hands: KazooClient, topic: str) -> None:
    hands.create(f"/brokers/topics/{topic}", as_json({"version": 1, "partitions": {"0": [2, 3], "1": [3, 1]}}))
    cluster.wait_until("the topic is there", lambda seen: topic in seen.topics)
    cluster.wait_whole(topic)
    assert replicas(cluster, topic) == {0: [2, 3], 1: [3, 1]}
    Confluent().write(cluster.bootstrap, topic, RECORDS)
    assert len(Confluent().read(cluster.bootstrap, topic)) == len(RECORDS)
    content = json.loads(hands.get(f"/brokers/topics/{topic}")[0])
    content["partitions"]["2"] = [1, 2]
    hands.set(f"/brokers/topics/{topic}", as_json(content))
    cluster.wait_until("a partition more", lambda seen: len(seen.topics[topic].partitions) == 3)
    cluster.wait_whole(topic)


def test_a_reassignment_by_hand(cluster: Trio, hands: KazooClient, topic: str) -> None:
    _create(cluster, hands, topic, {"0": [1, 2]})
    hands.ensure_path("/admin")
    hands.create("/admin/reassign_partitions", as_json(assigned(topic, p0=[3, 2])))
    cluster.wait_until("moved", lambda _: replicas(cluster, topic) == {0: [3, 2]})
    cluster.wait_whole(topic)
    cluster.wait_until("the order is gone", lambda _: hands.exists("/admin/reassign_partitions") is None)


def test_a_preferred_election_by_hand(cluster: Trio, hands: KazooClient, topic: str) -> None:
    _create(cluster, hands, topic, {"0": [1, 2]})
    hands.create("/admin/reassign_partitions", as_json(assigned(topic, p0=[2, 1])))  # 2 is preferred now, 1 still leads
    cluster.wait_until("moved", lambda _: replicas(cluster, topic) == {0: [2, 1]})
    cluster.wait_until("the order is gone", lambda _: hands.exists("/admin/reassign_partitions") is None)
    order = {"version": 1, "partitions": [{"topic": topic, "partition": 0}]}
    hands.create("/admin/preferred_replica_election", as_json(order))
    cluster.wait_until("2 leads", lambda _: leaders(cluster, topic) == {0: 2})
    cluster.wait_until("the order is gone", lambda _: hands.exists("/admin/preferred_replica_election") is None)


def test_a_deletion_by_hand(cluster: Trio, hands: KazooClient, topic: str) -> None:
    _create(cluster, hands, topic, {"0": [1, 2, 3]})
    hands.ensure_path("/admin/delete_topics")
    hands.create(f"/admin/delete_topics/{topic}")
    cluster.wait_until("no such topic", lambda seen: topic not in seen.topics)
    cluster.wait_until("the order is gone", lambda _: hands.exists(f"/admin/delete_topics/{topic}") is None)
    assert hands.exists(f"/brokers/topics/{topic}") is None


def test_a_setting_by_hand(cluster: Trio, hands: KazooClient, topic: str) -> None:
    _create(cluster, hands, topic, {"0": [1, 2, 3]})
    content = as_json({"version": 1, "config": {"max.message.bytes": "500"}})
    path = f"/config/topics/{topic}"
    hands.ensure_path("/config/topics")
    if hands.exists(path):
        hands.set(path, content)
    else:
        hands.create(path, content)
    change = as_json({"version": 2, "entity_path": f"topics/{topic}"})
    hands.create("/config/changes/config_change_", change, sequence=True)
    cluster.wait_until("too large", lambda _: _too_large(cluster, topic, 0) == 1)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/admin/reassign_partitions", b"{no json"),
        ("/admin/preferred_replica_election", b"\xff\xfe"),
        ("/admin/reassign_partitions", as_json({"version": 1, "partitions": [{"topic": "nobody", "partition": 0}]})),
    ],
)
def test_broken_orders_are_survived(cluster: Trio, hands: KazooClient, topic: str, path: str, content: bytes) -> None:
    hands.ensure_path("/admin")
    hands.create(path, content)
    _create(cluster, hands, topic, {"0": [1, 2, 3]})
    if hands.exists(path):
        hands.delete(path)


def _create(cluster: Trio, hands: KazooClient, topic: str, partitions: dict[str, list[int]]) -> None:
    hands.create(f"/brokers/topics/{topic}", as_json({"version": 1, "partitions": partitions}))
    cluster.wait_until("the topic is there", lambda seen: topic in seen.topics)
    cluster.wait_whole(topic)


def test_broker_ids_in_zookeepers_own_shell(cluster: Trio) -> None:
    import subprocess

    from testbench.zookeeper import shell

    done = subprocess.run(
        shell(cluster.store),
        input=f"addauth digest {cluster.digest or 'anyone:any'}\nls /brokers/ids\nquit\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "[1, 2, 3]" in done.stdout, done.stderr
