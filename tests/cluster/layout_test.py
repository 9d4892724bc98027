"""The nodes' JSON against a real ZooKeeper tree that Apache Kafka 3.9.1 wrote.

Zone: real.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ottla.cluster.store import layout
from ottla.types import Endpoint, TopicPartition

TREE = Path(__file__).parent.parent / "data" / "golden" / "kafka-3.9.1-zookeeper" / "zookeeper-3-brokers.json.gz"


@pytest.fixture(scope="module")
def tree() -> dict[str, bytes]:
    nodes = json.loads(gzip.decompress(TREE.read_bytes()))
    return {path: node["data"].encode() for path, node in nodes.items() if node["data"]}


def test_topic_nodes_are_identical_to_kafkas(tree):
    paths = [path for path in tree if path.startswith(layout.TOPICS + "/") and path.count("/") == 3]
    assert len(paths) == 7
    for path in paths:
        node = layout.decode_topic(path, tree[path])
        assert layout.encode_topic(node) == tree[path]
        assert path == layout.topic_path(path.rpartition("/")[2])
    moving = layout.decode_topic("", tree["/brokers/topics/moving"])
    assert moving.adding == {0: (2, 3), 1: (3,)}
    assert moving.removing == {0: (1,)}


def test_state_nodes_are_identical_to_kafkas(tree):
    paths = [path for path in tree if path.endswith("/state")]
    assert len(paths) > 10
    for path in paths:
        assert layout.encode_state(layout.decode_state(path, tree[path])) == tree[path]
    assert layout.state_path("orders", 5) in paths


def test_broker_nodes_are_identical_to_kafkas(tree):
    for node_id in (1, 2, 3):
        content = tree[layout.broker_path(node_id)]
        node = layout.decode_broker("", content)
        assert node.rack == f"rack-{node_id}"
        assert layout.encode_broker(node, int(json.loads(content)["timestamp"])) == content


def test_config_nodes_are_identical_to_kafkas(tree):
    paths = [path for path in tree if path.startswith(("/config/topics/", "/config/brokers/"))]
    assert layout.topic_config_path("orders") in paths
    assert layout.broker_config_path(None) in paths
    assert layout.broker_config_path(2) in paths
    for path in paths:
        assert layout.encode_config(layout.decode_config(path, tree[path])) == tree[path]


def test_small_nodes_are_identical_to_kafkas(tree):
    assert layout.encode_cluster_id(layout.decode_cluster_id("", tree["/cluster/id"])) == tree["/cluster/id"]
    block = layout.decode_block("", tree["/latest_producer_id_block"])
    assert block == layout.BlockNode(3, 2000, 2999)
    assert layout.encode_block(block) == tree["/latest_producer_id_block"]
    controller = json.loads(tree["/controller"])
    assert layout.encode_controller(controller["brokerid"], int(controller["timestamp"])) == tree["/controller"]
    assert layout.decode_epoch("", tree["/controller_epoch"]) == 1


def test_admin_nodes_are_read_and_written():
    """The forms that Kafka's tools wrote before KIP-455 and KIP-460."""
    first, second = b'{"topic":"a","partition":1,"replicas":[2,3]}', b'{"topic":"b","partition":0,"replicas":[1]}'
    plan = b'{"version":1,"partitions":[' + first + b"," + second + b"]}"
    targets = layout.decode_reassignment("", plan)
    assert targets == {TopicPartition("a", 1): (2, 3), TopicPartition("b", 0): (1,)}
    assert layout.encode_reassignment(targets) == plan
    wish = b'{"version":1,"partitions":[{"topic":"a","partition":1}]}'
    assert layout.decode_partitions("", wish) == [TopicPartition("a", 1)]
    event = layout.encode_log_dir_event(3)
    assert event == b'{"version":1,"broker":3,"event":1}'
    assert layout.decode_log_dir_event("", event) == 3


def test_the_feature_node_is_identical_to_kafkas(tree):
    assert layout.encode_feature() == tree["/feature"]


def test_a_registration_has_a_machine_only_if_it_was_named():
    endpoint = Endpoint("PLAINTEXT", "10.0.0.1", 9092)
    named = layout.encode_broker(layout.BrokerNode((endpoint,), "r", "big-box"), 1)
    assert json.loads(named)["ottla.host"] == "big-box"
    assert layout.decode_broker("", named) == layout.BrokerNode((endpoint,), "r", "big-box")
    assert b"ottla" not in layout.encode_broker(layout.BrokerNode((endpoint,), "r"), 1)


def test_a_registration_has_incomplete_logs_only_if_there_are_some():
    endpoint = Endpoint("PLAINTEXT", "10.0.0.1", 9092)
    lost = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))
    told = layout.encode_broker(layout.BrokerNode((endpoint,), None, incomplete=lost), 1)
    assert json.loads(told)["ottla.incomplete"] == {"a": [0, 2], "b": [1]}
    assert layout.decode_broker("", told).incomplete == lost
    broken = told.replace(b'{"a":', b'7,"x":{"a":')
    with pytest.raises(layout.BrokenNode):
        layout.decode_broker("", broken)


def test_nodes_of_older_versions_are_read():
    old = layout.decode_topic("", b'{"version":1,"partitions":{"1":[2],"0":[1]}}')
    assert old.assignment == {0: (1,), 1: (2,)}
    assert old.topic_id == bytes(16)
    state = layout.decode_state("", b'{"leader":1,"leader_epoch":3,"isr":[1]}')
    assert state == layout.StateNode(1, 3, (1,), 0)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (layout.decode_topic, b""),
        (layout.decode_topic, b"[]"),
        (layout.decode_topic, b"{}"),
        (layout.decode_topic, b'{"partitions":{"x":[1]}}'),
        (layout.decode_topic, b'{"partitions":{"0":1}}'),
        (layout.decode_topic, b'{"partitions":{},"topic_id":"short"}'),
        (layout.decode_topic, b"[" * 100_000),
        (layout.decode_state, b'{"leader":1}'),
        (layout.decode_state, b'{"leader":null,"leader_epoch":0,"isr":[]}'),
        (layout.decode_broker, b"{}"),
        (layout.decode_broker, b'{"endpoints":["nonsense"]}'),
        (layout.decode_config, b'{"config":[]}'),
        (layout.decode_cluster_id, b"{}"),
        (layout.decode_block, b'{"broker":1}'),
        (layout.decode_controller, b"{}"),
        (layout.decode_controller, b'{"brokerid":"me"}'),
        (layout.decode_reassignment, b"{}"),
        (layout.decode_reassignment, b'{"partitions":[{"topic":"t","partition":0}]}'),
        (layout.decode_reassignment, b'{"partitions":[{"topic":"t","partition":0,"replicas":["x"]}]}'),
        (layout.decode_partitions, b'{"partitions":[7]}'),
        (layout.decode_partitions, b'{"partitions":[{"topic":"t"}]}'),
        (layout.decode_log_dir_event, b'{"version":1}'),
        (layout.decode_epoch, b"one"),
        (layout.decode_epoch, b"99999999999999"),
    ],
)
def test_an_invalid_node_raises_an_error_with_its_path(read, content):
    with pytest.raises(layout.BrokenNode, match="/path"):
        read("/path", content)
