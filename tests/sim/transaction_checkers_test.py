"""Each property of transactions and groups flags the anomaly that was planted for it, and a clean history has none.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.sim.transactions.checkers import CHECKERS, find_cycles, find_violations
from ottla.sim.transactions.history import (
    Committed,
    Copied,
    Fate,
    Owned,
    Position,
    Processed,
    SeenMarker,
    SeenRecord,
    TransactionHistory,
    Txn,
    View,
)

LEFT, RIGHT = "left-0@x", "right-0@x"
SOURCE = ("input", 0)
GROUP = "copying"
WATCHING = "watching"


def txn(number: int, client: str, producer_id: int, values: dict[bytes, str], fate: Fate = Fate.COMMITTED) -> Txn:
    """A transaction with acknowledged requests, whose times are its number in seconds."""
    at = number * 10**9
    made = Txn(f"{client} {number}", client, f"id-{client}", producer_id, 0, at - 9, number, dict(values))
    made.fate, made.ended_ns = fate, at
    made.commit_sent_ns = -1 if fate is Fate.ABORTED else at - 1
    return made


def view(log: str, records: list[SeenRecord], end: int, at_s: int = 9, **changes: object) -> View:
    """Committed records from the start of a log to `end`, which is its end."""
    made = View("reader", log, at_s * 10**9, 0, end, records, [], end, end, True)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def clean() -> TransactionHistory:
    """Two copies by transaction 1 in two logs, an aborted attempt of one, a transaction that read; a watching group."""
    history = TransactionHistory()
    first = txn(1, "a", 7, {b"one": LEFT, b"two": RIGHT})
    first.written = {b"one": 0, b"two": 0}
    first.positions = {(GROUP, SOURCE): 2}
    aborted = txn(2, "b", 8, {b"void": LEFT}, Fate.ABORTED)
    second = txn(3, "b", 8, {b"three": LEFT})
    second.written = {b"three": 4}
    second.read = [b"one"]
    history.txns = [first, aborted, second]
    history.copies = {b"one": Copied(GROUP, SOURCE, 0), b"two": Copied(GROUP, SOURCE, 1)}
    history.last_raw = {
        LEFT: [
            SeenRecord(0, b"one", 7, 0),
            SeenRecord(1, b"void", 8, 0),
            SeenMarker(2, 7, 0, True),
            SeenMarker(3, 8, 0, False),
            SeenRecord(4, b"three", 8, 0),
            SeenMarker(5, 8, 0, True),
        ],
        RIGHT: [SeenRecord(0, b"two", 7, 0), SeenMarker(1, 7, 0, True)],
    }
    history.last_committed = {LEFT: {0: b"one", 4: b"three"}, RIGHT: {0: b"two"}}
    history.views = [
        view(LEFT, [SeenRecord(0, b"one", 7, 0), SeenRecord(4, b"three", 8, 0)], 6),
        view(RIGHT, [SeenRecord(0, b"two", 7, 0)], 2),
    ]
    history.positions = [Position(GROUP, SOURCE, 2, "a 1", 4 * 10**9, 5 * 10**9, True)]
    history.last_positions = {(GROUP, SOURCE): 2, (WATCHING, SOURCE): 2}
    history.commits = [Committed(WATCHING, SOURCE, 2, "w 1", 2, 10**9, 2 * 10**9)]
    history.processed = [Processed(WATCHING, SOURCE, 0, 2)]
    history.owned = [Owned(WATCHING, 1, "m", (SOURCE,), 0), Owned(WATCHING, 2, "n", (SOURCE,), 0)]
    return history


def test_a_clean_history_has_no_violations():
    assert find_violations(clean()) == []


def plant_dirty_write(history):
    history.txns[2].transactional_id = history.txns[0].transactional_id
    history.txns.reverse()


def plant_aborted_read(history):
    history.views[0].records.insert(1, SeenRecord(1, b"void", 8, 0))


def plant_early_read(history):
    history.views[1].at_ns = 1


def plant_read_of_an_aborted_value(history):
    history.txns[2].read = [b"void"]


def plant_intermediate_read(history):
    history.views[1].high_watermark = history.views[1].last_stable = 1


def plant_circular_flow(history):
    history.txns[0].read = [b"three"]


def plant_loss(history):
    del history.last_committed[RIGHT][0]


def plant_torn_transaction(history):
    history.txns[0].fate = Fate.OPEN
    del history.last_committed[RIGHT][0]


def plant_second_copy(history):
    history.copies[b"three"] = Copied(GROUP, SOURCE, 1)


def plant_copy_that_is_missing(history):
    history.last_positions[GROUP, SOURCE] = 3


def plant_copy_above_the_position(history):
    history.last_positions[GROUP, SOURCE] = 1


def plant_two_values_at_an_offset(history):
    history.views.append(view(RIGHT, [SeenRecord(0, b"one", 7, 0)], 2, committed=False))


def plant_value_at_two_offsets(history):
    history.last_raw[RIGHT].append(SeenRecord(2, b"one", 7, 0))


def plant_view_that_hides_something(history):
    history.views[0].records.pop()


def plant_view_above_the_stable_offset(history):
    history.views[0].last_stable = 3


def plant_hanging_transaction(history):
    history.hanging.append("a reader at 3 of 5")


def plant_position_that_goes_back(history):
    history.positions.append(Position(WATCHING, SOURCE, 1, "w 0", 3 * 10**9, 4 * 10**9, False))


def plant_position_behind_a_transaction(history):
    history.positions = [Position(GROUP, SOURCE, 0, "", 2 * 10**9, 3 * 10**9, True)]


def plant_position_of_an_aborted_transaction(history):
    history.positions = [Position(GROUP, SOURCE, 2, "b 2", 4 * 10**9, 5 * 10**9, True)]


def plant_position_before_the_commit(history):
    history.positions = [Position(GROUP, SOURCE, 2, "a 1", 1, 2, False)]


def plant_second_owner(history):
    history.owned.append(Owned(WATCHING, 2, "m", (SOURCE,), 0))


def plant_commit_of_a_past_generation(history):
    history.commits[0] = history.commits[0]._replace(generation=1)
    history.owned[1] = Owned(WATCHING, 2, "n", (SOURCE,), 10**9)


def plant_transaction_of_a_past_generation(history):
    history.promises.append(Committed(WATCHING, SOURCE, 2, "a 1", 1, 1, 2))


def plant_marker_of_a_past_coordinator(history):
    history.last_raw[LEFT][3] = SeenMarker(3, 8, 0, False, 2)
    history.last_raw[LEFT][5] = SeenMarker(5, 8, 0, True, 1)


def plant_gap_in_processing(history):
    history.processed = [Processed(WATCHING, SOURCE, 1, 2)]


PLANTED = {
    "no_dirty_write": [plant_dirty_write],
    "no_aborted_read": [plant_aborted_read, plant_early_read, plant_read_of_an_aborted_value],
    "no_intermediate_read": [plant_intermediate_read],
    "no_circular_flow": [plant_circular_flow],
    "committed_is_kept": [plant_loss],
    "transactions_are_whole": [plant_torn_transaction],
    "copied_once": [plant_second_copy, plant_copy_that_is_missing, plant_copy_above_the_position],
    "views_agree": [plant_two_values_at_an_offset],
    "each_value_once": [plant_value_at_two_offsets],
    "views_follow_markers": [plant_view_that_hides_something],
    "stable_is_below_watermark": [plant_view_above_the_stable_offset],
    "stable_reaches_end": [plant_hanging_transaction],
    "positions_never_go_back": [plant_position_that_goes_back, plant_position_behind_a_transaction],
    "coordinators_go_forward": [plant_marker_of_a_past_coordinator],
    "past_generations_commit_nothing": [plant_commit_of_a_past_generation, plant_transaction_of_a_past_generation],
    "positions_are_committed": [plant_position_of_an_aborted_transaction, plant_position_before_the_commit],
    "one_owner_per_generation": [plant_second_owner],
    "nothing_is_left_out": [plant_gap_in_processing],
}


@pytest.mark.parametrize(("name", "plant"), [(name, plant) for name, plants in PLANTED.items() for plant in plants])
def test_a_planted_anomaly_is_flagged(name, plant):
    history = clean()
    plant(history)
    assert name in {found for found, _ in find_violations(history)}


def test_every_property_has_a_planted_anomaly():
    assert set(PLANTED) == {checker.__name__ for checker in CHECKERS}


def test_nothing_is_asked_of_transactions_after_a_loss_with_an_excuse():
    history = clean()
    plant_torn_transaction(history)
    history.excused[LEFT] = 0
    assert find_violations(history) == []


def test_rings_are_found_wherever_the_search_begins():
    edges = {1: [2], 2: [3, 4], 3: [1], 4: [5], 5: [6], 6: [5, 4], 7: [7], 8: []}
    assert sorted(sorted(ring) for ring in find_cycles(edges)) == [[1, 2, 3], [4, 5, 6]]
    assert list(find_cycles({1: [2], 2: [3], 3: []})) == []
