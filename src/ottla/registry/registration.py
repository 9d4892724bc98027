"""Decides about new schemas: parsed, compared with earlier versions, and given an id and a version.

Zone: deterministic. A decision is an answer and the records that make it true; nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ottla.registry import errors
from ottla.registry.compatibility import find_reasons, versions_to_compare
from ottla.registry.errors import RegistryError
from ottla.registry.records import Record, Reference, Schema, SubjectVersion, schema_record
from ottla.registry.state import RegistryState
from ottla.registry.subjects import context_of
from ottla.schemas.errors import InvalidSchema
from ottla.schemas.formats import FORMATS, NamedText, ParsedSchema, parse_schema

MAX_REFERENCES: Final = 100
"""Most schemas that one schema refers to, those that it reaches through others included."""
PARSED_MAX: Final = 1_000
"""Most parsed schemas that are kept."""
PARSED_CHARACTERS: Final = 32 * 1024 * 1024
"""Most characters of their texts."""


class Decision(NamedTuple):
    """An answer, and what has to be written first."""

    answer: object
    records: tuple[Record, ...] = ()


class NewSchema(NamedTuple):
    """A schema that a client has sent."""

    schema: Schema
    id: int = -1
    """The id that it has elsewhere; only in the mode IMPORT. -1: the registry gives one."""
    version: int = -1
    """The version that it has elsewhere; only in the mode IMPORT. -1: the next one."""


class Registration:
    """Decides about new schemas by a state."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        self._parsed: dict[Schema, ParsedSchema] = {}
        """Schemas without references that were parsed lately."""
        self._parsed_characters = 0

    def parse(self, schema: Schema) -> ParsedSchema:
        """Parse a schema, with those that it refers to. Raises RegistryError."""
        found = self._parsed.get(schema)
        if found is not None:
            return found
        try:
            parsed = parse_schema(schema.type, schema.text, self._texts_of(schema.references))
        except InvalidSchema as error:
            raise errors.invalid_schema(error) from error
        if not schema.references:
            self._keep_parsed(schema, parsed)
        return parsed

    def _keep_parsed(self, schema: Schema, parsed: ParsedSchema) -> None:
        self._parsed_characters += len(schema.text)
        if len(self._parsed) >= PARSED_MAX or self._parsed_characters > PARSED_CHARACTERS:
            self._parsed.clear()
            self._parsed_characters = len(schema.text)
        self._parsed[schema] = parsed

    def _texts_of(self, references: Iterable[Reference]) -> list[NamedText]:
        """The referred schemas, each once and after those that it refers to."""
        found: dict[tuple[str, int], NamedText | None] = {}

        def visit(each: Reference) -> None:
            if (each.subject, each.version) in found:
                return
            source = self._state.version(each.subject, each.version)
            if source is None:
                raise InvalidSchema(f"no schema for the reference {each.name!r}: {each.subject} version {each.version}")
            if len(found) == MAX_REFERENCES:
                raise InvalidSchema(f"more than {MAX_REFERENCES} schemas are referred to")
            found[each.subject, each.version] = None
            for below in source.schema.references:
                visit(below)
            text = NamedText(each.name, source.schema.text)
            del found[each.subject, each.version]
            found[each.subject, each.version] = text

        for each in references:
            visit(each)
        return [text for text in found.values() if text is not None]

    # -- registering -------------------------------------------------------------------------------------------------

    def register(self, subject: str, new: NewSchema) -> tuple[SubjectVersion, tuple[Record, ...]]:
        """The version that has, or gets, the schema, and what has to be written first. Raises RegistryError."""
        self._check_mode(subject, new)
        schema, parsed = self._canonical(new.schema, self._state.versions(subject) if new.id < 0 else ())
        context = context_of(subject)
        other = self._state.schema_of_id(context, new.id)
        if other is not None and other != schema:
            raise errors.not_permitted(f"Overwrite new schema with id {new.id} is not permitted.")
        for each in self._state.versions(subject):
            if each.schema == schema and new.id in (-1, each.id) and new.version in (-1, each.version):
                return each, ()
        if new.id < 0:
            self._check_compatibility(subject, schema, parsed)
        version = self._version_for(subject, new)
        known = self._state.id_of_schema(context, schema)
        id_ = new.id if new.id >= 0 else known if known is not None else self._state.next_id(context)
        made = SubjectVersion(subject, version, id_, schema)
        return made, (schema_record(made),)

    def _check_mode(self, subject: str, new: NewSchema) -> None:
        mode = self._state.mode_of(subject)
        if mode.startswith("READONLY"):
            raise errors.not_permitted(f"Subject {subject} is in read-only mode")
        if (new.id >= 0 or new.version >= 1) and mode != "IMPORT":
            raise errors.not_permitted(f"Subject {subject} is not in import mode")
        if mode == "IMPORT" and new.id < 0:
            raise errors.not_permitted(f"Subject {subject} is in import mode: a schema needs an id")

    def _version_for(self, subject: str, new: NewSchema) -> int:
        if new.version >= 1:
            return new.version
        return max((each.version for each in self._state.versions(subject, deleted=True)), default=0) + 1

    def _canonical(self, schema: Schema, versions: Sequence[SubjectVersion]) -> tuple[Schema, ParsedSchema]:
        """The schema as it is kept: with its canonical text, or as it is in the version that has an equal one."""
        parsed = self.parse(schema)
        if not FORMATS[schema.type].keeps_text:
            return schema._replace(text=parsed.canonical), parsed
        if any(each.schema == schema for each in versions):
            return schema, parsed
        equal = (each.schema for each in reversed(versions) if self._is_equal(each.schema, schema, parsed))
        return next(equal, schema), parsed

    def _is_equal(self, old: Schema, new: Schema, parsed: ParsedSchema) -> bool:
        if old.type != new.type or set(old.references) != set(new.references):
            return False
        try:
            return self.parse(old).canonical == parsed.canonical
        except RegistryError:  # another registry has written it
            return False

    def _check_compatibility(self, subject: str, schema: Schema, parsed: ParsedSchema) -> None:
        level = self._state.level_of(subject)
        reasons = self._find_reasons(
            level, schema.type, parsed, versions_to_compare(level, self._state.versions(subject))
        )
        if reasons:
            raise errors.incompatible(reasons)

    # -- questions ---------------------------------------------------------------------------------------------------

    def find(self, subject: str, schema: Schema, *, deleted: bool = False) -> SubjectVersion:
        """The version of a subject that has this schema. Raises RegistryError."""
        versions = self._state.versions(subject, deleted=True)
        if not versions or not (deleted or self._state.versions(subject)):
            raise errors.subject_not_found(subject)
        wanted, _ = self._canonical(schema, versions)
        for each in reversed(versions):
            if each.schema == wanted and (deleted or not each.is_deleted):
                return each
        raise errors.schema_not_found()

    def compare(self, subject: str, schema: Schema, versions: list[SubjectVersion]) -> list[str]:
        """Reasons why a schema breaks the subject's level, compared with some versions. Raises RegistryError."""
        level = self._state.level_of(subject)
        return self._find_reasons(level, schema.type, self.parse(schema), versions)

    def serialize(self, schema: Schema) -> Schema:
        """The schema with the text of the format `serialized`, if its type has one. Raises RegistryError."""
        found = FORMATS.get(schema.type)
        if found is None or found.serialize is None:
            return schema
        return schema._replace(text=found.serialize(self.parse(schema)))

    def _find_reasons(
        self, level: str, kind: str, parsed: ParsedSchema, versions: Iterable[SubjectVersion]
    ) -> list[str]:
        reasons: list[str] = []
        for old in versions:
            if old.schema.type != kind:
                reasons.append(
                    f"Incompatible because of different schema type: version {old.version} is {old.schema.type}"
                )
                continue
            try:
                found = find_reasons(level, kind, parsed, self.parse(old.schema))
            except InvalidSchema as error:
                raise errors.invalid_schema(error) from error
            if found:
                reasons += [*map(str, found), f"{{oldSchemaVersion: {old.version}}}"]
                reasons.append(f"{{oldSchema: '{old.schema.text}'}}")
        return [*reasons, f"{{compatibility: '{level}'}}"] if reasons else []
