"""Joining, topics, settings and producer ids over the metadata store, with restarts and failing disks.

Zone: real.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from ottla.cluster.coordinators import java_hash, partition_for
from ottla.cluster.store import layout
from ottla.cluster.topics import TopicSpec, check_collision, check_name
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.machines.machine import Death
from ottla.types import TopicPartition


def create(node, name, partitions=1, factor=1, **configs):
    spec = TopicSpec(name, partitions, factor, configs={key.replace("_", "."): text for key, text in configs.items()})
    return node.wait(lambda done: node.topics.create_topic(spec, False, 1000, done))


def refused(node, spec, validate_only=False):
    with pytest.raises(ApiError) as error:
        node.wait(lambda done: node.topics.create_topic(spec, validate_only, 1000, done))
    return error.value.code


def test_a_new_cluster_has_an_id_a_controller_and_its_broker(node):
    assert node.broker.ready
    image = node.cluster.image
    assert json.loads(node.get("/cluster/id").data) == {"version": "1", "id": image.cluster_id}
    assert len(image.cluster_id) == 22
    assert image.controller_id == 1
    assert json.loads(node.get("/controller").data)["brokerid"] == 1
    assert node.get("/controller_epoch").data == b"1"
    registered = node.get("/brokers/ids/1")
    assert registered.czxid == image.brokers[1].epoch
    assert json.loads(registered.data)["endpoints"] == ["PLAINTEXT://here:9092", "INSIDE://10.0.0.1:9093"]
    for path in layout.PERSISTENT:
        assert node.get(path) is not None


def test_a_restart_keeps_the_id_and_has_a_new_epoch(node):
    first = node.cluster.image
    node.restart()
    second = node.cluster.image
    assert second.cluster_id == first.cluster_id
    assert second.brokers[1].epoch > first.brokers[1].epoch
    assert node.get("/controller_epoch").data == b"2"


def test_a_created_topic_is_in_the_image_and_in_kafkas_nodes(node):
    topic = create(node, "orders", 3, retention_ms="5")
    assert node.deltas[-1].changed == ("orders",)
    assert node.cluster.image.topic_by_name("orders") == topic
    assert node.cluster.image.topic_by_id(topic.topic_id) == topic
    assert [p.replicas for p in topic.partitions] == [(1,), (1,), (1,)]
    assert [p.leader_epoch for p in topic.partitions] == [0, 0, 0]
    stored = layout.decode_topic("", node.get("/brokers/topics/orders").data)
    assert stored.topic_id == topic.topic_id
    assert json.loads(node.get("/config/topics/orders").data) == {"version": 1, "config": {"retention.ms": "5"}}
    state = layout.decode_state("", node.get("/brokers/topics/orders/partitions/2/state").data)
    assert state == layout.StateNode(1, 0, (1,), 1)
    assert node.cluster.topic_config("orders").retention_ms == 5
    assert node.cluster.topic_config("nowhere") == node.cluster.topic_defaults


def test_topics_survive_a_restart_with_their_id_and_the_next_leader_epoch(node):
    topic = create(node, "orders", 2, cleanup_policy="compact")
    node.restart(Death.POWER_LOSS)
    again = node.cluster.image.topic_by_name("orders")
    assert again.topic_id == topic.topic_id
    assert again.config.cleanup_policy == ("compact",)
    assert [(p.leader, p.leader_epoch, p.isr) for p in again.partitions] == [(1, 1, (1,)), (1, 1, (1,))]
    state = node.get("/brokers/topics/orders/partitions/0/state")
    assert layout.decode_state("", state.data) == layout.StateNode(1, 1, (1,), 2)
    assert state.version == again.partitions[0].state_version


def test_a_topic_created_again_has_another_id(node):
    first = create(node, "orders")
    node.wait(lambda done: node.topics.delete_topic("orders", 1000, done))
    assert node.deltas[-1].deleted == ("orders",)
    assert node.get("/brokers/topics/orders") is None
    assert node.get("/config/topics/orders") is None
    assert node.cluster.image.topic_by_id(first.topic_id) is None
    assert create(node, "orders").topic_id != first.topic_id


def test_a_decided_deletion_is_completed_after_a_crash(node):
    create(node, "orders", 3)
    node.submit(Op("create", "/admin/delete_topics/orders"))
    node.submit(Op("create", "/admin/delete_topics/never-was"))
    node.restart()
    assert node.cluster.image.topics == {}
    assert node.get("/brokers/topics/orders") is None
    assert node.get("/admin/delete_topics/orders") is None
    assert node.get("/admin/delete_topics/never-was") is None


def test_an_interrupted_creation_is_completed_after_a_crash(node):
    content = b'{"partitions":{"0":[1],"1":[1]},"topic_id":"1dE9OyK0TFqR6DhmcZuRCg","version":3}'
    node.submit(Op("create", "/brokers/topics/half", content))
    node.restart()
    assert len(node.cluster.image.topic_by_name("half").partitions) == 2
    assert node.get("/brokers/topics/half/partitions/1/state") is not None
    create(node, "other")
    node.restart()
    assert sorted(node.cluster.image.topics) == ["half", "other"]


def test_a_topic_without_an_id_gets_one(node):
    node.submit(Op("create", "/brokers/topics/old", b'{"version":1,"partitions":{"0":[1]}}'))
    node.restart()
    topic_id = node.cluster.image.topic_by_name("old").topic_id
    assert topic_id != bytes(16)
    node.restart()
    assert node.cluster.image.topic_by_name("old").topic_id == topic_id


def test_a_partition_of_dead_brokers_has_no_leader_and_keeps_its_isr(node):
    node.submit(
        Op("create", "/brokers/topics/far", b'{"version":1,"partitions":{"0":[2,3],"1":[2,1]}}'),
        Op("create", "/brokers/topics/far/partitions"),
        Op("create", "/brokers/topics/far/partitions/0"),
        Op("create", "/brokers/topics/far/partitions/0/state", b'{"leader":2,"leader_epoch":4,"isr":[2,3]}'),
        Op("create", "/brokers/topics/far/partitions/1"),
        Op("create", "/brokers/topics/far/partitions/1/state", b'{"leader":2,"leader_epoch":4,"isr":[2]}'),
    )
    node.restart()
    first, second = node.cluster.image.topic_by_name("far").partitions
    assert (first.leader, first.leader_epoch, first.isr) == (-1, 5, (2, 3))
    assert (second.leader, second.isr) == (-1, (2,)), "a replica out of sync may not lead"
    node.submit(Op("create", "/config/topics/far", b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}'))
    node.restart()
    first, second = node.cluster.image.topic_by_name("far").partitions
    assert first.leader_epoch == 5
    assert (second.leader, second.leader_epoch, second.isr) == (1, 6, (1,))


def test_an_invalid_topic_node_is_logged_and_ignored(node, caplog):
    create(node, "fine")
    node.submit(Op("create", "/brokers/topics/broken", b"{"))
    node.restart()
    assert node.broker.ready
    assert list(node.cluster.image.topics) == ["fine"]
    assert "/brokers/topics/broken is not JSON" in caplog.text
    assert node.get("/brokers/topics/broken").data == b"{"


def test_an_invalid_cluster_id_refuses_the_start_with_its_path(node):
    node.submit(Op("put", "/cluster/id", b"{"))
    node.restart()
    assert not node.broker.ready
    assert "the metadata store is damaged: /cluster/id is not JSON" in node.broker.failed.message


@pytest.mark.parametrize("path", ["/config/brokers/1", "/config/brokers/<default>", "/config/topics/orders"])
def test_unreadable_settings_allow_a_start_and_keep_all_records(node, path, caplog):
    """With the defaults instead of them, retention could delete records too early."""
    create(node, "orders", retention_ms="-1")
    node.submit(Op("create" if node.get(path) is None else "put", path, b"{"))
    node.restart()
    assert node.broker.ready
    assert f"{path} is not JSON" in caplog.text
    config = node.cluster.topic_config("orders")
    assert config.cleanup_policy == () or config.retention_ms == -1


def test_an_invalid_setting_does_not_prevent_a_topic_from_loading(node, caplog):
    create(node, "orders", retention_ms="5")
    content = b'{"version":1,"config":{"retention.ms":"soon","color":"red","segment.bytes":"1000"}}'
    node.submit(Op("put", "/config/topics/orders", content))
    node.restart()
    config = node.cluster.topic_config("orders")
    assert (config.retention_ms, config.segment_bytes) == (604_800_000, 1000)
    assert config.cleanup_policy == (), "how long records are to stay cannot be read, so all do"
    assert "color" in caplog.text


@pytest.mark.slow
def test_a_topic_of_ten_thousand_partitions_is_created_in_steps_and_loaded(make_node):
    node = make_node({"log.index.size.max.bytes": "1024"})  # the simulated disk stores files at their full size
    topic = node.wait(lambda done: node.topics.create_topic(TopicSpec("wide", 10_000, 1), False, 10_000, done))
    assert len(topic.partitions) == 10_000
    node.restart()
    assert [p.leader_epoch for p in node.cluster.image.topic_by_name("wide").partitions] == [1] * 10_000
    node.wait(lambda done: node.topics.delete_topic("wide", 1000, done))
    assert node.get("/brokers/topics/wide") is None


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (TopicSpec(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("a/../b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("ümlaut"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("line\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (TopicSpec("a.b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicSpec("t", 0), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", -2), ErrorCode.INVALID_PARTITIONS),
        (TopicSpec("t", 10_000_000), ErrorCode.POLICY_VIOLATION),
        (TopicSpec("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, 32767), ErrorCode.INVALID_REPLICATION_FACTOR),
        (TopicSpec("t", 1, -1, {0: (1,)}), ErrorCode.INVALID_REQUEST),
        (TopicSpec("t", assignments={1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", assignments={0: (1,), 2: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", assignments={0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", assignments={0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", assignments={0: (2,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (TopicSpec("t", configs={"color": "red"}), ErrorCode.INVALID_CONFIG),
        (TopicSpec("t", configs={"retention.ms": "file:///etc/passwd"}), ErrorCode.INVALID_CONFIG),
    ],
)
def test_an_invalid_topic_is_refused_with_the_reason(node, spec, code):
    create(node, "there")
    create(node, "a_b")
    assert refused(node, spec) is code
    assert refused(node, spec, validate_only=True) is code
    assert sorted(node.cluster.image.topics) == ["a_b", "there"]
    assert node.get("/brokers/topics/t") is None


def test_validate_only_creates_nothing(node):
    made = node.wait(lambda done: node.topics.create_topic(TopicSpec("t", assignments={0: (1,)}), True, 1000, done))
    assert made.partitions[0].replicas == (1,)
    assert node.cluster.image.topics == {}
    assert node.get("/brokers/topics/t") is None


def test_valid_names_are_accepted():
    for name in ("a", "A.b_c-9", "x" * 249, "__consumer_offsets", "..."):
        check_name(name)
    check_collision("ab", ["a.b"])


@pytest.mark.parametrize("others", [2, 100], ids=["compared", "looked up"])
def test_names_that_differ_in_dots_and_underscores_only_collide(others):
    there = {"a.b_c": None, **{f"other-{each}": None for each in range(others)}}
    check_collision("a.b_c", there)
    check_collision("a.b.d", there)
    check_collision("a.bc", there)
    for name in ("a.b.c", "a_b_c", "a_b.c"):
        with pytest.raises(ApiError):
            check_collision(name, there)
    long = "_".join("x" * 100)
    check_collision(long, there)
    with pytest.raises(ApiError):
        check_collision(long, {**there, long.replace("_", "."): None})


def test_concurrent_creations_share_or_conflict(node):
    told = []
    node.topics.find_or_create(TopicSpec("t"), told.append)
    node.topics.find_or_create(TopicSpec("t"), told.append)
    node.topics.create_topic(TopicSpec("t"), False, 1000, told.append)
    node.topics.create_topic(TopicSpec("t_x"), False, 1000, told.append)
    node.topics.create_topic(TopicSpec("t.x"), False, 1000, told.append)
    node.settle()
    by_kind = [outcome.code if isinstance(outcome, ApiError) else outcome.name for outcome in told]
    assert sorted(map(str, by_kind)) == sorted(
        map(str, ["t", "t", "t_x", ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_TOPIC_EXCEPTION])
    )


def test_a_full_disk_refuses_a_topic_and_accepts_it_later(node):
    node.drive.capacity = node.drive.used_bytes() + 20
    assert refused(node, TopicSpec("t")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.cluster.image.topics == {}
    node.drive.capacity = 1 << 40
    create(node, "t")


def test_a_deletion_that_a_full_disk_interrupted_does_not_block_the_name(node):
    """Found by the simulator: the mark was written, the nodes stayed, and the name was blocked until the next start."""
    create(node, "t")
    first = node.cluster.image.topic_by_name("t").topic_id
    outcomes = []
    for room in range(20, 400, 20):
        node.drive.capacity = node.drive.used_bytes() + room
        node.topics.delete_topic("t", 1000, outcomes.append)
        node.settle()
        if "t" not in node.cluster.image.topics:
            break
    assert isinstance(outcomes[-1], ApiError), "the disk was full before the deletion was through"
    node.drive.capacity = 1 << 40
    node.settle()
    create(node, "t")
    assert node.cluster.image.topic_by_name("t").topic_id != first


def test_a_failing_disk_fails_creations_with_an_error(node):
    node.faults.arm_error(DiskOperation.SYNC)
    assert refused(node, TopicSpec("t")).retriable
    assert refused(node, TopicSpec("u")) is ErrorCode.KAFKA_STORAGE_ERROR


def test_partitions_are_added_at_the_end(node):
    create(node, "t", 2)
    grown = node.wait(lambda done: node.topics.add_partitions("t", 5, None, False, 1000, done))
    assert len(grown.partitions) == 5
    node.restart()
    assert [p.leader_epoch for p in node.cluster.image.topic_by_name("t").partitions] == [1] * 5


@pytest.mark.parametrize(
    ("count", "given", "code"),
    [
        (2, None, ErrorCode.INVALID_PARTITIONS),
        (1, None, ErrorCode.INVALID_PARTITIONS),
        (-5, None, ErrorCode.INVALID_PARTITIONS),
        (10_000_000, None, ErrorCode.POLICY_VIOLATION),
        (3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[1], [1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[7]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (3, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_invalid_growth_is_refused(node, count, given, code):
    create(node, "t", 2)
    with pytest.raises(ApiError) as error:
        node.wait(lambda done: node.topics.add_partitions("t", count, given, False, 1000, done))
    assert error.value.code is code
    assert len(node.cluster.image.topic_by_name("t").partitions) == 2


def test_internal_topics_of_a_broker_that_is_alone_have_one_replica(node, caplog):
    offsets = node.wait(lambda done: node.topics.find_internal_topic("__consumer_offsets", done))
    assert len(offsets.partitions) == 50
    assert offsets.is_internal
    assert dict(offsets.overrides) == {
        "compression.type": "producer",
        "cleanup.policy": "compact",
        "segment.bytes": "104857600",
    }
    transactions = node.wait(lambda done: node.topics.find_internal_topic("__transaction_state", done))
    assert transactions.config.min_insync_replicas == 1
    assert caplog.text.count("internal topics get one replica") == 1


def test_broker_settings_apply_to_topics_without_their_own(node):
    create(node, "own", retention_ms="7")
    create(node, "follows")
    node.wait(lambda done: node.alterations.alter_broker(False, lambda _: {"log.retention.ms": "9"}, False, done))
    assert node.cluster.topic_config("own").retention_ms == 7
    assert node.cluster.topic_config("follows").retention_ms == 9
    assert node.deltas[-1].configured == ("follows",)
    node.wait(lambda done: node.alterations.alter_broker(True, lambda _: {"log.retention.ms": "10"}, False, done))
    assert node.cluster.topic_config("follows").retention_ms == 10
    node.restart()
    assert node.cluster.topic_config("follows").retention_ms == 10
    assert node.cluster.config.log_retention_ms == 10


def test_producer_ids_never_repeat(node):
    def take(count):
        told = []
        for _ in range(count):
            node.turn(lambda: node.broker._metadata.producer_ids.take_producer_id(told.append))
        node.settle()
        return told

    first = take(1500)
    assert sorted(first) == list(range(1500))
    assert json.loads(node.get("/latest_producer_id_block").data)["block_start"] == "1000"
    node.restart()
    assert take(1) == [2000]
    node.submit(Op("put", "/latest_producer_id_block", layout.encode_block(layout.BlockNode(9, 70_000, 70_999))))
    rest = take(1000)
    assert rest == [*range(2001, 3000), 71_000]


@pytest.mark.parametrize(
    ("text", "value"), [("", 0), ("a", 97), ("group", 98629247), ("polygenelubricants", -(2**31)), ("😀", 1772899)]
)
def test_java_hash_equals_javas(text, value):
    assert java_hash(text) == value


def test_a_hash_without_absolute_value_maps_to_partition_0():
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("group", 50) == 98629247 % 50


def test_a_tree_that_kafka_wrote_is_loaded(node):
    tree = Path(__file__).parent.parent / "data" / "golden" / "kafka-3.9.1-zookeeper" / "zookeeper-3-brokers.json.gz"
    nodes = json.loads(gzip.decompress(tree.read_bytes()))
    for path in sorted(nodes):
        if nodes[path]["ephemeral"] or path.startswith(("/zookeeper", "/brokers/ids/")) or path == "/":
            continue
        data = (nodes[path]["data"] or "").encode()
        node.submit(Op("create" if node.get(path) is None else "put", path, data))
    own = node.cluster.image.cluster_id
    meta = node.read("meta.properties").decode()
    node.disk.replace_now("meta.properties", meta.replace(own, "SQeDT1W4SG29gSeKPGtjKA").encode())
    node.restart()
    assert node.broker.ready
    image = node.cluster.image
    assert image.cluster_id == "SQeDT1W4SG29gSeKPGtjKA"
    assert node.broker._fence.controller_epoch == 2
    assert len(image.topics) == 7
    orders = image.topic_by_name("orders")
    assert orders.config.cleanup_policy == ("compact", "delete")
    assert [p.leader for p in orders.partitions] == [1] * 6
    pinned = image.topic_by_name("pinned").partitions
    assert [(p.leader, p.leader_epoch, p.isr) for p in pinned] == [(1, 1, (1,)), (-1, 1, (2, 3)), (1, 1, (1,))]
    moves = node.wait(lambda done: node.topics.controller.list_reassignments(None, done))
    moving = moves[TopicPartition("moving", 0)]
    assert (moving.adding, moving.removing) == ((2, 3), (1,))
    assert node.cluster.config.log_cleaner_threads == 2
    assert node.cluster.topic_config("pinned").retention_ms == 500_000_000


def test_many_removed_topics_are_one_change_of_the_image(node):
    for number in range(5):
        create(node, f"t{number}")
    told, before = [], node.cluster.image
    node.cluster._on_change = told.append
    node.cluster.retain_topics(["t3"], before)
    after = node.cluster.image
    assert [delta.deleted for delta in told] == [("t0", "t1", "t2", "t4")]
    assert (after.epoch, list(after.topics)) == (before.epoch + 1, ["t3"])
    assert after.names_by_id == {after.topics["t3"].topic_id: "t3"}
    node.cluster.retain_topics(["t3"], after)
    assert node.cluster.image is after


def test_a_topic_that_came_while_the_names_were_read_stays(node):
    create(node, "t0")
    create(node, "t1")
    before = node.cluster.image
    create(node, "t2")
    node.cluster.retain_topics(["t0"], before)
    assert list(node.cluster.image.topics) == ["t0", "t2"]
    node.cluster.retain_topics(["t0"], before)  # t1 was deleted meanwhile
    assert list(node.cluster.image.topics) == ["t0", "t2"]
