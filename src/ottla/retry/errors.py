"""Errors of the retry service, beside those of the clients.

Zone: pure.
"""

from __future__ import annotations

from ottla.client.errors import ClientError
from ottla.types import TopicPartition


class RetryError(ClientError):
    """The retry service cannot go on; `next_step` says what to do."""


class ForeignPositionError(RetryError):
    """What the group has committed for a partition was not written by the retry service."""

    def __init__(self, tp: TopicPartition, text: str) -> None:
        super().__init__(
            f"{tp}: the position that is committed was not written by the retry service: {text[:40]!r}",
            "Give the service a group of its own, or reset the group's offsets",
        )


class SchedulerError(RetryError):
    """The scheduler's store does not answer, or not as it should."""

    retriable = True


class SchedulerLostError(RetryError):
    """What the scheduler's store holds for a partition is not what was put there: it is opened anew."""

    def __init__(self, tp: TopicPartition, why: str) -> None:
        super().__init__(f"{tp}: the scheduler's state is not the one that was left: {why}")
        self.tp = tp
