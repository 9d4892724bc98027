"""Logs of another cluster in the directories of a broker whose own metadata store is empty (`ottla.adopt.logs`)."""

from __future__ import annotations

import pytest
from tests.handnode import Node

from ottla.cluster.log_import import SPARE_PRODUCER_IDS
from ottla.errors import ErrorCode
from ottla.sim.machines.machine import Death
from ottla.wire.messages import InitProducerIdRequest


def lose_store(node) -> None:
    """The metadata store's own files are gone; everything else is another cluster's to a new store."""
    for name in node.disk.list("__znodes-0"):
        node.disk.unlink_now(f"__znodes-0/{name}")


@pytest.fixture
def orphaned() -> Node:
    """A broker that was stopped for good: three topics, a large producer id, no metadata."""
    node = Node()
    node.create("t")
    node.create("wide", partitions=3)
    node.create("old", message_format_version="0.10.0")
    producer = {"producer_id": 5000, "producer_epoch": 0, "base_sequence": 0}
    assert node.produce("t", b"a", b"b", **producer).error_code == 0
    assert node.produce("wide", b"c", partition=2).error_code == 0
    assert node.produce("old", b"d").error_code == 0
    node.restart()
    node.restart()
    assert node.produce("t", b"later").error_code == 0
    node.epoch = node.broker.hosted.find_partition("t", 0).log.epochs.latest
    node.topics = {name: node.topic_id(name) for name in ("t", "wide", "old")}
    stopped: list[object] = []
    node.process.post_turn(0, "stop", node.broker.stop_broker, stopped.append)
    node.pass_ms(5000)
    assert stopped == [None]
    lose_store(node)
    return node


def adopted(node: Node, ready: bool = True) -> Node:
    node.properties["ottla.adopt.logs"] = "true"
    node.machine.end_process(Death.KILL)
    node.boot(ready)
    return node


def test_without_being_asked_nothing_is_adopted(orphaned) -> None:
    orphaned.machine.end_process(Death.KILL)
    orphaned.boot(ready=False)
    assert "ottla.adopt.logs" in str(orphaned.broker.failed)


def test_adopted_topics_keep_their_ids_and_their_records(orphaned) -> None:
    node = adopted(orphaned)
    assert {name: node.topic_id(name) for name in node.topics} == node.topics
    assert node.values("t") == [b"a", b"b", b"later"]
    assert node.values("wide", partition=2) == [b"c"]
    assert node.values("old") == [b"d"]
    assert node.produce("t", b"e").base_offset == 3
    config = node.broker.cluster.image.topics["t"].config
    assert (config.retention_ms, config.retention_bytes) == (-1, -1)
    assert node.broker.hosted.find_partition("t", 0).leader_epoch > node.epoch >= 2


def test_no_new_producer_is_taken_for_one_in_the_logs(orphaned) -> None:
    node = adopted(orphaned)
    place = node.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert place.producer_id > 5000 + SPARE_PRODUCER_IDS - 1


def test_an_adoption_that_was_interrupted_is_finished_by_the_next_start(orphaned) -> None:
    orphaned.properties["ottla.adopt.logs"] = "true"
    orphaned.machine.end_process(Death.KILL)
    orphaned.start()
    steps = 0
    while not any(path.startswith("__znodes-0/") for path in orphaned.files()):
        assert orphaned.timeline.run_next_event()
        steps += 1
    assert steps
    node = adopted(orphaned)
    assert node.values("wide", partition=2) == [b"c"]


def test_logs_of_two_topics_of_one_name_are_not_one_topic(orphaned) -> None:
    node = orphaned
    content = node.read("t-0/partition.metadata")
    node.disk.unlink_now("wide-1/partition.metadata")
    node.disk.replace_now("wide-1/partition.metadata", content)
    adopted(node, ready=False)
    assert ErrorCode.INCONSISTENT_TOPIC_ID.name in str(node.broker.failed)


def test_a_damaged_file_is_named(orphaned) -> None:
    orphaned.disk.replace_now("wide-1/partition.metadata", b"nonsense")
    adopted(orphaned, ready=False)
    assert "wide-1/partition.metadata" in str(orphaned.broker.failed)


def test_partitions_that_other_brokers_had_begin_empty(orphaned) -> None:
    node = orphaned
    for partition in (0, 1):
        for name in node.disk.list(f"wide-{partition}"):
            node.disk.unlink_now(f"wide-{partition}/{name}")
        node.drive.unlink_path(f"wide-{partition}")
    adopted(node)
    assert len(node.broker.cluster.image.topics["wide"].partitions) == 3
    assert node.values("wide", partition=2) == [b"c"]
    assert node.produce("wide", b"x", partition=0).base_offset == 0
