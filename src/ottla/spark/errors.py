"""What the source and the sink raise, for people to read in Spark's stack trace.

Zone: pure. Texts say the cause and the next step; the client's errors (`ottla.client.errors`) pass through as they are.
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
    """Records that the query should have read are not there any more."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Records may have been removed by retention, or the topic was deleted and made again, before the "
            "query read them. Set failOnDataLoss to false to go on with what is there"
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
    """The plan may put rows into other partitions when a batch is run again: exactly once cannot hold by partition."""


class NotOnePartition(RuntimeError):
    """A batch that is to be written as a whole comes in several partitions."""


class NoBatch(RuntimeError):
    """Spark does not say which batch of which query a task belongs to."""


class OffsetsOutside(RuntimeError):
    """The offsets of the source's group are demanded in the transaction of the rows, and cannot be there."""


class MarkersGone(RuntimeError):
    """The topic of the markers was deleted under the query."""


class Fenced(RuntimeError):
    """Another attempt at the same rows has taken over; this one has written nothing that counts."""


class ChangedUnit(RuntimeError):
    """A batch that is committed in part was begun with another unit, another sink's name or other partitions."""


class SharedGroup(RuntimeError):
    """Several tasks read the same records, and the group of the source cannot be kept from moving ahead of them."""
