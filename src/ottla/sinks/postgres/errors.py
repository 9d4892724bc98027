"""What the PostgreSQL sink raises, for people to read: what happened, and what to do.

Zone: pure. Errors of the database about a user's own statements (psycopg.Error) pass through as they are.
"""

from __future__ import annotations

from ottla.renamed import warn_renamed
from ottla.sinks.errors import SinkError, UsageError
from ottla.types import TopicPartition


class Superseded(SinkError):
    """Another consumer has claimed the partition since: this one is a zombie, and wrote nothing."""

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
    """The stored offset is not the one that this consumer has left, although nobody else claimed the partition."""

    def __init__(self, tp: TopicPartition, mine: int | None, stored: int | None) -> None:
        super().__init__(
            f"the stored offset of {tp} is {stored}, and this consumer left it at {mine}; nothing was written",
            "Somebody changed or restored the table of offsets: see which is right, then claim the partition anew",
        )
        self.tp = tp

    @property
    def where(self) -> TopicPartition:
        """The old name of `tp`."""
        warn_renamed("where", "tp")
        return self.tp


class DatabaseGone(SinkError):
    """The database could not be reached for the sink's patience. The last write is in it whole or not at all."""

    def __init__(self, patience_s: float, last: str) -> None:
        super().__init__(
            f"the database was not there for {patience_s:g} s (last: {last})",
            "Nothing is lost: start it again, then write the same records again, or restart and claim anew",
        )


class BadDatabase(SinkError):
    """The server answered, and will not have us: the password, the database's name, a permission."""


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
    """The query is further than the database: batches between them are not in it."""

    def __init__(self, sink: str, stored: int | None, batch_id: int) -> None:
        has = "no batch yet" if stored is None else f"batches up to {stored}"
        super().__init__(
            f"the sink {sink!r} has {has}, and the query comes with batch {batch_id}",
            "The database is older than the checkpoint: restore both of the same time, or start with a new checkpoint "
            f"and a new sink name. If the results shall begin here, say first_batch={batch_id}",
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
