"""Records of `__consumer_offsets` for brokers of every age."""

from __future__ import annotations

import struct

import pytest

from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin
from ottla.client.admin.types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.errors import values_of
from ottla.client.fetching.fetch import fetch_range
from ottla.client.positions import OffsetAndMetadata
from ottla.client.records import records_in
from ottla.client.settings import ClientConfig
from ottla.config.broker import BrokerConfig
from ottla.groups.record_versions import NEWEST, GroupRecordVersions, group_record_versions
from ottla.groups.records import GroupCodec, GroupSaved, OffsetCommitted, Position
from ottla.record.internal.groups import GroupMetadataValue
from ottla.server.embedded import EmbeddedBroker
from ottla.types import TopicPartition

POSITION = Position(7, 5, "note", 1_000)


@pytest.mark.parametrize(
    ("protocol", "offset", "group"),
    [
        ("0.9.0", 1, 0),
        ("0.10.0-IV1", 1, 0),
        ("0.10.1", 1, 1),
        ("0.10.2.2", 1, 1),
        ("1.0", 1, 1),
        ("1.0.2", 1, 1),
        ("2.0-IV1", 1, 1),
        ("2.1-IV0", 2, 2),
        ("2.1-IV1", 3, 2),
        ("2.1", 3, 2),
        ("2.3-IV0", 3, 3),
        ("3.9-IV0", 3, 3),
        ("10.0", 3, 3),
        ("nonsense", 1, 0),
    ],
)
def test_versions_are_those_of_kafka(protocol: str, offset: int, group: int) -> None:
    assert group_record_versions(protocol) == GroupRecordVersions(offset, group)


def test_the_default_writes_the_newest() -> None:
    assert group_record_versions(BrokerConfig.from_properties({})[0].inter_broker_protocol_version) == NEWEST


@pytest.mark.parametrize("version", [1, 2, 3])
def test_offsets_of_each_version_are_read_again(version: int) -> None:
    key, value = GroupCodec(GroupRecordVersions(version, 3)).encode(OffsetCommitted("g", "t", 1, POSITION))
    assert value is not None
    assert struct.unpack_from(">h", value) == (version,)
    expected = POSITION if version == 3 else POSITION._replace(leader_epoch=-1)
    assert GroupCodec().decode(key, value) == OffsetCommitted("g", "t", 1, expected)


def test_the_bytes_that_kafka_1_0_reads() -> None:
    _, value = GroupCodec(group_record_versions("1.0")).encode(OffsetCommitted("g", "t", 1, POSITION))
    assert value == struct.pack(">hqh4sqq", 1, 7, 4, b"note", 1_000, -1)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_expiry_time_needs_version_1(version: int) -> None:
    expiring = POSITION._replace(expire_ms=9, leader_epoch=-1)
    key, value = GroupCodec(GroupRecordVersions(version, 3)).encode(OffsetCommitted("g", "t", 1, expiring))
    assert value is not None
    assert struct.unpack_from(">h", value) == (1,)
    assert GroupCodec().decode(key, value) == OffsetCommitted("g", "t", 1, expiring)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_groups_of_each_version_are_read_again(version: int) -> None:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=1, subscription=b"s", assignment=b"a"
    )
    saved = GroupSaved("g", GroupMetadataValue(protocol_type="consumer", generation=4, members=[member]))
    key, value = GroupCodec(GroupRecordVersions(3, version)).encode(saved)
    assert value is not None
    assert struct.unpack_from(">h", value) == (version,)
    again = GroupCodec().decode(key, value)
    assert isinstance(again, GroupSaved)
    assert again.value is not None
    assert (again.value.generation, again.value.members[0].member_id) == (4, "m")


def test_a_broker_among_older_ones_writes_what_they_read() -> None:
    """The whole way: the key of the broker, a commit, the record in the topic."""
    settings = {"inter.broker.protocol.version": "1.0", "offsets.topic.num.partitions": "1"}
    with (
        EmbeddedBroker(config=settings) as broker,
        Cluster(ClientConfig(bootstrap_servers=broker.bootstrap)) as cluster,
    ):
        values_of(Admin(cluster).create_topics([NewTopic("t", 1, 1, {})]))
        values_of(GroupAdmin(cluster).alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(7)}))
        place = TopicPartition("__consumer_offsets", 0)
        fetched = fetch_range(cluster, place, 0, 1)
        (record,) = [record for each in fetched for record in records_in(each)]
    assert record.value is not None
    assert struct.unpack_from(">hq", record.value) == (1, 7)
