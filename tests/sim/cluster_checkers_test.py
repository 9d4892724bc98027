"""Every anomaly of a cluster that is planted into a history is flagged by its checker.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.cluster.checkers import BESIDE, CHECKERS, find_violations
from ottla.sim.cluster.history import ClusterHistory
from ottla.sim.history import Outcome, Read, Refusal, Reset, Write

LOG = "t-0@id"


def write(values, offset, *, broker=1, sequence=0, outcome=Outcome.OK, sends=1):
    encoded = [value.encode() for value in values]
    return Write("p", LOG, encoded, -1, 7, 0, sequence, 0, 0, outcome, offset, broker, sends)


def read(position, values, *, broker=1, high_watermark=100, log_start=0, connection=1, epoch=3, epochs=()):
    records = [(position + at, value.encode()) for at, value in enumerate(values)]
    return Read(
        "r", LOG, broker, 0, position, records, high_watermark, log_start, connection, "", False, epoch, list(epochs)
    )


def healthy() -> ClusterHistory:
    """Two batches by two leaders in their epochs, read, and in the log at the end."""
    history = ClusterHistory(
        writes=[write(["a", "b"], 0), write(["c"], 2, sequence=2, broker=2)],
        reads=[read(0, ["a", "b"], epochs=[(0, 3)]), read(2, ["c"], epoch=4, epochs=[(2, 4)], connection=2)],
        final={LOG: {0: b"a", 1: b"b", 2: b"c"}},
    )
    assert not find_violations(history)
    return history


def test_a_healthy_history_is_clean():
    healthy()


def lost_duplicate(history):
    history.writes.append(write(["d"], -1, sequence=3, broker=2))


def two_writers_of_an_epoch(history):
    history.reads[1].epochs = [(2, 3)]


def two_leaders_in_metadata(history):
    history.rivals.append("t-0 epoch 3: broker 1 reports 2 as leader, broker 2 reported 1")


def epoch_goes_back(history):
    history.reads.append(read(0, ["a", "b", "c"], epochs=[(0, 3), (2, 2)], connection=5))


def watermark_went_back(history):
    history.reads.append(read(3, [], high_watermark=50))


def log_start_went_back(history):
    history.reads[0].log_start = 1
    history.reads[0].records = []
    history.reads.append(read(2, ["c"], log_start=0))


def too_few_replicas(history):
    history.too_few.append("t-0 at 2: not on brokers [2, 3]")


def different_below_the_watermark(history):
    history.divergent.append("t-0: brokers 1 and 2 differ")


def different_at_the_end(history):
    history.unequal.append("t-0: broker 1 ends at 3, broker 2 at 2")


def lost(history):
    del history.final[LOG][2]


def lost_although_flushed(history):
    history.flushed[LOG] = None
    del history.final[LOG][2]


def overwritten(history):
    history.writes.append(write(["x"], -1, sequence=9, outcome=Outcome.INFO))
    history.final[LOG][2] = b"x"


def invented(history):
    history.reads.append(read(3, ["no producer sent this"]))


def gap(history):
    history.reads[0].records[1] = (2, b"c")


def jump(history):
    history.reads[1].position = 1


def above_the_watermark(history):
    history.reads[1].high_watermark = 2


def out_of_range(history):
    history.resets.append(Reset("r", LOG, 1, 0, 3))


def twice(history):
    history.final[LOG][3] = b"c"


def out_of_order(history):
    history.writes[0].offset = history.writes[1].offset = -1
    history.reads.clear()
    history.final[LOG] = {0: b"c", 1: b"a", 2: b"b"}


def forgotten_sequence(history):
    history.refusals.append(Refusal("p", LOG, 2, 0, "OUT_OF_ORDER_SEQUENCE_NUMBER", 1))


def refused_and_there(history):
    history.writes[1].outcome = Outcome.FAIL


def stuck(history):
    history.stuck.append("broker 2")


def crashed(history):
    history.crashes.append("Traceback")


def unreadable(history):
    history.broken_protocol.append("an answer without a request")


PLANTED = [
    (lost_duplicate, {"duplicates_are_kept"}),
    (two_writers_of_an_epoch, {"one_leader_per_epoch"}),
    (two_leaders_in_metadata, {"one_leader_per_epoch"}),
    (epoch_goes_back, {"epochs_only_rise", "one_leader_per_epoch"}),
    (watermark_went_back, {"watermarks_never_go_back"}),
    (log_start_went_back, {"watermarks_never_go_back"}),
    (too_few_replicas, {"acks_reach_min_isr"}),
    (different_below_the_watermark, {"logs_agree_below_watermark"}),
    (different_at_the_end, {"replicas_are_identical"}),
    (lost, {"acknowledged_is_kept", "seen_is_kept"}),
    (lost_although_flushed, {"flushed_is_kept", "acknowledged_is_kept", "seen_is_kept"}),
    (overwritten, {"acknowledged_is_kept", "seen_is_kept", "one_offset_one_value"}),
    (invented, {"bytes_are_right", "seen_is_kept"}),
    (gap, {"offsets_are_dense", "seen_is_kept", "one_offset_one_value", "bytes_are_right"}),
    (jump, {"readers_see_no_jump"}),
    (above_the_watermark, {"watermarks_are_ordered"}),
    (out_of_range, {"positions_stay_in_range"}),
    (twice, {"idempotent_is_once"}),
    (out_of_order, {"idempotent_is_in_order"}),
    (forgotten_sequence, {"sequences_are_remembered"}),
    (refused_and_there, {"refused_is_absent"}),
    (stuck, {"everything_converges"}),
    (crashed, {"broker_stays_up"}),
    (unreadable, {"protocol_is_kept"}),
]


@pytest.mark.parametrize(("plant", "expected"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_anomaly_is_flagged(plant, expected):
    history = healthy()
    plant(history)
    found = {name for name, _ in find_violations(history)}
    assert found
    assert found <= expected


def test_every_checker_has_an_anomaly_that_it_flags():
    flagged = set()
    for plant, _ in PLANTED:
        history = healthy()
        plant(history)
        flagged |= {name for name, _ in find_violations(history)}
    assert flagged == {checker.__name__ for checker in CHECKERS}
    assert flagged > BESIDE


def test_a_retried_batch_does_not_prove_who_wrote_it():
    history = healthy()
    history.writes[1].sends = 2
    two_writers_of_an_epoch(history)
    assert not find_violations(history)


def test_a_log_with_an_excuse_may_lose_its_tail_and_nothing_before_it():
    history = healthy()
    history.excused[LOG] = 2
    lost(history)
    out_of_range(history)
    assert not find_violations(history)
    del history.final[LOG][1]
    assert {name for name, _ in find_violations(history)} == {"acknowledged_is_kept", "seen_is_kept"}


def test_in_another_epoch_the_watermark_may_be_lower():
    history = healthy()
    history.reads.append(read(3, [], high_watermark=50, epoch=5))
    assert not find_violations(history)


def test_what_a_leader_alone_acknowledged_may_be_lost_with_it():
    history = healthy()
    history.writes[1].acks = 1
    history.reads.pop()
    overwritten(history)
    assert not find_violations(history)
