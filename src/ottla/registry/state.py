"""The state of a registry: the records of `_schemas`, applied in their order.

Zone: deterministic. Equal records in equal order make equal states, in every instance.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from typing import Any, Final

from ottla.registry import records
from ottla.registry.records import Schema, SubjectVersion
from ottla.registry.subjects import DEFAULT_CONTEXT, context_of

DEFAULT_LEVEL: Final = "BACKWARD"
DEFAULT_MODE: Final = "READWRITE"
_logger = logging.getLogger(__name__)


class RegistryState:
    """Subjects with their versions, schemas by id, levels and modes."""

    def __init__(self) -> None:
        self.levels: dict[str | None, str] = {}
        """Compatibility levels by subject or context name; None: the global one."""
        self.modes: dict[str | None, str] = {}
        """Modes by subject or context name; None: the global one."""
        self._subjects: dict[str, dict[int, SubjectVersion]] = {}
        self._schemas: dict[str, dict[int, Schema]] = defaultdict(dict)
        self._ids: dict[str, dict[Schema, int]] = defaultdict(dict)
        self._last_id: dict[str, int] = defaultdict(int)
        self._users: dict[tuple[str, int], dict[tuple[str, int], None]] = defaultdict(dict)
        """(context, id) → subject and version of those with this schema."""
        self._referrers: dict[tuple[str, int], dict[tuple[str, int], None]] = defaultdict(dict)
        """(subject, version) → subject and version of the schemas that refer to it."""
        self._guids: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
        """guid → subject and version of those with this schema."""

    # -- applying records ------------------------------------------------------------------------------------------

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record. One that cannot be understood is logged and left out."""
        try:
            fields = json.loads(key or b"")
            self._apply_fields(fields, None if value is None else json.loads(value))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            _logger.warning("a record of the schemas' topic is left out: %.200s (key %.200r)", reason, key)

    def _apply_fields(self, key: dict[str, Any], value: dict[str, Any] | None) -> None:
        kind, subject = key["keytype"], key.get("subject")
        if kind == records.SCHEMA:
            self._apply_schema(str(subject), int(key["version"]), value)
        elif kind == records.CONFIG:
            _put(self.levels, subject, value and value["compatibilityLevel"])
        elif kind == records.MODE:
            _put(self.modes, subject, value and value["mode"])
        elif kind == records.DELETE_SUBJECT and value is not None:
            self._soft_delete(str(subject), int(value["version"]))

    def _apply_schema(self, subject: str, version: int, value: dict[str, Any] | None) -> None:
        if value is None:
            self._remove(subject, version)
            return
        new = records.parse_schema_value(value)
        self._remove(subject, version)
        context = context_of(subject)
        self._subjects.setdefault(subject, {})[version] = new
        self._schemas[context][new.id] = new.schema
        self._ids[context].setdefault(new.schema, new.id)
        self._last_id[context] = max(self._last_id[context], new.id)
        self._users[context, new.id][subject, version] = None
        self._guids[new.schema.guid][subject, version] = None
        for each in new.schema.references:
            self._referrers[each.subject, each.version][subject, version] = None

    def _remove(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        old = versions.pop(version, None)
        if old is None:
            return
        if not versions:
            del self._subjects[subject]
        context = context_of(subject)
        users, guid_users = self._users[context, old.id], self._guids[old.schema.guid]
        del users[subject, version], guid_users[subject, version]
        if not guid_users:
            del self._guids[old.schema.guid]
        for each in old.schema.references:
            self._referrers[each.subject, each.version].pop((subject, version), None)
        if not users:  # ids are not given out again: `_last_id` stays
            del self._users[context, old.id], self._schemas[context][old.id]
            if self._ids[context].get(old.schema) == old.id:
                del self._ids[context][old.schema]

    def _soft_delete(self, subject: str, last: int) -> None:
        versions = self._subjects.get(subject, {})
        for version, each in versions.items():
            if version <= last:
                versions[version] = each._replace(is_deleted=True)

    # -- questions ---------------------------------------------------------------------------------------------------

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """Names of the subjects that have a version, in order; `deleted`: those with deleted versions only, too."""
        return sorted(
            name
            for name, versions in self._subjects.items()
            if deleted or any(not each.is_deleted for each in versions.values())
        )

    def versions(self, subject: str, *, deleted: bool = False) -> list[SubjectVersion]:
        """Versions of a subject, in order; `deleted`: deleted ones, too. Empty: there is no such subject."""
        versions = self._subjects.get(subject, {})
        return [versions[at] for at in sorted(versions) if deleted or not versions[at].is_deleted]

    def version(self, subject: str, version: int) -> SubjectVersion | None:
        """A version of a subject, deleted or not."""
        return self._subjects.get(subject, {}).get(version)

    def schema_of_id(self, context: str, id_: int) -> Schema | None:
        """The schema of an id."""
        return self._schemas[context].get(id_) if context in self._schemas else None

    def id_of_schema(self, context: str, schema: Schema) -> int | None:
        """The id of a schema, if it has one in this context."""
        return self._ids[context].get(schema) if context in self._ids else None

    def next_id(self, context: str) -> int:
        """The id for the next new schema of a context."""
        return self._last_id.get(context, 0) + 1

    def users_of_id(self, context: str, id_: int) -> list[SubjectVersion]:
        """The versions that have the schema of an id, deleted ones included."""
        return [self._subjects[subject][version] for subject, version in sorted(self._users.get((context, id_), {}))]

    def referrers(self, subject: str, version: int) -> list[SubjectVersion]:
        """The versions whose schemas refer to this one, deleted ones included."""
        return [self._subjects[name][at] for name, at in sorted(self._referrers.get((subject, version), {}))]

    def contexts(self) -> list[str]:
        """Names of the contexts that have subjects, and the default one."""
        return sorted({DEFAULT_CONTEXT, *map(context_of, self._subjects)})

    def level_of(self, subject: str | None) -> str:
        """The compatibility level that counts for a subject: its own, that of its context, or the global one."""
        return _look_up(self.levels, subject) or DEFAULT_LEVEL

    def mode_of(self, subject: str | None) -> str:
        """The mode that counts for a subject: its own, that of its context, or the global one."""
        return _look_up(self.modes, subject) or DEFAULT_MODE

    def schema_of_guid(self, guid: str) -> Schema | None:
        """The schema of a guid."""
        for subject, version in self._guids.get(guid, ()):
            return self._subjects[subject][version].schema
        return None


def _put(table: dict[str | None, str], subject: str | None, value: object) -> None:
    if value is None:
        table.pop(subject, None)
    else:
        table[subject] = str(value)


def _look_up(table: dict[str | None, str], subject: str | None) -> str | None:
    if subject is not None:
        context = context_of(subject)
        for name in (subject, f":{context}:"):
            if name in table:
                return table[name]
    return table.get(None)
