"""Versions of the records of `__consumer_offsets` that brokers of an age read.

Zone: pure. `inter.broker.protocol.version` names the oldest broker of the cluster; the choices are Kafka's.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

EXPIRING_OFFSET: Final = 1
"""The version of an offset that has an expiry time of its own; later ones have no field for it."""
_LATEST_STEP: Final = 99
"""`2.1` without a step is the last one of 2.1, as in Kafka."""
_PROTOCOL: Final = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:\.\d{1,4})*(?:-IV(\d{1,4}))?")
_Age = tuple[int, int, int, int]
_OFFSETS: Final[tuple[tuple[_Age, int], ...]] = (((2, 1, 0, 1), 3), ((2, 1, 0, 0), 2))
_GROUPS: Final[tuple[tuple[_Age, int], ...]] = (((2, 3, 0, 0), 3), ((2, 1, 0, 0), 2), ((0, 10, 1, 0), 1))


class GroupRecordVersions(NamedTuple):
    """The versions that a coordinator writes."""

    offset: int = 3
    group: int = 3


NEWEST: Final = GroupRecordVersions()


def group_record_versions(protocol: str) -> GroupRecordVersions:
    """The versions for a given `inter.broker.protocol.version`; the oldest for one that is not a version."""
    age = _age_of(protocol)
    return GroupRecordVersions(_newest_for(_OFFSETS, age, 1), _newest_for(_GROUPS, age, 0))


def _age_of(protocol: str) -> _Age:
    found = _PROTOCOL.fullmatch(protocol)
    if found is None:
        return (0, 0, 0, 0)
    major, minor, patch, step = found.groups()
    # Before 1.0 three numbers made a version: 0.10.1. Since then the third is the patch, which changes no format.
    third = int(patch or 0) if major == "0" else 0
    return (int(major), int(minor), third, _LATEST_STEP if step is None else int(step))


def _newest_for(steps: tuple[tuple[_Age, int], ...], age: _Age, oldest: int) -> int:
    return next((version for since, version in steps if age >= since), oldest)
