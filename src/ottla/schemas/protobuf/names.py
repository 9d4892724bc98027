"""Names of types in a file: which messages and enums they mean.

Zone: pure. A name is looked for in the message that it is used in, then in those around it, and then in the packages.
Source: the Protobuf language guide, "Packages and name resolution".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from ottla.schemas.errors import InvalidSchema
from ottla.schemas.protobuf.options import ENUM, GROUP, MESSAGE
from ottla.schemas.protobuf.tokens import MAX_NAME

_PACKAGE: Final = "package"


class Definition(NamedTuple):
    """A message or an enum."""

    name: str
    """The full name, without a dot in front."""
    proto: Any
    """The DescriptorProto or EnumDescriptorProto."""
    file: Any
    """The FileDescriptorProto that it is in."""
    is_enum: bool

    @property
    def local_name(self) -> str:
        """The name without the package."""
        package = self.file.package
        return self.name[len(package) + 1 :] if package else self.name


def join_names(scope: str, name: str) -> str:
    """The full name of a member of a scope."""
    return f"{scope}.{name}" if scope else name


def definitions_of(file: Any) -> Iterator[Definition]:
    """The messages and enums of a file, each message before those in it. Raises InvalidSchema."""
    left: list[tuple[str, Any]] = [(file.package, file)]
    while left:
        scope, owner = left.pop()
        messages = owner.message_type if owner is file else owner.nested_type
        for is_enum, protos in ((False, messages), (True, owner.enum_type)):
            for proto in protos:
                name = join_names(scope, proto.name)
                if len(name) > MAX_NAME:
                    raise InvalidSchema(f"the name {name[:100]}… has more than {MAX_NAME} characters")
                yield Definition(name, proto, file, is_enum)
                if not is_enum:
                    left.append((name, proto))


class Names:
    """The messages and enums that a file may use."""

    def __init__(self, file: Any, visible: Iterable[Any]) -> None:
        """visible: the files that it imports, and those that these import publicly. Raises InvalidSchema."""
        self.types: dict[str, Definition] = {}
        """Definitions by full name."""
        self._scopes: set[str] = set()
        """Names of packages, messages and enums: in them, other names can be."""
        for each in (*visible, file):
            parts = each.package.split(".") if each.package else []
            self._scopes.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
            for definition in definitions_of(each):
                if definition.name in self.types:
                    raise InvalidSchema(f"{definition.name} is defined twice")
                self.types[definition.name] = definition
        self._scopes.update(self.types)

    def find_type(self, scope: str, name: str) -> Definition:
        """What a name means in a scope. Raises InvalidSchema."""
        found = self.types.get(name[1:]) if name.startswith(".") else self._find_relative(scope, name)
        if found is None:
            raise InvalidSchema(f"the type {name!r:.200}, used in {scope or 'the file'}, is not defined")
        return found

    def _find_relative(self, scope: str, name: str) -> Definition | None:
        first, _, rest = name.partition(".")
        while True:
            candidate = join_names(scope, first)
            if rest and candidate in self._scopes:  # the first part decides where the others are
                return self.types.get(join_names(scope, name))
            if not rest and candidate in self.types:
                return self.types[candidate]
            if not scope:
                return None
            scope = scope.rpartition(".")[0]


def resolve_names(file: Any, names: Names) -> None:
    """Give each field, extension and method of a file the full names of its types. Raises InvalidSchema."""
    _resolve_fields(file.extension, file.package, names)
    for each in definitions_of(file):
        if not each.is_enum:
            _resolve_fields(each.proto.field, each.name, names)
            _resolve_fields(each.proto.extension, each.name, names)
    for service in file.service:
        scope = join_names(file.package, service.name)
        for method in service.method:
            method.input_type = _message_name(names, scope, method.input_type)
            method.output_type = _message_name(names, scope, method.output_type)


def _resolve_fields(fields: Any, scope: str, names: Names) -> None:
    for field in fields:
        if field.HasField("type") and field.type == GROUP:
            raise InvalidSchema(f"{join_names(scope, field.name)} is a group; groups are not supported")
        if field.type_name:
            found = names.find_type(scope, field.type_name)
            field.type_name = "." + found.name
            field.type = ENUM if found.is_enum else MESSAGE
        if field.extendee:
            field.extendee = _message_name(names, scope, field.extendee)


def _message_name(names: Names, scope: str, name: str) -> str:
    found = names.find_type(scope, name)
    if found.is_enum:
        raise InvalidSchema(f"{found.name} is an enum, where a message is needed")
    return "." + found.name
