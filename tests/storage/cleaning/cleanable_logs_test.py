"""What can be compacted now, and where to begin."""

from __future__ import annotations

import pytest

from ottla.storage.cleaning.cleanable_logs import (
    CleanableRange,
    CompactionRules,
    SegmentFacts,
    cleanable_range,
    dirtiest_log,
    dirty_start,
)

NOW = 100_000
RULES = CompactionRules(0.5, 0, 1 << 62)
LOG = [SegmentFacts(0, 100, 10), SegmentFacts(10, 300, 20), SegmentFacts(20, 200, NOW - 5), SegmentFacts(30, 50, NOW)]


def test_all_but_the_active_segment_below_the_stable_offset() -> None:
    assert cleanable_range(LOG, 0, 35, NOW, RULES) == CleanableRange(0, 30, 600, 1.0, 0)
    assert cleanable_range(LOG, 20, 35, NOW, RULES) == CleanableRange(20, 30, 200, 200 / 600, 0)
    assert cleanable_range(LOG, 0, 29, NOW, RULES) == CleanableRange(0, 20, 400, 1.0, 0), "29 is unstable"
    assert cleanable_range(LOG, 0, 5, NOW, RULES) is None
    assert cleanable_range(LOG, 30, 35, NOW, RULES) is None, "all is clean"
    assert cleanable_range(LOG[-1:], 30, 35, NOW, RULES) is None


def test_a_part_of_a_segment_that_was_reached_counts_whole() -> None:
    assert cleanable_range(LOG, 15, 35, NOW, RULES) == CleanableRange(15, 30, 500, 500 / 600, 0)


def test_before_an_empty_active_segment_the_newest_records_stay() -> None:
    empty = SegmentFacts(40, 0, 0)
    assert cleanable_range([*LOG, empty], 0, 40, NOW, RULES) == cleanable_range(LOG, 0, 40, NOW, RULES)
    assert cleanable_range([LOG[0], empty], 0, 40, NOW, RULES) is None


def test_young_records_stay_and_overdue_ones_do_not_wait() -> None:
    assert cleanable_range(LOG, 0, 35, NOW, RULES._replace(min_lag_ms=5)) == CleanableRange(0, 30, 600, 1.0, 0)
    young = cleanable_range(LOG, 0, 35, NOW, RULES._replace(min_lag_ms=6))
    assert young is not None
    assert young.until == 20
    old = cleanable_range(LOG, 20, 35, NOW, RULES._replace(max_lag_ms=4))
    assert old is not None
    assert (old.is_overdue, old.delay_ms) == (True, 1)
    assert not cleanable_range(LOG, 20, 35, NOW, RULES._replace(max_lag_ms=5)).is_overdue  # type: ignore[union-attr]
    oldest = cleanable_range(LOG, 0, 35, NOW, RULES._replace(max_lag_ms=4))
    assert oldest is not None
    assert oldest.delay_ms == NOW - 10 - 4


@pytest.mark.parametrize(("checkpoint", "expected"), [(None, 5), (4, 5), (5, 5), (7, 7), (9, 9), (10, 5)])
def test_a_checkpoint_outside_the_log_is_ignored(checkpoint: int | None, expected: int) -> None:
    assert dirty_start(checkpoint, 5, 9) == expected


def test_the_dirtiest_log_is_next() -> None:
    def of(ratio: float, delay_ms: int = 0) -> CleanableRange:
        return CleanableRange(0, 1, 1, ratio, delay_ms)

    assert dirtiest_log([]) is None
    assert dirtiest_log([("none", None, RULES), ("clean", of(0.5), RULES)]) is None
    assert dirtiest_log([("a", of(0.6), RULES), ("b", of(0.9), RULES), ("c", of(0.8), RULES)]) == "b"
    assert dirtiest_log([("a", of(0.1, 1), RULES), ("b", of(0.4), RULES)]) == "a"
