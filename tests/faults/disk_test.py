"""Disks that are full, read-only or dead: a named error for the client, a line that says why, nothing lost."""

from __future__ import annotations

import pytest
from testbench.clients import Confluent, Record
from testbench.load import Load, check
from testbench.ottla_node import OttlaNode

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.interop, pytest.mark.disk]

RECORDS = [Record(b"%d" % number, b"v" * 1_000) for number in range(100)]


def first_error(broker: OttlaNode, topic: str, size: int = 10) -> int:
    """The error code that a Produce request gets, without a client that retries and hides it."""
    import socket
    import struct

    from bench.hostile_cases import PRODUCE_VERSION, produce

    from ottla.record.batch import Record as WrittenRecord
    from ottla.record.batch import encode_batch
    from ottla.wire import messages
    from ottla.wire.codec import decode
    from ottla.wire.header import response_body_pos

    with socket.create_connection(("127.0.0.1", broker.port), 10) as sock:
        sock.sendall(produce(topic, bytes(encode_batch([WrittenRecord(0, 0, None, bytes(size), ())]))))
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
            more = sock.recv(65_536)
            assert more, "the connection was closed"
            data += more
    view = memoryview(data)[4:]
    answer, _ = decode(messages.ProduceResponse, PRODUCE_VERSION, view, response_body_pos(0, PRODUCE_VERSION, view))
    return answer.responses[0].partition_responses[0].error_code


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_full_disk_refuses_and_takes_again_when_there_is_room(node, volume, kind: str) -> None:
    disk = volume(kind, 512)
    broker = node(disk.path / "data", {"log.segment.bytes": "4194304"})
    broker.start()
    Confluent().write(broker.bootstrap, "before", RECORDS)
    load = Load(broker.bootstrap, "load", size=5_000)
    load.wait_for(500)
    before = broker.position
    disk.fill(leave=3 << 20)
    broker.wait_until_says("no space left", before)
    assert first_error(broker, "before", 900_000) == 56, "KAFKA_STORAGE_ERROR"
    assert broker.alive
    assert Confluent().read(broker.bootstrap, "before")[0].key == b"0"
    acknowledged = set(load.acknowledged)
    assert acknowledged <= set(check(broker.bootstrap, load, acknowledged))
    disk.drain()
    Confluent().write(broker.bootstrap, "before", RECORDS)
    Confluent().write(broker.bootstrap, "after", RECORDS)
    load.wait_for(500)
    load.stop()
    check(broker.bootstrap, load, load.acknowledged)
    broker.kill()
    broker.start()
    check(broker.bootstrap, load, load.acknowledged)
    broker.stop()


def test_a_disk_that_became_read_only(node, volume) -> None:
    disk = volume("ext4", 128)
    broker = node(disk.path / "data", {"log.flush.interval.messages": "1"})
    broker.start()
    Confluent().write(broker.bootstrap, "topic", RECORDS)
    before = broker.position
    disk.turn_read_only()
    assert first_error(broker, "topic") == 56, "KAFKA_STORAGE_ERROR"
    said = broker.said(before)
    assert "Read-only file system" in said
    assert str(disk.path / "data") in said
    assert broker.alive
    broker.kill()
    disk.come_back()
    broker.start()
    assert [each.key for each in Confluent().read(broker.bootstrap, "topic")] == [each.key for each in RECORDS]
    Confluent().write(broker.bootstrap, "topic", RECORDS)
    broker.stop()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_disk_that_dies_under_load(node, volume, kind: str) -> None:
    disk = volume(kind)
    broker = node(disk.path / "data", {"log.flush.interval.messages": "1"})
    broker.start()
    load = Load(broker.bootstrap, "load")
    load.wait_for(1_000)
    before = broker.position
    broker.pause()  # a sync that is under way while ext4 is shut down may report success and still lose what it synced
    disk.die()
    broker.resume()
    assert first_error(broker, "load") == 56, "KAFKA_STORAGE_ERROR"
    safe = set(load.acknowledged)
    assert broker.alive
    said = broker.said(before)
    assert "Input/output error" in said
    assert str(disk.path / "data") in said
    broker.kill()
    disk.come_back()
    broker.start()
    assert safe <= set(check(broker.bootstrap, load, safe))
    load.wait_for(100)
    load.stop()
    check(broker.bootstrap, load, load.acknowledged)
    broker.stop()


def test_of_two_disks_the_other_goes_on(node, volume, tmp_path) -> None:
    disk = volume("ext4", 128)
    good = tmp_path / "good"
    broker = node(good, {"log.dirs": f"{good},{disk.path / 'bad'}", "num.partitions": "1"})
    broker.start()
    topics = [f"topic{number}" for number in range(8)]
    for topic in topics:
        Confluent().write(broker.bootstrap, topic, RECORDS)
    on_good = [topic for topic in topics if (good / f"{topic}-0").exists()]
    assert 0 < len(on_good) < len(topics)
    disk.die()
    for topic in topics:
        expected = 0 if topic in on_good else 56
        assert first_error(broker, topic) == expected, topic
    for topic in on_good:
        Confluent().write(broker.bootstrap, topic, RECORDS)
        assert len(Confluent().read(broker.bootstrap, topic)) == 201
    assert broker.alive
