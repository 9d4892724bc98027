"""All logs of a broker: finding, creating and deleting them; directories that fail; periodic tasks."""

from __future__ import annotations

import pytest
from tests.ignoring import ignore

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError
from ottla.seams import Failure, Kind
from ottla.sim.machines.machine import Death
from ottla.storage import clean_shutdown
from ottla.storage.checkpoints import parse_meta_properties, parse_offsets, parse_partition_metadata
from ottla.storage.errors import WrongDirectory
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition

MINUTE = 60_000


def test_the_layout_of_a_directory(world, kit, shelf) -> None:
    shelf.put(kit.batch(1))
    shelf.manager.claim_directories("cluster", 1)
    assert shelf.stop() is None
    assert world.names("") == [
        ".kafka_cleanshutdown",
        "log-start-offset-checkpoint",
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "t-0/",
    ]
    assert world.names("t-0") == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert parse_partition_metadata(world.contents("t-0/partition.metadata")) == kit.TOPIC_ID
    assert parse_offsets(world.contents("recovery-point-offset-checkpoint")) == {kit.TP: 1}
    assert world.contents("t-0/00000000000000000000.index") == b""


def test_the_topic_id_comes_back(world, kit, shelf) -> None:
    shelf.put(kit.batch(1))
    assert shelf.stop() is None
    assert shelf.again().log.metadata.topic_id == kit.TOPIC_ID


def test_a_directory_belongs_to_one_node(world, kit) -> None:
    first = kit.Shelf(world)
    assert first.manager.stored_cluster_id() is None
    first.manager.claim_directories("one", 1)
    first.manager.claim_directories("one", 1)
    assert parse_meta_properties(world.contents("meta.properties")).node_id == 1
    assert first.manager.stored_cluster_id() == "one"
    for cluster, node in (("two", 1), ("one", 2)):
        with pytest.raises(WrongDirectory):
            first.manager.claim_directories(cluster, node)


def test_a_deleted_log_is_renamed_now_and_removed_later(sim, kit) -> None:
    shelf = kit.Shelf(sim, TopicConfig(file_delete_delay_ms=1000))
    shelf.put(kit.batch(1))
    sim.settle()
    shelf.manager.delete_log(kit.TP)
    assert shelf.manager.get_log(kit.TP) is None
    (renamed,) = [name for name in sim.names("") if name.startswith("t-0")]
    assert renamed.startswith("t-0.")
    assert renamed.endswith("-delete/")
    assert shelf.put(kit.batch(1)) == [0]
    sim.settle()
    sim.advance(1000)
    shelf.manager.run_due()
    sim.settle()
    assert [name for name in sim.names("") if name.startswith("t-0")] == ["t-0/"]


def test_deleted_directories_are_removed_at_the_next_start(world, kit, shelf) -> None:
    shelf.put(kit.batch(1))
    world.settle()
    shelf.manager.delete_log(kit.TP)
    world.settle()
    world.kill()
    shelf.again()
    world.settle()
    assert not [name for name in world.names("") if name.startswith("t-0")]


def test_unknown_names_are_left_alone(world, kit) -> None:
    for name in ("lost+found", "notes", "t-01", "t-x"):
        world.disk.make_dir(name)
    shelf = kit.Shelf(world)
    assert list(shelf.manager.online_logs()) == []
    assert "t-01/" in world.names("")


# -- a start that is interrupted ---------------------------------------------------------------------------------------


def three(sim, kit):
    """A shelf with three logs, 10 records in each, all starting at offset 4."""
    shelf = kit.Shelf(sim)
    for number in range(3):
        tp = TopicPartition("t", number)
        log = shelf.manager.get_log(tp) or shelf.manager.create_log(tp, kit.TOPIC_ID, TopicConfig())
        for _ in range(10):
            kit.append(log, kit.batch(1), 0, sim.clock.now())
        log.high_watermark = 10
        log.set_start_offset(4)
        log.flush(lambda _: None)
    for checkpoint in ("checkpoint_starts", "checkpoint_high_watermarks"):
        getattr(shelf.manager.dirs[0].offsets, checkpoint)()
    sim.settle()
    return shelf


