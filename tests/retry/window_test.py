"""Which records still wait, against a model that is a set; and what is committed, read again.

Zone: pure.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.positions import OffsetAndMetadata
from ottla.retry.errors import ForeignPositionError
from ottla.retry.offset_metadata import parse_position, position_of
from ottla.retry.window import MAX_SPAN, MAX_TEXT, Window, unpack_runs
from ottla.types import TopicPartition

WHERE = TopicPartition("orders.retry.1", 0)


class Model:
    """Offsets that wait, as a set."""

    def __init__(self, low: int) -> None:
        self.waiting: set[int] = set()
        self.end = low

    @property
    def low(self) -> int:
        return min(self.waiting, default=self.end)


STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "gap", "hand", "abort", "restart"]), st.integers(0, 2**16)), max_size=60
)


def restarted(window: Window, model: Model, log: list[int]) -> Window:
    """A new run: only what is committed is known, and the log."""
    place = parse_position(WHERE, position_of(window, "g"))
    again = Window(place.low, place.handed)
    for offset in log:
        if offset >= place.low:
            again.add_read(offset)
    again.advance_end(model.end)
    return again


@given(st.integers(0, 2**40), STEPS)
def test_a_window_knows_what_a_set_of_offsets_knows_also_after_a_restart(
    low: int, steps: list[tuple[str, int]]
) -> None:
    window, model, log = Window(low), Model(low), list[int]()
    for step, number in steps:
        if step == "read":
            assert window.add_read(model.end)
            log.append(model.end)
            model.waiting.add(model.end)
            model.end += 1
        elif step == "gap":
            model.end += number % 5
            window.advance_end(model.end)
        elif step in ("hand", "abort") and model.waiting:
            some = random.Random(number).sample(sorted(model.waiting), 1 + number % len(model.waiting))
            window.mark_forwarded(some)
            if step == "abort":
                window.mark_waiting(some)
            else:
                window.on_committed()
                model.waiting -= set(some)
        elif step == "restart":
            window = restarted(window, model, log)
        assert (window.low, window.end, window.waiting) == (model.low, model.end, len(model.waiting))
        assert {offset for offset in range(low, model.end) if window.is_waiting(offset)} == model.waiting
        assert parse_position(WHERE, position_of(window, "")).low == model.low


def test_a_position_contains_which_later_records_were_forwarded() -> None:
    window = Window(10)
    for offset in range(10, 20):
        window.add_read(offset)
    window.mark_forwarded([10, 12, 13, 18])
    window.on_committed()
    committed = position_of(window, "abc")
    assert committed.offset == 11
    place = parse_position(WHERE, committed)
    assert (place.generation, place.handed) == ("abc", [(12, 14), (18, 19)])


def test_a_record_that_was_read_is_not_read_again() -> None:
    window = Window(0)
    assert window.add_read(0)
    assert not window.add_read(0)


def test_a_window_that_has_not_read_what_was_handed_over_before_is_not_ready() -> None:
    window = Window(5, [(7, 9)])
    assert not window.is_ready
    assert [window.add_read(offset) for offset in range(5, 9)] == [True, True, False, False]
    assert window.is_ready
    assert position_of(window, "").offset == 5


@settings(max_examples=10)
@given(st.integers(0, 1000), st.floats(0.05, 0.95))
def test_when_there_are_too_many_runs_few_records_written_again_make_them_few(seed: int, part: float) -> None:
    """However the records that wait lie between the others, each hand-over of 500 more can be committed."""
    window, draw = Window(0), random.Random(seed)
    for offset in range(12_000):
        window.add_read(offset)
    left = [offset for offset in range(12_000) if draw.random() < part]
    draw.shuffle(left)
    for at in range(0, len(left), 500):
        some = [offset for offset in left[at : at + 500] if window.is_waiting(offset)]
        window.mark_forwarded(some)
        window.mark_forwarded(window.offsets_to_rewrite())
        assert len(position_of(window, "0123456789abcdef").metadata) <= MAX_TEXT + 50
        window.on_committed()


def test_without_records_written_again_runs_outgrow_what_kafka_takes_as_metadata() -> None:
    window, draw = Window(0), random.Random(1)
    for offset in range(60_000):
        window.add_read(offset)
    window.mark_forwarded([offset for offset in range(1, 60_000) if draw.random() < 0.5])
    assert len(position_of(window, "").metadata) > 4_096
    window.mark_forwarded(window.offsets_to_rewrite(limit=60_000))
    assert len(position_of(window, "").metadata) < 4_096


@pytest.mark.parametrize(
    "text", ["x", "zAAAA", "rAA==", "rAQ==", "r!!", "r/////////w==", "rgA==", "z" + "A" * 5000, "\u00e9"]
)
def test_texts_that_are_not_packed_runs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        unpack_runs(text, 0)
    with pytest.raises(ForeignPositionError):
        parse_position(WHERE, OffsetAndMetadata(5, metadata=f"ottla.retry||{text}"))


@given(st.text(max_size=50))
def test_any_metadata_is_parsed_or_refused(text: str) -> None:
    try:
        place = parse_position(WHERE, OffsetAndMetadata(5, metadata=text))
    except ForeignPositionError:
        return
    assert place.low == 5


def test_a_gap_of_offsets_takes_no_memory_without_end() -> None:
    window = Window(0)
    window.advance_end(2**40)  # nothing waits: nothing is kept
    assert window.low == window.end == 2**40
    window.add_read(2**40)
    with pytest.raises(OverflowError):
        window.advance_end(2**40 + MAX_SPAN + 1)
