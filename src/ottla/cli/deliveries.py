"""The outcome of an import, line by line: which lines are written, which are not, and how to continue.

Zone: real. The producer's thread calls `Deliveries` for every record; the command reads it when nothing is in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.cli.failure import BadLine, CommandFailed
from ottla.cli.views.output import write_jsonl

if TYPE_CHECKING:
    from ottla.cli.views.record_text import RecordLine
    from ottla.client import ClientError, Producer, RecordMetadata

_RUNS_AT_ONCE: Final = 100
_RANGES_SHOWN: Final = 20


class _Run:
    """Records that follow each other in a partition."""

    __slots__ = ("base_offset", "count", "partition", "topic")

    def __init__(self, first: RecordMetadata) -> None:
        self.topic = first.topic
        self.partition = first.partition
        self.base_offset = first.offset
        self.count = 1

    def extend_run(self, metadata: RecordMetadata) -> bool:
        """Count the record if it is the next one of this run."""
        due = self.base_offset + self.count if self.base_offset >= 0 else -1
        if (metadata.topic, metadata.partition, metadata.offset) != (self.topic, self.partition, due):
            return False
        self.count += 1
        return True


class Deliveries:
    """The outcome of each line. With `printing`, offsets are written to stdout: one document per run of records."""

    def __init__(
        self, *, printing: bool, noun: str = "line", continuation: Callable[[int], str] | None, skipped: int = 0
    ) -> None:
        """noun: the unit of the input that becomes a record. continuation: the command, or the option, that continues
        at a number. skipped: how many units before the first one are not sent."""
        self._noun = noun
        self._continuation = continuation
        self._printing = printing
        self._runs: deque[_Run] = deque()
        self._failed: list[list[int]] = []
        """Ranges of lines that were not acknowledged, as [first, last], in the order of their failure."""
        self._error: tuple[int, ClientError] | None = None
        self._acknowledged = 0
        self._skipped = self._read = self._committed = skipped

    def send_line(self, producer: Producer, number: int, line: RecordLine) -> None:
        """Give a record to the producer. Raises ClientError: this record's failure, or that of an earlier one."""
        from ottla.client import ClientError

        assert line.topic is not None
        self.raise_failure()
        self._read = number
        try:
            producer.send(
                line.topic,
                line.value,
                key=line.key,
                headers=line.headers,
                partition=line.partition,
                timestamp=line.timestamp,
                on_delivery=partial(self._on_delivery, number),
            )
        except ClientError as error:
            self._add_failure(number, error)
            raise
        if len(self._runs) > _RUNS_AT_ONCE:
            self._print_runs(keep=1)

    def raise_failure(self) -> None:
        """Raise the first error there was."""
        if self._error is not None:
            raise self._error[1]

    def settle_runs(self) -> None:
        """Print the runs that are left; call it when nothing is in flight. Raises the first error there was."""
        self._print_runs(keep=0)
        self.raise_failure()

    def mark_committed(self) -> None:
        """Note that all lines that were read are in committed transactions."""
        self._committed = self._read

    def written_count(self, *, transactional: bool) -> int:
        """How many are written, in transactions that are committed; call it when nothing is in flight."""
        return self._committed - self._skipped if transactional else self._acknowledged

    def interruption_text(self, *, transactional: bool) -> str:
        """The sentence after Ctrl-C; call it when nothing is in flight."""
        missing = [] if transactional else self._missing_ranges(self._read + 1)
        # The last one that was read may have been interrupted before the producer had it.
        if not missing and self._acknowledged < self._read - self._skipped:
            missing = [[self._read, self._read]]
        first = self._committed + 1 if transactional else (missing[0][0] if missing else self._read + 1)
        written = self.written_count(transactional=transactional)
        return self._outcome_text(written, missing, first, transactional=transactional)

    def as_failure(self, error: Exception, *, transactional: bool) -> CommandFailed:
        """The error that ends the import; call it when nothing is in flight."""
        from ottla.cli.explain import exit_code, explain_error

        self._print_runs(keep=0)
        number, cause = self._read, explain_error(error)
        # Which line is to blame. 1. A bad line: it carries its own number, and was never sent. 2. A delivery that
        # failed: the lowest such line, which may lie far before the last one read. 3. Otherwise the last line read.
        if isinstance(error, BadLine):
            number = error.number
        elif self._error is not None:
            number = self._error[0]
            cause = f"{self._noun} {number} of the input was not written: {explain_error(self._error[1])}"
        # A transaction is written or it is not, so only its first line matters. Without transactions, lines after a
        # failed one may have been acknowledged: the user needs the exact ranges that were not.
        missing = [] if transactional else self._missing_ranges(number)
        first = self._committed + 1 if transactional else (missing[0][0] if missing else number)
        written = self.written_count(transactional=transactional)
        return CommandFailed(
            f"{cause}. {self._outcome_text(written, missing, first, transactional=transactional)}",
            exit_code=exit_code(error) or 1,
            details={
                "line": number,
                "written": written,
                "not_written": [f"{low}-{high}" if high > low else str(low) for low, high in missing],
                "continue_at": first,
            },
        )

    def _missing_ranges(self, bad: int) -> list[list[int]]:
        """Ranges of lines that were read and not acknowledged, without the bad line itself."""
        ranges: list[list[int]] = []
        for low, high in sorted(self._failed):
            if ranges and low <= ranges[-1][1] + 1:
                ranges[-1][1] = max(high, ranges[-1][1])
            else:
                ranges.append([low, high])
        return ranges or ([[bad, bad]] if self._read >= bad else [])

    def _on_delivery(self, number: int, metadata: RecordMetadata | None, error: ClientError | None) -> None:
        if error is not None:
            self._add_failure(number, error)
            return
        self._acknowledged += 1
        if self._printing:
            assert metadata is not None
            if not self._runs or not self._runs[-1].extend_run(metadata):
                self._runs.append(_Run(metadata))

    def _add_failure(self, number: int, error: ClientError) -> None:
        if self._error is None or number < self._error[0]:
            self._error = number, error
        if self._failed and self._failed[-1][1] == number - 1:
            self._failed[-1][1] = number
        else:
            self._failed.append([number, number])

    def _print_runs(self, keep: int) -> None:
        """Print all but the last `keep` runs: the last one may still grow while records are in flight."""
        while len(self._runs) > keep:
            run = self._runs.popleft()
            base = None if run.base_offset < 0 else run.base_offset
            write_jsonl([{"topic": run.topic, "partition": run.partition, "base_offset": base, "records": run.count}])

    def _outcome_text(self, written: int, missing: Sequence[Sequence[int]], first: int, *, transactional: bool) -> str:
        """The sentence for people: how much is written, what is not, and how to continue."""
        noun = self._noun
        done = f"{written:,} {noun}s are written" if written != 1 else f"1 {noun} is written"
        if transactional:
            done += " and committed; the open transaction was aborted"
        # Of later ones some are written, in other partitions: to continue at the first missing one repeats them.
        if len(missing) > 1 or (missing and missing[-1][1] < self._read):
            named = ", ".join(f"{low}-{high}" if high > low else str(low) for low, high in missing[:_RANGES_SHOWN])
            more = ", …" if len(missing) > _RANGES_SHOWN else ""
            return (
                f"{done}; not acknowledged: {noun}s {named}{more}, and no {noun} after {self._read} was read. "
                f"Correct the cause, then write only those {noun}s"
            )
        command = f": {self._continuation(first)}" if self._continuation else ""
        return f"{done}. Correct the cause, then continue with the input from {noun} {first} on{command}"