def loaded_while(sim, wanted):
    """A manager whose loading polls `wanted`, the result of loading, and that of its stop."""
    manager = LogManager(sim.disks, sim.clock, sim.entropy, BrokerConfig(), ignore)
    whole = manager.load_logs(lambda _topic: TopicConfig(), is_wanted=wanted)
    outcomes: list[object] = []
    manager.stop_logs(outcomes.append)
    sim.settle()
    return whole, outcomes


def test_a_recovery_that_is_not_wanted_any_more_stops_between_two_logs(sim, kit, caplog) -> None:
    three(sim, kit)
    sim.restart()
    asked = iter((True, False))
    assert loaded_while(sim, lambda: next(asked)) == (False, [None])
    assert "stopping recovery after 1 of 3 logs" in caplog.text
    assert ".kafka_cleanshutdown" not in sim.names("")
    assert parse_offsets(sim.contents("recovery-point-offset-checkpoint"))[TopicPartition("t", 0)] == 10
    sim.restart(Death.POWER_LOSS)
    again = kit.Shelf(sim)
    found = [again.manager.get_log(TopicPartition("t", number)) for number in range(3)]
    assert [(log.start_offset, log.high_watermark) for log in found] == [(4, 10)] * 3, "also those that it did not load"
    assert [log.end_offset for log in found] == [10] * 3


def test_after_a_clean_stop_loading_goes_to_its_end_and_the_next_stop_is_clean(sim, kit) -> None:
    assert three(sim, kit).stop() is None
    sim.restart()
    assert loaded_while(sim, lambda: False) == (True, [None])
    assert ".kafka_cleanshutdown" in sim.names("")
    assert kit.Shelf(sim).log.end_offset == 10


@pytest.mark.parametrize("clean", [True, False])
def test_directories_that_were_not_loaded_stay_as_they_are(sim, kit, clean: bool) -> None:
    shelf = three(sim, kit)
    if clean:
        shelf.stop()
    sim.restart()
    before = {name: sim.contents(name) for name in sim.names("") if not name.endswith("/")}
    manager = LogManager(sim.disks, sim.clock, sim.entropy, BrokerConfig(), ignore)
    outcomes: list[object] = []
    manager.stop_logs(outcomes.append)
    sim.settle()
    assert outcomes == [None]
    assert {name: sim.contents(name) for name in sim.names("") if not name.endswith("/")} == before
    assert (".kafka_cleanshutdown" in before) is clean


# -- several directories -----------------------------------------------------------------------------------------------


def two(kit, on_offline=ignore):
    world = kit.SimWorld(drives=2)
    manager = LogManager(world.disks, world.clock, world.entropy, BrokerConfig(), on_offline)
    manager.load_logs(lambda _topic: TopicConfig())
    logs = [manager.create_log(TopicPartition("t", number), kit.TOPIC_ID, TopicConfig()) for number in range(4)]
    return world, manager, logs


def test_logs_spread_over_directories(kit) -> None:
    _, manager, logs = two(kit)
    assert [log.disk.name for log in logs] == ["data0", "data1", "data0", "data1"]
    assert [len(each.logs) for each in manager.dirs] == [2, 2]


def test_a_failing_directory_takes_only_its_own_logs_offline(kit) -> None:
    told: list[str] = []
    world, manager, logs = two(kit, told.append)
    world.settle()
    for log in logs:
        kit.append(log, kit.batch(1), 0, world.clock.now())
    world.faults[1].broken = True
    answers = kit.Answers()
    logs[1].flush(answers)
    logs[0].flush(answers)
    world.settle()
    failed = [answer for answer in answers if isinstance(answer, Failure)]
    assert [failure.kind for failure in failed] == [Kind.IO]
    assert told == ["data1"]
    assert manager.offline_dirs == ("data1",)
    assert [log.tp.partition for log in manager.online_logs()] == [0, 2]
    assert logs[1].recovery_point == 0
    world.faults[1].repair_device()  # a disk that works again stays offline: its content is not known
    for act in (lambda: kit.append(logs[3], kit.batch(1), 0, world.clock.now()), lambda: logs[3].read(0, 100, 1)):
        with pytest.raises(ApiError, match="log directory data1 failed"):
            act()
    logs[3].apply_config(TopicConfig())
    with pytest.raises(ApiError):
        kit.append(logs[3], kit.batch(1), 0, world.clock.now())
    with pytest.raises(Failure):
        manager.create_log(TopicPartition("t", 1), kit.TOPIC_ID, TopicConfig())
    assert manager.create_log(TopicPartition("u", 0), kit.TOPIC_ID, TopicConfig()).disk.name == "data0"
    manager.stop_logs(answers)
    world.settle()
    assert answers[-1] is None
    assert ".kafka_cleanshutdown" in world.disks[0].list("")


