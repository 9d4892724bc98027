"""Start and stop of a whole broker on simulated disk and time."""

from __future__ import annotations

import logging

from ottla.sim.machines.machine import Death
from ottla.wire.messages import DeleteTopicsRequest


def stop(node) -> list[object]:
    done: list[object] = []
    node.process.post_turn(0, "stop", node.broker.stop_broker, done.append)
    node.pass_ms(5000)
    return done


def test_topics_and_records_are_there_after_a_clean_stop(node) -> None:
    node.produce("t", b"a")
    topic_id = node.topic_id("t")
    assert stop(node) == [None]
    assert ".kafka_cleanshutdown" in node.files()
    node.restart(Death.STOP)
    assert node.topic_id("t") == topic_id, "a topic keeps its id"
    assert node.values("t") == [b"a"]


def test_a_restarted_broker_leads_in_a_new_epoch(node) -> None:
    node.produce("t", b"a")
    before = node.broker.hosted.find_partition("t", 0).leader_epoch
    node.restart()
    partition = node.broker.hosted.find_partition("t", 0)
    assert partition.leader_epoch == before + 1
    assert partition.log.epochs.end_offset_for(before)[1] == 1


def test_a_deleted_topic_does_not_come_back_with_its_name(node) -> None:
    node.produce("t", b"old")
    node.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    node.create("t")
    assert node.values("t") == []
    node.restart()
    assert node.values("t") == []


def test_another_clusters_directory_is_refused_and_left_alone(node) -> None:
    node.produce("t", b"a")
    stop(node)
    meta = node.read("meta.properties").decode()
    changed = "\n".join(
        "cluster.id=somebody-elses-cluster" if "cluster.id" in line else line for line in meta.split("\n")
    )
    node.disk.replace_now("meta.properties", changed.encode())
    node.machine.end_process(Death.STOP)
    node.boot(ready=False)
    assert not node.broker.ready
    assert "somebody-elses-cluster" in str(node.broker.failed)


def test_logs_that_no_topic_knows_are_left_alone_and_named(node, caplog) -> None:
    node.produce("t", b"a")
    stop(node)
    for name in [each for each in node.files() if each.startswith("__znodes-0/")]:
        node.disk.unlink_now(name)
    node.disk.unlink_now("meta.properties")
    node.machine.end_process(Death.STOP)
    with caplog.at_level(logging.WARNING):
        node.boot()
    assert "t-0 is not a replica of this broker" in caplog.text
    assert "t-0/00000000000000000000.log" in node.files()
