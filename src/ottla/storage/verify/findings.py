"""The findings of a check, and the actions of a repair.

Zone: pure. Values only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


class Cut(NamedTuple):
    """Cut a file to `size` bytes."""

    path: str
    size: int


class Write(NamedTuple):
    """Replace a small file."""

    path: str
    content: bytes


class Remove(NamedTuple):
    """Remove a file: a broker does not need it, or writes it again."""

    path: str


Action = Cut | Write | Remove


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, or one oddity."""

    path: str
    """The file or directory, relative to the directory that was checked."""
    kind: str
    """Its kind in a word or two: `torn tail`, `damaged batch`, `hole`, `index`, `checkpoint`, …"""
    message: str
    repair: str = ""
    """What a repair does about it, in words; empty: nothing."""
    actions: tuple[Action, ...] = ()
    lost: tuple[int, int] | None = None
    """First offset, and the one after the last, of lost records, as far as it is known."""
    harmless: bool = False
    """Whether a broker corrects it by itself, and nothing is missing."""

    def json(self) -> dict[str, Json]:
        """For machines."""
        lost = None if self.lost is None else {"from": self.lost[0], "to": self.lost[1]}
        return {
            "path": self.path, "kind": self.kind, "message": self.message, "harmless": self.harmless,
            "repair": self.repair or None, "lost": lost,
        }  # fmt: skip


@dataclass(slots=True)
class Report:
    """Counts and findings."""

    logs: int = 0
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged."""
        return all(finding.harmless for finding in self.findings)

    def json(self) -> dict[str, Json]:
        """For machines."""
        return {
            "logs": self.logs, "segments": self.segments, "batches": self.batches, "bytes": self.bytes,
            "clean": self.is_clean, "findings": [finding.json() for finding in self.findings],
        }  # fmt: skip
