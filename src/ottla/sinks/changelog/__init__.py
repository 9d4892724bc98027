"""Keyed state in a compacted topic, from which it can be restored exactly (docs/sinks.md).

Zone: real. Ordinary transactions of an ordinary producer: works with any Kafka cluster that has them.
"""

from __future__ import annotations

from ottla.sinks.changelog.changelog import Changelog
from ottla.sinks.changelog.errors import ChangelogBroken, NotCompacted, Superseded
from ottla.sinks.errors import SinkError, UsageError

__all__ = ["Changelog", "ChangelogBroken", "NotCompacted", "SinkError", "Superseded", "UsageError"]
