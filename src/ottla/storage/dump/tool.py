"""The entry point: chooses how each file is shown, and prints the reports at the end.

Zone: real. Knows file names; `log` and `indexes` read their files, this module snapshots and checkpoints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ottla.storage.checkpoints import CorruptCheckpoint, parse_epochs, parse_offsets, parse_snapshot
from ottla.storage.dump.indexes import (
    MISMATCHES_MAX,
    CorruptIndex,
    IndexOptions,
    TimeErrors,
    base_offset_of,
    dump_offset_index,
    dump_time_index,
    dump_txn_index,
)
from ottla.storage.dump.items import Fields, Item, OptionalLong, Words, more_line
from ottla.storage.dump.log import Complain, Gaps, LogOptions, dump_log
from ottla.types import NO_OFFSET

# Producer snapshots and text checkpoints. Reads whole files (they are small) and shows their values.

_SIZE_MAX = 1 << 28


def dump_snapshot(path: str) -> Iterator[Item]:
    """Producers of a snapshot. Raises OSError and CorruptCheckpoint."""
    for entry in parse_snapshot(_read_small_file(path)):
        first_offset = entry.current_txn_first_offset
        fields: list[tuple[str, int | str | OptionalLong]] = [
            ("producerId", entry.producer_id),
            ("producerEpoch", entry.producer_epoch),
            ("coordinatorEpoch", entry.coordinator_epoch),
            ("currentTxnFirstOffset", OptionalLong(None if first_offset == NO_OFFSET else first_offset)),
            ("lastTimestamp", entry.timestamp),
        ]
        if entry.last_offset >= 0:
            fields += [
                ("firstSequence", (entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF),
                ("lastSequence", entry.last_sequence),
                ("lastOffset", entry.last_offset),
                ("offsetDelta", entry.offset_delta),
                ("timestamp", entry.timestamp),
            ]
        yield Fields("producer", tuple(fields))


def dump_epochs(path: str) -> Iterator[Item]:
    """Leader epochs of a partition. Raises OSError and CorruptCheckpoint."""
    for epoch, start_offset in parse_epochs(_read_small_file(path)):
        yield Fields("leader epoch", (("epoch", epoch), ("startOffset", start_offset)))


def dump_offsets(path: str) -> Iterator[Item]:
    """Offsets of an offset checkpoint. Raises OSError and CorruptCheckpoint."""
    for tp, offset in parse_offsets(_read_small_file(path)).items():
        yield Fields("offset", (("topic", tp.topic), ("partition", tp.partition), ("offset", offset)))


def _read_small_file(path: str) -> bytes:
    with open(path, "rb") as file:
        content = file.read(_SIZE_MAX + 1)
    if len(content) > _SIZE_MAX:
        raise CorruptCheckpoint(f"{path} has more than {_SIZE_MAX} bytes")
    return content


_CLUSTER_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class Options(NamedTuple):
    """The options of the tool."""

    logs: LogOptions = LogOptions()
    indexes: IndexOptions = IndexOptions()


class Dump:
    """One run over several files. Items come from `iter_items`; afterwards `report_lines` lists the mismatches."""

    def __init__(self, options: Options, complain: Callable[[str], None], on_failure: Complain | None = None) -> None:
        """`complain` takes lines for the standard error.

        on_failure: takes the line and the error of a file that cannot be read or has other content than its name
        promises; it may raise, to end the run. By default the line goes to `complain`, and the run continues.
        """
        self._options = options
        self._complain = complain
        self._on_failure = on_failure or self._note_failure
        self._mismatches: dict[str, dict[int, int]] = {}
        self._time_errors: dict[str, TimeErrors] = {}
        self._gaps: dict[str, Gaps] = {}
        self.failed = False
        """Whether a file could not be read, or its content does not match its name."""

    def iter_items(self, paths: Sequence[str]) -> Iterator[Item]:
        """Everything in these files, in order; a file that cannot be read is reported to `complain` and skipped."""
        for path in paths:
            yield Words(f"Dumping {path}")
            try:
                yield from self._dump_file(path)
            except OSError as error:
                self._on_failure(f"{error.filename or path}: {error.strerror}", error)
            except (CorruptCheckpoint, CorruptIndex) as error:
                self._on_failure(str(error) if path in str(error) else f"{path}: {error}", error)

    def _note_failure(self, line: str, _error: Exception) -> None:
        self.failed = True
        self._complain(line)

    def _dump_file(self, path: str) -> Iterator[Item]:
        name = os.path.basename(path)
        suffix = os.path.splitext(name)[1]
        # Snapshots of Kafka's cluster metadata (`.checkpoint`) have the format of a log.
        if suffix in (".log", ".checkpoint"):
            return self._dump_log_file(path, name)
        if suffix == ".index":
            return dump_offset_index(path, self._options.indexes, self._mismatches.setdefault(path, {}))
        if suffix == ".timeindex":
            errors = self._time_errors.setdefault(path, TimeErrors([], [], []))
            return dump_time_index(path, self._options.indexes, errors)
        if suffix == ".txnindex":
            return dump_txn_index(path)
        if suffix == ".snapshot":
            return dump_snapshot(path)
        if name == "leader-epoch-checkpoint":
            return dump_epochs(path)
        if name.endswith("-offset-checkpoint"):
            return dump_offsets(path)
        os.stat(path)  # raises for a missing file, which must not be reported as one of an unknown kind
        hint = ": a directory; name the files in it" if os.path.isdir(path) else ""
        self._complain(f"Ignoring unknown file {path}{hint}")
        return iter(())

    def _dump_log_file(self, path: str, name: str) -> Iterator[Item]:
        if name.endswith(".log"):
            yield Words(f"Log starting offset: {base_offset_of(path)}")
        elif found := _CLUSTER_SNAPSHOT.fullmatch(name):
            yield Words(f"Snapshot end offset: {int(found[1])}, epoch: {int(found[2])}")
        else:
            raise CorruptIndex(f"{path}: not the name of a cluster snapshot")
        # As in Kafka's tool a file that is named twice is reported once; its first offset follows no other.
        self._gaps[path] = Gaps()
        yield from dump_log(path, self._options.logs, self._gaps[path], self._on_failure)

    def report_lines(self) -> Iterator[str]:
        """Kafka's lines about mismatches of index entries and offsets, for the standard error."""
        for path, mismatches in self._mismatches.items():
            listed = sorted(mismatches.items(), reverse=True)
            yield from _fault_lines(
                f"Mismatches in :{os.path.abspath(path)}", "  Index offset: {}, log offset: {}", listed
            )
        yield from self._report_times()
        for path, gaps in self._gaps.items():
            if gaps.pairs:
                yield f"Non-consecutive offsets in {os.path.abspath(path)}"
            yield from gaps.report_lines()

    def _report_times(self) -> Iterator[str]:
        found = [(os.path.abspath(path), errors) for path, errors in self._time_errors.items()]
        for path, errors in found:
            line = "  Index timestamp: {}, log timestamp: {}"
            yield from _fault_lines(f"Found timestamp mismatch in :{path}", line, errors.mismatches)
        for path, errors in found:
            line = "  Index timestamp: {}, Previously indexed timestamp: {}"
            yield from _fault_lines(f"Found out of order timestamp in :{path}", line, errors.out_of_order)
        for path, errors in found:
            title = f"The following indexed offsets are not found in :{path}"
            yield from _fault_lines(title, "Indexed offset: {}, found log offset: {}", errors.not_found)


def _fault_lines(title: str, line: str, faults: Sequence[tuple[int, int]]) -> Iterator[str]:
    if faults:
        yield title
    for fault in faults:
        yield line.format(*fault)
    if len(faults) == MISMATCHES_MAX:
        yield more_line(MISMATCHES_MAX)
