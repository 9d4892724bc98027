"""The records of the topic `_schemas`, as Schema Registry 7 writes them.

Zone: pure. Key and value are JSON objects. A key is `{"keytype":…,"subject":…,"version":…,"magic":…}` with its members
in this order, because compaction compares bytes. A value that is null removes what the key names.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any, Final, NamedTuple

SCHEMA: Final = "SCHEMA"
CONFIG: Final = "CONFIG"
MODE: Final = "MODE"
DELETE_SUBJECT: Final = "DELETE_SUBJECT"
NOOP: Final = "NOOP"


class Reference(NamedTuple):
    """A schema that another one uses by name."""

    name: str
    """Avro: a full name; JSON: a URI; Protobuf: a path of an import."""
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema without its subject: two are equal if they are one to the registry."""

    text: str
    type: str = "AVRO"
    references: tuple[Reference, ...] = ()

    @property
    def guid(self) -> str:
        """An id that is equal in every registry: of type, references and text."""
        parts = [self.type, *(str(part) for each in self.references for part in each), self.text]
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
        return str(uuid.UUID(bytes=digest[:16], version=5))


class SubjectVersion(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False


class Record(NamedTuple):
    """A record to write: value None is a tombstone."""

    key: bytes
    value: bytes | None


def schema_record(of: SubjectVersion) -> Record:
    """The record of a version."""
    value: dict[str, Any] = {"subject": of.subject, "version": of.version, "id": of.id}
    if of.schema.type != "AVRO":
        value["schemaType"] = of.schema.type
    if of.schema.references:
        value["references"] = [each._asdict() for each in of.schema.references]
    return Record(
        _schema_key(of.subject, of.version), _dump(value | {"schema": of.schema.text, "deleted": of.is_deleted})
    )


def schema_tombstone(subject: str, version: int) -> Record:
    """The record that removes a version permanently."""
    return Record(_schema_key(subject, version), None)


def delete_subject_record(subject: str, version: int) -> Record:
    """The record that deletes the versions of a subject up to this one, softly."""
    return Record(
        _dump({"keytype": DELETE_SUBJECT, "subject": subject, "magic": 0}),
        _dump({"subject": subject, "version": version}),
    )


def config_record(subject: str | None, level: str | None) -> Record:
    """The record of a compatibility level; subject None: the global one; level None: removed."""
    value = None if level is None else _dump({"subject": subject, "compatibilityLevel": level})
    return Record(_dump({"keytype": CONFIG, "subject": subject, "magic": 0}), value)


def mode_record(subject: str | None, mode: str | None) -> Record:
    """The record of a mode; subject None: the global one; mode None: removed."""
    value = None if mode is None else _dump({"subject": subject, "mode": mode})
    return Record(_dump({"keytype": MODE, "subject": subject, "magic": 0}), value)


def parse_schema_value(value: dict[str, Any]) -> SubjectVersion:
    """The version of a value. Raises KeyError, TypeError or ValueError for one of another shape."""
    references = tuple(
        Reference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in value.get("references") or ()
    )
    schema = Schema(str(value["schema"]), str(value.get("schemaType") or "AVRO"), references)
    deleted = bool(value.get("deleted", False))
    return SubjectVersion(str(value["subject"]), int(value["version"]), int(value["id"]), schema, deleted)


def _schema_key(subject: str, version: int) -> bytes:
    return _dump({"keytype": SCHEMA, "subject": subject, "version": version, "magic": 1})


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