def test_logs_are_stopped_some_at_a_time(kit, monkeypatch) -> None:
    monkeypatch.setattr(clean_shutdown, "LOGS_AT_ONCE", 2)
    world, manager, _ = two(kit)
    logs = [manager.create_log(TopicPartition("many", n), kit.TOPIC_ID, TopicConfig()) for n in range(10)]
    for log in logs:
        kit.append(log, kit.batch(1), 0, world.clock.now())
    answers = kit.Answers()
    manager.stop_logs(answers)
    assert answers == []
    world.settle()
    assert answers == [None]
    assert all(log.closed and log.recovery_point == 1 for log in logs)
    assert all(".kafka_cleanshutdown" in disk.list("") for disk in world.disks)


def test_a_checkpoint_that_begins_during_the_stop_is_waited_for(kit) -> None:
    world, manager, _ = two(kit)
    answers = kit.Answers()
    manager.stop_logs(answers)
    for directory in manager.dirs:  # as when a flush ends, or a checkpoint is due
        directory.offsets.checkpoint_recovery_points()
        directory.offsets.checkpoint_high_watermarks()
        directory.offsets.checkpoint_starts()
    world.settle()
    assert answers == [None]
    assert all(".kafka_cleanshutdown" in disk.list("") for disk in world.disks)


def test_a_directory_that_cannot_be_loaded_is_offline(kit) -> None:
    world, manager, _ = two(kit)
    answers = kit.Answers()
    manager.stop_logs(answers)
    world.settle()
    world.restart()
    world.faults[0].broken = True
    again = LogManager(world.disks, world.clock, world.entropy, BrokerConfig(), ignore)
    again.load_logs(lambda _topic: TopicConfig())
    assert again.offline_dirs == ("data0",)
    assert [log.tp.partition for log in again.online_logs()] == [1, 3]


