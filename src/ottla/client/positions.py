"""Positions of groups, and who commits them: the words that consumers and transactional producers share.

Zone: pure.
"""

from __future__ import annotations

import operator
from typing import NamedTuple, SupportsIndex

from ottla.client.errors import UsageError, WrongTypeError


class OffsetAndMetadata(NamedTuple):
    """A position of a group."""

    offset: int
    """The next one to read."""
    leader_epoch: int = -1
    """Of the last record read; -1 unknown (KIP-320)."""
    metadata: str = ""


def checked_position(where: object, place: SupportsIndex | OffsetAndMetadata) -> OffsetAndMetadata:
    """A position that a caller gave, as a whole number of any type or as it is.

    Raises WrongTypeError, UsageError for a negative one.
    """
    found = place
    if not isinstance(found, OffsetAndMetadata):
        try:
            found = OffsetAndMetadata(operator.index(place))  # type: ignore[arg-type]  # what has none raises
        except TypeError:
            raise WrongTypeError(
                f"the position of {where} is {type(place).__name__}", "Give an int, or an OffsetAndMetadata"
            ) from None
    if found.offset < 0:
        raise UsageError(f"the position {found.offset} of {where} is negative", "Give the next offset to read")
    return found


class GroupMetadata(NamedTuple):
    """Who consumes, so that members that have been replaced commit nothing (KIP-447). The defaults fence nobody."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
