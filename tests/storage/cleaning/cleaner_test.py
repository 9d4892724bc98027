"""The cleaner of a broker: which log it chooses, what it stores, and what may interrupt it."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import Any

import pytest
from tests.storage.cleaning.pass_test import fill, latest, records
from tests.storage.conftest import TOPIC_ID, TP, Shelf, SimWorld, append

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.metrics import Registry
from ottla.record.batch import Record, batches_of, encode_batch
from ottla.seams import Failure, Kind
from ottla.sim.machines.machine import Death
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.mutants.ablation import without_safeguard
from ottla.storage.checkpoints import parse_offsets
from ottla.storage.cleaning.cleaner import LOSSES_MAX
from ottla.storage.cleaning.metrics import declare_metrics
from ottla.storage.segments.scan import read_file
from ottla.types import TopicPartition

CHECKPOINT = "cleaner-offset-checkpoint"
SMALL = TopicConfig(segment_bytes=3_000, index_interval_bytes=200, cleanup_policy=("compact",))
OTHER = TopicPartition("other", 0)


def broker(**keys: str) -> BrokerConfig:
    properties = {name.replace("_", "."): value for name, value in keys.items()}
    return BrokerConfig.from_properties({"log.dirs": "data0", **properties})[0]


def start(world: SimWorld, config: TopicConfig = SMALL, **keys: str) -> Shelf:
    return Shelf(world, config, broker(**keys), workers=SimWorkers(world.process))


def go_on(shelf: Shelf, ms: int = 60_000, step: int = 1000) -> None:
    """Let time pass, and run everything that is due."""
    for _ in range(0, ms, step):
        shelf.world.settle()
        shelf.manager.run_due()
        shelf.world.settle()
        shelf.world.advance(step)


def noted(world: SimWorld) -> dict[TopicPartition, int]:
    return parse_offsets(read_file(world.disk, CHECKPOINT))


def measured(shelf: Shelf) -> dict[str, list[tuple[Any, float]]]:
    registry = Registry()
    assert shelf.manager.cleaner is not None
    declare_metrics(registry, shelf.manager.cleaner)
    return {metric.name: [(sample.labels, sample.value) for sample in metric.samples()] for metric in registry}


@pytest.fixture
def filled(sim: SimWorld) -> Shelf:
    shelf = start(sim)
    fill(shelf, 1)
    return shelf


def test_a_log_is_compacted_and_the_checkpoint_written(sim: SimWorld, filled: Shelf) -> None:
    before, end = records(filled), filled.log.segments.active.base_offset
    assert filled.log.cleaned_until == 0
    go_on(filled)
    assert filled.log.cleaned_until == end
    assert noted(sim) == {TP: end}
    after = records(filled)
    assert len(after) < len(before)
    rows = {name: samples[0][1] for name, samples in measured(filled).items() if samples}
    assert rows["kafka_log_logcleanermanager_max_dirty_percent"] == 0
    assert 0 < rows["kafka_log_logcleaner_cleaner_recopy_percent"] < 100
    assert rows["kafka_log_logcleaner_max_clean_time_secs"] > 0
    assert 0 < rows["kafka_log_logcleaner_max_buffer_utilization_percent"] < 1
    assert 0 < rows["kafka_log_logcleanermanager_time_since_last_run_ms"] <= 16_000
    assert rows["kafka_log_logcleanermanager_uncleanable_partitions_count"] == 0
    assert latest(after) == latest(before)
    filled.stop()
    again = start(sim)
    assert again.log.cleaned_until == end
    ran = sim.timeline.events
    go_on(again)
    assert records(again) == after
    assert sim.timeline.events - ran < 500, "nothing is done twice"


def test_nothing_is_compacted_without_need(sim: SimWorld) -> None:
    for config, keys in [
        (TopicConfig(segment_bytes=3_000), {}),
        (SMALL, {"log_cleaner_enable": "false"}),
        (SMALL, {"log_cleaner_threads": "0"}),
        (TopicConfig(segment_bytes=3_000, cleanup_policy=("compact",), min_compaction_lag_ms=1 << 60), {}),
    ]:
        shelf = start(sim, config, **keys)
        fill(shelf, 1)
        go_on(shelf)
        assert shelf.log.cleaning.checkpoint is None
        assert CHECKPOINT not in sim.names("")
        shelf.stop()


def test_old_records_do_not_wait_for_the_ratio_nor_for_a_full_segment(sim: SimWorld) -> None:
    config = TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=10_000, min_cleanable_dirty_ratio=1.0)
    shelf = start(sim, config)
    wall = sim.clock.now().wall_ms
    for at in range(3):
        shelf.put(encode_batch([Record(0, wall + at, b"k", b"%d" % at)]))
    shelf.log.high_watermark = shelf.log.end_offset
    go_on(shelf, 5_000)
    assert len(shelf.log.segments) == 1
    go_on(shelf, 10_000)
    shelf.put(encode_batch([Record(0, sim.clock.now().wall_ms, b"later", b"v")]))
    shelf.log.high_watermark = shelf.log.end_offset
    assert len(shelf.log.segments) == 2, "max.compaction.lag.ms closes it"
    go_on(shelf, 30_000)
    assert latest(records(shelf)) == {b"k": b"2", b"later": b"v"}
    assert len(records(shelf)) == 2


def test_the_dirtiest_log_is_compacted_first(sim: SimWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.storage.cleaning.cleaner")
    shelf = start(sim)
    fill(shelf, 1)
    go_on(shelf)
    fill(shelf, 2, batches=90)
    other = shelf.manager.create_log(OTHER, TOPIC_ID, SMALL)
    for number in range(60):
        batch = encode_batch([Record(0, 5, b"k%d" % (number % 7), b"v" * 100)])
        append(other, batch, 0, sim.clock.now())
    other.high_watermark = other.end_offset
    caplog.clear()
    go_on(shelf)
    assert [line.split()[0] for line in caplog.messages] == ["other-0", "t-0"]
    assert shelf.manager.cleaner is not None
    assert shelf.manager.cleaner.max_dirty_ratio == 0


def test_a_damaged_log_is_reported_once_and_others_are_compacted(
    sim: SimWorld, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = start(sim)
    fill(shelf, 1)
    path = shelf.log.segments[1].path
    data = bytearray(sim.contents(path))
    data[70] ^= 0x40
    sim.overwrite(path, bytes(data))
    other = shelf.manager.create_log(OTHER, TOPIC_ID, SMALL)
    for number in range(60):
        append(other, encode_batch([Record(0, 5, b"k%d" % (number % 7), b"v" * 100)]), 0, sim.clock.now())
    other.high_watermark = other.end_offset
    go_on(shelf, 300_000, 5000)
    assert other.cleaned_until == other.segments.active.base_offset
    assert shelf.log.cleaned_until == 0
    assert sum("t-0 is not compacted any more" in line for line in caplog.messages) == 1
    assert shelf.manager.cleaner is not None
    assert [(name, [log.tp for log in logs]) for name, logs in shelf.manager.cleaner.uncleanable_logs()] == [
        ("data0", [TP])
    ]
    assert shelf.manager.offline_dirs == ()
    rows = measured(shelf)
    assert rows["kafka_log_logcleanermanager_uncleanable_partitions_count"] == [({"logDirectory": "data0"}, 1)]
    ((_, waiting),) = rows["kafka_log_logcleanermanager_uncleanable_bytes"]
    assert 0 < waiting < shelf.log.segments.size
    assert bytes(data) == sim.contents(path)
    assert not [name for name in sim.names(str(TP)) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("seed", range(30))
def test_a_log_of_damaged_bytes_never_harms_the_broker(sim: SimWorld, seed: int) -> None:
    """Headers first: their fields are used before any checksum is verified."""
    chosen = random.Random(seed)
    shelf = start(sim)
    fill(shelf, 1)
    segment = shelf.log.segments[chosen.randrange(3)]
    data = bytearray(sim.contents(segment.path))
    starts = [pos for pos, _ in batches_of(data)]
    for _ in range(chosen.randrange(1, 4)):
        data[chosen.choice(starts) + chosen.randrange(61)] = chosen.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    sim.overwrite(segment.path, bytes(data))
    go_on(shelf, 40_000, 1000)
    assert shelf.manager.offline_dirs == ()
    assert shelf.log.cleaned_until > 0 or shelf.log.cleaning.uncleanable is not None


class DyingWorkers(SimWorkers):
    """Workers that die over the first `deaths` jobs, whatever these are."""

    def __init__(self, process: Any, deaths: int) -> None:
        super().__init__(process)
        self.deaths = deaths

    def run_job(self, job: str, arguments: tuple[object, ...], done: Any, owner: object = None) -> None:
        if self.deaths:
            self.deaths -= 1
            self._process.post_done(1000, "worker", done, lambda: Failure(Kind.UNKNOWN, "the worker process died"))
        else:
            super().run_job(job, arguments, done, owner)


@pytest.mark.parametrize("deaths", [LOSSES_MAX - 1, LOSSES_MAX])
def test_a_log_over_which_workers_die_repeatedly_is_reported_and_skipped(
    sim: SimWorld, caplog: pytest.LogCaptureFixture, deaths: int
) -> None:
    shelf = Shelf(sim, SMALL, broker(), workers=DyingWorkers(sim.process, deaths))
    fill(shelf, 1)
    go_on(shelf, 400_000, 5000)
    said = "t-0 is not compacted any more: 3 times in a row the worker process died"
    rows = measured(shelf)
    count = rows["kafka_log_logcleanermanager_uncleanable_partitions_count"]
    if deaths == LOSSES_MAX:
        assert (shelf.log.cleaned_until, caplog.messages.count(said)) == (0, 1)
        assert count == [({"logDirectory": "data0"}, 1)]
    else:
        assert shelf.log.cleaned_until == shelf.log.segments.active.base_offset
        assert shelf.log.cleaning.worker_losses == 0, "only deaths in a row count"
        assert (count, said in caplog.messages) == ([({"logDirectory": "data0"}, 0)], False)
    assert rows["kafka_log_logcleaner_deadthreadcount"] == [({}, 0)], "others would be compacted"
    assert shelf.manager.offline_dirs == ()


def test_a_log_that_was_cut_may_be_compacted_again(sim: SimWorld) -> None:
    shelf = Shelf(sim, SMALL, broker(), workers=DyingWorkers(sim.process, LOSSES_MAX))
    fill(shelf, 1)
    go_on(shelf, 400_000, 5000)
    assert shelf.log.cleaning.uncleanable is not None
    shelf.log.truncate_to(shelf.log.end_offset - 1)
    assert (shelf.log.cleaning.uncleanable, shelf.log.cleaning.worker_losses) == (None, 0)


def test_records_beyond_max_compaction_lag_are_measured(sim: SimWorld) -> None:
    config = replace(SMALL, max_compaction_lag_ms=10_000, min_cleanable_dirty_ratio=1.0)
    shelf = start(sim, config, log_cleaner_io_max_bytes_per_second="100")
    fill(shelf, 1)
    go_on(shelf)
    assert measured(shelf)["kafka_log_logcleaner_max_compaction_delay_secs"][0][1] > 0
    shelf.manager.apply_config(broker())
    go_on(shelf, 400_000, 5000)
    assert measured(shelf)["kafka_log_logcleaner_max_compaction_delay_secs"] == [({}, 0)]


def test_a_full_disk_is_tried_again(sim: SimWorld, filled: Shelf) -> None:
    drive = sim.drives[0]
    roomy, drive.capacity = drive.capacity, 1
    go_on(filled, 30_000)
    assert filled.log.cleaned_until == 0
    assert filled.manager.offline_dirs == ()
    drive.capacity = roomy
    go_on(filled, 200_000, 5000)
    assert filled.log.cleaned_until == filled.log.segments.active.base_offset


@pytest.mark.parametrize("at_ms", range(0, 400, 20))
def test_a_broken_disk_takes_only_the_directory_offline(at_ms: int) -> None:
    world = SimWorld(seed=12)
    shelf = start(world)
    fill(shelf, 1, batches=200, keys=80)
    before = latest(records(shelf))
    shelf.stop()
    world.restart(Death.KILL)
    again = start(world)
    again.log.high_watermark = again.log.end_offset
    for _ in range(at_ms // 20):
        again.manager.run_due()
        world.timeline.run_next_event()
    world.faults[0].broken = True
    go_on(again, 60_000, 5000)
    assert again.manager.offline_dirs == ("data0",)
    world.restart(Death.KILL)
    assert latest(records(start(world))) == before
    world.close()


@pytest.mark.parametrize("syncs", range(1, 8))
def test_a_failure_after_a_stop_is_not_a_defect(syncs: int) -> None:
    world = SimWorld(seed=12)
    shelf = start(world)
    fill(shelf, 1, batches=200, keys=80)
    shelf.log.high_watermark = shelf.log.end_offset
    asked = 0
    sync_dir = world.disks[0].sync_dir

    def counted(path: str, done: Any) -> None:
        nonlocal asked
        asked += 1
        sync_dir(path, done)

    world.disks[0].sync_dir = counted  # type: ignore[method-assign]
    while asked < syncs:
        shelf.manager.run_due()
        if not world.timeline.run_next_event():
            world.advance(1000)
    assert shelf.manager.cleaner is not None
    shelf.manager.cleaner.stop_workers()
    world.faults[0].broken = True
    world.settle()
    world.close()


# -- the checkpoint, and when it does not hold any more ----------------------------------------------------------------


def test_a_cleaner_checkpoint_outside_the_log_is_dropped(sim: SimWorld, filled: Shelf) -> None:
    end = filled.log.end_offset
    filled.stop()
    sim.overwrite(CHECKPOINT, f"0\n2\nt 0 {end + 1}\ngone 7 5\n".encode())
    again = start(sim)
    assert again.log.cleaned_until == 0
    assert noted(sim) == {}, "new records at that offset are not clean"
    again.stop()


def test_a_log_start_above_the_checkpoint_begins_the_dirty_part(sim: SimWorld, filled: Shelf) -> None:
    go_on(filled)
    filled.log.set_start_offset(filled.log.cleaned_until + 3)
    assert filled.log.cleaned_until == filled.log.start_offset


@pytest.mark.parametrize("guarded", [True, False])
def test_a_truncation_below_the_checkpoint_lowers_it_first(guarded: bool) -> None:
    """Otherwise records after the cut count as clean: their tombstones are removed, and deleted records come back."""
    with without_safeguard(None if guarded else "cleaner_checkpoint_cut"):
        check_cut_below_checkpoint(guarded)


def check_cut_below_checkpoint(guarded: bool) -> None:
    """Truncate below what is clean, delete a key there, restart: `guarded` decides whether it stays deleted."""
    world = SimWorld(seed=11)
    keys = {"log_cleaner_backoff_ms": "1000"}
    config = TopicConfig(
        segment_bytes=1_000, index_interval_bytes=200, cleanup_policy=("compact",), delete_retention_ms=1000,
        min_cleanable_dirty_ratio=0.01,
    )  # fmt: skip
    shelf = start(world, config, **keys)

    def write(rows: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in rows:
            shelf.put(encode_batch([Record(0, 5, key, value)]))
        shelf.log.high_watermark = shelf.log.end_offset

    write([(b"a", b"old"), *((b"k%d" % n, b"v" * 50) for n in range(20))])
    write([(b"k%d" % n, b"w" * 50) for n in range(20)])
    go_on(shelf, 5_000, 500)
    checkpoint = shelf.log.cleaned_until
    assert checkpoint > 21
    shelf.flush()
    shelf.log.truncate_to(15)
    cut = shelf.log.end_offset
    write([(b"a", None), *((b"m%d" % n, b"x" * 50) for n in range(60))])
    shelf.flush()
    world.restart(Death.KILL)
    shelf = start(world, config, **keys)
    shelf.log.high_watermark = shelf.log.end_offset
    assert (shelf.log.cleaned_until <= cut) is guarded
    write([(b"m%d" % n, b"y" * 50) for n in range(60)])
    go_on(shelf, 20_000, 500)
    write([(b"m%d" % n, b"z" * 50) for n in range(60)])
    go_on(shelf, 20_000, 500)
    found = latest(records(shelf))
    assert (found.get(b"a") is None) is guarded, "a deleted record came back"
    world.close()


def test_a_new_log_of_the_name_is_not_clean(sim: SimWorld, filled: Shelf) -> None:
    go_on(filled)
    assert noted(sim)
    filled.manager.delete_log(TP)
    made = filled.log
    assert made.cleaned_until == 0
    sim.restart(Death.POWER_LOSS)
    again = start(sim)
    fill(again, 3)
    assert again.log.cleaned_until == 0


# -- pace --------------------------------------------------------------------------------------------------------------


def test_the_throttle_spreads_a_pass_over_time(sim: SimWorld) -> None:
    shelf = start(sim, log_cleaner_io_max_bytes_per_second="1000")
    fill(shelf, 1)
    size = sum(segment.size for segment in shelf.log.segments)
    began = sim.clock.now().mono_ns
    while not shelf.log.cleaning.checkpoint:
        go_on(shelf, 1000, 1000)
    seconds = (sim.clock.now().mono_ns - began) / 1e9
    assert seconds > 1.5 * size / 1000, "read twice, and written"


def test_changed_settings_apply_at_once(sim: SimWorld) -> None:
    shelf = start(sim, log_cleaner_threads="0")
    fill(shelf, 1)
    shelf.manager.apply_config(broker(log_cleaner_threads="2"))
    go_on(shelf)
    assert shelf.log.cleaned_until > 0


def test_many_records_in_a_few_bytes_do_not_hold_up_the_loop(sim: SimWorld) -> None:
    shelf = start(sim, TopicConfig(segment_bytes=1 << 20, cleanup_policy=("compact",)))
    many = [Record(number, 1, b"k%d" % (number % 50_000), b"") for number in range(150_000)]
    shelf.put(encode_batch(many, codec=1))
    shelf.put(encode_batch([Record(0, 1, b"k1", b"later")]))
    shelf.log.roll_segment()
    shelf.put(encode_batch([Record(0, 1, b"active", b"")]))
    shelf.log.high_watermark = shelf.log.end_offset
    turns: list[int] = []
    state = shelf.log.cleaning
    while not state.checkpoint:
        shelf.manager.run_due()
        turns.append(1)
        if not sim.timeline.run_next_event():
            sim.advance(1000)
    assert len(turns) > 150_000 // 16_384
    found = records(shelf)
    assert len(found) == 50_000 + 1
    assert latest(found)[b"k1"] == b"later"


def test_retention_and_compaction_together(sim: SimWorld) -> None:
    both = TopicConfig(
        segment_bytes=3_000, index_interval_bytes=200, cleanup_policy=("compact", "delete"),
        retention_bytes=4_000, retention_ms=-1, min_cleanable_dirty_ratio=0.01,
    )  # fmt: skip
    shelf = start(sim, both, log_cleaner_backoff_ms="1000", log_retention_check_interval_ms="1500")
    told: dict[Any, Any] = {}
    for number in range(8):
        fill(shelf, number, batches=40, keys=200)
        told |= latest(records(shelf))
        go_on(shelf, 3000, 500)
        shelf.manager.run_background(0)
        found = records(shelf)
        assert found
        for record in found[-50:]:
            assert record.offset >= shelf.log.start_offset
        assert all(told[key] == value for key, value in latest(found).items())
    assert shelf.log.start_offset > 0
    assert shelf.log.segments.size < 4_000 + 2 * 3_000
    assert shelf.log.start_offset <= shelf.log.cleaned_until <= shelf.log.segments.active.base_offset
    after = records(shelf)
    shelf.stop()
    assert records(start(sim, both)) == after


def test_random_logs_through_many_passes(sim: SimWorld) -> None:
    chosen = random.Random(5)
    shelf = start(sim, log_cleaner_backoff_ms="1000")
    told: dict[Any, Any] = {}
    for round_ in range(6):
        fill(shelf, chosen.randrange(1000), batches=40, keys=30)
        told |= {record.key: record.value for record in records(shelf)}
        go_on(shelf, 3000, 500)
        if round_ == 3:
            shelf.stop()
            shelf = start(sim, log_cleaner_backoff_ms="1000")
        found = latest(records(shelf))
        assert {key: found.get(key) for key in told} == told
        assert shelf.log.cleaned_until > 0


@pytest.mark.parametrize("keep_ms", [2**63 - 1, 2**63 - 2, 2**62])
def test_tombstones_that_are_kept_for_ever_do_not_end_compaction(sim: SimWorld, keep_ms: int) -> None:
    shelf = start(sim, replace(SMALL, delete_retention_ms=keep_ms))
    fill(shelf, 1)
    before = latest(records(shelf))
    go_on(shelf)
    assert shelf.log.cleaning.uncleanable is None
    assert shelf.log.cleaned_until == shelf.log.segments.active.base_offset
    assert latest(records(shelf)) == before, "with every tombstone, and its timestamp"
    assert None in before.values()


def test_a_record_of_the_smallest_timestamp_does_not_end_compaction(sim: SimWorld) -> None:
    """A topic that was not compacted when the record was produced may have it: only headers are checked there."""
    shelf = start(sim)
    shelf.put(encode_batch([Record(0, 5, b"old", None), Record(1, 10 - 2**63, b"older", b"v")]))
    fill(shelf, 1)
    before = {key: value for key, value in latest(records(shelf)).items() if key != b"older"}
    go_on(shelf)
    assert shelf.log.cleaning.uncleanable is None
    found = latest(records(shelf))
    assert found.pop(b"older") == b"v"
    assert found == before
