"""Replicas that move between log directories while they are led, followed, cut, deleted, and while disks fail."""

from __future__ import annotations

import contextlib

import pytest
from tests.replication.brokers import T0, Brokers

from ottla.broker.log_dir_handlers import LogDirHandlers
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Failure
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.types import TopicPartition
from ottla.wire.messages import DescribeLogDirsRequest

DIRS = {"log.dirs": "one,two"}
SMALL = TopicConfig(segment_bytes=20_000)


def moves(brokers: Brokers, node: int = 1):
    return brokers[node].core.replicas.moves


def alter(brokers: Brokers, path: str, tp: TopicPartition = T0, node: int = 1) -> ErrorCode:
    """What the broker answers."""
    try:
        brokers[node].turn(lambda: moves(brokers, node).alter_partition(tp, path))
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def home(brokers: Brokers, node: int = 1, tp: TopicPartition = T0) -> str:
    return brokers[node].partition(tp).log.disk.name


def copies(brokers: Brokers, node: int = 1) -> dict[tuple[TopicPartition, str], tuple[int, int]]:
    """The future replicas that DescribeLogDirs shows: where, with their bytes and records behind."""
    core = brokers[node].core
    handlers = LogDirHandlers(core.logs, core.replicas.moves)
    return {
        (TopicPartition(topic.name, part.partition_index), found.log_dir): (part.partition_size, part.offset_lag)
        for piece in handlers._description_pieces(DescribeLogDirsRequest(topics=None))
        for found in piece.results
        for topic in found.topics
        for part in topic.partitions
        if part.is_future_key
    }


def fill(brokers: Brokers, count: int, node: int = 1, size: int = 5000) -> None:
    for number in range(count):
        brokers[node].produce(b"%06d" % number + b"." * size)


def test_a_leader_moves_while_it_is_written_to_and_followed() -> None:
    brokers = Brokers(2, properties=DIRS)
    brokers.create(1, 2, config=SMALL)
    fill(brokers, 60)
    assert home(brokers) == "one"
    assert alter(brokers, "two") == ErrorCode.NONE
    assert alter(brokers, "two/") == ErrorCode.NONE, "a repeated request does not disturb it"
    written = 60
    while home(brokers) == "one":
        fill(brokers, 1)
        brokers.run(2)
        written += 1
        assert written < 1000
    assert written > 61
    fill(brokers, 5)
    brokers.until(lambda: brokers.settled(1, 2))
    assert len(brokers[1].values()) == written + 5
    brokers.until(lambda: not brokers[1].core.logs.is_moving(T0))
    brokers.run(61_000)
    names = [[name for name in drive.root.names if name.startswith("t-0")] for drive in brokers[1].drives]
    assert names == [[], ["t-0"]]


def test_a_follower_moves_and_is_cut_meanwhile() -> None:
    brokers = Brokers(2, properties={**DIRS, "replica.alter.log.dirs.io.max.bytes.per.second": "100000"})
    brokers.create(1, 2, config=SMALL)
    fill(brokers, 200)
    brokers.until(lambda: brokers.settled(1, 2))
    assert alter(brokers, "two", node=2) == ErrorCode.NONE
    brokers.run(1000)
    follower = brokers[2].partition()
    brokers[2].turn(lambda: follower.follower_role.truncate_to(10))
    brokers.elect(1)
    fill(brokers, 20)
    brokers.run(1000)
    assert home(brokers, 2) == "one"
    brokers[2].turn(lambda: follower.follower_role.restart_at(500))
    brokers[2].turn(lambda: follower.follower_role.restart_at(0))
    brokers.elect(1)
    fill(brokers, 20)
    brokers.until(lambda: home(brokers, 2) == "two" and brokers.settled(1, 2))
    assert len(brokers[2].values()) == 240


def test_with_flush_messages_nothing_is_acknowledged_unsynced() -> None:
    brokers = Brokers(1, properties=DIRS)
    brokers.create(1, config=TopicConfig(segment_bytes=20_000, flush_messages=1))
    member = brokers[1]
    fill(brokers, 20)
    alter(brokers, "two")
    for _ in range(300):
        _, _, wanted = member.produce(b"x" * 500)
        partition = member.partition()
        if partition.leader_role.is_settled(wanted, -1):
            assert partition.log.recovery_point >= wanted
        brokers.run(2)
    brokers.until(lambda: home(brokers) == "two")
    brokers.until(lambda: brokers[1].hw() == brokers[1].leo())


def test_back_to_where_it_is_gives_the_move_up() -> None:
    brokers = Brokers(1, properties={**DIRS, "replica.alter.log.dirs.io.max.bytes.per.second": "10000"})
    brokers.create(1, config=SMALL)
    fill(brokers, 200)
    alter(brokers, "two")
    assert moves(brokers).max_lag == brokers[1].leo(), "it has not begun"
    brokers.run(2000)
    assert brokers[1].core.logs.is_moving(T0)
    assert 0 < moves(brokers).max_lag < brokers[1].leo()
    assert alter(brokers, "one") == ErrorCode.NONE
    assert not brokers[1].core.logs.is_moving(T0)
    brokers.run(70_000)
    assert home(brokers) == "one"
    assert not [name for name in brokers[1].drives[1].root.names if name.startswith("t-0")]


