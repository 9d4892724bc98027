"""Offsets that are far apart, and the largest ones."""

from __future__ import annotations

import pytest
from tests.storage.conftest import LOG, SimWorld, make_batch, read_all

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import patch_offset_and_epoch
from ottla.sim.machines.machine import Death
from ottla.storage.layout import file_name

FAR = 2**31 + 10
LAST = 2**63 - 2
FIRST_NAMES = ["00000000000000000000.log", "00000000002147483658.log"]


def batch_at(offset: int, count: int = 1) -> bytes:
    batch = make_batch(count)
    patch_offset_and_epoch(batch, 0, offset, 0)
    return bytes(batch)


def put_wide_log(world, kit, offsets: list[int], following: int | None = None) -> None:
    """A segment that spans more than 2^31 offsets, as the cleaner of Apache Kafka before 2.0 left it."""
    shelf = kit.Shelf(world)
    shelf.put(make_batch())
    shelf.stop()
    world.overwrite(LOG, b"".join(batch_at(offset) for offset in offsets))
    for kind in ("index", "timeindex"):
        world.overwrite(f"t-0/{file_name(0, '.' + kind)}", b"")
    if following is not None:
        world.overwrite(f"t-0/{file_name(following, '.log')}", batch_at(following))


def logs(world) -> list[str]:
    return sorted(name for name in world.names("t-0") if name.endswith(".log"))


def logs_of_drive(world: SimWorld) -> list[str]:
    return [path for path, _ in world.drives[0].walk_files() if path.endswith(".log")]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_segment_of_too_many_offsets_is_split(world, kit, clean: bool, policy: str) -> None:
    offsets = [0, 5, FAR, FAR + 1, 2 * FAR + 7]
    put_wide_log(world, kit, offsets)
    if not clean:
        world.remove(".kafka_cleanshutdown")
    config = TopicConfig(cleanup_policy=(policy,))
    for _ in range(3):
        again = kit.Shelf(world, config)
        assert [record.offset for record in read_all(world, again.log)] == offsets
        assert logs(world) == [*FIRST_NAMES, "00000000004294967323.log"]
        world.kill()


def test_a_sealed_segment_of_too_many_offsets_is_split(world, kit) -> None:
    put_wide_log(world, kit, [0, 5, FAR, FAR + 1], following=3 * FAR)
    again = kit.Shelf(world, TopicConfig(cleanup_policy=("compact",)))
    assert [record.offset for record in read_all(world, again.log)] == [0, 5, FAR, FAR + 1, 3 * FAR]
    assert again.put(make_batch()) == [3 * FAR + 1]
    again.stop()
    assert len(read_all(world, kit.Shelf(world).log)) == 6


def test_the_tail_of_a_damaged_batch_does_not_become_a_segment(world, kit) -> None:
    """Garbage whose offset is far away is cut off."""
    put_wide_log(world, kit, [0, 5, FAR])
    content = bytearray(world.contents(LOG))
    content[-1] ^= 1
    world.overwrite(LOG, bytes(content))
    again = kit.Shelf(world)
    assert [record.offset for record in read_all(world, again.log)] == [0, 5]
    assert again.log.end_offset == 6


@pytest.mark.slow
@pytest.mark.parametrize("death", [Death.KILL, Death.POWER_LOSS])
def test_a_crash_while_a_segment_is_split_loses_nothing(kit, death: Death) -> None:
    offsets = [0, 5, FAR, FAR + 1]
    splits = 0
    for fuse in range(20, 110):
        world = SimWorld()
        put_wide_log(world, kit, offsets)
        for _, inode in world.drives[0].walk_files():
            inode.synced = len(inode.data)
        world.process.fuse, world.process.fuse_death = fuse, death
        world.process.run_turn(lambda world=world: kit.Shelf(world))
        if world.machine.process is None:
            splits += len(logs_of_drive(world)) > 1
            world._boot()
        world.process.fuse = None
        again = kit.Shelf(world)
        assert [record.offset for record in read_all(world, again.log)] == offsets, fuse
    assert splits > 1, "some crashes came in the middle"


def at_the_end(world, kit) -> object:
    shelf = kit.Shelf(world)
    shelf.log.restart_at(LAST - 1)
    return shelf


def test_the_largest_offset_is_appended_and_none_beyond_it(world, kit) -> None:
    shelf = at_the_end(world, kit)
    assert shelf.put(make_batch()) == [LAST - 1]
    with pytest.raises(ApiError) as caught:
        shelf.put(make_batch(2))
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert shelf.put(make_batch()) == [LAST]
    for _ in range(2):
        with pytest.raises(ApiError, match="none are left"):
            shelf.put(make_batch())
    assert shelf.log.end_offset == LAST + 1
    before = read_all(world, shelf.log)
    shelf.stop()
    for _ in range(2):
        again = kit.Shelf(world)
        assert (again.log.end_offset, read_all(world, again.log)) == (LAST + 1, before)
        world.kill()


def test_a_follower_takes_no_batch_beyond_the_largest_offset(world, kit) -> None:
    shelf = at_the_end(world, kit)
    good, bad = batch_at(LAST - 1), batch_at(LAST, 2)
    with pytest.raises(ApiError) as caught:
        shelf.log.append_replica(memoryview(bytearray(good + bad)))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert shelf.log.end_offset == LAST
