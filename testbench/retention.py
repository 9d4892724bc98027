"""Brokers of tests keep old records.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

NO_RETENTION: Final[Mapping[str, str]] = MappingProxyType(
    {"log.initial.task.delay.ms": "86400000", "log.retention.check.interval.ms": "86400000"}
)
"""Settings of a broker for tests whose records have fixed timestamps. Retention, which runs half a minute after the
start and then every five minutes, would delete records of weeks ago in the midst of a test."""
