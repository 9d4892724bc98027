"""Parses the text of a .proto file to a FileDescriptorProto, as proto2 and proto3 define it.

Zone: pure. Names of types stay as they are written: `names` finds what they mean; `rules` checks the rest.
Source: the Protobuf language specifications for proto2 and proto3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.nesting import MAX_BYTES
from ottla.schemas.protobuf.options import MESSAGE, TYPE_NUMBERS, read_bracket, read_option
from ottla.schemas.protobuf.runtime import import_runtime
from ottla.schemas.protobuf.tokens import Tokens

MAX_LEVELS: Final = 32
"""Maximum nesting of messages in messages."""
MAX_NUMBER: Final = 2**29 - 1
"""Maximum number of a field."""
_LABELS: Final = {"optional": 1, "required": 2, "repeated": 3}
_INT32_MAX: Final = 2**31 - 1
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def parse_proto(text: str) -> Any:
    """The FileDescriptorProto of a text, without a name. Raises InvalidSchema."""
    if len(text) > MAX_BYTES:
        raise InvalidSchema(f"the schema has {len(text):,} characters; at most {MAX_BYTES:,} are supported")
    if _SURROGATE.search(text):
        raise InvalidSchema("the schema has half a surrogate pair")
    return _Parser(text).parse_file()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._file = import_runtime("descriptor_pb2").FileDescriptorProto()
        self._is_proto3 = False

    # -- the file --------------------------------------------------------------------------------------------------

    def parse_file(self) -> Any:
        self._parse_syntax()
        statements: dict[str, Callable[[], None]] = {
            "package": self._parse_package,
            "import": self._parse_import,
            "option": lambda: self._parse_option(self._file.options),
            "message": lambda: self._parse_message(self._file.message_type.add(), 1),
            "enum": lambda: self._parse_enum(self._file.enum_type.add()),
            "extend": lambda: self._parse_extend(self._file.extension),
            "service": self._parse_service,
        }
        while self._tokens.kind != "end":
            if self._tokens.accept_sign(";"):
                continue
            if self._tokens.kind != "name" or self._tokens.value not in statements:
                self._tokens.refuse_token("message, enum, import, package, option, extend or service")
            statements[self._tokens.take_token()]()
        return self._file

    def _parse_syntax(self) -> None:
        tokens = self._tokens
        if tokens.is_sign("edition"):
            tokens.refuse_text('editions are not supported: write syntax = "proto3" or "proto2"')
        if not tokens.accept_sign("syntax"):
            return
        tokens.expect_sign("=")
        syntax = tokens.take_string()
        if syntax not in ("proto2", "proto3"):
            tokens.refuse_text(f"the syntax {syntax[:40]!r} is not supported; these are: proto2, proto3")
        tokens.expect_sign(";")
        self._is_proto3 = syntax == "proto3"
        if self._is_proto3:
            self._file.syntax = syntax

    def _parse_package(self) -> None:
        if self._file.HasField("package"):
            self._tokens.refuse_text("there are two packages")
        self._file.package = self._tokens.take_full_name("a package")
        if self._file.package.startswith("."):
            self._tokens.refuse_text("a package does not begin with a dot")
        self._tokens.expect_sign(";")

    def _parse_import(self) -> None:
        tokens, imports = self._tokens, self._file.dependency
        if tokens.accept_sign("public"):
            self._file.public_dependency.append(len(imports))
        elif tokens.accept_sign("weak"):
            self._file.weak_dependency.append(len(imports))
        name = tokens.take_string("the name of a file")
        if name in imports:
            tokens.refuse_text(f"{name[:100]!r} is imported twice")
        imports.append(name)
        tokens.expect_sign(";")

    def _parse_option(self, options: Any) -> None:
        read_option(self._tokens, options)
        self._tokens.expect_sign(";")

    def _parse_service(self) -> None:
        service = self._file.service.add(name=self._tokens.take_name())
        self._tokens.expect_sign("{")
        while not self._tokens.accept_sign("}"):
            if self._tokens.accept_sign("option"):
                self._parse_option(service.options)
            elif self._tokens.accept_sign("rpc"):
                self._parse_method(service.method.add())
            elif not self._tokens.accept_sign(";"):
                self._tokens.refuse_token("rpc or option")

    def _parse_method(self, method: Any) -> None:
        tokens = self._tokens
        method.name = tokens.take_name()
        method.input_type = self._parse_method_type(lambda: setattr(method, "client_streaming", True))
        tokens.expect_sign("returns")
        method.output_type = self._parse_method_type(lambda: setattr(method, "server_streaming", True))
        if not tokens.accept_sign("{"):
            tokens.expect_sign(";")
            return
        while not tokens.accept_sign("}"):
            if tokens.accept_sign("option"):
                self._parse_option(method.options)
            elif not tokens.accept_sign(";"):
                tokens.refuse_token("option")

    def _parse_method_type(self, set_streaming: Callable[[], None]) -> str:
        self._tokens.expect_sign("(")
        if self._tokens.accept_sign("stream"):
            set_streaming()
        name = self._tokens.take_full_name("a message")
        self._tokens.expect_sign(")")
        return name

    # -- messages --------------------------------------------------------------------------------------------------

    def _parse_message(self, message: Any, level: int) -> None:
        tokens = self._tokens
        if level > MAX_LEVELS:
            tokens.refuse_text(f"messages are nested more than {MAX_LEVELS} levels deep")
        message.name = tokens.take_name()
        tokens.expect_sign("{")
        while not tokens.accept_sign("}"):
            self._parse_member(message, level)
        if self._is_proto3:
            _add_synthetic_oneofs(message)

    def _parse_member(self, message: Any, level: int) -> None:
        statements: dict[str, Callable[[], None]] = {
            "option": lambda: self._parse_option(message.options),
            "message": lambda: self._parse_message(message.nested_type.add(), level + 1),
            "enum": lambda: self._parse_enum(message.enum_type.add()),
            "extend": lambda: self._parse_extend(message.extension),
            "oneof": lambda: self._parse_oneof(message),
            "extensions": lambda: self._parse_extensions(message),
            "reserved": lambda: self._parse_reserved(message, MAX_NUMBER, 1),
        }
        if self._tokens.accept_sign(";"):
            return
        if self._tokens.kind == "name" and self._tokens.value in statements:
            statements[self._tokens.take_token()]()
        else:
            self._parse_field(message.field, message.nested_type)

    def _parse_field(self, fields: Any, nested: Any, oneof: int | None = None) -> Any:
        """Read a field into a list of fields; `nested` gets the message of a map's entries."""
        tokens, field = self._tokens, fields.add(label=_LABELS["optional"])
        has_label = tokens.is_sign(*_LABELS)
        if has_label:
            self._parse_label(field, in_oneof=oneof is not None)
        type_name = tokens.take_full_name("a type")
        if type_name == "group":
            tokens.refuse_text("groups are not supported: use a nested message and a field of its type")
        if type_name == "map" and tokens.is_sign("<"):
            if has_label or oneof is not None:
                tokens.refuse_text("a field of type map has no label, and is in no oneof")
            self._parse_map(field, nested)
        else:
            if not (has_label or self._is_proto3 or oneof is not None):
                tokens.refuse_text("a field of proto2 begins with optional, required or repeated")
            _set_type(field, type_name)
        self._parse_field_end(field)
        if oneof is not None:
            field.oneof_index = oneof
        return field

    def _parse_label(self, field: Any, *, in_oneof: bool) -> None:
        label = self._tokens.take_token()
        if in_oneof:
            self._tokens.refuse_text("a field of a oneof has no label")
        if self._is_proto3 and label == "required":
            self._tokens.refuse_text("proto3 has no required fields")
        field.label = _LABELS[label]
        if self._is_proto3 and label == "optional":
            field.proto3_optional = True

    def _parse_field_end(self, field: Any) -> None:
        tokens = self._tokens
        name = tokens.take_name("the name of a field")
        field.name = name
        tokens.expect_sign("=")
        field.number = self._take_number("the number of a field", 1, MAX_NUMBER)
        read_bracket(tokens, field)
        tokens.expect_sign(";")
        if field.type == MESSAGE and field.type_name == "":  # a map, whose entries are named after it
            field.type_name = _entry_name(name)

    def _parse_map(self, field: Any, nested: Any) -> None:
        tokens = self._tokens
        tokens.expect_sign("<")
        entry = nested.add()
        key = entry.field.add(name="key", number=1, label=_LABELS["optional"])
        _set_type(key, tokens.take_full_name("the type of a key"))
        tokens.expect_sign(",")
        value = entry.field.add(name="value", number=2, label=_LABELS["optional"])
        _set_type(value, tokens.take_full_name("the type of a value"))
        tokens.expect_sign(">")
        entry.options.map_entry = True
        entry.name = _entry_name(tokens.value)
        field.label, field.type = _LABELS["repeated"], MESSAGE

    def _parse_oneof(self, message: Any) -> None:
        tokens, index = self._tokens, len(message.oneof_decl)
        oneof = message.oneof_decl.add(name=tokens.take_name())
        tokens.expect_sign("{")
        while not tokens.accept_sign("}"):
            if tokens.accept_sign("option"):
                self._parse_option(oneof.options)
            elif not tokens.accept_sign(";"):
                self._parse_field(message.field, message.nested_type, index)

    def _parse_extend(self, extensions: Any) -> None:
        extendee = self._tokens.take_full_name("a message")
        self._tokens.expect_sign("{")
        while not self._tokens.accept_sign("}"):
            if not self._tokens.accept_sign(";"):
                if self._tokens.is_sign("map"):
                    self._tokens.refuse_text("a map is not an extension")
                self._parse_field(extensions, None).extendee = extendee

    def _parse_extensions(self, message: Any) -> None:
        added = []
        while True:
            begin, end = self._take_range(1, MAX_NUMBER)
            added.append(message.extension_range.add(start=begin, end=end + 1))
            if not self._tokens.accept_sign(","):
                break
        if self._tokens.is_sign("["):
            read_bracket(self._tokens, added[0])
            for each in added[1:]:
                each.options.CopyFrom(added[0].options)
        self._tokens.expect_sign(";")

    # -- enums and what they share with messages ---------------------------------------------------------------------

    def _parse_enum(self, enum: Any) -> None:
        tokens = self._tokens
        enum.name = tokens.take_name()
        tokens.expect_sign("{")
        while not tokens.accept_sign("}"):
            if tokens.accept_sign("option"):
                self._parse_option(enum.options)
            elif tokens.accept_sign("reserved"):
                self._parse_reserved(enum, _INT32_MAX, 0)
            elif not tokens.accept_sign(";"):
                value = enum.value.add(name=tokens.take_name("the name of a value"))
                tokens.expect_sign("=")
                value.number = self._take_number("the number of a value", -_INT32_MAX - 1, _INT32_MAX)
                read_bracket(tokens, value)
                tokens.expect_sign(";")

    def _parse_reserved(self, owner: Any, maximum: int, beyond: int) -> None:
        """Read numbers or names. beyond: how much the end of a range in the descriptor is after its last number."""
        tokens = self._tokens
        while True:
            if tokens.kind == "string":
                owner.reserved_name.append(tokens.take_string())
            else:
                begin, end = self._take_range(1 if beyond else -maximum - 1, maximum)
                owner.reserved_range.add(start=begin, end=end + beyond)
            if not tokens.accept_sign(","):
                break
        tokens.expect_sign(";")

    def _take_range(self, minimum: int, maximum: int) -> tuple[int, int]:
        begin = end = self._take_number("a number", minimum, maximum)
        if self._tokens.accept_sign("to"):
            end = maximum if self._tokens.accept_sign("max") else self._take_number("a number", minimum, maximum)
        if end < begin:
            self._tokens.refuse_text(f"a range ends at {end}, before its begin at {begin}")
        return begin, end

    def _take_number(self, what: str, minimum: int, maximum: int) -> int:
        number = self._tokens.take_integer(what)
        if not minimum <= number <= maximum:
            self._tokens.refuse_text(f"{number} is out of range: {what} is at least {minimum} and at most {maximum}")
        return number


def _set_type(field: Any, name: str) -> None:
    """A scalar type, or the name of a message or enum."""
    if name in TYPE_NUMBERS:
        field.type = TYPE_NUMBERS[name]
    else:
        field.type_name = name


def _entry_name(field: str) -> str:
    """The name of the message of a map's entries."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"


def _add_synthetic_oneofs(message: Any) -> None:
    """Give each field with the label optional a oneof of its own, as descriptors of proto3 have it."""
    taken = {
        each.name
        for part in (message.field, message.oneof_decl, message.nested_type, message.enum_type)
        for each in part
    }
    for field in message.field:
        if field.proto3_optional:
            name = "_" + field.name
            while name in taken:
                name = "X" + name
            taken.add(name)
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=name)
