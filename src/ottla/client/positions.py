"""Positions of groups and identities of group members: types that consumers and transactional producers share.

Zone: pure.
"""

from __future__ import annotations

import operator
from typing import NamedTuple, SupportsIndex

from ottla.client.errors import UsageError, WrongTypeError


class OffsetAndMetadata(NamedTuple):
    """A position of a group."""

    offset: int
    """The next offset to read."""
    leader_epoch: int = -1
    """Leader epoch of the last record read; -1: unknown (KIP-320)."""
    metadata: str = ""


def checked_position(where: object, place: SupportsIndex | OffsetAndMetadata) -> OffsetAndMetadata:
    """The position for an argument: an integer of any type, or an OffsetAndMetadata.

    Raises WrongTypeError; UsageError for a negative one.
    """
    found = place
    if not isinstance(found, OffsetAndMetadata):
        try:
            found = OffsetAndMetadata(operator.index(place))  # type: ignore[arg-type]  # TypeError: not an integer
        except TypeError:
            raise WrongTypeError(
                f"the position of {where} is {type(place).__name__}", "Give an int, or an OffsetAndMetadata"
            ) from None
    if found.offset < 0:
        raise UsageError(f"the position {found.offset} of {where} is negative", "Give the next offset to read")
    return found


class GroupMetadata(NamedTuple):
    """Identity of a consumer: commits of replaced members are refused (KIP-447). The defaults skip that check."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
