"""Rules of proto2 and proto3 that hold for a file whose names are resolved: numbers, labels, reserved ones, maps.

Zone: pure. The runtime checks some of them again; the reasons here name the message and the field.
Source: the Protobuf language guides for proto2 and proto3.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.protobuf.names import Names, definitions_of, join_names
from ottla.schemas.protobuf.options import ENUM, MESSAGE, TYPE_NUMBERS
from ottla.schemas.protobuf.parser import MAX_LEVELS, MAX_NUMBER

OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
_TAKEN: Final = range(19_000, 20_000)
"""Numbers that are reserved for implementations of Protobuf."""
_NO_KEYS: Final = frozenset((TYPE_NUMBERS["float"], TYPE_NUMBERS["double"], TYPE_NUMBERS["bytes"], ENUM, MESSAGE))


def check_syntax(file: Any) -> None:
    """Check that a descriptor is one of proto2 or proto3, and not nested too deeply. Raises InvalidSchema."""
    if file.syntax not in ("", "proto2", "proto3"):
        raise InvalidSchema(f"the syntax {file.syntax[:40]!r} is not supported; these are: proto2, proto3")
    level = list(file.message_type)
    for _ in range(MAX_LEVELS):
        level = [nested for message in level for nested in message.nested_type]
    if level:
        raise InvalidSchema(f"messages are nested more than {MAX_LEVELS} levels deep")


def check_rules(file: Any, names: Names) -> None:
    """Check a file. Raises InvalidSchema."""
    is_proto3 = file.syntax == "proto3"
    maps, values = set(), set[str]()
    for each in definitions_of(file):
        if each.is_enum:
            _check_enum(each.proto, each.name, is_proto3=is_proto3)
            _check_value_names(each.proto, each.name.rpartition(".")[0], values)
            continue
        _check_message(each.proto, each.name, is_proto3=is_proto3)
        maps |= {field.type_name for field in each.proto.field if field.label == REPEATED and field.type == MESSAGE}
        _check_extensions(each.proto.extension, each.name, names, is_proto3=is_proto3)
    _check_extensions(file.extension, file.package or "the file", names, is_proto3=is_proto3)
    # After all messages: the field that a map entry belongs to may be in one that comes later.
    for each in definitions_of(file):
        if not each.is_enum and each.proto.options.map_entry:
            _require("." + each.name in maps, f"{each.name} is no entry of a map")
            _check_map_entry(each.proto, each.name)


def _check_message(message: Any, name: str, *, is_proto3: bool) -> None:
    by_number: dict[int, str] = {}
    by_name: set[str] = set()
    reserved_names = set(message.reserved_name)
    ranges = sorted(_ranges_of(message, name))
    for field in message.field:
        path = f"{name}.{field.name}"
        _check_field(field, path, is_proto3=is_proto3)
        _require(
            field.number not in by_number, f"{path} has the number {field.number} of {by_number.get(field.number)}"
        )
        _require(field.name not in by_name, f"{name} has two fields with the name {field.name}")
        _require(field.name not in reserved_names, f"the name {field.name} is reserved in {name}")
        by_number[field.number] = field.name
        by_name.add(field.name)
    _check_ranges(ranges, sorted(by_number), by_number, name)
    # By index, as descriptors name them; a text cannot have an empty oneof, a descriptor can.
    used = {field.oneof_index for field in message.field if field.HasField("oneof_index")}
    for index, oneof in enumerate(message.oneof_decl):
        _require(index in used, f"the oneof {oneof.name} of {name} has no fields")
    _require(all(0 <= index < len(message.oneof_decl) for index in used), f"{name} has a field of an unknown oneof")
    _require(not (is_proto3 and message.extension_range), f"{name} has extensions, which proto3 does not have")


def _ranges_of(message: Any, name: str) -> Iterator[tuple[int, int, str]]:
    """Ranges of numbers that fields cannot have: the first one, the one after the last, and the reason."""
    for kind, ranges in (("reserved", message.reserved_range), ("for extensions", message.extension_range)):
        for each in ranges:
            _require(0 < each.start < each.end <= 2**31 - 1, f"{name} has the range {each.start} to {each.end - 1}")
            yield each.start, each.end, kind


def _check_ranges(ranges: list[tuple[int, int, str]], numbers: list[int], fields: dict[int, str], name: str) -> None:
    """Check sorted ranges and sorted numbers against each other."""
    for (_, end, _), (begin, *_) in pairwise(ranges):
        _require(end <= begin, f"ranges of {name} overlap at {begin}")
    # Both are sorted, so one pass over each suffices: a message may have ten thousand of both.
    at = 0
    for number in numbers:
        while at < len(ranges) and ranges[at][1] <= number:
            at += 1
        if at < len(ranges) and ranges[at][0] <= number:
            raise InvalidSchema(f"the number {number} of {name}.{fields[number]} is {ranges[at][2]}")


def _check_field(field: Any, path: str, *, is_proto3: bool) -> None:
    _require(1 <= field.number <= MAX_NUMBER, f"the number {field.number} of {path} is not in 1 to {MAX_NUMBER}")
    _require(
        field.number not in _TAKEN, f"the number {field.number} of {path} is reserved: 19000 to 19999 are Protobuf's"
    )
    _require(field.HasField("type"), f"{path} has no type")
    _require(bool(field.type_name) == (field.type in (MESSAGE, ENUM)), f"{path} has a wrong type")
    _require(not (is_proto3 and field.label == REQUIRED), f"{path} is required; proto3 has no required fields")
    if field.HasField("default_value"):
        _require(not is_proto3, f"{path} has a default; proto3 has no defaults")
        _require(field.label != REPEATED and field.type != MESSAGE, f"{path} has a default, but not one value")
    if field.HasField("oneof_index"):
        _require(field.label == OPTIONAL, f"{path} is in a oneof, and has the label required or repeated")


def _check_extensions(fields: Any, scope: str, names: Names, *, is_proto3: bool) -> None:
    for field in fields:
        path = f"{scope}.{field.name}"
        _require(field.extendee, f"{path} extends nothing")
        extended = names.find_type("", field.extendee)
        is_option = extended.name.startswith("google.protobuf.") and extended.name.endswith("Options")
        _require(is_option or not is_proto3, f"{path} extends {extended.name}; in proto3 only options are extended")
        _check_field(field, path, is_proto3=False)
        _require(field.label != REQUIRED, f"{path} is a required extension")
        is_there = any(each.start <= field.number < each.end for each in extended.proto.extension_range)
        _require(is_there, f"the number {field.number} of {path} is not for extensions of {extended.name}")


def _check_map_entry(entry: Any, name: str) -> None:
    members = [(field.name, field.number, field.label) for field in entry.field]
    _require(members == [("key", 1, OPTIONAL), ("value", 2, OPTIONAL)], f"{name} has not just a key and a value")
    _require(not entry.nested_type and not entry.enum_type, f"{name} has types in it")
    _require(entry.field[0].type not in _NO_KEYS, f"the keys of {name} are not whole numbers, texts or true and false")


def _check_enum(enum: Any, name: str, *, is_proto3: bool) -> None:
    _require(enum.value, f"the enum {name} has no values")
    _require(
        not is_proto3 or enum.value[0].number == 0, f"the first value of the enum {name} is not 0, as proto3 needs"
    )
    seen: dict[int, str] = {}
    reserved_names = set(enum.reserved_name)
    for value in enum.value:
        other = seen.setdefault(value.number, value.name)
        is_alone = other == value.name or enum.options.allow_alias
        _require(is_alone, f"{name}.{value.name} has the number {value.number} of {other}; allow_alias is not set")
        _require(value.name not in reserved_names, f"the name {value.name} is reserved in {name}")
    ranges = sorted((each.start, each.end + 1, "reserved") for each in enum.reserved_range)
    _require(all(begin < end for begin, end, _ in ranges), f"{name} has a range that ends before it begins")
    _check_ranges(ranges, sorted(seen), seen, name)


def _check_value_names(enum: Any, scope: str, seen: set[str]) -> None:
    """Check that values of enums in one scope have different names: they are names of the scope itself."""
    for value in enum.value:
        name = join_names(scope, value.name)
        _require(name not in seen, f"two values of enums have the name {name}")
        seen.add(name)


def _require(holds: object, message: str) -> None:
    if not holds:
        raise InvalidSchema(message)
