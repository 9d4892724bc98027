"""Decides about deletions, compatibility levels and modes.

Zone: deterministic. A soft deletion hides a version, whose id still leads to its schema; a permanent one removes it,
and must follow a soft one. A version that others refer to stays.
"""

from __future__ import annotations

from typing import Final

from ottla.registry import errors
from ottla.registry.compatibility import LEVELS
from ottla.registry.records import (
    Record,
    SubjectVersion,
    config_record,
    delete_subject_record,
    mode_record,
    schema_record,
    schema_tombstone,
)
from ottla.registry.registration import Decision
from ottla.registry.state import RegistryState

MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")


class Administration:
    """Decides by a state."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    # -- deletions ---------------------------------------------------------------------------------------------------

    def delete_subject(self, subject: str, *, permanent: bool) -> Decision:
        """Delete all versions; the answer is their numbers. Raises RegistryError."""
        self._check_writable(subject)
        every, live = self._state.versions(subject, deleted=True), self._state.versions(subject)
        if not every:
            raise errors.subject_not_found(subject)
        if permanent and live:
            raise errors.subject_not_soft_deleted(subject)
        if not permanent and not live:
            raise errors.subject_soft_deleted(subject)
        gone = every if permanent else live
        for each in gone:
            self._check_unreferenced(each, within=subject)
        numbers = [each.version for each in gone]
        if not permanent:
            return Decision(numbers, (delete_subject_record(subject, numbers[-1]),))
        records = [schema_tombstone(subject, number) for number in numbers]
        return Decision(numbers, (*records, *self._forget_subject(subject)))

    def delete_version(self, subject: str, version: int, *, permanent: bool) -> Decision:
        """Delete one version; the answer is its number. Raises RegistryError."""
        self._check_writable(subject)
        found = self._state.version(subject, version)
        if found is None:
            if not self._state.versions(subject, deleted=True):
                raise errors.subject_not_found(subject)
            raise errors.version_not_found(version)
        if permanent and not found.is_deleted:
            raise errors.version_not_soft_deleted(subject, version)
        if not permanent and found.is_deleted:
            raise errors.version_soft_deleted(subject, version)
        self._check_unreferenced(found)
        if not permanent:
            return Decision(version, (schema_record(found._replace(is_deleted=True)),))
        is_last = len(self._state.versions(subject, deleted=True)) == 1
        rest = self._forget_subject(subject) if is_last else ()
        return Decision(version, (schema_tombstone(subject, version), *rest))

    def _forget_subject(self, subject: str) -> tuple[Record, ...]:
        """The records that remove the settings of a subject without versions."""
        config = (config_record(subject, None),) if subject in self._state.levels else ()
        return (*config, mode_record(subject, None)) if subject in self._state.modes else config

    def _check_unreferenced(self, each: SubjectVersion, within: str | None = None) -> None:
        users = self._state.referrers(each.subject, each.version)
        if any(user.subject != within and not user.is_deleted for user in users):
            raise errors.is_referenced(each.subject, each.version)

    def _check_writable(self, subject: str) -> None:
        if self._state.mode_of(subject).startswith("READONLY"):
            raise errors.not_permitted(f"Subject {subject} is in read-only mode")

    # -- levels and modes --------------------------------------------------------------------------------------------

    def level(self, subject: str | None, *, or_global: bool) -> str:
        """The level that is set for a subject, or globally. Raises RegistryError: none is set."""
        if subject is not None and subject not in self._state.levels and not or_global:
            raise errors.no_subject_config(subject)
        return self._state.level_of(subject)

    def set_level(self, subject: str | None, level: object) -> Decision:
        """Set a level; the answer is the level. Raises RegistryError."""
        if not isinstance(level, str) or level.upper() not in LEVELS:
            raise errors.invalid_level(LEVELS)
        return Decision(level.upper(), (config_record(subject, level.upper()),))

    def delete_level(self, subject: str | None) -> Decision:
        """Remove a level; the answer is the level that was set. Raises RegistryError: none was."""
        if subject is not None and subject not in self._state.levels:
            raise errors.subject_not_found(subject)
        return Decision(self._state.level_of(subject), (config_record(subject, None),))

    def mode(self, subject: str | None, *, or_global: bool) -> str:
        """The mode that is set for a subject, or globally. Raises RegistryError: none is set."""
        if subject is not None and subject not in self._state.modes and not or_global:
            raise errors.no_subject_mode(subject)
        return self._state.mode_of(subject)

    def set_mode(self, subject: str | None, mode: object, *, force: bool) -> Decision:
        """Set a mode; the answer is the mode. IMPORT needs a subject without versions, or `force`.

        Raises RegistryError.
        """
        if not isinstance(mode, str) or mode.upper() not in MODES:
            raise errors.invalid_mode(MODES)
        is_used = self._state.versions(subject) if subject is not None else self._state.subjects()
        if mode.upper() == "IMPORT" and is_used and not force and self._state.mode_of(subject) != "IMPORT":
            raise errors.not_permitted("Cannot import since found existing subjects")
        return Decision(mode.upper(), (mode_record(subject, mode.upper()),))

    def delete_mode(self, subject: str) -> Decision:
        """Remove a subject's mode; the answer is the mode that was set. Raises RegistryError: none was."""
        if subject not in self._state.modes:
            raise errors.subject_not_found(subject)
        return Decision(self._state.mode_of(subject), (mode_record(subject, None),))
