"""Errors of a topic's table: what happened, to what, why, and what to do next.

Zone: pure.
"""

from __future__ import annotations

from ottla.client.errors import ClientError


class TableError(ClientError):
    """The table cannot be opened, read or written."""


class CommitConflict(TableError):
    """The table changed between the read and the commit, or the outcome of the commit is unknown: read it again."""


class RowNotReadableError(TableError):
    """The value of a record cannot be decoded, or has no place in the table."""


class ColumnConflictError(RowNotReadableError):
    """The schema of a record has a field that its column of the table cannot hold."""


class ConcurrentWriterError(TableError):
    """Another writer moved the offsets of the table."""


class OffsetsLostError(TableError):
    """The table has rows, but not the offsets up to which it has the topic."""


class OffsetsOutsideTopicError(TableError):
    """The table's offsets are not in the topic: deleted by retention, or beyond the end."""


class TopicRecreatedError(TableError):
    """The topic of this name is not the one that the table was written from."""
