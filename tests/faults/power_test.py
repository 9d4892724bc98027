"""Power cuts: the file system stops without writing its journal, and only what was synced is there afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from testbench.clients import Confluent
from testbench.disk import Volume
from testbench.load import Load, check, number_of
from testbench.ottla_node import OttlaNode

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.interop, pytest.mark.disk]

KINDS = ("ext4", "xfs")


def cut_power(broker: OttlaNode, disk: Volume, loads: list[Load]) -> list[set[int]]:
    """Broker and file system stop at the same moment. Returns what each load had been told was safe by then."""
    broker.pause()
    disk.die()
    broker.kill()
    told = [set(load.acknowledged) for load in loads]
    disk.come_back()
    return told


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_flushed_before_its_answer_survives(node, volume, kind: str) -> None:
    """flush.messages=1: no answer before the disk has it."""
    disk = volume(kind)
    settings = {"log.flush.interval.messages": "1", "log.segment.bytes": "2097152"}
    broker = node(disk.path / "data", settings)
    broker.start()
    loads = [Load(broker.bootstrap, f"load{number}") for number in range(3)]
    for _ in range(4):
        for load in loads:
            load.wait_for(1_000)
        told = cut_power(broker, disk, loads)
        broker.start()
        for load, safe in zip(loads, told, strict=True):
            found = {number_of(each.value or b"") for each in Confluent().read(broker.bootstrap, load.topic)}
            assert safe <= found, f"{len(safe - found)} acknowledged records are gone, the first is {min(safe - found)}"
    for load in loads:
        load.wait_for(200)
        load.stop()
        assert not load.failed
        assert check(broker.bootstrap, load, load.acknowledged) == list(range(load.sent))
    broker.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_below_the_recovery_point_survives(node, volume, kind: str) -> None:
    """Records are acknowledged before they are flushed: some may go, but none below the recovery point."""
    disk = volume(kind)
    settings = {"log.flush.interval.messages": "100000", "log.segment.bytes": "1048576"}
    settings |= {"log.flush.offset.checkpoint.interval.ms": "200"}
    broker = node(disk.path / "data", settings)
    broker.start()
    load = Load(broker.bootstrap, "load", idempotent=False, **{"max.in.flight": 1})
    while not recovery_points(disk.path / "data").get("load-0"):
        load.wait_for(2_000)
    load.wait_for(5_000)
    cut_power(broker, disk, [load])
    recovery_point = recovery_points(disk.path / "data").get("load-0", 0)
    broker.start()
    found = [number_of(each.value or b"") for each in Confluent().read(broker.bootstrap, "load", 0, 0)]
    assert recovery_point > 0
    assert len(found) >= recovery_point
    assert found[:recovery_point] == list(range(recovery_point))
    assert found == sorted(found)
    load.stop()
    broker.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_topics_and_settings_survive(node, volume, kind: str) -> None:
    """An answer to an administrator means that the disk has it, whatever the flush settings of logs are."""
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

    disk = volume(kind)
    broker = node(disk.path / "data")
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    topics = [NewTopic(f"t{number}", 3, 1, config={"retention.ms": str(10**6 + number)}) for number in range(20)]
    for future in admin.create_topics(topics).values():
        future.result(180)
    admin.delete_topics(["t0"])["t0"].result(180)
    described = admin.describe_topics(TopicCollection(["t7"]))["t7"].result(180)
    cut_power(broker, disk, [])
    broker.start()
    names = {name for name in admin.list_topics(timeout=30).topics if name.startswith("t")}
    assert names == {f"t{number}" for number in range(1, 20)}
    again = admin.describe_topics(TopicCollection(["t7"]))["t7"].result(180)
    assert (str(again.topic_id), len(again.partitions)) == (str(described.topic_id), 3)
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "t7")]).values()
    assert future.result(180)["retention.ms"].value == str(10**6 + 7)
    broker.stop()


def recovery_points(data: Path) -> dict[str, int]:
    """The file recovery-point-offset-checkpoint: version, count, then `topic partition offset` per line."""
    file = data / "recovery-point-offset-checkpoint"
    if not file.exists():
        return {}
    rows = [line.split() for line in file.read_text().splitlines()[2:]]
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in rows}
