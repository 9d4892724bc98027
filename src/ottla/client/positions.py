"""Positions of groups, and who commits them: the words that consumers and transactional producers share.

Zone: pure.
"""

from __future__ import annotations

from typing import NamedTuple


class OffsetAndMetadata(NamedTuple):
    """A position of a group."""

    offset: int
    """The next one to read."""
    leader_epoch: int = -1
    """Of the last record read; -1 unknown (KIP-320)."""
    metadata: str = ""


class GroupMetadata(NamedTuple):
    """Who consumes, so that members that have been replaced commit nothing (KIP-447). The defaults fence nobody."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
