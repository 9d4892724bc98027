"""The tree that Apache Kafka 3.9.1 wrote to ZooKeeper, written by this controller: the same nodes, byte for byte.

Zone: real.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from ottla.cluster.controller.leaders import ElectionType
from ottla.cluster.store import layout
from ottla.cluster.topics import TopicSpec
from ottla.seams import Op
from ottla.types import TopicPartition

TREE = Path(__file__).parents[2] / "data" / "golden" / "kafka-3.9.1-zookeeper" / "zookeeper-3-brokers.json.gz"
TOPICS = ("__consumer_offsets", "format-2.8", "moving", "orders", "pinned")


@pytest.fixture(scope="module")
def golden() -> dict[str, dict]:
    found: dict[str, dict] = json.loads(gzip.decompress(TREE.read_bytes()))
    return found


def content(golden, path: str) -> bytes:
    return (golden[path]["data"] or "").encode()


def without_chance(data: bytes) -> bytes:
    """Replace ids and times, which differ in every cluster."""
    data = re.sub(rb'"topic_id":"[^"]{22}"', b'"topic_id":"*"', data)
    return re.sub(rb'"timestamp":"\d+"', b'"timestamp":"*"', data)


def made_again(house, golden):
    """Brokers 1, 2, 3; 2 is the controller; topics by request; the move of `moving` is under way, as in the tree."""
    for node in (1, 2, 3):
        house.broker(node, rack=f"rack-{node}", address="127.0.0.1")
    controller = house.candidate(2)
    for name in TOPICS:
        path = layout.topic_path(name)
        node = layout.decode_topic(path, content(golden, path))
        begun = {
            number: tuple(each for each in replicas if each not in node.adding.get(number, ()))
            for number, replicas in node.assignment.items()
        }
        configs = layout.decode_config("", content(golden, layout.topic_config_path(name)))
        configs = {key: value for key, value in configs.items() if "throttled" not in key}
        spec = TopicSpec(name, assignments=begun, configs=configs)
        controller.ask(lambda c, done, spec=spec: c.create_topic(spec, False, 1000, done))
    node = layout.decode_topic("", content(golden, layout.topic_path("moving")))
    for number in node.adding:
        target = tuple(each for each in node.assignment[number] if each not in node.removing.get(number, ()))
        tp = TopicPartition("moving", number)
        controller.ask(lambda c, done, tp=tp, target=target: c.alter_reassignments({tp: target}, True, done))
    return controller


def test_topics_states_and_the_controllers_nodes(house, golden):
    controller = made_again(house, golden)
    compared = 0
    for path in golden:
        parts = path.split("/")
        if path.startswith("/brokers/topics/") and parts[3] in TOPICS:
            found = house.node(path)
            assert found is not None, path
            assert without_chance(found.data) == without_chance(content(golden, path)), path
            assert found.version == golden[path]["version"], path
            compared += 1
    assert compared == sum(len(house.topic(name).assignment) * 2 + 2 for name in TOPICS)
    for path in (layout.CONTROLLER, layout.CONTROLLER_EPOCH, layout.FEATURE):
        assert without_chance(house.data(path)) == without_chance(content(golden, path))
        assert house.node(path).version == golden[path]["version"]
        assert bool(house.node(path).owner) == golden[path]["ephemeral"]
    assert controller.controller.epoch == 1


def test_persistent_nodes_are_the_same(house, golden):
    made_again(house, golden)
    ours = {path for path in house.engine.tree.nodes if not path.startswith(("/brokers/topics/", "/config/topics/"))}
    theirs = {
        path for path in golden if not path.startswith(("/brokers/topics/", "/config/", "/kafka-acl", "/zookeeper"))
    }
    not_here = {"/cluster/id", "/delegation_token", "/delegation_token/tokens"}
    assert {path for path in theirs if not path.startswith("/config") and path not in ours} <= not_here
    assert {path for path in ours if path not in golden and not path.startswith("/config")} == set()


def test_a_controller_continues_from_the_golden_tree(house, golden):
    """A controller reads the tree that Kafka wrote, and continues from it."""
    present = set(house.engine.tree.nodes)
    ops = [
        Op("create", path, content(golden, path))
        for path, node in golden.items()
        if path not in present and not node["ephemeral"] and not path.startswith("/zookeeper")
    ]
    house.write(*ops)
    for node in (1, 2, 3):
        house.broker(node, rack=f"rack-{node}")
    controller = house.candidate(2)
    image = controller.controller.image
    assert controller.controller.epoch == 2
    assert len(image.topics) == 7
    moves = controller.ask(lambda c, done: c.list_reassignments(None, done))
    assert moves[TopicPartition("moving", 0)] == ((2, 3, 1), (2, 3), (1,))
    assert controller.ask(lambda c, done: c.elect_leaders(ElectionType.PREFERRED, None, done)) is not None
    house.check_agreement(controller)


def test_node_json(house):
    """Published examples: the same fields, order and bytes (version 1; /controller has Kafka's last version)."""
    state = b'{"controller_epoch":1272,"leader":0,"version":1,"leader_epoch":4,"isr":[0,2]}'
    assert layout.decode_state("", state) == layout.StateNode(0, 4, (0, 2), 1272)
    assert layout.encode_state(layout.StateNode(0, 4, (0, 2), 1272)) == state
    controller = b'{"version":1,"brokerid":0,"timestamp":"1529210278988"}'
    assert layout.decode_controller("", controller) == 0
    ours = layout.encode_controller(0, 1529210278988)
    assert ours == b'{"version":2,"brokerid":0,"timestamp":"1529210278988","kraftControllerEpoch":-1}'
    assert list(json.loads(ours))[:3] == list(json.loads(controller))
