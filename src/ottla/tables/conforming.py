"""Values of a schema's types as values of a table's types, which `column_types` has chosen.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

YEARS_MS: Final = (-62_135_596_800_000, 253_402_300_799_999)
"""The years 1 to 9999: Iceberg's and Delta's libraries fail on the times and dates of others."""
_YEARS_US: Final = (YEARS_MS[0] * 1000, YEARS_MS[1] * 1000 + 999)
_DAY_US: Final = (0, 86_399_999_999)
_YEARS_DAYS: Final = (-719_162, 2_932_896)


def conform_rows(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The values as a type that `merge_types` made of theirs, and which of them it cannot hold: these are nulls."""
    bad = np.zeros(len(array), np.bool_)
    return _conform_part(array, kind, bad), bad


def _conform_part(array: pa.Array, kind: pa.DataType, bad: npt.NDArray[np.bool_]) -> pa.Array:
    try:
        return conform_array(array, kind)
    except pa.ArrowInvalid:
        # Values that are too large are rare: their rows are found by halves.
        if len(array) == 1:
            bad[0] = True
            return pa.nulls(1, kind)
        half = len(array) // 2
        parts = (array[:half], bad[:half]), (array[half:], bad[half:])
        return pa.concat_arrays([_conform_part(each, kind, found) for each, found in parts])


def conform_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as a type that `merge_types` made of theirs. Raises pa.ArrowInvalid: it cannot hold one of them."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    for check, conform in _NESTED:
        if check(kind):
            return conform(array, kind)
    return _conform_scalars(array, kind)


def _conform_scalars(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        # Nanoseconds are cut off; finer units than the type's never overflow.
        found = array.cast(kind, safe=array.type.unit != "ns")
        _check_range(found, pa.int64(), _YEARS_US)
        return found
    if pa.types.is_date(kind):
        _check_range(array, pa.int32(), _YEARS_DAYS)
    if pa.types.is_time(array.type):
        found = array.cast(pa.time64("us"))
        _check_range(found, pa.int64(), _DAY_US)
        return found.cast(kind)
    if pa.types.is_duration(array.type) and pa.types.is_integer(kind):
        return array.cast(pa.duration("us")).cast(kind)
    return array if array.type == kind else array.cast(kind)


def _check_range(array: pa.Array, numbers: pa.DataType, limits: tuple[int, int]) -> None:
    found = pc.min_max(array.view(numbers)).as_py()
    if found["min"] is not None and (found["min"] < limits[0] or found["max"] > limits[1]):
        raise pa.ArrowInvalid("a date or time that is out of range")


def _conform_structs(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if not kind.num_fields:
        return pa.nulls(len(array), kind)
    parts = dict(zip([each.name for each in array.type], array.flatten(), strict=True))
    made = [
        conform_array(parts[each.name], each.type) if each.name in parts else pa.nulls(len(array), each.type)
        for each in kind
    ]
    return pa.StructArray.from_arrays(made, fields=list(kind), mask=_mask_of(array))


def _conform_lists(array: pa.Array, kind: pa.DataType) -> pa.Array:
    items = conform_array(array.flatten(), kind.value_type)
    return pa.ListArray.from_arrays(_offsets_of(pc.list_value_length(array)), items, type=kind, mask=_mask_of(array))


def _conform_maps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Keys and items of a slice are those of the whole array, so that its offsets say which ones count.
    offsets = array.offsets
    begin, length = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    keys, items = array.keys.slice(begin, length), conform_array(array.items.slice(begin, length), kind.item_type)
    return pa.MapArray.from_arrays(pc.subtract(offsets, begin), keys, items, type=kind, mask=_mask_of(array))


def _offsets_of(lengths: pa.Array) -> pa.Array:
    counts = np.asarray(lengths.fill_null(0)).astype(np.int64)
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def _mask_of(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


_NESTED: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, Any], Any]], ...]] = (
    (pa.types.is_struct, _conform_structs),
    (pa.types.is_list, _conform_lists),
    (pa.types.is_map, _conform_maps),
)
