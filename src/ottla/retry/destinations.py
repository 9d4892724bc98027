"""Checks before a transaction begins that the topics of its records exist.

Zone: real. A producer waits up to `max.block.ms` for the metadata of a missing topic, which is too long with other
records in the same transaction. A topic counts as missing when it has been unknown for some seconds: right after its
creation, or after a broker's start, a broker may not have its metadata yet.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.errors import ErrorCode

PATIENCE_S: Final = 3.0
_KNOWN_S: Final = 30.0
_ASK_S: Final = 0.5


class Destinations:
    """Which topics exist, cached."""

    def __init__(self, cluster: Cluster) -> None:
        self._admin = Admin(cluster)
        self._seen: dict[str, float] = {}
        self._missing: dict[str, float] = {}
        """The time since which each topic is missing."""
        self._asked: dict[str, float] = {}

    def refresh_topics(self, topics: Iterable[str]) -> None:
        """Request the metadata of topics that are not cached, or too old. Raises ClientError."""
        now = time.monotonic()
        old = [each for each in dict.fromkeys(topics) if self._is_old(each, now)]
        if not old:
            return
        for name, found in self._admin.describe_topics(old).items():
            self._asked[name] = now
            if isinstance(found, RefusedError) and found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._missing.setdefault(name, now)
                self._seen.pop(name, None)
            elif isinstance(found, ClientError):
                raise found
            else:
                self._seen[name] = now
                self._missing.pop(name, None)

    def _is_old(self, name: str, now: float) -> bool:
        return now - self._seen.get(name, -_KNOWN_S) >= _KNOWN_S and now - self._asked.get(name, -_ASK_S) >= _ASK_S

    def missing_topic_error(self, name: str) -> RefusedError | None:
        """The error for a missing topic; retriable while the topic may only be unknown to a broker yet."""
        since = self._missing.get(name)
        if since is None:
            return None
        error = RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        error.retriable = time.monotonic() - since < PATIENCE_S
        return error
