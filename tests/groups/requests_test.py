"""Groups over the wire, on one simulated broker: every version of every request, and invalid requests."""

from __future__ import annotations

from typing import Any

import pytest
from tests.handnode import Asker, Node, Place

from ottla.errors import ErrorCode
from ottla.seams import Gate
from ottla.wire.messages import (
    CreatePartitionsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4"}


class Hall:
    """A broker with groups."""

    def __init__(self, **settings: str) -> None:
        self.node = Node(SETTINGS | {key.replace("_", "."): value for key, value in settings.items()})
        self.node.create("t", 2)
        self.ask(FindCoordinatorRequest(key="g"), 0)

    def ask(self, request: object, version: int) -> Any:
        return self.node.ask(request, version)

    def send(self, request: object, version: int) -> Place:
        """Send a request that may wait, on a connection of its own."""
        return self.node.send(request, version, Asker())

    def join(self, version: int = 9, member: str = "", **more: Any) -> Place:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        fields = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": [protocol(name="range", metadata=b"m")],
        }
        if version >= 1:
            fields["rebalance_timeout_ms"] = 60_000
        return self.send(JoinGroupRequest(**(fields | more)), version)

    def joined(self, version: int = 9, **more: Any) -> Any:
        """The response to a successful join; it joins twice where the version demands it."""
        answer = self.node.answer(self.join(version, **more))
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = self.node.answer(self.join(version, answer.member_id, **more))
        assert answer.error_code == 0, answer
        return answer

    def synced(self, member: str, generation: int = 1, version: int = 5, **more: Any) -> Any:
        share = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"share")
        fields = {"group_id": "g", "generation_id": generation, "member_id": member, "assignments": [share]}
        return self.ask(SyncGroupRequest(**(fields | more)), version)

    def commit(self, offset: int, version: int = 9, topic: str = "t", partition: int = 0, **more: Any) -> int:
        part = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=more.pop("metadata", "m")
        )
        part.commit_timestamp = more.pop("commit_timestamp", -1)
        name = OffsetCommitRequest.OffsetCommitRequestTopic(partitions=[part])
        if version >= 10:
            name.topic_id = more.pop("topic_id", None) or self.node.topic_id(topic)
        else:
            name.name = topic
        answer = self.ask(OffsetCommitRequest(**({"group_id": "g", "topics": [name]} | more)), version)
        return answer.topics[0].partitions[0].error_code

    def fetch(self, version: int = 9, group: str = "g") -> Any:
        """The one partition t-0."""
        if version >= 8:
            topic = OffsetFetchRequest.OffsetFetchRequestTopics(partition_indexes=[0])
            if version >= 10:
                topic.topic_id = self.node.topic_id("t")
            else:
                topic.name = "t"
            row = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[topic])
            found = self.ask(OffsetFetchRequest(groups=[row]), version).groups[0]
            return found.topics[0].partitions[0] if found.topics else found
        old = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        answer = self.ask(OffsetFetchRequest(group_id=group, topics=[old]), version)
        return answer.topics[0].partitions[0] if answer.topics else answer


@pytest.fixture
def hall() -> Hall:
    return Hall()


# -- every version -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_join_in_every_version(version: int):
    hall = Hall()
    first = hall.node.answer(hall.join(version))
    if version >= 4:
        assert (first.error_code, first.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
        first = hall.node.answer(hall.join(version, first.member_id))
    assert (first.error_code, first.generation_id, first.protocol_name) == (0, 1, "range")
    assert first.protocol_type == ("consumer" if version >= 7 else None)
    assert first.member_id == first.leader
    assert first.member_id.startswith("hand-")
    assert [(each.member_id, bytes(each.metadata)) for each in first.members] == [(first.member_id, b"m")]
    assert not first.skip_assignment


@pytest.mark.parametrize("version", range(6))
def test_sync_in_every_version(version: int):
    hall = Hall()
    member = hall.joined().member_id
    more = {"protocol_type": "consumer", "protocol_name": "range"} if version == 5 else {}
    answer = hall.synced(member, version=version, **more)
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"share")
    assert answer.protocol_name == ("range" if version == 5 else None)


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_in_every_version(version: int):
    hall = Hall()
    member = hall.joined().member_id
    hall.synced(member)
    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
    assert hall.ask(beat, version).error_code == 0
    beat.generation_id = 9
    assert hall.ask(beat, version).error_code == ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("version", range(6))
