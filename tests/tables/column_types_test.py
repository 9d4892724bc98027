"""Types of schemas as columns, the union of two, and the values that columns hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ottla.tables.column_types import ColumnConflict, ColumnTypes, merge_types, standard_type, table_type
from ottla.tables.conforming import conform_rows

ICEBERG, DELTA = ColumnTypes(promotes=True, has_times=True), ColumnTypes(promotes=False, has_times=False)
INT, LONG, FLOAT, DOUBLE, TEXT = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()


def struct(**parts: pa.DataType) -> pa.DataType:
    return pa.struct(list(parts.items()))


@pytest.mark.parametrize(
    ("kind", "iceberg", "delta"),
    [
        (INT, INT, LONG),
        (FLOAT, FLOAT, DOUBLE),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.time32("ms"), pa.time64("us"), LONG),
        (pa.duration("us"), LONG, LONG),
        (pa.decimal128(9, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.null(), None, None),
        (struct(a=pa.null()), None, None),
        (pa.list_(struct(a=INT, b=pa.null())), pa.list_(struct(a=INT)), pa.list_(struct(a=LONG))),
        (pa.map_(TEXT, INT), pa.map_(TEXT, INT), pa.map_(TEXT, LONG)),
    ],
)
def test_types_of_schemas_are_those_of_tables(kind: Any, iceberg: Any, delta: Any) -> None:
    assert (table_type(kind, ICEBERG), table_type(kind, DELTA)) == (iceberg, delta)


def test_types_that_libraries_return_have_one_name() -> None:
    kind = struct(a=pa.large_list(pa.large_string()), m=pa.map_(pa.large_string(), pa.binary_view()))
    assert standard_type(kind) == struct(a=pa.list_(TEXT), m=pa.map_(TEXT, pa.binary()))


@pytest.mark.parametrize(
    ("found", "new", "merged"),
    [
        (struct(a=INT), struct(b=TEXT), struct(a=INT, b=TEXT)),
        (INT, LONG, LONG),
        (LONG, INT, LONG),
        (FLOAT, DOUBLE, DOUBLE),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (struct(a=pa.list_(struct(x=INT))), struct(a=pa.list_(struct(y=TEXT, x=LONG))), None),
        (pa.map_(TEXT, struct(a=INT)), pa.map_(TEXT, struct(b=INT)), pa.map_(TEXT, struct(a=INT, b=INT))),
    ],
)
def test_columns_grow(found: Any, new: Any, merged: Any) -> None:
    expected = struct(a=pa.list_(struct(x=LONG, y=TEXT))) if merged is None else merged
    assert merge_types(found, new, ICEBERG) == expected


@pytest.mark.parametrize(
    ("found", "new", "types", "reason"),
    [
        (struct(a=INT), struct(a=TEXT), ICEBERG, "a is string, the table has int32"),
        (struct(a=LONG), struct(a=DOUBLE), ICEBERG, "a is double, the table has int64"),
        (struct(a=INT), struct(a=LONG), DELTA, "a is int64, the table has int32"),
        (struct(a=struct(b=INT)), struct(a=struct(b=TEXT)), ICEBERG, "a.b is string"),
        (struct(a=pa.decimal128(9, 2)), struct(a=pa.decimal128(9, 3)), ICEBERG, "a is decimal"),
        (struct(a=INT), struct(A=INT), ICEBERG, "A differs only in case from a"),
        (struct(), struct(a=pa.list_(struct(b=INT, B=INT))), ICEBERG, "differ only in case"),
        (pa.map_(INT, INT), pa.map_(TEXT, INT), ICEBERG, "the keys"),
    ],
)
def test_other_changes_are_conflicts(found: Any, new: Any, types: ColumnTypes, reason: str) -> None:
    with pytest.raises(ColumnConflict, match=reason):
        merge_types(found, new, types)


def conform(values: list[Any], kind: pa.DataType, new: pa.DataType) -> list[Any]:
    array, bad = conform_rows(pa.array(values, kind), new)
    array.validate(full=True)
    assert array.type == new
    return ["bad" if wrong else each for each, wrong in zip(array.to_pylist(), bad.tolist(), strict=True)]


def test_values_of_nested_columns_keep_their_places() -> None:
    kind = struct(a=INT, l=pa.list_(struct(x=INT)), m=pa.map_(TEXT, pa.list_(INT)))
    new = struct(z=TEXT, a=LONG, l=pa.list_(struct(x=LONG, y=TEXT)), m=pa.map_(TEXT, pa.list_(LONG)))
    rows = [{"a": 1, "l": [{"x": 1}, None], "m": [("k", [1, 2]), ("n", None)]}, None, {"a": None, "l": None, "m": None}]
    wide = [
        {"z": None, "a": 1, "l": [{"x": 1, "y": None}, None], "m": [("k", [1, 2]), ("n", None)]},
        None,
        {"z": None, "a": None, "l": None, "m": None},
    ]
    assert conform(rows, kind, new) == wide
    sliced, _ = conform_rows(pa.array([None, *rows, None], kind)[1:4], new)
    assert sliced.to_pylist() == wide


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("ms", "UTC"), [0, 1 << 60, -(1 << 60)]),
        (pa.timestamp("us"), [0, 253_402_300_800_000_000, -62_135_596_800_000_001]),
        (pa.date32(), [0, 2_932_897, -719_163]),
        (pa.time32("ms"), [0, 86_400_000, -1]),
    ],
)
def test_times_that_libraries_of_tables_cannot_read_are_refused(kind: Any, values: list[int]) -> None:
    numbers = pa.int32() if kind.bit_width == 32 else pa.int64()
    nested = pa.StructArray.from_arrays([pa.array(values, numbers).view(kind)], ["t"])
    for types in (ICEBERG, DELTA):
        array, bad = conform_rows(nested, table_type(nested.type, types))
        assert bad.tolist() == [False, True, True]
        assert array.null_count == 2
