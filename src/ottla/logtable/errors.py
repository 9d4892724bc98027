"""Errors of reading a log directory; users read their texts in Spark's stack trace.

Zone: pure.
"""

from __future__ import annotations


class CorruptLog(RuntimeError):
    """A segment holds bytes that are not a whole, valid batch where one should be."""

    def __init__(self, path: str, position: int, problem: str) -> None:
        super().__init__(
            f"{path} at position {position}: {problem}. The file is damaged, or was copied while it was written: "
            "copy it again, or set onCorrupt to skip to leave out unreadable batches"
        )
        self.path = path
        self.position = position
        self.problem = problem

    def __reduce__(self) -> tuple[type[CorruptLog], tuple[str, int, str]]:
        return CorruptLog, (self.path, self.position, self.problem)


class LogChanged(RuntimeError):
    """A segment was removed, or could not be read, while the query ran."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. A running broker removes and renames segments: read a copy of its directory, at a "
            "path that every executor sees"
        )
        self.path = path
        self.problem = problem

    def __reduce__(self) -> tuple[type[LogChanged], tuple[str, str]]:
        return LogChanged, (self.path, self.problem)