def test_leave_in_every_version(version: int):
    hall = Hall()
    member = hall.joined().member_id
    identity = LeaveGroupRequest.MemberIdentity(member_id=member)
    request = LeaveGroupRequest(group_id="g", **({"members": [identity]} if version >= 3 else {"member_id": member}))
    answer = hall.ask(request, version)
    assert answer.error_code == 0
    assert [each.error_code for each in answer.members] == ([0] if version >= 3 else [])
    again = hall.ask(request, version)
    code = again.members[0].error_code if version >= 3 else again.error_code
    assert code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(11))
def test_offsets_in_every_version(version: int):
    hall = Hall()
    more = {"committed_leader_epoch": 0} if version >= 6 else {}
    assert hall.commit(7, version) == 0, more
    for fetch_version in range(11):
        found = hall.fetch(fetch_version)
        assert (found.committed_offset, found.metadata, found.error_code) == (7, "m", 0)
    assert hall.fetch(version, "nobody").committed_offset == -1


def test_a_commit_with_a_retention_time_of_its_own():
    hall = Hall(offsets_retention_check_interval_ms="60000")
    assert hall.commit(7, 3, retention_time_ms=90_000) == 0
    assert hall.commit(8, 2, partition=1, retention_time_ms=-1) == 0
    hall.node.pass_ms(60_000)
    assert hall.fetch().committed_offset == 7
    hall.node.pass_ms(70_000)
    assert hall.fetch().committed_offset == -1


@pytest.mark.parametrize("version", range(2, 11))
def test_all_offsets_of_a_group(version: int):
    hall = Hall()
    hall.commit(7)
    hall.commit(8, partition=1)
    request = OffsetFetchRequest(group_id="g", topics=None)
    if version >= 8:
        row = OffsetFetchRequest.OffsetFetchRequestGroup
        request = OffsetFetchRequest(groups=[row(group_id="g", topics=None), row(group_id="x", topics=None)])
    answer = hall.ask(request, version)
    topics = answer.groups[0].topics if version >= 8 else answer.topics
    assert [[part.committed_offset for part in topic.partitions] for topic in topics] == [[7, 8]]
    assert version < 8 or [group.group_id for group in answer.groups] == ["g", "x"]
    assert version < 10 or topics[0].topic_id == hall.node.topic_id("t")


def test_topics_named_by_id(hall: Hall):
    """KIP-848: the id of a deleted topic is unknown, also when a new topic has its name."""
    old = hall.node.topic_id("t")
    assert hall.commit(7, 10) == 0
    assert hall.commit(7, 10, partition=2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hall.commit(7, 10, topic_id=bytes(16)) == ErrorCode.UNKNOWN_TOPIC_ID
    hall.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    hall.node.pass_ms(1000)
    hall.node.create("t", 2)
    assert hall.commit(8, 10, topic_id=old) == ErrorCode.UNKNOWN_TOPIC_ID
    assert hall.commit(9, 10) == 0
    topic = OffsetFetchRequest.OffsetFetchRequestTopics
    ids = [old, hall.node.topic_id("t"), b"x" * 16]
    row = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id="g", topics=[topic(topic_id=each, partition_indexes=[0, 1]) for each in ids]
    )
    answer = hall.ask(OffsetFetchRequest(groups=[row]), 10).groups[0]
    found = {
        each.topic_id: [(part.committed_offset, part.error_code) for part in each.partitions] for each in answer.topics
    }
    unknown = [(-1, ErrorCode.UNKNOWN_TOPIC_ID)] * 2
    assert found == {old: unknown, ids[1]: [(9, 0), (-1, 0)], ids[2]: unknown}


