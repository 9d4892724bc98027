"""The Arrow types of Protobuf messages, and arrays of them, made field by field from parsed messages.

Zone: pure. Types are those of Spark's `from_protobuf`: unsigned numbers are signed ones of the same bits, enums are
texts, Timestamp and Duration are timestamps and intervals, other messages are structs. Values that have no presence are
zeros where they were not written; others are nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ottla.schemas.columns.program import MAX_COLUMNS
from ottla.schemas.columns.verdicts import TooManyValues
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import MAX_DEPTH
from ottla.schemas.protobuf.runtime import import_runtime

VALUES_MAX: Final = 1 << 25
"""Most values of all columns together: some 60 bytes each. Two bytes can hold a message of many fields."""
_MICROSECONDS: Final = 1_000_000
Values = Sequence[Any]
"""Values of a field, of which some are None."""

_SCALARS: Final = {
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "INT64": pa.int64(),
    "UINT64": pa.uint64(),
    "INT32": pa.int32(),
    "FIXED64": pa.uint64(),
    "FIXED32": pa.uint32(),
    "BOOL": pa.bool_(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "UINT32": pa.uint32(),
    "SFIXED32": pa.int32(),
    "SFIXED64": pa.int64(),
    "SINT32": pa.int32(),
    "SINT64": pa.int64(),
}
_SIGNED: Final = {pa.uint32(): pa.int32(), pa.uint64(): pa.int64()}
TIMES: Final = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}
"""Messages that are values of a type of Arrow's."""


class Shape(NamedTuple):
    """The column of a field, or of a message."""

    type: pa.DataType
    make: Callable[[Values], pa.Array]
    """Makes its array. Raises TooManyValues; OverflowError or ValueError: the type does not hold a value."""
    columns: int
    """The number of columns that it has, itself included."""


def scalar_name(field: Any) -> str:
    """The type of a field as .proto files spell it, in capitals: `SFIXED32`, `MESSAGE`, `ENUM`."""
    types = import_runtime("descriptor_pb2").FieldDescriptorProto.Type
    return str(types.Name(field.type)).removeprefix("TYPE_")


def is_map(field: Any) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_repeated(field: Any) -> bool:
    """Whether a field is repeated; a map is as well. Runtimes before 6.31 have labels only."""
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


class Shapes:
    """Finds the shapes of one schema's messages."""

    def __init__(self) -> None:
        self._columns = 0
        self._values = 0

    def reset_values(self) -> None:
        """Begin to count the values of other payloads."""
        self._values = 0

    def count_values(self, count: int) -> None:
        """Refuse what would take too much memory, before it does. Raises TooManyValues."""
        # Counted before the arrays are made: a payload of two bytes may have a list of many empty messages.
        self._values += count
        if self._values > VALUES_MAX:
            raise TooManyValues(f"the payloads have more than {VALUES_MAX:,} values: decode fewer at a time")

    def shape_of(self, message: Any, above: tuple[str, ...] = ()) -> Shape:
        """The shape of a message's descriptor. above: the messages that it is in.

        Raises InvalidSchema: it contains itself, or has too many columns or levels.
        """
        # Arrow's types are finite: a message in itself would have columns without end.
        if message.full_name in above:
            raise InvalidSchema(f"{message.full_name} contains itself: such messages have no columns")
        if len(above) == MAX_DEPTH:
            raise InvalidSchema(f"its messages are nested more than {MAX_DEPTH} levels deep")
        below = (*above, message.full_name)
        # A message without fields has no column: Spark's files have no struct of that kind.
        fields = [each for each in message.fields if not _is_empty(each)]
        made = {each.name: self._field_shape(each, below) for each in fields}
        kind = pa.struct([(name, each.type) for name, each in made.items()])
        readers = [_field_reader(each) for each in fields]
        make = _struct_maker(kind, list(made.values()), readers, _empty_message(message))
        return Shape(kind, make, 1 + sum(each.columns for each in made.values()))

    def _field_shape(self, field: Any, above: tuple[str, ...]) -> Shape:
        self._columns += 1
        if self._columns > MAX_COLUMNS:
            raise InvalidSchema(f"it has more than {MAX_COLUMNS:,} columns")
        if is_map(field):
            entry = field.message_type.fields_by_name
            return self._map_shape(self._field_shape(entry["key"], above), self._value_shape(entry["value"], above))
        shape = self._value_shape(field, above)
        return self._list_shape(shape) if is_repeated(field) else shape

    def _value_shape(self, field: Any, above: tuple[str, ...]) -> Shape:
        name = scalar_name(field)
        if name == "ENUM":
            return Shape(pa.string(), _enum_maker(field.enum_type), 1)
        if name != "MESSAGE":
            return _scalar_shape(_SCALARS[name])
        known = TIMES.get(field.message_type.full_name)
        return self.shape_of(field.message_type, above) if known is None else Shape(known, _time_maker(known), 1)

    def _list_shape(self, item: Shape) -> Shape:
        def make(values: Values) -> pa.Array:
            offsets = self._offsets_of(values, item.columns)
            return pa.ListArray.from_arrays(offsets, item.make(list(chain.from_iterable(values))))

        return Shape(pa.list_(item.type), make, 1 + item.columns)

    def _map_shape(self, key: Shape, value: Shape) -> Shape:
        def make(values: Values) -> pa.Array:
            # The same offsets for keys and values: entries are pairs.
            offsets = self._offsets_of(values, 1 + value.columns)
            pairs = [pair for each in values for pair in each.items()]
            keys, items = key.make([each for each, _ in pairs]), value.make([each for _, each in pairs])
            return pa.MapArray.from_arrays(offsets, keys, items)

        return Shape(pa.map_(key.type, value.type), make, 1 + key.columns + value.columns)

    def _offsets_of(self, values: Values, columns: int) -> pa.Array:
        ends = list(accumulate(map(len, values), initial=0))
        self.count_values(ends[-1] * columns)
        return pa.array(ends, pa.int32())


