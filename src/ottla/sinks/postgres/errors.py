"""Errors of the PostgreSQL sink: what happened, and what to do next.

Zone: pure. Errors of the database about a user's own statements (psycopg.Error) are not wrapped.
"""

from __future__ import annotations

from ottla.renamed import warn_renamed
from ottla.sinks.errors import SinkError, UsageError
from ottla.types import TopicPartition


class Superseded(SinkError):
    """Another consumer has claimed the partition: this one is a zombie, and wrote nothing."""

    def __init__(self, tp: TopicPartition, mine: int, theirs: int) -> None:
        super().__init__(
            f"{tp} was claimed by another consumer (epoch {theirs}, ours is {mine}); nothing was written",
            "Stop this consumer; or, if it should take over again, make a new claim, which begins at the stored offset",
        )
        self.tp = tp

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


class OffsetsMoved(SinkError):
    """The stored offset is not the one this consumer wrote last, although no other has claimed the partition."""

    def __init__(self, tp: TopicPartition, mine: int | None, stored: int | None) -> None:
        super().__init__(
            f"the stored offset of {tp} is {stored}, and this consumer wrote {mine} last; nothing was written",
            "The table of offsets was changed or restored: check which offset is right, then claim the partition again",
        )
        self.tp = tp

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


class DatabaseGone(SinkError):
    """The database was unreachable for `patience_s`. The last write is in it completely or not at all."""

    def __init__(self, patience_s: float, last: str) -> None:
        super().__init__(
            f"the database was unreachable for {patience_s:g} s (last: {last})",
            "Nothing is lost: start the database, then write the same records again, or restart and claim again",
        )


class BadDatabase(SinkError):
    """The server refused the connection: wrong password or database name, or a missing permission."""


class BadResults(SinkError):
    """The results do not fit the table they are for."""


class OtherQuery(SinkError):
    """The sink's name belongs to another streaming query."""

    def __init__(self, sink: str, stored: str, query: str) -> None:
        super().__init__(
            f"the sink {sink!r} holds the batches of query {stored}, and this is query {query}",
            "Give each query a sink name of its own. If the checkpoint was removed on purpose: remove the old results, "
            "call forget(), and start again",
        )


class BatchesMissing(SinkError):
    """The query is ahead of the database: batches between them are missing."""

    def __init__(self, sink: str, stored: int | None, batch_id: int) -> None:
        has = "no batch yet" if stored is None else f"batches up to {stored}"
        super().__init__(
            f"the sink {sink!r} has {has}, and the query writes batch {batch_id}",
            "The database is older than the checkpoint: restore both of the same time, or start with a new checkpoint "
            f"and a new sink name. If the results should begin here, set first_batch={batch_id}",
        )


__all__ = [
    "BadDatabase",
    "BadResults",
    "BatchesMissing",
    "DatabaseGone",
    "OffsetsMoved",
    "OtherQuery",
    "SinkError",
    "Superseded",
    "UsageError",
]