@pytest.mark.parametrize("version", range(6))
def test_an_empty_group_id_is_an_error_of_the_whole_request(hall: Hall, version: int):
    identity = LeaveGroupRequest.MemberIdentity
    members = [identity(member_id="a"), identity(member_id="b")] if version >= 3 else []
    left = hall.ask(LeaveGroupRequest(group_id="", member_id="a" if version < 3 else "", members=members), version)
    assert (left.error_code, left.members) == (ErrorCode.INVALID_GROUP_ID, [])
    part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
    topics = [OffsetDeleteRequest.OffsetDeleteRequestTopic(name="t", partitions=[part])]
    deleted = hall.ask(OffsetDeleteRequest(group_id="", topics=topics), 0)
    assert (deleted.error_code, deleted.topics) == (ErrorCode.INVALID_GROUP_ID, [])


def test_an_unknown_group_is_an_error_that_the_version_knows(hall: Hall):
    member = {"generation_id_or_member_epoch": 1, "member_id": "m", "group_id": "nobody's"}
    assert hall.commit(1, 8, **member) == ErrorCode.ILLEGAL_GENERATION
    for version in (9, 10):
        assert hall.commit(1, version, **member) == ErrorCode.GROUP_ID_NOT_FOUND


def test_views_in_every_version():
    hall = Hall()
    member = hall.joined().member_id
    hall.synced(member)
    hall.commit(1, group_id="simple")
    for version in range(6):
        found = hall.ask(ListGroupsRequest(), version)
        assert found.error_code == 0
        rows = {each.group_id: each for each in found.groups}
        assert [rows["g"].protocol_type, rows["simple"].protocol_type] == ["consumer", ""]
        assert rows["g"].group_state == ("Stable" if version >= 4 else "")
        assert rows["g"].group_type == ("classic" if version >= 5 else "")
    for version in range(7):
        asked = version >= 3
        request = DescribeGroupsRequest(groups=["g", "nobody", "g"], include_authorized_operations=asked)
        group, nobody = hall.ask(request, version).groups
        assert (group.group_state, group.protocol_data, len(group.members)) == ("Stable", "range", 1)
        assert (bytes(group.members[0].member_assignment), group.members[0].client_host) == (b"share", "/127.0.0.1")
        assert group.authorized_operations == (0b1101_0100_1000 if asked else -(2**31))
        assert nobody.group_state == "Dead"
        assert nobody.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    for version in range(4):
        results = hall.ask(DeleteGroupsRequest(groups_names=["g", "nobody"]), version).results
        assert [each.error_code for each in results] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]


@pytest.mark.parametrize(
    ("states", "types", "names"),
    [
        (["stable"], [], ["g"]),
        (["Empty", "Dead"], [], ["simple"]),
        ([], ["Classic"], ["g", "simple"]),
        ([], ["share"], []),
        (["nonsense"], [], []),
    ],
)
def test_lists_are_filtered(hall: Hall, states: list[str], types: list[str], names: list[str]):
    hall.synced(hall.joined().member_id)
    hall.commit(1, group_id="simple")
    found = hall.ask(ListGroupsRequest(states_filter=states, types_filter=types), 5)
    assert sorted(each.group_id for each in found.groups) == names


def test_deleting_a_group(hall: Hall):
    hall.commit(5)
    assert hall.ask(DeleteGroupsRequest(groups_names=["g"]), 3).results[0].error_code == 0
    assert hall.fetch().committed_offset == -1
    hall.node.restart()
    assert hall.fetch().committed_offset == -1


