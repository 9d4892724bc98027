"""Producers of a compacted log that lost batches between two segments: those are not acknowledged as duplicates.

Zone: deterministic. A producer that got no answer sends its batches again, after the broker has started without them.
"""

from __future__ import annotations

import pytest
from tests.storage.conftest import Shelf, SimWorld, make_batch

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.storage.log_loss import IncompleteLog

PRODUCER = 7
COMPACTED = TopicConfig(cleanup_policy=("compact",))


def batch(sequence: int, producer_id: int = PRODUCER, epoch: int = 0) -> bytearray:
    return make_batch(1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def after_the_loss(sim: SimWorld, lost: int = 3, kept: int = 2) -> Shelf:
    """Sequences 0 and 1 are flushed; the next ones fill a segment that power takes; the last ones are in another."""
    shelf = Shelf(sim, COMPACTED)
    shelf.put(batch(0), batch(1))
    shelf.flush()
    shelf.manager.dirs[0].offsets.checkpoint_recovery_points()
    sim.settle()
    shelf.log.roll_segment()
    shelf.put(*(batch(2 + number) for number in range(lost)))
    shelf.log.roll_segment()
    shelf.put(*(batch(2 + lost + number) for number in range(kept)))
    path = shelf.log.segments[1].file.path
    sim.settle()
    sim.kill()
    sim.overwrite(path, b"")
    again = shelf.again()
    assert (again.log.end_offset, again.log.metadata.loss) == (2 + lost + kept, IncompleteLog.WITHIN)
    return again


@pytest.mark.parametrize("kept", [1, 2, 6])
def test_lost_batches_that_are_sent_again_are_refused(sim: SimWorld, kept: int) -> None:
    shelf = after_the_loss(sim, kept=kept)
    for sequence in (2, 3, 4):
        with pytest.raises(ApiError) as refused:
            shelf.put(batch(sequence))
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_on_both_sides_of_the_loss_are_duplicates(sim: SimWorld) -> None:
    shelf = after_the_loss(sim)
    assert [shelf.put(batch(sequence)) for sequence in (0, 1, 5, 6)] == [[0], [1], [5], [6]]
    assert shelf.put(batch(7)) == [7]


def test_a_batch_after_the_loss_that_is_not_kept_any_more_was_written(sim: SimWorld) -> None:
    shelf = after_the_loss(sim)
    shelf.put(*(batch(sequence) for sequence in range(7, 12)))
    for sequence, code in ((5, ErrorCode.DUPLICATE_SEQUENCE_NUMBER), (4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)):
        with pytest.raises(ApiError) as refused:
            shelf.put(batch(sequence))
        assert refused.value.code is code


def test_gaps_of_compaction_are_no_losses(sim: SimWorld) -> None:
    """Compaction removes batches below the recovery point: they were written."""
    shelf = Shelf(sim, COMPACTED)
    shelf.put(batch(0))
    shelf.log.roll_segment()
    shelf.put(batch(1), batch(2))
    shelf.log.roll_segment()
    shelf.put(batch(3))
    shelf.flush()
    shelf.manager.dirs[0].offsets.checkpoint_recovery_points()
    path = shelf.log.segments[1].file.path
    sim.settle()
    sim.kill()
    sim.overwrite(path, b"")
    again = shelf.again()
    assert again.log.metadata.loss is None
    for sequence in (1, 2):
        with pytest.raises(ApiError) as refused:
            again.put(batch(sequence))
        assert refused.value.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
