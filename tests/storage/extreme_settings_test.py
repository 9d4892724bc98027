"""Settings of logs at the limits of their range: times and sizes near 2^63, and 0."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tests.storage.cleaning.cleaner_test import broker, go_on
from tests.storage.cleaning.pass_test import fill, latest, records
from tests.storage.conftest import SMALL, Shelf

from ottla.int64 import INT64_MAX
from ottla.record.validation import validate_produced
from ottla.sim.machines.workers import SimWorkers
from ottla.storage.retention.retention_enforcer import delete_old_segments

KEYS = (
    "retention_ms", "retention_bytes", "local_retention_ms", "local_retention_bytes", "segment_ms", "segment_jitter_ms",
    "flush_ms", "flush_messages", "min_compaction_lag_ms", "max_compaction_lag_ms", "delete_retention_ms",
    "file_delete_delay_ms", "message_timestamp_before_max_ms", "message_timestamp_after_max_ms",
)  # fmt: skip
FOREVER = {"retention_ms": INT64_MAX, "min_cleanable_dirty_ratio": 0.0, "cleanup_policy": ("compact", "delete")}


@pytest.mark.parametrize(("key", "value"), [*product(KEYS, (INT64_MAX, INT64_MAX - 1)), ("segment_ms", 1)])
def test_a_log_works_with_extreme_settings(sim, key: str, value: int) -> None:
    config = replace(SMALL, **{**FOREVER, key: value})
    shelf = Shelf(sim, config, broker(), workers=SimWorkers(sim.process))
    fill(shelf, 1)
    before = latest(records(shelf))
    go_on(shelf)
    delete_old_segments(shelf.log, sim.clock.now())
    shelf.flush()
    assert shelf.log.cleaning.uncleanable is None
    assert shelf.manager.offline_dirs == ()
    assert latest(records(shelf)) == before
    shelf.stop()
    again = Shelf(sim, config, broker(), workers=SimWorkers(sim.process))
    assert latest(records(again)) == before
    again.stop()


@pytest.mark.parametrize("key", KEYS)
def test_a_real_loop_takes_its_deadlines(real, kit, key: str) -> None:
    shelf = kit.Shelf(real, replace(SMALL, **{**FOREVER, key: INT64_MAX - 1}))
    shelf.put(*(kit.batch(2, 900) for _ in range(10)))
    delete_old_segments(shelf.log, real.clock.now())
    shelf.manager.run_due()
    real.clock.set_receiver(lambda: None)
    real.clock.set_alarm(shelf.manager.timers.next_ns)
    real.settle()
    assert shelf.log.end_offset == 20


@pytest.mark.parametrize("span", [INT64_MAX, INT64_MAX - 1])
def test_a_produced_batch_is_checked_against_it(kit, span: int) -> None:
    batch = memoryview(kit.batch(1, timestamp=1))
    assert validate_produced(batch, 0, len(batch), 1_700_000_000_000, 2**31 - 1, span, span)
