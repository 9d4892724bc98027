"""Descriptors of Protobuf as texts of .proto files, as protoc's own printer shows them: for tests of the parser.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

SCALARS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}
MAX = 2**29
STRING, BYTES = 9, 12


def render_file(file: FileDescriptorProto) -> str:
    """The text of a file."""
    lines = [f'syntax = "{file.syntax or "proto2"}";']
    if file.package:
        lines.append(f"package {file.package};")
    for at, name in enumerate(file.dependency):
        lines.append(f'import {"public " if at in file.public_dependency else ""}"{name}";')
    lines += [f"option {each};" for each in _options(file.options)]
    for enum in file.enum_type:
        lines += _enum(enum)
    for message in file.message_type:
        lines += _message(message, file.syntax == "proto3")
    lines += _extensions(file.extension, is_proto3=file.syntax == "proto3")
    return "\n".join(lines) + "\n"


def _message(message: DescriptorProto, is_proto3: bool) -> Iterator[str]:
    maps = {each.name: each for each in message.nested_type if each.options.map_entry}
    yield f"message {message.name} {{"
    yield from (f"option {each};" for each in _options(message.options))
    yield from _members(message, maps, is_proto3)
    for enum in message.enum_type:
        yield from _enum(enum)
    yield from _extensions(message.extension, is_proto3=is_proto3)
    for each in message.extension_range:
        yield f"extensions {_range(each.start, each.end - 1)};"
    for each in message.reserved_range:
        yield f"reserved {_range(each.start, each.end - 1)};"
    for name in message.reserved_name:
        yield f'reserved "{name}";'
    yield "}"


def _members(message: DescriptorProto, maps: dict[str, DescriptorProto], is_proto3: bool) -> Iterator[str]:
    """Fields in their order, in their oneofs; messages in theirs, of which maps make some."""
    nested, open_oneof = [*message.nested_type], -1
    for field in message.field:
        oneof = field.oneof_index if field.HasField("oneof_index") and not field.proto3_optional else -1
        entry = maps.get(field.type_name.rpartition(".")[2])
        while entry is not None and nested[0] is not entry and nested[0].name != entry.name:
            yield from _message(nested.pop(0), is_proto3)
        if entry is not None:
            nested.pop(0)
        if open_oneof not in (-1, oneof):
            yield "}"
        if oneof not in (-1, open_oneof):
            yield f"oneof {message.oneof_decl[oneof].name} {{"
            yield from (f"option {each};" for each in _options(message.oneof_decl[oneof].options))
        open_oneof = oneof
        yield _field(field, entry, is_proto3, in_oneof=oneof >= 0)
    if open_oneof != -1:
        yield "}"
    for each in nested:
        yield from _message(each, is_proto3)


def _field(field: FieldDescriptorProto, entry: DescriptorProto | None, is_proto3: bool, in_oneof: bool = False) -> str:
    label = {1: "optional ", 2: "required ", 3: "repeated "}[field.label]
    if entry is not None or in_oneof or (is_proto3 and field.label == 1 and not field.proto3_optional):
        label = ""
    kind = _type(field)
    if entry is not None:
        kind = f"map<{_type(entry.field[0])}, {_type(entry.field[1])}>"
    options = list(_options(field.options))
    if field.HasField("default_value"):
        quoted = field.type in (STRING, BYTES)
        text = field.default_value
        if field.type == STRING:
            text = text.replace("\\", "\\\\").replace('"', '\\"')
        options.insert(0, f'default = "{text}"' if quoted else f"default = {text}")
    if field.json_name:
        options.append(f'json_name = "{field.json_name}"')
    bracket = f" [{', '.join(options)}]" if options else ""
    return f"{label}{kind} {field.name} = {field.number}{bracket};"


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name or SCALARS[field.type]


def _extensions(fields: Any, *, is_proto3: bool) -> Iterator[str]:
    for field in fields:
        yield f"extend {field.extendee} {{ {_field(field, None, is_proto3)} }}"


def _enum(enum: Any) -> Iterator[str]:
    yield f"enum {enum.name} {{"
    yield from (f"option {each};" for each in _options(enum.options))
    for value in enum.value:
        options = ", ".join(_options(value.options))
        yield f"{value.name} = {value.number}" + (f" [{options}];" if options else ";")
    for each in enum.reserved_range:
        yield f"reserved {each.start} to {each.end};"
    for name in enum.reserved_name:
        yield f'reserved "{name}";'
    yield "}"


def _range(begin: int, end: int) -> str:
    return f"{begin} to {'max' if end == MAX - 1 else end}"


def _options(options: Any) -> Iterator[str]:
    for field, value in options.ListFields():
        if field.name == "map_entry" or field.message_type is not None or field.is_extension:
            continue
        for each in value if hasattr(value, "append") else [value]:
            if field.enum_type is not None:
                yield f"{field.name} = {field.enum_type.values_by_number[each].name}"
            elif isinstance(each, bool):
                yield f"{field.name} = {'true' if each else 'false'}"
            else:
                yield f'{field.name} = "{each}"' if isinstance(each, str) else f"{field.name} = {each}"
