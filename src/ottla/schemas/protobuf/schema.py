"""A Protobuf schema: a .proto text or the base64 text of a FileDescriptorProto, with the files that it imports.

Zone: pure. The runtime's DescriptorPool has the last word on whether the files fit together.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import MAX_BYTES
from ottla.schemas.protobuf.known_files import find_known_file
from ottla.schemas.protobuf.names import Definition, Names, resolve_names
from ottla.schemas.protobuf.parser import parse_proto
from ottla.schemas.protobuf.rules import check_rules, check_syntax
from ottla.schemas.protobuf.runtime import import_runtime

MAX_CHARACTERS: Final = 8 * MAX_BYTES
"""Maximum size of a schema's text and of those that it imports, together."""
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\r\n]+={0,2}\s*")


class ProtobufSchema:
    """A parsed Protobuf schema."""

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        """Parse a schema. `references`: texts of other schemas by the names that it, and they, import them by.

        Raises InvalidSchema.
        """
        self._references = references or {}
        self._characters = 0
        self._visible: dict[str, tuple[Any, ...]] = {}
        """Name of a file → it, and the files that it imports publicly."""
        self._loading: list[str] = []
        self.pool: Any = import_runtime("descriptor_pool").DescriptorPool()
        """The DescriptorPool with the file and those that it imports."""
        name = "schema.proto"
        while name in self._references:
            name = "_" + name
        file = self._parse_file(text)
        file.name = name
        self.types: dict[str, Definition] = {}
        """The messages and enums of the file and of those that it imports, by full name."""
        self._add_file(file)
        self.file: Any = file
        """The FileDescriptorProto, with full names of types."""
        self.canonical = _describe_canonically(file)
        """A text that is equal for schemas that differ in spaces, comments and the spelling of names only."""

    def serialize(self) -> str:
        """The FileDescriptorProto in base64, as Confluent's clients ask for it."""
        return base64.b64encode(self.file.SerializeToString(deterministic=True)).decode()

    # -- loading files -----------------------------------------------------------------------------------------------

    def _parse_file(self, text: str) -> Any:
        self._characters += len(text)
        if self._characters > MAX_CHARACTERS:
            raise InvalidSchema(f"the schema and its imports have more than {MAX_CHARACTERS:,} characters")
        return _parse_descriptor(text) if _BASE64.fullmatch(text) else parse_proto(text)

    def _add_file(self, file: Any) -> None:
        self._loading.append(file.name)
        for name in file.dependency:
            if name not in self._visible:
                self._load_import(name)
        visible = {each.name: each for name in file.dependency for each in self._visible[name]}
        names = Names(file, visible.values())
        self._resolve_file(file, names)
        self.types |= names.types
        public = [file.dependency[at] for at in file.public_dependency]
        self._visible[file.name] = (file, *(each for name in public for each in self._visible[name]))
        self._loading.pop()

    def _load_import(self, name: str) -> None:
        if name in self._loading:
            raise InvalidSchema(f"imports lead in a circle: {' → '.join([*self._loading, name])[:1000]}")
        file = find_known_file(name)
        if file is None and name not in self._references:
            raise InvalidSchema(f"the import {name[:200]!r} has no reference with this name")
        try:
            file = self._parse_file(self._references[name]) if file is None else file
            file.name = name
            self._add_file(file)
        except InvalidSchema as error:
            raise InvalidSchema(f"in {name[:200]!r}: {error}") from error

    def _resolve_file(self, file: Any, names: Names) -> None:
        resolve_names(file, names)
        check_rules(file, names)
        try:
            self.pool.AddSerializedFile(file.SerializeToString())
            self.pool.FindFileByName(file.name)
        except (TypeError, KeyError, ValueError) as error:
            reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
            raise InvalidSchema(f"the runtime of Protobuf refuses the schema: {reason[:500]}") from error


def _parse_descriptor(text: str) -> Any:
    """The FileDescriptorProto of a base64 text."""
    if len(text) > MAX_BYTES:
        raise InvalidSchema(f"the schema has {len(text):,} characters; at most {MAX_BYTES:,} are supported")
    file = import_runtime("descriptor_pb2").FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(text))
    except (ValueError, import_runtime("message").DecodeError) as error:
        raise InvalidSchema("the schema is neither a .proto text nor a FileDescriptorProto in base64") from error
    check_syntax(file)
    if any(not 0 <= at < len(file.dependency) for at in file.public_dependency):
        raise InvalidSchema("a public import is not among the imports")
    file.ClearField("source_code_info")
    if not file.package:
        file.ClearField("package")
    if file.syntax != "proto3":  # proto2 is what a descriptor without a syntax means
        file.ClearField("syntax")
    return file


def _describe_canonically(file: Any) -> str:
    copy = import_runtime("descriptor_pb2").FileDescriptorProto()
    copy.CopyFrom(file)
    copy.ClearField("name")
    for field in _fields_of(copy):
        if field.json_name == _default_json_name(field.name):
            field.ClearField("json_name")
    return base64.b64encode(copy.SerializeToString(deterministic=True)).decode()


def _fields_of(file: Any) -> Iterator[Any]:
    yield from file.extension
    left = list(file.message_type)
    while left:
        message = left.pop()
        left += message.nested_type
        yield from message.field
        yield from message.extension


def _default_json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)
