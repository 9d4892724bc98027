"""Control records: the numbers of the shipped format, and short ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import header_at, patch_offset_and_epoch, records_of
from ottla.record.control import (
    ControlType,
    Marker,
    control_key,
    control_type,
    marker_batch,
    marker_value,
    parse_marker,
)
from ottla.record.errors import CorruptRecord


def test_bytes() -> None:
    """Type 0 is abort, 1 is commit."""
    assert control_key(ControlType.ABORT) == b"\0\0\0\0"
    assert control_key(ControlType.COMMIT) == b"\0\0\0\1"
    assert marker_value(258) == b"\0\0\0\0\1\2"


@given(st.booleans(), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=4))
def test_markers_there_and_back(commit: bool, epoch: int, later_fields: bytes) -> None:
    key = control_key(ControlType.COMMIT if commit else ControlType.ABORT)
    assert parse_marker(key + later_fields, marker_value(epoch) + later_fields) == Marker(commit, epoch)


def test_other_types_are_not_markers() -> None:
    assert parse_marker(control_key(ControlType.LEADER_CHANGE), None) is None
    assert control_type(b"\0\0\0\x63") == 99, "a type of the future is a number"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, None, "key of at least 4"),
        (b"\0\0\0", None, "key of at least 4"),
        (b"\xff\xff\0\0", None, "version -1 of a control record's key"),
        (b"\0\0\0\0", None, "value of at least 6"),
        (b"\0\0\0\0", bytes(5), "value of at least 6"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0", "version -1 of a transaction marker"),
    ],
)
def test_short_and_negative(key: bytes | None, value: bytes | None, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        parse_marker(key, value)


def test_batches_are_kafkas_to_the_byte(golden) -> None:
    """Every marker that Apache Kafka wrote, rebuilt from its fields."""
    compared = 0
    for path in sorted(golden("transactions").directory.glob("txn-*/*.log")):
        view, pos = memoryview(path.read_bytes()), 0
        while pos < len(view):
            header = header_at(view, pos)
            if header.is_control:
                (record,) = records_of(view, pos, max_bytes=1000)
                marker = parse_marker(record.key, record.value)
                made = marker_batch(header.producer_id, header.producer_epoch, marker, record.timestamp)
                patch_offset_and_epoch(made, 0, header.base_offset, header.leader_epoch)
                assert made == bytes(view[pos : pos + header.size])
                compared += 1
            pos += header.size
    assert compared > 10
