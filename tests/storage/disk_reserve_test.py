"""A log directory with little space: clients are refused, the broker continues, and clients return with the space."""

from __future__ import annotations

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.sim.disks.drive import NO_LIMIT
from ottla.types import TopicPartition

MIB = 1 << 20
RESERVE = BrokerConfig.from_properties({"log.dirs": "data0", "ottla.log.dir.reserve.bytes": str(MIB)})[0]


@pytest.fixture
def shelf(sim, kit):
    made = kit.Shelf(sim, TopicConfig(segment_bytes=100_000), broker=RESERVE)
    made.put(kit.batch(1))
    return made


def look(shelf, ms: int = 6000) -> None:
    """Let the broker check the free space."""
    for _ in range(ms // 50):
        shelf.world.advance(50)
        shelf.manager.run_due()
        shelf.world.settle()


def leave(shelf, size: int) -> None:
    """Set the free space."""
    drive = shelf.world.drives[0]
    drive.capacity = drive.used_bytes() + size
    look(shelf)


def refused(shelf, batch: bytearray) -> str:
    with pytest.raises(ApiError) as error:
        shelf.put(batch)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    return error.value.message


def test_clients_are_refused_before_the_disk_is_full_and_served_again(shelf, kit) -> None:
    leave(shelf, MIB // 2)
    assert "no space left in data0" in refused(shelf, kit.batch(1))
    assert shelf.log.end_offset == 1
    assert kit.read_all(shelf.world, shelf.log)
    assert len(shelf.log.segments) == 1
    shelf.world.drives[0].capacity = NO_LIMIT
    look(shelf)
    assert shelf.put(kit.batch(1)) == [1]
    assert shelf.manager.offline_dirs == ()


def test_a_new_segment_is_refused_as_well(shelf, kit) -> None:
    leave(shelf, MIB // 2)
    shelf.log.apply_config(shelf.config)
    refused(shelf, kit.batch(1))


def test_offsets_transactions_and_checkpoints_use_the_reserve(shelf, kit) -> None:
    client = kit.batch(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    shelf.put(client)
    leave(shelf, MIB // 2)
    offsets = shelf.manager.create_log(TopicPartition("__consumer_offsets", 0), bytes(range(1, 17)), shelf.config)
    for _ in range(30):
        kit.append(offsets, kit.batch(1, 5000), 0, shelf.world.clock.now())
    assert len(offsets.segments) > 1
    for _ in range(3):
        kit.append(shelf.log, kit.marker(7), 0, shelf.world.clock.now())
    assert len(shelf.log.segments) == 1
    refused(shelf, kit.batch(1))
    shelf.manager.dirs[0].checkpoint_recovery_points()
    shelf.manager.delete_log(TopicPartition("__consumer_offsets", 0))
    shelf.world.settle()
    assert shelf.stop() is None
    assert shelf.manager.offline_dirs == ()


def test_new_logs_are_created_where_there_is_space(kit) -> None:
    world = kit.SimWorld(drives=2)
    shelf = kit.Shelf(world, broker=RESERVE)
    world.drives[0].capacity = MIB // 2
    look(shelf)
    for number in range(3):
        made = shelf.manager.create_log(TopicPartition("t", number), bytes(range(16)), shelf.config)
        assert made.disk.name == "data1"
    world.drives[1].capacity = MIB // 2
    look(shelf)
    assert shelf.manager.create_log(TopicPartition("t", 3), bytes(range(16)), shelf.config).disk.name == "data0"


def test_the_refusal_does_not_flutter(shelf, kit) -> None:
    leave(shelf, MIB - 1)
    refused(shelf, kit.batch(1))
    leave(shelf, MIB + 1)
    refused(shelf, kit.batch(1))
    leave(shelf, MIB + MIB // 4)
    shelf.put(kit.batch(1))


def test_no_reserve(sim, kit) -> None:
    none = BrokerConfig.from_properties({"log.dirs": "data0", "ottla.log.dir.reserve.bytes": "0"})[0]
    shelf = kit.Shelf(sim, broker=none)
    shelf.put(kit.batch(1))
    leave(shelf, 2000)
    shelf.put(kit.batch(1))
    assert "no space left" in refused(shelf, kit.batch(1, 3000))