def test_the_throttle_counts() -> None:
    brokers = Brokers(1, properties={**DIRS, "replica.alter.log.dirs.io.max.bytes.per.second": "50000"})
    brokers.create(1, config=SMALL)
    fill(brokers, 400)
    alter(brokers, "two")
    brokers.run(15_000)
    assert home(brokers) == "one"
    brokers.until(lambda: home(brokers) == "two")
    assert brokers.timeline.now_ns > 20_000_000_000


def test_moves_that_are_refused() -> None:
    brokers = Brokers(1, properties=DIRS)
    brokers.create(1)
    assert alter(brokers, "three") == ErrorCode.LOG_DIR_NOT_FOUND
    other = TopicPartition("u", 0)
    assert alter(brokers, "one", other) == ErrorCode.REPLICA_NOT_AVAILABLE
    brokers.create(1, tp=other, topic_id=bytes(range(1, 17)))
    assert home(brokers, tp=other) == "one", "though the other directory has fewer"
    brokers[1].faults[1].broken = True
    with contextlib.suppress(Failure):
        brokers[1].core.logs.dirs[1].create_log(TopicPartition("v", 0), bytes(16), SMALL)
    assert alter(brokers, "two") == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_replica_whose_directory_failed_is_not_moved() -> None:
    brokers = Brokers(1, properties=DIRS)
    brokers.create(1)
    brokers[1].faults[0].arm_error(DiskOperation.APPEND)
    with pytest.raises(ApiError):
        fill(brokers, 1)
    brokers.run(1)
    assert alter(brokers, "two") == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("which", [0, 1])
def test_a_directory_that_fails_during_the_move(which: int) -> None:
    brokers = Brokers(1, properties={**DIRS, "replica.alter.log.dirs.io.max.bytes.per.second": "10000"})
    brokers.create(1, config=SMALL)
    fill(brokers, 200)
    alter(brokers, "two")
    brokers.run(2000)
    brokers[1].faults[which].broken = True
    brokers.run(120_000)
    if which:
        assert brokers[1].core.logs.offline_dirs == ("two",)
        fill(brokers, 1)
        assert home(brokers) == "one"
    else:
        with pytest.raises(ApiError):
            fill(brokers, 1)
        brokers.run(10)
        assert brokers[1].partition().offline is ErrorCode.KAFKA_STORAGE_ERROR
    assert moves(brokers).max_lag == 0


def test_a_full_directory_is_waited_for() -> None:
    brokers = Brokers(1, properties=DIRS)
    brokers.create(1, config=SMALL)
    fill(brokers, 200)
    brokers[1].drives[1].capacity = 300_000
    alter(brokers, "two")
    brokers.run(20_000)
    fill(brokers, 1)
    assert home(brokers) == "one"
    brokers[1].drives[1].capacity = 1 << 60
    brokers.until(lambda: home(brokers) == "two")
    assert len(brokers[1].values()) == 201


def test_a_topic_that_is_deleted_and_made_again_does_not_move() -> None:
    brokers = Brokers(1, properties={**DIRS, "replica.alter.log.dirs.io.max.bytes.per.second": "10000"})
    brokers.create(1, config=SMALL)
    fill(brokers, 200)
    alter(brokers, "two")
    brokers.run(2000)
    assert brokers.stop(1, T0, delete=True) == [ErrorCode.NONE]
    brokers.create(1, topic_id=bytes(range(1, 17)))
    brokers.run(70_000)
    assert not brokers[1].core.logs.is_moving(T0)
    assert brokers[1].leo() == 0
    alter(brokers, "two" if home(brokers) == "one" else "one")
    brokers.run(1000)


def test_a_move_continues_after_a_crash() -> None:
    brokers = Brokers(1, properties={**DIRS, "replica.alter.log.dirs.io.max.bytes.per.second": "100000"})
    brokers.create(1, config=SMALL)
    fill(brokers, 400)
    alter(brokers, "two")
    brokers.run(3000)
    copied = moves(brokers).max_lag
    assert 0 < copied < 400
    brokers[1].die()
    brokers[1].boot()
    brokers.elect(1)
    assert moves(brokers).max_lag <= copied
    brokers.until(lambda: home(brokers) == "two")
    assert len(brokers[1].values()) == 400


def test_one_after_the_other() -> None:
    brokers = Brokers(1, properties={**DIRS, "num.replica.alter.log.dirs.threads": "1"})
    tps = [TopicPartition(name, 0) for name in "abcd"]
    for number, tp in enumerate(tps):
        brokers.create(1, tp=tp, topic_id=bytes([number + 1] * 16), config=SMALL)
        for _ in range(30):
            brokers[1].produce(b"x" * 5000, tp=tp)
    targets = {tp: "two" if home(brokers, tp=tp) == "one" else "one" for tp in tps}
    for tp, path in targets.items():
        assert alter(brokers, path, tp) == ErrorCode.NONE
    # Also those that wait for their turn are shown, with all of their records to copy.
    assert copies(brokers) == dict.fromkeys(targets.items(), (0, 30))
    brokers.until(lambda: copies(brokers).keys() < set(targets.items()))
    brokers.until(lambda: all(home(brokers, tp=tp) == path for tp, path in targets.items()))