def test_deleting_offsets(hall: Hall):
    def delete(topic: str, partition: int) -> Any:
        part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)
        row = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=[part])
        return hall.ask(OffsetDeleteRequest(group_id="g", topics=[row]), 0)

    assert delete("t", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    hall.commit(5)
    assert delete("t", 0).topics[0].partitions[0].error_code == 0
    assert delete("nope", 0).topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hall.fetch().committed_offset == -1


# -- invalid requests --------------------------------------------------------------------------------------------------


def test_commits_for_partitions_that_do_not_exist(hall: Hall):
    assert hall.commit(1, topic="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hall.commit(1, partition=2) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hall.commit(1, partition=-1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert hall.commit(1, metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert hall.ask(ListGroupsRequest(), 5).groups == []


def test_a_commit_larger_than_a_batch_goes_in_parts(hall: Hall):
    part = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=1, committed_metadata="x" * 4096)
    row = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part] * 300)
    answer = hall.ask(OffsetCommitRequest(group_id="g", topics=[row]), 9)
    assert {each.error_code for each in answer.topics[0].partitions} == {ErrorCode.NONE}
    assert hall.fetch().committed_offset == 1


def test_a_commit_too_large_for_a_batch(hall: Hall):
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2,
        resource_name="__consumer_offsets",
        configs=[IncrementalAlterConfigsRequest.AlterableConfig(name="max.message.bytes", value="300")],
    )
    hall.commit(1)
    assert hall.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0
    part = OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=2, committed_metadata="x" * 400)
    row = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[part])
    answer = hall.ask(OffsetCommitRequest(group_id="g", topics=[row]), 9)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    assert hall.fetch().committed_offset == 1


def test_an_assignment_too_large_for_a_batch(hall: Hall):
    member = hall.joined().member_id
    share = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=b"x" * 2_000_000)
    assert hall.synced(member, assignments=[share]).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert hall.synced(member).error_code == 0, "a smaller one is taken"


@pytest.mark.parametrize("name", ["x" * 32_767, "ünï–✓🎈", "a\nb", " ", "../../etc"])
def test_names_of_every_kind(hall: Hall, name: str):
    assert hall.commit(3, group_id=name) == 0
    assert hall.fetch(9, name).committed_offset == 3
    hall.node.restart()
    assert hall.fetch(9, name).committed_offset == 3


def test_member_ids_of_every_kind(hall: Hall):
    for member in ("x" * 32_767, "ü✓", " "):
        assert hall.node.answer(hall.join(member=member)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        beat = HeartbeatRequest(group_id="g", generation_id=-5, member_id=member, group_instance_id=member)
        assert hall.ask(beat, 4).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("timeout_ms", [-(2**31), -1, 0, 2**31 - 1])
def test_rebalance_timeouts_of_every_size(timeout_ms: int):
    hall = Hall()
    member = hall.joined(rebalance_timeout_ms=timeout_ms).member_id
    assert hall.synced(member).error_code == 0
    again = hall.join(member=member, rebalance_timeout_ms=timeout_ms)
    assert hall.node.answer(again).generation_id == 2


def test_no_client_writes_to_the_topic_of_groups(hall: Hall):
    answer = hall.node.produce("__consumer_offsets", b"x")
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_empty_group_id_is_accepted_only_where_kafka_accepts_it(hall: Hall):
    assert hall.commit(1, group_id="") == 0, "as in Kafka: old consumers did that"
    assert hall.fetch(9, "").committed_offset == 1
    assert hall.node.answer(hall.join(group_id="")).error_code == ErrorCode.INVALID_GROUP_ID


# -- the coordinator ---------------------------------------------------------------------------------------------------


def test_no_broker_coordinates_before_the_topic_exists():
    node = Node(SETTINGS)
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert node.ask(request, 4).error_code == ErrorCode.NOT_COORDINATOR
    assert node.ask(OffsetFetchRequest(group_id="g", topics=None), 7).error_code == ErrorCode.NOT_COORDINATOR
    row = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    old = node.ask(OffsetFetchRequest(group_id="g", topics=[row]), 1)
    assert old.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert node.ask(ListGroupsRequest(), 5).groups == []


def test_a_waiting_join_holds_up_its_own_connection_only(hall: Hall):
    member = hall.joined().member_id
    hall.synced(member)
    waiting = hall.join(version=3)
    assert not waiting.answered
    assert waiting.gate is Gate.WAIT
    assert hall.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id=member), 4).error_code == (
        ErrorCode.REBALANCE_IN_PROGRESS
    )
    hall.joined(member=member)
    assert waiting.answered