def _is_empty(field: Any) -> bool:
    return field.message_type is not None and not field.message_type.fields


def _empty_message(message: Any) -> Any:
    return import_runtime("message_factory").GetMessageClass(message)()


def _field_reader(field: Any) -> Callable[[Values], list[Any]]:
    """A function that reads a field of many messages. One that was not written, and has no default, is None."""
    name = field.name
    read = attrgetter(name)
    if not field.has_presence or field.has_default_value:
        return lambda messages: list(map(read, messages))
    return lambda messages: [read(each) if each.HasField(name) else None for each in messages]


def _struct_maker(
    kind: pa.DataType, parts: list[Shape], readers: list[Callable[[Values], list[Any]]], empty: Any
) -> Callable[[Values], pa.Array]:
    def make(messages: Values) -> pa.Array:
        is_null = [each is None for each in messages]
        # A message that is missing is read as an empty one, and its struct is null; its fields are not seen.
        mask = pa.array(is_null) if any(is_null) else None
        if mask is not None:
            messages = [empty if each is None else each for each in messages]
        arrays = [part.make(read(messages)) for part, read in zip(parts, readers, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)

    return make


def _scalar_shape(kind: pa.DataType) -> Shape:
    signed = _SIGNED.get(kind)
    if signed is None:
        return Shape(kind, lambda values: pa.array(values, kind), 1)
    # The same bits, as Spark, which has no unsigned types, reads them.
    return Shape(signed, lambda values: pa.array(values, kind).view(signed), 1)


def _enum_maker(enum: Any) -> Callable[[Values], pa.Array]:
    """Texts of an enum's values. One that the schema lacks is shown as Spark, and Java's runtime, show it."""
    names: dict[int | None, str | None] = {None: None}
    for value in enum.values:
        names.setdefault(value.number, value.name)

    def make(values: Values) -> pa.Array:
        unknown = f"UNKNOWN_ENUM_VALUE_{enum.name}_"
        texts = [names.get(each, f"{unknown}{each}") for each in values]
        return pa.array(texts, pa.string())

    return make


def _time_maker(kind: pa.DataType) -> Callable[[Values], pa.Array]:
    def make(values: Values) -> pa.Array:
        # Nanoseconds have the sign of a Duration's seconds, and are positive in a Timestamp.
        numbers = [None if each is None else each.seconds * _MICROSECONDS + int(each.nanos / 1000) for each in values]
        return pa.array(numbers, pa.int64()).cast(kind)

    return make
