"""Requests that name topics by id: the versions that do so, and the names of the topics.

Zone: pure. Offsets are stored by topic name, as in Kafka; an id is translated to the name of the topic that has it now.
A client that still uses the id of a deleted topic gets UNKNOWN_TOPIC_ID, and cannot change offsets of a new topic with
the same name (KIP-848; KIP-1319 for transactions).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from ottla.errors import ErrorCode

COMMIT_BY_ID: Final = 10
"""The version of OffsetCommit and OffsetFetch from which on they name topics by id."""
TXN_COMMIT_BY_ID: Final = 6
"""The version of TxnOffsetCommit from which on it names topics by id."""


class TopicRef(Protocol):
    """A topic of a request. The version decides which of the two fields is set."""

    name: str
    topic_id: bytes


class TopicNames(Protocol):
    """The names of the cluster's topics."""

    def name_of(self, topic_id: bytes) -> str:
        """The name of the topic with that id; "" when it does not exist."""
        ...


def fill_names(topics: Iterable[TopicRef], names: TopicNames) -> None:
    """Set the name of every topic from its id; "" for an unknown id. No topic has that name."""
    for topic in topics:
        topic.name = names.name_of(topic.topic_id)


def missing_partition_error(topic: TopicRef, by_id: bool) -> ErrorCode:
    """The error for a partition that does not exist."""
    if by_id and not topic.name:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
