"""What may be missing in a compacted log, and what may not."""

from __future__ import annotations

import pytest
from testbench.crash import compacted
from testbench.crash.model import State, Written
from testbench.crash.site import CONFIGS, KEYED

from ottla.record.batch import Record, encode_batch
from ottla.record.control import ControlType, control_key, marker_value

LATER = CONFIGS[KEYED].delete_retention_ms
Rows = dict[str, str | None]


class Log:
    """Batches one behind the other, as they are written."""

    def __init__(self) -> None:
        self.state = State()

    def put(self, kind: str, rows: Rows, producer: int = -1) -> None:
        base = self.state.end
        if kind in ("commit", "abort"):
            control = ControlType.COMMIT if kind == "commit" else ControlType.ABORT
            records = [Record(0, 5, control_key(control), marker_value(1))]
        else:
            values = [None if value is None else value.encode() for value in rows.values()]
            records = [
                Record(at, 5, key.encode(), value) for at, (key, value) in enumerate(zip(rows, values, strict=True))
            ]
        data = encode_batch(
            records, producer_id=producer, producer_epoch=-1 if producer < 0 else 0,
            transactional=kind != "data", control=kind in ("commit", "abort"), leader_epoch=0,
        )  # fmt: skip
        data[:8] = base.to_bytes(8, "big")
        last = base + len(records) - 1
        self.state.batches.append(
            Written(base, last, 0, 5, producer, -1 if producer < 0 else 0, -1, kind, bytes(data), 0)
        )

    def wrong(self, *left: int, now_ms: int = 0, end: int = 0) -> str:
        """What is wrong when the batches with these bases are left."""
        content = b"".join(batch.data for batch in self.state.batches if batch.base in left)
        return compacted.unlike(content, 0, end or self.state.end, self.state, now_ms)


@pytest.fixture
def log() -> Log:
    """Two values of a key, then another key; all of it committed."""
    made = Log()
    for rows in ({"a": "1"}, {"a": "2"}, {"b": "1"}):
        made.put("data", dict(rows))
    made.state.committed(3)
    return made


def test_an_older_value_may_go_and_no_other(log: Log) -> None:
    assert not log.wrong(0, 1, 2)
    assert not log.wrong(1, 2)
    assert "record at 1" in log.wrong(0, 2)
    assert "record at 2" in log.wrong(1)


def test_nothing_goes_that_is_not_committed(log: Log) -> None:
    log.state.reach = 1
    assert "record at 0" in log.wrong(1, 2)


def test_nothing_goes_for_the_sake_of_what_is_lost(log: Log) -> None:
    assert not log.wrong(0, end=1)
    assert "record at 0" in log.wrong(end=1)


def test_tombstones_go_when_their_time_is_over_and_take_what_they_deleted_along() -> None:
    log = Log()
    log.put("data", {"a": "1"})
    log.put("data", {"a": None})
    log.put("data", {"b": "1"})
    log.state.committed(3)
    assert not log.wrong(1, 2)
    assert "record at 1" in log.wrong(2)
    assert not log.wrong(2, now_ms=LATER)
    assert "shows the record at 0" in log.wrong(0, 2, now_ms=LATER)


def test_of_transactions_what_was_aborted_goes_and_what_is_open_stays() -> None:
    log = Log()
    log.put("data", {"a": "1"})
    log.put("txn", {"a": "2"}, 7)
    log.put("abort", {}, 7)
    log.put("txn", {"a": "3"}, 8)
    log.state.committed(4)
    assert log.state.reach == 3
    assert not log.wrong(0, 2, 3)
    assert "record at 0" in log.wrong(1, 2, 3)
    assert "record at 3" in log.wrong(0, 2)
    assert "record at 2" in log.wrong(0, 1, 3, now_ms=LATER)
    assert not log.wrong(0, 3, now_ms=LATER)


def test_what_nobody_wrote_is_found(log: Log) -> None:
    other = Log()
    other.put("data", {"a": "9"})
    content = other.state.batches[0].data + b"".join(batch.data for batch in log.state.batches[1:])
    assert "no producer wrote" in compacted.unlike(content, 0, 3, log.state, 0)


def test_a_key_has_one_record_below_what_is_clean(log: Log) -> None:
    content = b"".join(batch.data for batch in log.state.batches)
    assert compacted.twice_below(content, 3, log.state.batches)
    assert not compacted.twice_below(content, 1, log.state.batches)


def test_the_list_of_aborted_transactions_hides_what_it_has_to() -> None:
    log = Log()
    log.put("txn", {"a": "1"}, 7)
    log.put("abort", {}, 7)
    log.put("txn", {"a": "2"}, 7)
    log.put("commit", {}, 7)
    content = b"".join(batch.data for batch in log.state.batches)
    assert not compacted.hidden_wrongly(content, [(7, 0, 1)], log.state.batches)
    assert compacted.hidden_wrongly(content, [], log.state.batches)
    assert compacted.hidden_wrongly(content, [(7, 0, 3)], log.state.batches)
