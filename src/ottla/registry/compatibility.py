"""Levels of compatibility: which versions a new schema is compared with, and in which direction.

Zone: pure. BACKWARD: the new schema reads what the old one wrote; FORWARD: the old one reads what the new one writes;
FULL: both. Without TRANSITIVE the latest version counts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ottla.registry.records import SubjectVersion
from ottla.schemas.errors import Incompatibility
from ottla.schemas.formats import FORMATS, Format, ParsedSchema

LEVELS: Final = (
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
)


def versions_to_compare(level: str, versions: Sequence[SubjectVersion]) -> Sequence[SubjectVersion]:
    """The versions that a new schema is compared with; the newest one is last in `versions`."""
    if level == "NONE":
        return ()
    return versions if level.endswith("_TRANSITIVE") else versions[-1:]


def find_reasons(level: str, kind: str, new: ParsedSchema, old: ParsedSchema) -> list[Incompatibility]:
    """Reasons why two schemas of a type break a level. Raises InvalidSchema: comparing them takes too long."""
    found = FORMATS[kind]
    reasons: list[Incompatibility] = []
    if level.startswith(("BACKWARD", "FULL")):
        reasons += _compare(found, new, old)
    if level.startswith(("FORWARD", "FULL")):
        reasons += _compare(found, old, new)
    return reasons


def _compare(found: Format, reader: Any, writer: Any) -> list[Incompatibility]:
    return found.find_incompatibilities(reader, writer)
