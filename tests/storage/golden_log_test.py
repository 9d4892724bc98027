"""Directories that Apache Kafka wrote: opened, served record for record, and their derived files computed alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.ignoring import ignore

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.storage.checkpoints import parse_snapshot
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition

CONFIGS = {"segments": TopicConfig(index_interval_bytes=512, segment_bytes=1024 * 1024)}
SERVED = [
    ("records", ("records", "append-time", "broker-codec")),
    ("segments", ("segments",)),
    ("compacted", ("compacted",)),
    ("format-2.8", ("format-2.8",)),
    ("format-0.10.0", ("format-0.10.0",)),
    ("format-0.9.0", ("format-0.9.0",)),
]


@pytest.fixture
def opened(golden, tmp_path, real_over):
    """`opened(case, without)`: a copy of a golden directory without some files, under a loaded manager."""

    def made(name: str, *without: str):
        directory = tmp_path / name
        shutil.copytree(golden(name).directory, directory)
        for pattern in without:
            for path in directory.rglob(pattern):
                path.unlink()
        world = real_over(directory)
        manager = LogManager(world.disks, world.clock, world.entropy, BrokerConfig(), ignore)
        manager.load_logs(lambda topic: CONFIGS.get(topic, TopicConfig()))
        world.settle()
        assert manager.offline_dirs == ()
        return world, manager

    return made


@pytest.mark.slow
@pytest.mark.parametrize(("case", "topics"), SERVED)
def test_every_record_is_served(case, topics, golden, opened, kit) -> None:
    world, manager = opened(case)
    for topic in topics:
        rows = golden(case).records(topic)
        expected = [
            (r.partition or 0, r.offset, r.timestamp if r.timestamp_type else -1, r.key, r.value, r.headers)
            for r in rows
        ]
        found = []
        for log in sorted(manager.online_logs(), key=lambda log: log.tp):
            if log.tp.topic == topic:
                for record in kit.read_all(world, log):
                    found.append((log.tp.partition, *record))
        assert sorted(found) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "least"), [("records", 6), ("segments", 6), ("transactions", 6), ("format-0.10.0", 2), ("format-0.9.0", 2)]
)
def test_indexes_are_computed_as_kafka_computed_them(case, least, golden, opened) -> None:
    """Without index files and the mark of a clean stop, recovery computes what Kafka wrote, byte for byte."""
    world, manager = opened(case, "*.index", "*.timeindex", "*.txnindex", ".kafka_cleanshutdown", "recovery-point*")
    manager.stop_logs(lambda _: None)
    world.settle()
    compared = 0
    for path in sorted(golden(case).directory.rglob("*.*index")):
        name = path.relative_to(golden(case).directory)
        assert Path(world.disk.name, name).read_bytes() == path.read_bytes(), name
        compared += 1
    assert compared >= least


@pytest.mark.slow
def test_producer_state_is_computed_as_kafka_computed_it(golden, opened) -> None:
    world, manager = opened("transactions", "*.snapshot", ".kafka_cleanshutdown")
    for partition, end in ((0, 362), (1, 121)):
        log = manager.get_log(TopicPartition("txn", partition))
        assert log.end_offset == end
        snapshot = golden("transactions").directory / f"txn-{partition}" / f"{end:020d}.snapshot"
        assert log.producers.snapshot_entries() == parse_snapshot(snapshot.read_bytes())
    assert world.disk.exists("txn-0")


@pytest.mark.slow
def test_an_open_transaction_bounds_what_is_stable(opened) -> None:
    _, manager = opened("transactions")
    closed, open_one = (manager.get_log(TopicPartition("txn", partition)) for partition in (0, 1))
    closed.high_watermark, open_one.high_watermark = closed.end_offset, open_one.end_offset
    assert closed.first_unstable_offset is None
    assert open_one.first_unstable_offset is not None
    assert open_one.first_unstable_offset < open_one.end_offset


@pytest.mark.slow
def test_committed_records_are_those_outside_aborted_transactions(golden, opened, kit) -> None:
    world, manager = opened("transactions")
    for partition in (0, 1):
        log = manager.get_log(TopicPartition("txn", partition))
        log.high_watermark = log.end_offset
        stable = log.first_unstable_offset or log.end_offset
        aborted = sorted(
            log.segments.aborted_transactions(log.start_offset, stable), key=lambda entry: entry.first_offset
        )
        content, offset = b"", 0
        while offset < stable:
            piece = kit.read(world, log, offset, 1 << 20, stable)
            content += piece
            offset = kit.batches_in(piece)[-1][0].last_offset + 1
        seen = _committed(kit.batches_in(content), aborted)
        rows = [r for r in golden("transactions").records("txn.committed") if r.partition == partition]
        assert seen == sorted(row.offset for row in rows)


def _committed(batches, aborted) -> list[int]:
    """The records of a read_committed consumer (KIP-98): it drops aborted batches up to their markers."""
    dropping: set[int] = set()
    waiting = list(aborted)
    offsets = []
    for header, records in batches:
        while waiting and waiting[0].first_offset <= header.base_offset:
            dropping.add(waiting.pop(0).producer_id)
        if header.is_control:
            dropping.discard(header.producer_id)
        elif header.producer_id not in dropping or not header.is_transactional:
            offsets += [record.offset for record in records]
    return offsets


@pytest.mark.slow
def test_a_killed_brokers_directory_is_recovered(golden, opened, kit) -> None:
    """Stale recovery point, sparse index files, an open transaction `tx-crash`: all written records are there."""
    world, manager = opened("unclean")
    segments = manager.get_log(TopicPartition("segments", 0))
    assert segments.start_offset == 130
    assert segments.end_offset > 360
    assert [record.offset for record in kit.read_all(world, segments)] == list(range(130, segments.end_offset))
    crashed = manager.get_log(TopicPartition("txn", 1))
    crashed.high_watermark = crashed.end_offset
    assert crashed.first_unstable_offset is not None
    assert not any(name.endswith(".deleted") for name in world.names("segments-0"))


@pytest.mark.slow
def test_leader_epochs_and_start_of_a_trimmed_log(opened) -> None:
    _, manager = opened("segments")
    log = manager.get_log(TopicPartition("segments", 0))
    assert log.start_offset == 130
    assert log.epochs.entries == ((0, 130),)
    assert log.epochs.epoch_of(200) == 0
    assert log.high_watermark == log.recovery_point == log.end_offset == 360
