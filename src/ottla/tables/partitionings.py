"""How a table may be partitioned: not at all, by time, or by the hash of the key.

Zone: pure. Imports no format's library.
"""

from __future__ import annotations

import re
from typing import Final

NONE: Final = "none"
TIME_PARTITIONINGS: Final = ("day", "hour")
_BUCKETS: Final = re.compile(r"bucket\[[1-9][0-9]{0,3}\]")
"""As Iceberg writes the transform."""


def has_buckets(by: str | None) -> bool:
    """Whether `by` is bucket[NUMBER], the hash of the key."""
    return by is not None and _BUCKETS.fullmatch(by) is not None


def is_possible(kind: str, by: str) -> bool:
    """Whether a table of the format `kind` may be partitioned so: by hash only with Iceberg, and Parquet not at all."""
    if kind == "parquet":
        return by == NONE
    return by in (NONE, *TIME_PARTITIONINGS) or (kind == "iceberg" and has_buckets(by))


def describe_possible(kind: str) -> str:
    """What `is_possible` allows for a format, for messages."""
    if kind == "parquet":
        return NONE
    names = ", ".join((NONE, *TIME_PARTITIONINGS))
    return f"{names}, bucket[1] to bucket[9999]" if kind == "iceberg" else names


def partition_name(by: str) -> str:
    """The name of the partitions in the table."""
    return by.replace("[", "_").removesuffix("]")
