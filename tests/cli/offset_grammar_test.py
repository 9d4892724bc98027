"""The offset grammar of `consume`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.reading.offset_grammar import END, START, Base, Bound, OffsetRange, parse_range, parse_time

NOW = 1_700_000_000_000
MORNING = 1_644_827_400_000
"""2022-02-14T08:30:00Z"""


@pytest.mark.parametrize(
    ("text", "first", "until"),
    [
        ("start", START, None),
        ("end", END, None),
        ("earliest", START, None),
        ("latest", END, None),
        ("0", Bound(Base.ZERO, 0), None),
        ("47", Bound(Base.ZERO, 47), None),
        ("+3", Bound(Base.START, 3), None),
        ("-2", Bound(Base.END, 2), None),
        ("5:9", Bound(Base.ZERO, 5), Bound(Base.ZERO, 9)),
        (":9", START, Bound(Base.ZERO, 9)),
        ("5:", Bound(Base.ZERO, 5), None),
        (":end", START, END),
        ("-10:-5", Bound(Base.END, 10), Bound(Base.END, 5)),
        ("start:+3", START, Bound(Base.START, 3)),
        ("@1644827400", Bound(Base.TIME, MORNING), None),
        ("@1644827400000", Bound(Base.TIME, MORNING), None),
        ("@2022-02-14T08:30:00Z", Bound(Base.TIME, MORNING), None),
        ("@2022-02-14T08:30", Bound(Base.TIME, MORNING), None),
        ("@2022-02-14T09:30:00+01:00", Bound(Base.TIME, MORNING), None),
        ("@1644827400:1644827401", Bound(Base.TIME, MORNING), Bound(Base.TIME, MORNING + 1000)),
        ("@2022-02-14T08:30:@2022-02-14T08:31", Bound(Base.TIME, MORNING), Bound(Base.TIME, MORNING + 60_000)),
        ("@2022-02-14T08:30:00Z:2022-02-14T08:31:00Z", Bound(Base.TIME, MORNING), Bound(Base.TIME, MORNING + 60_000)),
        ("@-1h", Bound(Base.TIME, NOW - 3_600_000), None),
        ("@-2d:@-36h", Bound(Base.TIME, NOW - 172_800_000), Bound(Base.TIME, NOW - 129_600_000)),
        ("@-90s:end", Bound(Base.TIME, NOW - 90_000), END),
    ],
)
def test_what_the_grammar_means(text: str, first: Bound, until: Bound | None) -> None:
    assert parse_range(text, NOW) == OffsetRange(first, until)


@pytest.mark.parametrize(
    "text", ["", "x", "+", "-", "++1", "-+1", "1.5", "@", "@x", "@-1", "@1y", "1:x", "x:1", "1:2:3", "\u0661", "9" * 30]
)
def test_invalid_offsets(text: str) -> None:
    with pytest.raises(ValueError, match="is not an offset"):
        parse_range(text, NOW)


@given(st.text(max_size=30))
def test_any_text_is_a_range_or_a_value_error(text: str) -> None:
    try:
        found = parse_range(text, NOW)
    except ValueError:
        return
    assert isinstance(found, OffsetRange)


@given(st.sampled_from(Base), st.integers(0, 1_000), st.integers(0, 100), st.integers(0, 100))
def test_an_offset_lies_within_its_partition(base: Base, number: int, start: int, size: int) -> None:
    offset = Bound(base, number).resolve_offset(start, start + size, lambda time: time)
    assert start <= offset <= start + size
    exact = {Base.START: start + number, Base.END: start + size - number}.get(base, number)
    assert offset == exact or not start <= exact <= start + size


def test_a_time_before_1970_is_the_beginning() -> None:
    assert parse_time("1960-01-01", NOW) == 0
    assert parse_time("-999999999d", NOW) == 0