def test_a_restarted_broker_loads_its_groups(hall: Hall):
    member = hall.joined().member_id
    hall.synced(member)
    hall.commit(5, generation_id_or_member_epoch=1, member_id=member)
    hall.node.restart()
    assert hall.fetch().committed_offset == 5
    assert hall.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id=member), 4).error_code == 0
    assert bytes(hall.synced(member).assignment) == b"share"


def test_a_stopping_broker_answers_waiting_requests(hall: Hall):
    hall.synced(hall.joined().member_id)
    waiting = hall.join(version=3)
    hall.node.process.post_turn(0, "stop", hall.node.broker.stop_broker, lambda _: None)
    assert hall.node.answer(waiting).error_code == ErrorCode.NOT_COORDINATOR


def test_a_deleted_topic_loses_its_offsets(hall: Hall):
    hall.commit(5)
    hall.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    hall.node.pass_ms(1000)
    hall.node.create("t", 2)
    assert hall.fetch().committed_offset == -1


def test_limits_are_those_of_the_config():
    hall = Hall(group_max_size="1", group_min_session_timeout_ms="100")
    hall.synced(hall.joined(session_timeout_ms=200).member_id)
    assert hall.node.answer(hall.join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    hall.node.pass_ms(1000)
    assert hall.joined().generation_id == 3, "the first one has expired"


def test_groups_are_measured(hall: Hall):
    value = hall.node.broker.metrics.value_of
    prefix = "kafka_coordinator_group_groupmetadatamanager_"
    hall.node.produce("t", b"a", b"b", b"c")
    hall.synced(hall.joined().member_id)
    member = hall.ask(DescribeGroupsRequest(groups=["g"]), 5).groups[0].members[0].member_id
    hall.commit(1, generation_id_or_member_epoch=1, member_id=member)
    hall.commit(5, group_id="simple", partition=1)
    assert (value(f"{prefix}numgroups"), value(f"{prefix}numoffsets")) == (2, 2)
    assert (value(f"{prefix}numgroupsstable"), value(f"{prefix}numgroupsempty")) == (1, 1)
    assert value(f"{prefix}rebalances_total") == 1
    assert value("kafka_consumergroup_members", consumergroup="g") == 1
    assert value("kafka_consumergroup_current_offset", consumergroup="g", topic="t", partition="0") == 1
    assert value("kafka_consumergroup_lag", consumergroup="g", topic="t", partition="0") == 2
    assert value("kafka_consumergroup_lag", consumergroup="simple", topic="t", partition="1") == 0
    assert value("kafka_consumergroup_lag_sum", consumergroup="g", topic="t") == 2
    assert value("kafka_consumergroup_current_offset_sum", consumergroup="simple", topic="t") == 5
    assert "rebalance_ms_count" in hall.node.broker.metrics.render_text()


def test_the_number_of_partitions_decides_where_a_group_is():
    """Partitions should not be added to `__consumer_offsets`. If they are, a group is in one partition, not in two."""
    hall = Hall()
    for at in range(8):
        hall.commit(at, group_id=f"g{at}")
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="__consumer_offsets", count=9, assignments=None)
    answer = hall.ask(CreatePartitionsRequest(topics=[topic], timeout_ms=1000), 3)
    hall.node.pass_ms(1000)
    assert answer.results[0].error_code == 0
    for at in range(8):
        stays = (3241 + at) % 4 == (3241 + at) % 9  # the hash of the name
        assert hall.fetch(9, f"g{at}").committed_offset == (at if stays else -1)
