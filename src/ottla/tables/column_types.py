"""The types of a table's columns: those of schemas as a table has them, and the union of two.

Zone: pure. Columns are only added: a field that a schema lacks is null in its rows, so a row is the same whenever it is
copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa

MAX_COLUMNS: Final = 10_000
"""Most columns of a table, parts of nested ones included."""
TIME: Final = pa.timestamp("us", tz="UTC")
_LOCAL_TIME: Final = pa.timestamp("us")


class ColumnTypes(NamedTuple):
    """Differences between the formats of tables."""

    promotes: bool
    """Whether an int column can become a long, a float a double; otherwise they are long and double at once."""
    has_times: bool
    """Whether there is a type for times of day; otherwise they are microseconds."""
    reserved: frozenset[str] = frozenset()
    """Names that no column may have, parts of nested ones excepted: readers refuse the table."""


class ColumnConflict(ValueError):
    """A schema's field and a column of the table that have no common type."""


def table_type(kind: pa.DataType, types: ColumnTypes) -> pa.DataType | None:
    """The column of a schema's type; None: it has none, as `null` or a record without fields."""
    if pa.types.is_struct(kind):
        parts = [(each.name, table_type(each.type, types)) for each in kind]
        found = [pa.field(name, part) for name, part in parts if part is not None]
        return pa.struct(found) if found else None
    if pa.types.is_list(kind):
        part = table_type(kind.value_type, types)
        return None if part is None else _list_type(part)
    if pa.types.is_map(kind):
        key, part = table_type(kind.key_type, types), table_type(kind.item_type, types)
        return None if part is None else pa.map_(key, part)
    return _table_scalar(kind, types)


def _table_scalar(kind: pa.DataType, types: ColumnTypes) -> pa.DataType | None:
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind):
        return TIME if kind.tz else _LOCAL_TIME
    if pa.types.is_time(kind):
        return pa.time64("us") if types.has_times else pa.int64()
    if pa.types.is_duration(kind):
        return pa.int64()
    kind = _SMALL.get(kind, kind)
    return kind if types.promotes else _WIDE.get(kind, kind)


_SMALL: Final = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
_WIDE: Final = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}


def standard_type(kind: pa.DataType) -> pa.DataType:
    """A type that a library returned for a table's column, as `table_type` names it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, standard_type(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_type(standard_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(standard_type(kind.key_type), standard_type(kind.item_type))
    return _STANDARD.get(kind, kind)


_STANDARD: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def _list_type(part: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", part))


def standard_schema(schema: pa.Schema) -> pa.Schema:
    """A table's columns with their standard types."""
    return pa.schema([pa.field(each.name, standard_type(each.type)) for each in schema])


def merge_types(found: pa.DataType, new: pa.DataType, types: ColumnTypes, path: str = "") -> pa.DataType:
    """The type that holds both: a column's, and a schema's (as of `table_type`). Raises ColumnConflict.

    Columns of the table come first, in their order.
    """
    if found == new:
        return found
    for check, merge in _NESTED:
        if check(found) and check(new):
            return merge(found, new, types, path)
    wider = _wider_type(found, new)
    if wider is None or (wider != found and not types.promotes):
        raise ColumnConflict(f"{path or 'the value'} is {new}, the table has {found}")
    return wider


def _wider_type(found: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    if {found, new} in ({pa.int32(), pa.int64()}, {pa.float32(), pa.float64()}):
        return _WIDE.get(found, found)
    if pa.types.is_decimal(found) and pa.types.is_decimal(new) and found.scale == new.scale:
        return max(found, new, key=lambda each: each.precision)
    return None


def _merge_structs(found: pa.DataType, new: pa.DataType, types: ColumnTypes, path: str) -> pa.DataType:
    parts = {each.name: each.type for each in found}
    names = {name.lower(): name for name in parts}
    for each in new:
        here = f"{path}.{each.name}".lstrip(".")
        other = names.setdefault(each.name.lower(), each.name)
        # Readers of tables take names that differ only in case for one.
        if other != each.name:
            raise ColumnConflict(f"{here} differs only in case from {other}")
        if each.name in parts:
            parts[each.name] = merge_types(parts[each.name], each.type, types, here)
        else:
            _check_names(each.type, here)
            parts[each.name] = each.type
    return pa.struct(list(parts.items()))


def _check_names(kind: pa.DataType, path: str) -> None:
    parts = [kind.field(at) for at in range(kind.num_fields)]
    if len({each.name.lower() for each in parts}) < len(parts):
        raise ColumnConflict(f"{path} has two fields of one name, or of names that differ only in case")
    for each in parts:
        _check_names(each.type, f"{path}.{each.name}")


def _merge_lists(found: pa.DataType, new: pa.DataType, types: ColumnTypes, path: str) -> pa.DataType:
    return _list_type(merge_types(found.value_type, new.value_type, types, f"{path}[]"))


def _merge_maps(found: pa.DataType, new: pa.DataType, types: ColumnTypes, path: str) -> pa.DataType:
    if found.key_type != new.key_type:
        raise ColumnConflict(f"the keys of {path} are {new.key_type}, in the table {found.key_type}")
    return pa.map_(found.key_type, merge_types(found.item_type, new.item_type, types, f"{path}{{}}"))


_Merge = Callable[[pa.DataType, pa.DataType, ColumnTypes, str], pa.DataType]
_NESTED: Final[tuple[tuple[Callable[[pa.DataType], bool], _Merge], ...]] = (
    (pa.types.is_struct, _merge_structs),
    (pa.types.is_list, _merge_lists),
    (pa.types.is_map, _merge_maps),
)


def count_columns(kind: pa.DataType) -> int:
    """The number of columns of a type, itself included."""
    return 1 + sum(count_columns(kind.field(at).type) for at in range(kind.num_fields))
