"""Topics that are named by their id: from which version on, and what their names are.

Zone: pure. Offsets are kept by name, as Kafka keeps them; an id is only another way to say which topic is meant. What
is said about an id is said about the topic that has it now, so that who remembers a deleted topic hears
UNKNOWN_TOPIC_ID and moves no offset of the topic that has its name since (KIP-848; KIP-1319 for transactions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from ottla.errors import ErrorCode

COMMIT_BY_ID: Final = 10
"""OffsetCommit and OffsetFetch name topics by id from here on."""
TXN_COMMIT_BY_ID: Final = 6
"""TxnOffsetCommit does from here on."""


class TopicRef(Protocol):
    """A topic of a request: by one of both."""

    name: str
    topic_id: bytes


class TopicNames(Protocol):
    """What the cluster says about topics."""

    def name_of(self, topic_id: bytes) -> str:
        """The name of the topic with that id; "" when there is none."""
        ...


def fill_names(topics: Iterable[TopicRef], names: TopicNames) -> None:
    """Give every topic the name that its id stands for; "" where it stands for none, which is no topic's name."""
    for topic in topics:
        topic.name = names.name_of(topic.topic_id)


def missing(topic: TopicRef, by_id: bool) -> ErrorCode:
    """What is said of a partition that is not there."""
    if by_id and not topic.name:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
