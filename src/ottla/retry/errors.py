"""Errors of the retry service, beside those of the clients.

Zone: pure.
"""

from __future__ import annotations

from ottla.client.errors import ClientError
from ottla.types import TopicPartition


class RetryError(ClientError):
    """The retry service cannot continue; `next_step` has the action to take."""


class ForeignPositionError(RetryError):
    """The committed offset of a partition was not written by the retry service."""

    def __init__(self, tp: TopicPartition, text: str) -> None:
        super().__init__(
            f"{tp}: the committed offset was not written by the retry service, its metadata is {text[:40]!r}",
            "Give the service a group of its own, or reset the group's offsets",
        )


class SchedulerError(RetryError):
    """The scheduler's store does not answer, or answers with an error."""

    retriable = True


class SchedulerLostError(RetryError):
    """The state of a partition in the scheduler's store is not the one last written; the partition is opened again."""

    def __init__(self, tp: TopicPartition, why: str) -> None:
        super().__init__(f"{tp}: the scheduler's state is not the one last written: {why}")
        self.tp = tp
