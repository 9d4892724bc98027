"""Timestamps of callers: accepted types, and types that are refused at once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import numpy as np
import pytest

from ottla.client import UsageError, WrongTypeError
from ottla.client.timestamps import timestamp_ms

AT = 1_700_000_000_123


class Number(int):
    """An integer type of the application."""


class Moment(IntEnum):
    """An integer enum of the application."""

    NOW = AT


@pytest.mark.parametrize(
    "value",
    [
        AT,
        Number(AT),
        Moment.NOW,
        np.int64(AT),
        np.uint64(AT),
        datetime.fromtimestamp(AT // 1000, UTC) + timedelta(milliseconds=AT % 1000, microseconds=999),
        datetime.fromtimestamp(AT // 1000, timezone(timedelta(hours=5))) + timedelta(milliseconds=AT % 1000),
        datetime.fromtimestamp(AT // 1000) + timedelta(milliseconds=AT % 1000),  # noqa: DTZ006  local time, as Python has it
    ],
    ids=lambda value: type(value).__name__,
)
def test_whole_numbers_and_datetimes_are_taken(value: object) -> None:
    found = timestamp_ms(value)
    assert (found, type(found)) == (AT, int)


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        float(AT),
        True,
        str(AT),
        b"1",
        np.float64(AT),
        np.bool_(True),
        Decimal(AT),
        Fraction(AT),
        date(1, 1, 1),
        [],
    ],
    ids=lambda value: type(value).__name__,
)
def test_everything_else_is_refused_by_its_type(value: object) -> None:
    with pytest.raises(WrongTypeError, match=r"a timestamp is .*an int, or a datetime") as refused:
        timestamp_ms(value)
    assert isinstance(refused.value, TypeError)
    assert isinstance(refused.value, UsageError)


@pytest.mark.parametrize("value", [-1, 2**63, Number(-1), datetime(1969, 12, 31, tzinfo=UTC)])
def test_timestamps_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="not in milliseconds since 1970"):
        timestamp_ms(value)