def test_of_two_logs_of_one_partition_the_one_with_the_topics_id_is_served(kit) -> None:
    """A topic was deleted and created again while a directory was offline: its old log returns with the directory."""
    world, manager, _ = two(kit)
    answers = kit.Answers()
    manager.stop_logs(answers)
    world.settle()
    world.disks[1].make_dir("t-0")
    world.disks[1].replace_now("t-0/partition.metadata", b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw")
    again = LogManager(world.disks, world.clock, world.entropy, BrokerConfig(), ignore)
    again.load_logs(lambda _topic: TopicConfig())
    tp = TopicPartition("t", 0)
    adopted = again.adopt_log(tp, kit.TOPIC_ID)
    assert adopted is not None
    assert adopted.disk.name == "data0"
    assert [log.tp.partition for log in again.online_logs()] == [0, 2, 1, 3]
    assert "t-0/" not in world.disks[1].list("")
    assert again.adopt_log(tp, bytes(range(1, 17))) is None
    assert again.get_log(tp) is None


def test_the_log_of_another_topic_is_kept_aside(kit) -> None:
    """Its id may be wrong: the only copy of a log must not be deleted because of a file of 43 bytes."""
    world, manager, _ = two(kit)
    tp = TopicPartition("t", 0)
    assert manager.adopt_log(tp, bytes(range(1, 17))) is None
    world.settle()
    world.advance(3_600_000)
    manager.run_due()
    world.settle()
    (kept,) = [name for name in world.disks[0].list("") if name.endswith("-stray/")]
    assert "00000000000000000000.log" in world.disks[0].list(kept)


def test_a_topic_id_with_a_damaged_letter_is_still_the_topics(kit) -> None:
    _, manager, _ = two(kit)
    damaged = bytearray(kit.TOPIC_ID)
    damaged[3] ^= 0x40
    adopted = manager.adopt_log(TopicPartition("t", 0), bytes(damaged))
    assert adopted is not None
    assert adopted.metadata.topic_id == damaged


def test_a_log_whose_topic_id_never_reached_the_disk_is_the_topics(kit) -> None:
    world, manager, _ = two(kit)
    answers = kit.Answers()
    manager.stop_logs(answers)
    world.settle()
    world.disks[0].unlink_now("t-0/partition.metadata")
    again = LogManager(world.disks, world.clock, world.entropy, BrokerConfig(), ignore)
    again.load_logs(lambda _topic: TopicConfig())
    adopted = again.adopt_log(TopicPartition("t", 0), kit.TOPIC_ID)
    assert adopted is not None
    assert adopted.metadata.topic_id == kit.TOPIC_ID
    world.settle()
    assert "partition.metadata" in world.disks[0].list("t-0")


def test_a_partition_that_may_be_in_an_offline_directory_is_not_created_again(kit) -> None:
    world, manager, _ = two(kit)
    answers = kit.Answers()
    manager.stop_logs(answers)
    world.settle()
    world.restart()
    world.faults[0].broken = True
    again = LogManager(world.disks, world.clock, world.entropy, BrokerConfig(), ignore)
    again.load_logs(lambda _topic: TopicConfig())
    tp = TopicPartition("t", 0)
    assert again.adopt_log(tp, kit.TOPIC_ID) is None
    with pytest.raises(Failure) as refused:
        again.create_log(tp, kit.TOPIC_ID, TopicConfig(), is_new=False)
    assert refused.value.kind is Kind.NOT_DONE
    assert again.create_log(TopicPartition("u", 0), kit.TOPIC_ID, TopicConfig()).disk.name == "data1"


def test_no_directory_left(kit) -> None:
    world, manager, _ = two(kit)
    world.settle()
    for faults in world.faults:
        faults.broken = True
    for log in list(manager.online_logs()):
        log.flush(kit.Answers())
    world.settle()
    assert manager.offline_dirs == ("data0", "data1")
    with pytest.raises(Failure):
        manager.create_log(TopicPartition("u", 0), kit.TOPIC_ID, TopicConfig())
    answers = kit.Answers()
    manager.stop_logs(answers)
    world.settle()
    assert len(answers) == 1


def test_a_full_disk_refuses_records_until_there_is_space(kit) -> None:
    world = kit.SimWorld()
    shelf = kit.Shelf(world, TopicConfig(segment_bytes=10_000))
    shelf.put(*(kit.batch(1, 1000) for _ in range(5)))
    world.settle()
    world.drives[0].capacity = world.drives[0].used_bytes() + 500
    for _ in range(2):
        with pytest.raises(Exception, match="no space left in data0"):
            shelf.put(kit.batch(1, 1000))
    assert shelf.manager.offline_dirs == ()
    assert shelf.log.end_offset == 5
    assert len(kit.read_all(world, shelf.log)) == 5
    world.drives[0].capacity = 1 << 50
    assert shelf.put(kit.batch(1, 1000)) == [5]


# -- periodic tasks ----------------------------------------------------------------------------------------------------


def test_checkpoints_are_written_in_time(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(*(kit.batch(1) for _ in range(3)))
    shelf.log.high_watermark = 3
    assert shelf.flush() == 3
    due = shelf.manager.next_deadline_ns()
    assert due is not None
    sim.advance(5_000)
    shelf.manager.run_due()
    sim.settle()
    assert parse_offsets(sim.contents("replication-offset-checkpoint")) == {kit.TP: 3}
    assert not sim.disk.exists("log-start-offset-checkpoint")
    shelf.log.set_start_offset(2)
    sim.advance(MINUTE)
    shelf.manager.run_due()
    sim.settle()
    assert parse_offsets(sim.contents("recovery-point-offset-checkpoint")) == {kit.TP: 3}
    assert parse_offsets(sim.contents("log-start-offset-checkpoint")) == {kit.TP: 2}


def test_retention_runs_in_idle_moments(sim, kit) -> None:
    shelf = kit.Shelf(sim, TopicConfig(retention_ms=1000))
    shelf.put(kit.batch(1))
    shelf.log.high_watermark = 1
    assert shelf.manager.run_background(1_000_000) is False
    sim.advance(5 * MINUTE)
    shelf.manager.run_due()
    assert shelf.log.start_offset == 0
    while shelf.manager.run_background(1_000_000):
        pass
    sim.settle()  # the names of a log just created become durable first
    while shelf.manager.run_background(1_000_000):
        pass
    assert shelf.log.start_offset == 1


def test_producers_expire_in_idle_moments(sim, kit) -> None:
    config, warnings = BrokerConfig.from_properties({"producer.id.expiration.ms": "1000"})
    assert warnings == []
    shelf = kit.Shelf(sim, broker=config)
    shelf.put(kit.batch(1, producer_id=1, producer_epoch=0, base_sequence=0))
    assert len(shelf.log.producers) == 1
    sim.advance(10 * MINUTE)
    shelf.manager.run_due()
    while shelf.manager.run_background(1_000_000):
        pass
    assert len(shelf.log.producers) == 0


def test_many_logs_take_several_idle_moments(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    for number in range(40):
        shelf.manager.create_log(TopicPartition("m", number), kit.TOPIC_ID, TopicConfig())
    sim.advance(5 * MINUTE)
    shelf.manager.run_due()
    assert shelf.manager.run_background(1_000_000) is True


def test_retention_does_not_wait_for_idle_moments_that_never_come(sim, kit) -> None:
    """Requests leave no idle moment: only the alarm runs tasks."""
    shelf = kit.Shelf(sim, TopicConfig(retention_ms=1000))
    logs = [shelf.manager.create_log(TopicPartition("m", number), kit.TOPIC_ID, shelf.config) for number in range(40)]
    for log in logs:
        kit.append(log, kit.batch(1), 0, sim.clock.now())
        log.high_watermark = 1
    sim.advance(5 * MINUTE)
    for _ in range(20):
        shelf.manager.run_due()
        sim.advance(100)
    assert all(log.start_offset == 1 for log in logs)


def test_a_log_waits_for_its_turn_once_however_often_it_is_due(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1))
    for _ in range(3):
        shelf.manager._retention.check_logs()
    assert len(shelf.manager._background_tasks) == 1


def test_the_first_check_of_retention_comes_soon_after_the_start(sim, kit) -> None:
    """log.initial.task.delay.ms: a broker that restarts more often than every five minutes deletes as well."""
    shelf = kit.Shelf(sim, TopicConfig(retention_ms=1000))
    shelf.put(kit.batch(1))
    shelf.log.high_watermark = 1
    sim.advance(29_999)
    shelf.manager.run_due()
    assert not shelf.manager.run_background(1_000_000)
    assert shelf.log.start_offset == 0
    sim.advance(1)
    shelf.manager.run_due()
    while shelf.manager.run_background(1_000_000):
        pass
    sim.settle()  # the names of a log just created become durable first
    assert not shelf.manager.run_background(1_000_000)
    assert shelf.log.start_offset == 1


def test_high_watermarks_that_have_not_changed_are_not_written_again(world, kit, shelf) -> None:
    def written() -> bytes:
        world.settle()
        shelf.manager.dirs[0].offsets.checkpoint_high_watermarks()
        world.settle()
        return world.contents("replication-offset-checkpoint")

    shelf.put(kit.batch(1))
    before = written()
    world.overwrite("replication-offset-checkpoint", b"as it was")
    assert written() == b"as it was", "nothing has changed"
    shelf.log.high_watermark = 1
    after = written()
    assert after not in (before, b"as it was")
