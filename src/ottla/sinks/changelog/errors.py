"""Errors of the changelog. Errors of the client (`ottla.client.errors`) are not wrapped.

Zone: pure.
"""

from __future__ import annotations

from ottla.sinks.errors import SinkError


class Superseded(SinkError):
    """Another job with the same name has taken over: this one is a zombie, and cannot write any more."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"another job named {name!r} has taken over; this one cannot write any more",
            "Stop it. If there is no other job, a transaction took longer than transaction.timeout.ms: start it again",
        )


class NotCompacted(SinkError):
    """The topic's cleanup policy would delete state."""

    def __init__(self, topic: str, policy: str) -> None:
        super().__init__(
            f"topic {topic} has cleanup.policy={policy}, under which old state is deleted",
            "Set cleanup.policy=compact, or name a topic that does not exist yet",
        )


class ChangelogBroken(SinkError):
    """State and positions do not belong together: one of the two topics was deleted, or created again."""

    def __init__(self, what: str) -> None:
        super().__init__(
            what,
            "Restore both topics of the same time; or delete both, and let the job compute the state from the start",
        )
