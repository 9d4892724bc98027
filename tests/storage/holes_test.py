"""Records missing between two segments of a compacted log: compacted away, or lost with the power.

Zone: deterministic. The name of a segment may reach the device before the bytes of the one before it.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.storage.cleaning.cleaner_test import CHECKPOINT, go_on, start
from tests.storage.cleaning.pass_test import fill, records
from tests.storage.conftest import TP, Shelf, SimWorld, make_rolled

from ottla.config.topic import TopicConfig
from ottla.sim.mutants.ablation import without_safeguard
from ottla.storage.checkpoints import format_offsets
from ottla.storage.log_loss import IncompleteLog

SLOW = {"log_flush_offset_checkpoint_interval_ms": "1000000000", "log_cleaner_backoff_ms": "100"}


def without_the_tail(sim: SimWorld, behind: int, durable: bool) -> Shelf:
    """The second half of a segment's records 10 to 19 is lost; `behind` are in the next one. Started again."""
    shelf = make_rolled(sim, [0, 10, 20], 20 + behind, cleanup_policy=("compact",))
    path = shelf.log.segments[1].file.path
    whole = sim.contents(path)
    if durable:
        shelf.flush()
        shelf.manager.dirs[0].offsets.checkpoint_recovery_points()
        sim.settle()
    sim.kill()
    sim.overwrite(path, whole[: len(whole) // 2])
    return shelf.again()


def test_an_empty_segment_after_a_lost_tail_is_dropped(sim: SimWorld) -> None:
    """Its replica would fetch from 20 on, and never the records that it has lost."""
    log = without_the_tail(sim, behind=0, durable=False).log
    assert (log.end_offset, len(log.segments), log.metadata.loss) == (15, 2, None)
    assert [record.offset for record in records(Shelf(sim, log.config))] == list(range(15))


def test_records_after_a_lost_tail_stay_and_the_log_is_marked_incomplete(sim: SimWorld) -> None:
    log = without_the_tail(sim, behind=5, durable=False).log
    assert (log.end_offset, len(log.segments), log.metadata.loss) == (25, 3, IncompleteLog.WITHIN)


def test_zeros_after_a_lost_tail_are_cut_off(sim: SimWorld) -> None:
    """Cut off, they would leave an empty segment: the next start must have the same result as this one."""
    shelf = make_rolled(sim, [0, 10, 20], 25, cleanup_policy=("compact",))
    first, last = (shelf.log.segments[slot].file.path for slot in (1, 2))
    tail, behind = len(sim.contents(first)) // 2, len(sim.contents(last))
    sim.kill()
    sim.overwrite(first, sim.contents(first)[:tail])
    sim.overwrite(last, bytes(behind))
    log = shelf.again().log
    assert (log.end_offset, len(log.segments), log.metadata.loss) == (15, 2, None)


@pytest.mark.parametrize("behind", [0, 5])
@without_safeguard("holes_explained")
def test_without_the_safeguard_a_lost_tail_is_taken_for_compaction(sim: SimWorld, behind: int) -> None:
    log = without_the_tail(sim, behind, durable=False).log
    assert (log.end_offset, len(log.segments), log.metadata.loss) == (20 + behind, 3, None)


@pytest.mark.parametrize("behind", [0, 5])
def test_below_the_recovery_point_a_hole_is_taken_for_compaction(sim: SimWorld, behind: int) -> None:
    log = without_the_tail(sim, behind, durable=True).log
    assert (log.end_offset, len(log.segments), log.metadata.loss) == (20 + behind, 3, None)


def test_holes_of_compaction_are_trusted_after_a_kill_before_the_checkpoint(sim: SimWorld) -> None:
    config = TopicConfig(segment_bytes=3_000, index_interval_bytes=200, cleanup_policy=("compact",))
    shelf = start(sim, config, **SLOW)
    fill(shelf, 1)
    go_on(shelf, 5_000)
    before, segments = records(shelf), list(shelf.log.segments)
    assert any(one.walk_tail()[1] < other.base_offset for one, other in pairwise(segments))
    sim.kill()
    sim.overwrite(CHECKPOINT, format_offsets({TP: 0}))  # the pass was about to write its checkpoint
    again = start(sim, config, **SLOW)
    assert again.log.metadata.loss is None
    assert records(again) == before
