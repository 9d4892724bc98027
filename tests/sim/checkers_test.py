"""Every anomaly that is planted into a history is flagged by its checker, and by no other.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.checkers import CHECKERS, find_violations
from ottla.sim.history import Ends, History, Loss, Outcome, Passage, Read, Refusal, Reset, Write
from ottla.sim.world import SECOND

LOG = "t-0@id"
KEYS = "k-0@id"


def write(values, offset, *, life=1, sequence=0, outcome=Outcome.OK, producer_id=7, producer="p"):
    encoded = [value.encode() for value in values]
    return Write(producer, LOG, encoded, -1, producer_id, 0, sequence, 0, 0, outcome, offset, life)


def read(position, values, *, life=1, reader="r", high_watermark=100, log_start=0, connection=1, damage=""):
    records = [(position + at, value.encode()) for at, value in enumerate(values)]
    return Read(reader, LOG, life, 0, position, records, high_watermark, log_start, connection, damage)


def healthy() -> History:
    """Two batches that were written, read, and are in the log at the end."""
    history = History(
        writes=[write(["a", "b"], 0), write(["c"], 2, sequence=2)],
        reads=[read(0, ["a", "b"]), read(2, ["c"])],
        ends=[Ends(LOG, 1, 0, 0, 3)],
        final={LOG: {0: b"a", 1: b"b", 2: b"c"}},
        final_life=1,
    )
    assert not find_violations(history)
    return history


def test_a_healthy_history_is_clean():
    healthy()


def lost(history):
    del history.final[LOG][2]


def lost_before_anybody_read(history):
    history.reads.pop()
    del history.final[LOG][2]


def lost_although_flushed(history):
    history.losses.append(Loss(1, 0, {LOG: 2}))
    history.flushed[LOG] = None
    history.final_life = 2
    del history.final[LOG][2]


def unread(history):
    history.writes[1].outcome = Outcome.INFO
    del history.final[LOG][2]


def overwritten(history):
    history.writes.append(write(["x"], -1, sequence=9, outcome=Outcome.INFO))
    history.final[LOG][2] = b"x"


def damaged(history):
    history.reads[0].damage = "checksum"


def invented(history):
    history.reads.append(read(3, ["no producer sent this"]))


def gap(history):
    history.reads[0].records[1] = (2, b"c")


def jump(history):
    history.reads[1].position = 1


def above_the_watermark(history):
    history.reads[1].high_watermark = 2
    history.reads[0].high_watermark = 2


def start_above_end(history):
    history.ends.append(Ends(LOG, 1, 0, 5, 3))


def watermark_went_back(history):
    history.reads.append(read(3, [], high_watermark=50))


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
    history.stuck.append("a reader")


def crashed(history):
    history.crashes.append("Traceback")


def unreadable(history):
    history.broken_protocol.append("an answer without a request")


def keyed(history, *rows, retention_ms=1000, **shown):
    """Batches of one record in a compacted log, a second apart, and its content at the end."""
    history.compacted[KEYS] = retention_ms
    history.rewritten[KEYS] = 0
    for offset, row in enumerate(rows):
        times = {"invoked_ns": offset * SECOND, "completed_ns": offset * SECOND + 1}
        history.writes.append(
            Write("k", KEYS, [row], -1, 8, 0, offset, outcome=Outcome.OK, offset=offset, life=1, **times)
        )
    history.shown[KEYS, 0] = {key.encode(): value for key, value in shown.items()}


def not_the_newest(history):
    keyed(history, b"a=1", b"a=2", a=b"1")


def deleted_and_shown(history):
    keyed(history, b"a=1", b"a=", a=b"1")


def deleted_in_silence(history):
    keyed(history, b"a=1", b"a=", b"b=1", b=b"1")
    history.passages.append(Passage(KEYS, 2 * SECOND - 1, 0, 3, frozenset({2})))


PLANTED = [
    (not_the_newest, {"latest_is_shown"}),
    (deleted_and_shown, {"latest_is_shown"}),
    (deleted_in_silence, {"deletions_are_told"}),
    (crashed, {"broker_stays_up"}),
    (unreadable, {"protocol_is_kept"}),
    (damaged, {"bytes_are_right"}),
    (invented, {"bytes_are_right", "seen_is_kept"}),
    (lost, {"acknowledged_is_kept", "seen_is_kept"}),
    (lost_before_anybody_read, {"acknowledged_is_kept"}),
    (lost_although_flushed, {"flushed_is_kept"}),
    (unread, {"seen_is_kept"}),
    (overwritten, {"acknowledged_is_kept", "seen_is_kept", "one_offset_one_value"}),
    (gap, {"offsets_are_dense"}),
    (jump, {"readers_see_no_jump"}),
    (above_the_watermark, {"watermarks_are_ordered"}),
    (start_above_end, {"watermarks_are_ordered"}),
    (watermark_went_back, {"watermarks_never_go_back"}),
    (out_of_range, {"positions_stay_in_range"}),
    (twice, {"idempotent_is_once"}),
    (out_of_order, {"idempotent_is_in_order"}),
    (forgotten_sequence, {"sequences_are_remembered"}),
    (refused_and_there, {"refused_is_absent"}),
    (stuck, {"everything_converges"}),
]


@pytest.mark.parametrize(("plant", "expected"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_anomaly_is_flagged(plant, expected):
    history = healthy()
    plant(history)
    assert {name for name, _ in find_violations(history)} == expected


def test_every_checker_has_an_anomaly_that_it_flags():
    flagged = {name for _, names in PLANTED for name in names}
    assert flagged == {checker.__name__ for checker in CHECKERS}


def test_a_tombstone_may_be_gone_when_its_time_is_over_or_the_clock_has_jumped():
    history = healthy()
    keyed(history, b"a=1", b"a=", b"b=1", b=b"1")
    history.passages.append(Passage(KEYS, 2 * SECOND, 0, 3, frozenset({2})))
    assert find_violations(history) == []
    history.passages.append(Passage(KEYS, 2 * SECOND - 1, 0, 3, frozenset({2})))
    history.jumps.append(3 * SECOND // 2)
    assert find_violations(history) == []


def test_of_a_compacted_log_a_loss_takes_what_was_not_durable_and_what_was_before_it_counts_again():
    history = healthy()
    keyed(history, b"a=1", b"a=2", b"b=1", a=b"1")
    history.losses.append(Loss(1, 0, {KEYS: 1}))
    assert find_violations(history) == []
    history.shown[KEYS, 0] = {b"b": b"1"}
    assert {name for name, _ in find_violations(history)} == {"latest_is_shown"}


def test_a_loss_excuses_what_was_not_durable_and_nothing_else():
    history = healthy()
    history.losses.append(Loss(1, 0, {LOG: 2}))
    lost(history)
    history.final_life = 2
    assert not find_violations(history)
    del history.final[LOG][1]
    assert {name for name, _ in find_violations(history)} == {"acknowledged_is_kept", "seen_is_kept"}


def test_after_a_loss_an_offset_may_get_another_value_but_only_one():
    history = healthy()
    history.losses.append(Loss(1, 0, {LOG: 2}))
    history.writes.append(write(["x"], 2, life=2, sequence=3))
    history.final[LOG][2] = b"x"
    history.final_life = 2
    assert not find_violations(history)
    history.writes.append(write(["y"], -1, sequence=9, outcome=Outcome.INFO))
    history.reads.append(read(2, ["y"], life=2, reader="s", connection=9))
    assert "one_offset_one_value" in {name for name, _ in find_violations(history)}


def test_a_record_acknowledged_after_the_loss_is_not_excused_by_it():
    history = healthy()
    history.losses.append(Loss(1, 0, {LOG: 3}))
    history.writes.append(write(["x"], 3, life=2, sequence=3))
    history.final_life = 2
    assert {name for name, _ in find_violations(history)} == {"acknowledged_is_kept"}


def test_deleted_records_may_be_gone():
    history = healthy()
    history.deleted[LOG] = 2
    del history.final[LOG][0], history.final[LOG][1]
    history.resets.append(Reset("r", LOG, 1, 0, 1))
    assert not find_violations(history)


def test_a_plain_producer_may_write_twice():
    history = healthy()
    history.writes.append(write(["d"], 3, producer_id=-1))
    history.final[LOG][3] = history.final[LOG][4] = b"d"
    assert not find_violations(history)


def test_of_each_property_only_the_first_few_are_told():
    history = healthy()
    history.stuck.extend(str(number) for number in range(50))
    assert len(find_violations(history, at_most=3)) == 3
