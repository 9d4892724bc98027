"""The errors of the source and the sink, whose texts are read in Spark's stack traces.

Zone: pure. A text has the cause and the next step. Errors of the client (`ottla.client.errors`) are not wrapped.
"""

from __future__ import annotations


class BadOption(ValueError):
    """An option is missing, unknown, wrong or not supported; the text begins with its name."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"Option {name} {problem}")
        self.name = name
        self.problem = problem

    def __reduce__(self) -> tuple[type[BadOption], tuple[str, str]]:
        return BadOption, (self.name, self.problem)


class DataLoss(RuntimeError):
    """Records that the query should have read no longer exist."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Retention may have removed records, or the topic was deleted and created again, before the "
            "query read them. Set failOnDataLoss to false to continue with the records that exist"
        )
        self.what = what

    def __reduce__(self) -> tuple[type[DataLoss], tuple[str]]:
        return DataLoss, (self.what,)


class BadRows(ValueError):
    """Rows that cannot be written: a column is missing or of a wrong type, or a value is not allowed."""


class BadCheckpoint(RuntimeError):
    """The checkpoint's offsets cannot be continued by this query."""


class StaleDriver(RuntimeError):
    """A later batch of the query is committed already: another driver is ahead on the same checkpoint."""


class UnstableRows(RuntimeError):
    """The plan may put rows into other partitions when a batch is run again: no exactly once by partition."""


class TooManyTasks(RuntimeError):
    """A batch that must be written as a whole has more tasks than a decision can name."""


class ExpiredTransaction(RuntimeError):
    """A task's transaction was aborted before its batch was committed; nothing of the batch is written."""


class IncompleteBatch(RuntimeError):
    """A batch is committed, and transactions of some of its tasks were aborted: their rows are missing."""


class NoBatch(RuntimeError):
    """Spark gives no query and batch for a task."""


class OffsetsOutside(RuntimeError):
    """The offsets of the source's group must be in the transaction of the rows, and cannot be."""


class MarkersGone(RuntimeError):
    """The topic of the markers was deleted while the query was running."""


class Fenced(RuntimeError):
    """Another attempt at the same rows has taken over; nothing of this one is committed."""


class ChangedUnit(RuntimeError):
    """A partly committed batch was begun with another unit, another name of the sink or other partitions."""


class OtherCheckpoint(RuntimeError):
    """The output belongs to a query with another checkpoint; this one would write all rows again."""


class SharedGroup(RuntimeError):
    """Several tasks read the same records, and the group of the source cannot be held back until all have finished."""
