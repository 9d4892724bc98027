"""Whole brokers, one of which comes back with less than it had: nothing that was committed is lost by that.

Zone: real.
"""

from __future__ import annotations

import json

import pytest
from tests.handcluster import HandCluster, Member

from ottla.storage.checkpoints import format_partition_metadata


def gone(member: Member) -> None:
    """The partition's directory is gone."""
    del member.drive.root.names["t-0"]


def anothers(member: Member) -> None:
    """It has another topic's id."""
    inode = member.drive.file_at("t-0/partition.metadata")
    inode.data[:] = format_partition_metadata(bytes(range(16)))


def emptied(member: Member) -> None:
    """Its log file is empty."""
    member.drive.file_at(f"t-0/{0:020d}.log").data.clear()


@pytest.fixture
def two():
    """Both brokers have three records of t-0, and die in the same moment."""
    cluster = HandCluster({"replica.high.watermark.checkpoint.interval.ms": "100"}, brokers=2)
    cluster.create("t", (1, 2))
    for value in (b"a", b"b", b"c"):
        cluster.leader("t").produce("t", value, acks=-1)
    cluster.until(lambda: all(each.partition("t").high_watermark == 3 for each in cluster), "all of it is committed")
    cluster.leader("t").partition("t").log.flush(lambda _: None)
    cluster.pass_ms(1000)
    for member in cluster:
        member.broker.logs.dirs[0].checkpoint_recovery_points()
    cluster.pass_ms(100)
    for member in list(cluster):
        member.kill()
    cluster.pass_ms(10_000)
    return cluster


@pytest.mark.parametrize("harm", [gone, anothers, emptied])
def test_it_waits_for_a_broker_with_all_records_and_copies_them(two, harm, caplog) -> None:
    harm(two[1])
    two[1].start()
    two.pass_ms(10_000)
    registration = json.loads(two.ensemble.tree.get_node("/brokers/ids/1").data)
    assert registration["ottla.incomplete"] == {"t": [0]}
    state = json.loads(two.ensemble.tree.get_node("/brokers/topics/t/partitions/0/state").data)
    assert (state["leader"], state["isr"]) == (-1, [2])
    assert "t-0" in caplog.text
    two[2].start()
    assert two.leader("t") is two[2]
    two.in_sync("t", 1, 2)
    assert two[1].values("t") == two[2].values("t") == [b"a", b"b", b"c"]


def test_a_broker_with_all_records_logs_no_loss(two) -> None:
    two[1].start()
    two.pass_ms(5000)
    assert b"ottla" not in two.ensemble.tree.get_node("/brokers/ids/1").data
    assert two.leader("t") is two[1]
