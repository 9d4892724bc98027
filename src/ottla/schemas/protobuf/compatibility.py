"""Whether a Protobuf schema can read what another one wrote, decided as Confluent's Schema Registry decides it.

Zone: pure. Messages are compared by their names without the package, fields by their numbers. Enums and extensions are
not compared. Messages of imported files are compared if fields use them, each pair once.
Source: the kinds of differences of Schema Registry 8, and its examples of schemas with the differences between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ottla.schemas.errors import Incompatibility, InvalidSchema
from ottla.schemas.protobuf.options import ENUM, MESSAGE, TYPE_NUMBERS
from ottla.schemas.protobuf.rules import OPTIONAL, REPEATED, REQUIRED
from ottla.schemas.protobuf.schema import ProtobufSchema

MAX_COMPARISONS: Final = 100_000
"""Maximum number of fields that are compared."""
_NUMBERS: Final = ("int32", "int64", "uint32", "uint64", "bool")
_ALIKE: Final = (_NUMBERS, ("sint32", "sint64"), ("string", "bytes"), ("fixed32", "sfixed32"), ("fixed64", "sfixed64"))
_GROUP_OF: Final = {TYPE_NUMBERS[name]: group[0] for group in _ALIKE for name in group} | {ENUM: _NUMBERS[0]}
"""Types → the first of the types that are read as one another."""
_TEXTS: Final = (TYPE_NUMBERS["string"], TYPE_NUMBERS["bytes"])
_MESSAGES: Final = {
    "MESSAGE_REMOVED": "The reader's schema has no message at path {path!r}, the writer's has one",
    "FIELD_KIND_CHANGED": "The field at path {path!r} is a message, map or scalar, and another in the writer's schema",
    "FIELD_SCALAR_KIND_CHANGED": "The scalar type at path {path!r} cannot read that of the writer's schema",
    "FIELD_NAMED_TYPE_CHANGED": "The message that is the type at path {path!r} is another one in the writer's schema",
    "FIELD_NUMERIC_LABEL_CHANGED": "The label of the number at path {path!r} is another one in the writer's schema",
    "REQUIRED_FIELD_ADDED": "The required field at path {path!r} is not in the writer's schema",
    "REQUIRED_FIELD_REMOVED": "The field at path {path!r} is required in the writer's schema, and not in the reader's",
    "ONEOF_FIELD_REMOVED": "The field of a oneof at path {path!r} is not in the reader's schema",
    "MULTIPLE_FIELDS_MOVED_TO_ONEOF": "Fields of the oneof at path {path!r} are in no oneof in the writer's schema",
    "FIELD_MOVED_TO_EXISTING_ONEOF": "Fields of the oneof at path {path!r} are not in one oneof in the writer's schema",
}


_Pair = tuple[str, str]
"""Full names of a message of the reader and of one of the writer."""


class _Side(NamedTuple):
    """A part of the reader's or the writer's schema."""

    file: Any
    """The FileDescriptorProto that it is in."""
    proto: Any
    """A message, or the messages that another one has in it."""


def find_protobuf_incompatibilities(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Incompatibility]:
    """All reasons why `reader` cannot read what `writer` wrote; none: it can. Raises InvalidSchema: too complex."""
    return list(_Comparison(reader, writer).compare_files())


def _report(kind: str, path: str) -> Incompatibility:
    return Incompatibility(kind, path, _MESSAGES[kind].format(path=path))


class _Comparison:
    def __init__(self, reader: ProtobufSchema, writer: ProtobufSchema) -> None:
        self._reader = reader
        self._writer = writer
        self._verdicts: dict[_Pair, bool] = {}
        """Pairs of which one message is imported → whether they, or those that their fields use, are incompatible."""
        self._used: list[_Pair] | None = None
        """While such a pair is compared: the pairs that its fields use."""
        self._elsewhere: list[Incompatibility] = []
        """Reasons in imported messages."""
        self._count = 0

    def compare_files(self) -> Iterator[Incompatibility]:
        reader, writer = self._reader.file, self._writer.file
        yield from self._compare_members(_Side(reader, reader.message_type), _Side(writer, writer.message_type), "#")
        yield from self._elsewhere

    def _compare_members(self, reader: _Side, writer: _Side, path: str) -> Iterator[Incompatibility]:
        """Compare the messages in a file or message."""
        readers = {each.name: each for each in reader.proto}
        for each in writer.proto:
            if each.options.map_entry:
                continue
            here = f"{path}/{each.name}"
            if each.name in readers:
                pair = _Side(reader.file, readers[each.name]), _Side(writer.file, each)
                yield from self._compare_messages(*pair, here)
            else:
                yield _report("MESSAGE_REMOVED", here)

    def _compare_messages(self, reader: _Side, writer: _Side, path: str) -> Iterator[Incompatibility]:
        new, old = _Fields(reader), _Fields(writer)
        yield from _compare_oneofs(new, old, path)
        dropped = _find_dropped_oneofs(new, old)
        for number in sorted({*new.by_number, *old.by_number}):
            self._count += 1
            if self._count > MAX_COMPARISONS:
                raise InvalidSchema(f"comparing the schemas takes more than {MAX_COMPARISONS:,} steps")
            if number not in new.by_number:
                yield from _compare_removed(old, number, dropped, path)
            elif number in old.by_number:
                yield from self._compare_fields(new, old, number, new.path_of(number, path))
            elif new.by_number[number].label == REQUIRED:
                yield _report("REQUIRED_FIELD_ADDED", f"{path}/{number}")
        nested = _Side(reader.file, reader.proto.nested_type), _Side(writer.file, writer.proto.nested_type)
        yield from self._compare_members(*nested, path)

    def _compare_fields(self, new: _Fields, old: _Fields, number: int, path: str) -> Iterator[Incompatibility]:
        reader, writer = new.by_number[number], old.by_number[number]
        maps = _map_of(self._reader, reader), _map_of(self._writer, writer)
        if None not in maps:
            for each in (0, 1):
                yield from self._compare_types(maps[0].field[each], maps[1].field[each], path)
        elif maps != (None, None):
            yield _report("FIELD_KIND_CHANGED", path)
        else:
            found = list(self._compare_types(reader, writer, path))
            yield from found
            labels = {new.written_label(reader), old.written_label(writer)}
            if not found and _is_number(reader) and 0 not in labels and len(labels) > 1:
                yield _report("FIELD_NUMERIC_LABEL_CHANGED", path)

    def _compare_types(self, reader: Any, writer: Any, path: str) -> Iterator[Incompatibility]:
        if (reader.type == MESSAGE) != (writer.type == MESSAGE):
            yield _report("FIELD_KIND_CHANGED", path)
        elif reader.type == MESSAGE:
            if self._is_other_message(reader.type_name[1:], writer.type_name[1:]):
                yield _report("FIELD_NAMED_TYPE_CHANGED", path)
        elif _GROUP_OF.get(reader.type, reader.type) != _GROUP_OF.get(writer.type, writer.type):
            yield _report("FIELD_SCALAR_KIND_CHANGED", path)

    # -- imported messages -------------------------------------------------------------------------------------------

    def _is_other_message(self, reader: str, writer: str) -> bool:
        new, old = self._reader.types[reader], self._writer.types[writer]
        if new.local_name != old.local_name:
            return True
        if new.file is self._reader.file and old.file is self._writer.file:
            return False  # they are compared as members of the files
        if self._used is not None:
            self._used.append((reader, writer))
            return False
        if (reader, writer) not in self._verdicts:
            self._judge_pairs((reader, writer))
        return self._verdicts[reader, writer]

    def _judge_pairs(self, first: _Pair) -> None:
        """Find the verdict on a pair, and on all that its fields lead to."""
        left, judged, wrong = [first], set[_Pair](), list[_Pair]()
        users: dict[_Pair, list[_Pair]] = defaultdict(list)
        while left:
            pair = left.pop()
            if pair in judged:
                continue
            judged.add(pair)
            self._used = used = list[_Pair]()
            found = self._compare_pair(pair)
            self._elsewhere += found
            for each in used:
                users[each].append(pair)
            if found or any(self._verdicts.get(each) for each in used):
                wrong.append(pair)
            left += [each for each in used if each not in self._verdicts]
        self._used = None
        reached = _reach_all(wrong, users)
        self._verdicts |= {pair: pair in reached for pair in judged}

    def _compare_pair(self, pair: _Pair) -> list[Incompatibility]:
        new, old = self._reader.types[pair[0]], self._writer.types[pair[1]]
        sides = _Side(new.file, new.proto), _Side(old.file, old.proto)
        return list(self._compare_messages(*sides, "#/" + new.local_name.replace(".", "/")))


def _reach_all(first: list[_Pair], edges: Mapping[_Pair, list[_Pair]]) -> set[_Pair]:
    left, reached = list(first), set[_Pair]()
    while left:
        pair = left.pop()
        if pair not in reached:
            reached.add(pair)
            left += edges.get(pair, ())
    return reached


def _map_of(schema: ProtobufSchema, field: Any) -> Any:
    """The message of the entries, if the field is a map."""
    if field.type != MESSAGE or field.label != REPEATED:
        return None
    proto = schema.types[field.type_name[1:]].proto
    return proto if proto.options.map_entry else None


class _Fields:
    """The fields of a message by their numbers, and the oneofs that they are in."""

    def __init__(self, side: _Side) -> None:
        message = side.proto
        self._is_proto3 = side.file.syntax == "proto3"
        self.by_number: Mapping[int, Any] = {field.number: field for field in message.field}
        self.oneof_of: dict[int, str] = {}
        """Numbers of fields → names of their oneofs, without those that the label optional has made."""
        self.oneofs: dict[str, list[int]] = {}
        """Names of oneofs → numbers of their fields."""
        for field in message.field:
            if field.HasField("oneof_index") and not field.proto3_optional:
                name = message.oneof_decl[field.oneof_index].name
                self.oneof_of[field.number] = name
                self.oneofs.setdefault(name, []).append(field.number)

    def written_label(self, field: Any) -> int:
        """The label that the text of the schema has; 0: none."""
        is_bare = self._is_proto3 and field.label == OPTIONAL and not field.proto3_optional
        return 0 if is_bare or field.number in self.oneof_of else int(field.label)

    def path_of(self, number: int, path: str) -> str:
        oneof = self.oneof_of.get(number)
        return f"{path}/{number}" if oneof is None else f"{path}/{oneof}/{number}"


def _find_dropped_oneofs(new: _Fields, old: _Fields) -> set[str]:
    """Oneofs of the writer that the reader has nothing of: they may be removed as a whole."""
    kept = {old.oneof_of[number] for number in new.by_number if number in old.oneof_of}
    return old.oneofs.keys() - new.oneofs.keys() - kept


def _compare_removed(old: _Fields, number: int, dropped: set[str], path: str) -> Iterator[Incompatibility]:
    """Compare a field that the reader does not have."""
    if number in old.oneof_of:
        if old.oneof_of[number] not in dropped:
            yield _report("ONEOF_FIELD_REMOVED", old.path_of(number, path))
    elif old.by_number[number].label == REQUIRED:
        yield _report("REQUIRED_FIELD_REMOVED", f"{path}/{number}")


def _compare_oneofs(new: _Fields, old: _Fields, path: str) -> Iterator[Incompatibility]:
    """Find oneofs of the reader with fields that the writer could set together."""
    for name, numbers in new.oneofs.items():
        known = [each for each in numbers if each in old.by_number]
        alone = [each for each in known if each not in old.oneof_of]
        groups = {old.oneof_of[each] for each in known if each in old.oneof_of}
        if len(groups) + len(alone) > 1:
            kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if len(alone) > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
            yield _report(kind, f"{path}/{name}")


def _is_number(field: Any) -> bool:
    return field.type != MESSAGE and field.type not in _TEXTS
