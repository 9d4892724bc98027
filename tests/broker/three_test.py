"""Three whole brokers on one timeline: elections, ISR, truncation, and what clients see of them.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handcluster import HandCluster

from ottla.cluster.cluster import DOUBT_MS, LINGER_MS
from ottla.errors import ErrorCode
from ottla.sim.machines.machine import Death
from ottla.sim.mutants.ablation import without_safeguard
from ottla.sim.world import MS, US
from ottla.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
)

Asked = MetadataRequest.MetadataRequestTopic
New = CreateTopicsRequest.CreatableTopic

pytestmark = pytest.mark.slow


@pytest.fixture
def three():
    return HandCluster({"min.insync.replicas": "2", "replica.lag.time.max.ms": "3000"})


def produce(member, name, *values, acks=-1):
    answer = member.produce(name, *values, acks=acks)
    assert answer.error_code == 0, ErrorCode(answer.error_code).name
    return answer.base_offset


def alter(member, kind, name, key, value):
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[change]
    )
    answer = member.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


def test_each_exporter_metric_comes_from_one_broker(three) -> None:
    three.create("t", (1, 2, 3), (2, 3, 1))
    produce(three[1], "t", b"a")
    three.pass_ms(1000)

    def told(name: str) -> list[tuple[int, dict[str, str], float]]:
        members = [three[at] for at in (1, 2, 3) if three[at].up]
        return [
            (member.node_id, dict(row.labels), row.value)
            for member in members
            for metric in member.broker.metrics
            if metric.name == name
            for row in metric.samples()
            if row.labels.get("topic", "t") == "t"
        ]

    first, second = {"topic": "t", "partition": "0"}, {"topic": "t", "partition": "1"}
    prefix = "kafka_topic_partition_"
    assert told(f"{prefix}current_offset") == [(1, first, 1), (2, second, 0)]
    assert told(f"{prefix}in_sync_replica") == [(1, first, 3), (2, second, 3)]
    assert told(f"{prefix}leader_is_preferred") == [(1, first, 1), (2, second, 1)]
    ((controller, _, count),) = told("kafka_brokers")
    assert count == 3
    assert told("kafka_topic_partitions") == [(controller, {"topic": "t"}, 2)]
    assert len(told("kafka_broker_info")) == 3
    three[2].kill()
    three.leader("t", other_than=2)
    three.pass_ms(10_000)
    rows = {labels["partition"]: (node, value) for node, labels, value in told(f"{prefix}under_replicated_partition")}
    assert rows == {"0": (1, 1), "1": (3, 1)}
    assert [value for _, labels, value in told(f"{prefix}leader_is_preferred") if labels == second] == [0]


def test_a_new_leader_has_acknowledged_records_and_the_old_one_follows(three) -> None:
    three.create("t", (1, 2, 3))
    assert three.leader("t").node_id == 1
    assert produce(three[1], "t", b"a", b"b") == 0
    assert produce(three[1], "t", b"c") == 2
    assert three[1].values("t") == [b"a", b"b", b"c"]
    three[1].kill()
    leader = three.leader("t", other_than=1)
    assert leader.node_id == 2, "the first replica in assignment order that is alive and in sync"
    three.in_sync("t", 2, 3)
    assert leader.values("t") == [b"a", b"b", b"c"], "nothing that was acknowledged is lost"
    assert produce(leader, "t", b"d") == 3
    three[1].start()
    three.in_sync("t", 1, 2, 3)
    assert three.leader("t") is leader, "a returning broker does not cause an election"
    three.pass_ms(1000)
    assert three[1].log_bytes("t") == three[2].log_bytes("t") == three[3].log_bytes("t") != b""


def test_an_old_leader_truncates_records_that_only_it_has(three) -> None:
    three.create("t", (1, 2, 3))
    produce(three[1], "t", b"a")
    three.pass_ms(1000)
    for other in (2, 3):
        three[other].network.cut.add(1)
        three[1].network.cut.add(other)
    assert three[1].produce("t", b"lost", acks=1).error_code == 0
    three[1].kill()
    for other in (2, 3):
        three[other].network.cut.clear()
    leader = three.leader("t", other_than=1)
    assert produce(leader, "t", b"kept") == 1
    three[1].start()
    three.in_sync("t", 1, 2, 3)
    three.pass_ms(1000)
    assert leader.values("t") == [b"a", b"kept"]
    assert three[1].log_bytes("t") == three[2].log_bytes("t") == three[3].log_bytes("t")


def test_the_controller_dies_with_a_leader(three) -> None:
    number = three.controller.node_id
    others = tuple(each for each in (1, 2, 3) if each != number)
    three.create("t", (number, *others))
    produce(three[number], "t", b"a")
    three[number].kill(Death.POWER_LOSS)
    leader = three.leader("t", other_than=number)
    three.in_sync("t", *others)
    assert produce(leader, "t", b"b") == 1
    assert three.controller.node_id != number
    three[number].start()
    three.in_sync("t", 1, 2, 3)
    assert leader.values("t") == [b"a", b"b"]


def test_a_stop_hands_leaderships_over_and_no_client_meets_an_error(three) -> None:
    three.create("t", (1, 2, 3), (2, 3, 1))
    produce(three[1], "t", b"a")
    three.create("alone", (1,), min_insync_replicas="1")
    told = three[1].begin_stop()
    new = three.leader("t", other_than=1)
    assert new.node_id == 2
    assert produce(new, "t", b"b") == 1, "while the old leader still stops"
    three.until(lambda: bool(told), "the broker stops")
    assert told == [None]
    three[1].end()
    three.in_sync("t", 2, 3)
    three[1].start()
    three.in_sync("t", 1, 2, 3)
    assert three[1].partition("alone").is_leader


def test_the_controller_stops_and_another_one_takes_its_place(three) -> None:
    number = three.controller.node_id
    others = tuple(each for each in (1, 2, 3) if each != number)
    three.create("t", (number, *others))
    produce(three[number], "t", b"a")
    assert three[number].stop() == [None]
    assert three.controller.node_id in others
    leader = three.leader("t")
    three.in_sync("t", *others)
    assert produce(leader, "t", b"b") == 1


def test_only_the_controller_creates_topics_and_all_brokers_know_them(three) -> None:
    three.create("t", (1, 2, 3))
    for member in three:
        three.until(lambda member=member: "t" in member.broker.cluster.image.topics, "the image shows the topic")
        (topic,) = member.ask(MetadataRequest(topics=[Asked(name="t")]), 12).topics
        assert topic.partitions[0].leader_id == 1
    other = next(member for member in three if not member.is_controller)
    request = CreateTopicsRequest(topics=[New(name="u", num_partitions=1, replication_factor=1)], timeout_ms=1000)
    assert other.ask(request, 5).topics[0].error_code == ErrorCode.NOT_CONTROLLER
    metadata = other.ask(MetadataRequest(topics=[]), 12)
    assert metadata.controller_id == three.controller.node_id
    assert sorted((broker.node_id, broker.host) for broker in metadata.brokers) == [
        (1, "host1"),
        (2, "host2"),
        (3, "host3"),
    ]


def test_any_broker_brings_a_missing_topic_to_life_by_asking_the_controller(three) -> None:
    other = next(member for member in three if not member.is_controller)
    request = MetadataRequest(topics=[Asked(name="auto")], allow_auto_topic_creation=True)
    (topic,) = other.ask(request, 12).topics
    assert topic.error_code == 0
    assert len(topic.partitions) == 1
    found = other.ask(FindCoordinatorRequest(key="group"), 2)
    assert found.error_code == 0
    assert len(other.broker.cluster.image.topics["__consumer_offsets"].partitions[0].replicas) == 3


def test_settings_changed_at_one_broker_are_in_force_at_all(three) -> None:
    three.create("t", (1, 2, 3))
    alter(three[2], 2, "t", "retention.ms", "12345")
    alter(three[3], 4, "", "log.retention.bytes", "54321")
    three.until(lambda: all(m.partition("t").config.retention_ms == 12345 for m in three), "the topic is changed")
    three.until(lambda: all(m.partition("t").config.retention_bytes == 54321 for m in three), "the default is changed")
    three[1].kill()
    three[1].start()
    three.until(lambda: three[1].up, "it is back")
    assert three[1].broker.cluster.topic_config("t").retention_ms == 12345
    assert three[1].broker.cluster.topic_config("t").retention_bytes == 54321


def test_a_deleted_topic_goes_everywhere_and_its_name_is_free(three) -> None:
    three.create("t", (1, 2, 3))
    produce(three[1], "t", b"old")
    answer = three.controller.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 5)
    assert answer.responses[0].error_code == 0
    three.until(lambda: all("t" not in m.broker.cluster.image.topics for m in three), "nobody shows it")
    assert all(member.partition("t") is None for member in three)
    three.create("t", (3, 2, 1))
    assert three[3].values("t") == []
    assert produce(three[3], "t", b"new") == 0


def test_a_topic_is_deleted_while_a_replica_is_down_and_made_again(three) -> None:
    three.create("t", (1, 2, 3))
    produce(three[1], "t", b"old")
    number = next(each for each in (3, 2) if not three[each].is_controller)
    three[number].kill()
    three.in_sync("t", *(each for each in (1, 2, 3) if each != number))
    three.controller.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    three[number].start()
    three.until(lambda: all("t" not in m.broker.cluster.image.topics for m in three), "nobody shows it")
    three.until(lambda: three.ensemble.tree.get_node("/brokers/topics/t") is None, "its nodes are gone")
    three.create("t", (number, *(each for each in (1, 2, 3) if each != number)))
    produce(three[number], "t", b"new")
    assert three[number].values("t") == [b"new"]


def test_replicas_move_to_another_broker() -> None:
    four = HandCluster({"min.insync.replicas": "2"}, brokers=4)
    four.create("t", (1, 2, 3))
    for value in (b"a", b"b", b"c"):
        produce(four[1], "t", value)
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[4, 2, 3])
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name="t", partitions=[partition])
    answer = four.controller.ask(AlterPartitionReassignmentsRequest(topics=[topic], timeout_ms=5000), 0)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
    four.in_sync("t", 2, 3, 4)
    four.until(lambda: four[1].partition("t") is None, "the old replica is gone")
    listed = four.controller.ask(ListPartitionReassignmentsRequest(), 0)
    assert (listed.error_code, listed.topics) == (0, [])
    leader = four.leader("t")
    assert produce(leader, "t", b"d") == 3
    four.pass_ms(1000)
    assert four[4].log_bytes("t") == four[2].log_bytes("t") == four[3].log_bytes("t")
    elect = ElectLeadersRequest(
        election_type=0, topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])]
    )
    if leader.node_id != 4:
        answer = four.controller.ask(elect, 2)
        assert answer.replica_election_results[0].partition_result[0].error_code == 0
    four.until(lambda: four.leader("t").node_id == 4, "the preferred replica leads")


def metadata(member, name):
    """The place of the answer to a Metadata request that was just sent."""
    return member.send(MetadataRequest(topics=[Asked(name=name)]), 12)


def leader_in(member, place):
    """Error and leader of the one partition in the answer."""
    (topic,) = member.answer(place).topics
    return topic.partitions[0].error_code, topic.partitions[0].leader_id


def test_metadata_at_the_death_of_a_leader_names_the_next_one(three) -> None:
    three.create("t", (1, 2, 3))
    three.create("u", (2, 3, 1))
    three.in_sync("t", 1, 2, 3)
    three.pass_ms(1000)
    session = three[1].store.session_id
    three[1].kill()
    three.pass_ms(1)
    asked, other = metadata(three[2], "t"), metadata(three[2], "u")
    assert not asked.answered, "the controller does not know yet, but this broker has lost its leader"
    assert other.answered, "what has nothing to do with the dead broker does not wait"
    three.ensemble.end_session(session)
    three.until(lambda: asked.answered, "the answer", limit_ms=100)
    assert leader_in(three[2], asked) == (0, 2)


def test_a_leader_that_has_fallen_silent_is_not_named_for_a_while(three) -> None:
    three.create("t", (1, 2, 3))
    three.in_sync("t", 1, 2, 3)
    three.pass_ms(1000)
    three[1].kill()
    three.pass_ms(1)
    asked = metadata(three[2], "t")
    three.pass_ms(90)
    assert not asked.answered
    three.pass_ms(20)
    assert leader_in(three[2], asked) == (ErrorCode.LEADER_NOT_AVAILABLE, -1), "so the client asks again soon"
    again = metadata(three[2], "t")
    new = three.leader("t", other_than=1).node_id
    three.until(lambda: metadata(three[2], "t").answered, "the new leader")
    assert leader_in(three[2], metadata(three[2], "t")) == (0, new)
    assert again.answered


def test_a_leader_that_answers_again_is_named_again(three) -> None:
    three.create("t", (1, 2, 3))
    three.in_sync("t", 1, 2, 3)
    three.pass_ms(1000)
    three[2].broker.cluster.on_broker_silent(1)
    asked = metadata(three[2], "t")
    assert not asked.answered
    three[2].process.post_turn(0, "answered", three[2].broker.cluster.on_broker_responding, 1)
    three.pass_ms(1)
    assert leader_in(three[2], asked) == (0, 1)


def test_a_leader_is_doubted_for_a_while_only(three) -> None:
    three.create("t", (1, 2, 3))
    three.in_sync("t", 1, 2, 3)
    three.pass_ms(1000)
    three[2].broker.cluster.on_broker_silent(1)
    three.pass_ms(DOUBT_MS + 10)
    asked = metadata(three[2], "t")
    assert asked.answered
    assert leader_in(three[2], asked) == (0, 1)


def test_metadata_names_a_dead_broker_for_a_short_time(three) -> None:
    def told(member) -> list[int]:
        return [broker.node_id for broker in member.answer(metadata(member, "t")).brokers]

    three.create("t", (1, 2, 3))
    three.in_sync("t", 1, 2, 3)
    three[1].kill()
    three.leader("t", other_than=1)
    three.until(lambda: 1 not in three[2].broker.cluster.image.brokers, "its death is known")
    assert told(three[2]) == [1, 2, 3]
    three.pass_ms(LINGER_MS + 10)
    assert told(three[2]) == [2, 3]
    three[1].start()
    three.until(lambda: told(three[2]) == [1, 2, 3], "it is back")


def test_a_broker_that_comes_back_with_another_disk_waits_for_one_that_has_the_records(three) -> None:
    """It is in sync as far as the store knows, and it is the first one there; what it has is nothing."""
    three.create("t", (1, 2, 3))
    produce(three[1], "t", b"a", b"b")
    for member in three.members.values():
        member.kill()
    three[2].replace_disk()
    three[2].start()
    three.pass_ms(5000)
    assert not three[2].partition("t").is_leader
    assert three[2].up
    three[3].start()
    leader = three.leader("t")
    assert leader is three[3]
    three.in_sync("t", 2, 3)
    assert leader.values("t") == [b"a", b"b"]
    three.pass_ms(1000)
    assert three[2].log_bytes("t") == three[3].log_bytes("t")


def test_a_new_disk_is_reported_as_new_until_the_controller_knows(three) -> None:
    three.create("t", (1, 2, 3))
    produce(three[1], "t", b"a")
    for member in three.members.values():
        member.kill()
    three.pass_ms(5000)
    three[2].replace_disk()
    three[2].start()
    while three.ensemble.tree.get_node("/brokers/ids/2") is None:
        three.timeline.run_until(three.timeline.now_ns + US)
    three[2].kill()
    three[2].start()
    three.pass_ms(10_000)
    assert not three[2].partition("t").is_leader
    three[1].start()
    three.in_sync("t", 1, 2)
    assert three[1].values("t") == [b"a"]


def test_the_last_one_in_sync_leads_even_with_another_disk(three) -> None:
    """No broker has the records any more: waiting would not bring them back."""
    three.create("t", (2,), min_insync_replicas="1")
    produce(three[2], "t", b"a")
    three[2].kill()
    three[2].replace_disk()
    three[2].start()
    assert three.leader("t") is three[2]
    assert three[2].values("t") == []


# -- a paused process -----------------------------------------------------------------------------------------------


def stand_still(three, ms: int, *members) -> None:
    for member in members:
        member.process.pause_until(three.timeline.now_ns + ms * MS)


def sent_while_paused(member, *values: bytes) -> list[object]:
    """acks=1 requests that lie in the socket of a process that is stopped; their places."""
    return [member.send(member.produce_request("t", value, acks=1), 9) for value in values]


def error_of(member, place) -> int:
    return member.answer(place).responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("missing", [None, "replication.standstill_steps_back"])
def test_a_leader_paused_longer_than_its_session_acknowledges_nothing(missing) -> None:
    three = HandCluster({"min.insync.replicas": "2", "replica.lag.time.max.ms": "3000"})
    three.create("t", (1, 2, 3))
    three.in_sync("t", 1, 2, 3)
    with without_safeguard(missing):
        stand_still(three, 5000, three[1])
        places = sent_while_paused(three[1], b"a", b"b")
        leader = three.leader("t", other_than=1)
        assert not any(place.answered for place in places), "it is paused"
        errors = [error_of(three[1], place) for place in places]
    if missing is not None:
        assert 0 in errors, "acknowledged, and lost"
        return
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    three.in_sync("t", 1, 2, 3)
    assert leader.values("t") == []


def test_when_all_were_paused_the_same_leader_leads_again(three) -> None:
    three.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    for index in range(3):
        three.in_sync("t", 1, 2, 3, index=index)
    produce(three[1], "t", b"a")
    stand_still(three, 5000, *three)
    three.pass_ms(5100)
    for index in range(3):
        three.in_sync("t", 1, 2, 3, index=index)
    assert produce(three.leader("t"), "t", b"b") == 1


def test_a_short_pause_changes_nothing(three) -> None:
    three.create("t", (1, 2, 3))
    three.in_sync("t", 1, 2, 3)
    epoch = three[1].partition("t").leader_epoch
    stand_still(three, 900, three[1])
    places = sent_while_paused(three[1], b"a")
    assert error_of(three[1], places[0]) == 0
    assert (three.leader("t").node_id, three[1].partition("t").leader_epoch) == (1, epoch)
