"""The batch reader and the streaming reader of `format("ottla")`.

Zone: real. Spark calls these classes, on the driver in a planner process and on the executors in workers. `offsets`
computes the end of a batch, `lookup` sends requests to the cluster, `reading` does the work of a task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.client.errors import ClientError
from ottla.client.retry import wall_ms
from ottla.spark import offsets
from ottla.spark.errors import BadCheckpoint, BadOption, DataLoss, SharedGroup
from ottla.spark.lookup import Lookup
from ottla.spark.offsets import End, Offsets, Place, Range, Split
from ottla.spark.option_values import LATEST
from ottla.spark.options import SourceOptions

_LOG = logging.getLogger(__name__)


class Part(InputPartition):  # type: ignore[misc]  # pyspark's classes are not typed
    """The input of one task."""

    def __init__(self, wanted: Range, group: str | None = None, place: Place | None = None) -> None:
        super().__init__(wanted)
        self.range = wanted
        self.group = group
        """The group of the query, if no other task of the batch reads this partition."""
        self.place = place


class WholeBatch(InputPartition):  # type: ignore[misc]
    """The input of the only task of a batch that the driver reads.

    Spark lets the task read when the rows of the driver are lost. It leaves no notes, as with rows of the driver: the
    unit in which the sink writes must not depend on who has read.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class _Reader:
    """Common to both readers: the work on the executors."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task. Spark passes an empty partition when a batch read has nothing to read."""
        if not isinstance(partition, Part | WholeBatch):
            return iter(())
        from ottla.spark.source.reading import read_range  # noqa: PLC0415 - not needed to plan a query

        if isinstance(partition, WholeBatch):
            return (rows for one in partition.ranges for rows in read_range(self._options, one, noted=False))
        return read_range(self._options, partition.range, partition.group, partition.place)

    def _split_of_options(self) -> Split:
        return Split(self._options.min_partitions, self._options.max_records_per_partition)


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """The reader of `spark.read`: all records between two positions, which are fixed when the query is planned."""

    def partitions(self) -> list[Part]:
        """The inputs of the tasks. Raises BadOption, and the client's errors."""
        options = self._options
        with Lookup(options) as lookup:
            there = lookup.list_partitions()
            start = lookup.resolve_position(options.start, there, "starting")
            end = lookup.resolve_position(options.end, there, "ending")
            # Only offsets that the user named can lie after the end of the log.
            latest = lookup.latest_offsets(there) if options.end.offsets is not None else end
            due = lookup.due_offsets(latest, wall_ms())
        for tp in there:
            if end[tp] > latest[tp] and options.fail_on_data_loss:
                raise BadOption("endingOffsets", f"names offset {end[tp]} of {tp}, which ends at {latest[tp]}")
        ranges = [Range(tp, start[tp], min(end[tp], due[tp])) for tp in there]
        wanted = [one for one in ranges if one.size > 0]
        parts = offsets.split_ranges(wanted, self._split_of_options())
        name = offsets.scan_name(parts, 0)
        return [Part(one, None, Place(name, index, len(parts))) for index, one in enumerate(parts)]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of `spark.readStream`. There is one object per query, in a planner process; its state is only a cache
    of what is in the checkpoint's offsets."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._open: Lookup | None = None
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._last_trigger = float("-inf")
        self._ids: dict[str, str] = {}
        self._due: Offsets = {}
        self._warned = ""
        self._scanned: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        """The batch whose tasks were planned last, by its offsets."""
        self._earlier_scans = 0
        """How often the tasks of that batch had been planned before: for other places of the query's plan."""
        self._has_released = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """A constant, because Spark calls it again on every replay of the first batch (see `ottla.spark.offsets`)."""
        return dict(offsets.INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of a trigger, from the options; Trigger.Once overrides it."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: later records are not read."""
        lookup = self._open_lookup()
        self._target = lookup.latest_offsets(lookup.list_partitions(all_there=False))
        self._due = lookup.due_offsets(self._target, wall_ms())

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> Mapping[str, Any]:  # noqa: N802
        """The END offset of the next batch, or `start` itself when there is nothing to read yet.

        The first call always ends a batch, if need be an empty one, which stores the start of the query in the
        checkpoint. All batches up to `start` are finished, so that `start` is committed to the consumer group. Raises
        DataLoss, BadCheckpoint.
        """
        is_first = offsets.is_initial(start)
        latest, readable = self._read_ends(all_there=is_first)
        began = self._initial_offsets(latest) if is_first else None
        first = began if began is not None else self._finished_offsets(start)
        new = self._new_partitions(first, latest, self._recreated_topics(start))
        first = {tp: new.get(tp, first.get(tp, 0)) for tp in latest}
        # After a topic's delay was raised, less of it is due than was read already: a batch never goes back.
        readable = {tp: max(first[tp], readable[tp]) for tp in latest}
        end = readable if isinstance(limit, ReadAllAvailable) else self._limit_batch(first, readable)
        # Spark runs no batch while the offset stays the same. The first batch runs even if it is empty, because only a
        # batch stores `began` in the checkpoint.
        if began is None and (end is None or (end == first and not new)):
            return start
        ids = self._ids if self._options.check_topic_ids else {}
        until = first if end is None else end
        size = sum(until[tp] - first[tp] for tp in until)
        on_driver = 0 < size <= self._most_on_driver()
        return offsets.write_end(End(until, began, new, self._split_of_options(), ids, on_driver))

    def _most_on_driver(self) -> int:
        """The most offsets of a batch that the driver reads: Spark takes rows only from `DriverReader`."""
        return 0

    def _read_ends(self, *, all_there: bool) -> tuple[Offsets, Offsets]:
        """The end of each partition, and how far it may be read now, which is less in topics with a delay."""
        lookup = self._open_lookup()
        if self._target is not None:
            if all_there:
                lookup.list_partitions()  # raises for missing topics; the target was fixed without looking for them
            self._latest = self._target
            return self._target, self._due
        self._latest = lookup.latest_offsets(lookup.list_partitions(all_there=all_there))
        return self._latest, lookup.due_offsets(self._latest, wall_ms())

    def _finished_offsets(self, start: Mapping[str, Any]) -> Offsets:
        """The offsets of the last finished batch; commits them to the group."""
        found = offsets.from_json(start)
        there = set(self._latest or ())
        topics = {tp.topic for tp in found}
        if topics and there and topics.isdisjoint(tp.topic for tp in there):
            raise BadCheckpoint(
                f"the checkpoint is of a query that read {', '.join(sorted(topics))}, and this one reads "
                f"{', '.join(sorted({tp.topic for tp in there}))}: use a new checkpoint directory for it"
            )
        group = self._open_lookup().group
        if group is not None:
            group.commit_offsets({tp: offset for tp, offset in found.items() if tp in there})
        return found

    def _recreated_topics(self, start: Mapping[str, Any]) -> list[str]:
        """Topics whose id has changed since they were last read. Raises DataLoss with failOnDataLoss."""
        known = {**offsets.read_end(start).ids, **self._ids} if not offsets.is_initial(start) else {}
        self._ids = {**known, **self._open_lookup().ids}
        other = sorted(topic for topic, topic_id in known.items() if self._ids[topic] != topic_id)
        if other:
            self._on_data_loss(f"topic {other[0]} is not the one that the query has read: its topic id has changed")
        return other

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the topics as `latestOffset` read it, for the query's progress."""
        return None if self._latest is None else offsets.to_json(self._latest)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[Part | WholeBatch]:
        """The inputs of a batch's tasks, which depend only on the two offsets in the checkpoint."""
        whole = self._ranges_of(start, end)
        if offsets.read_end(end).on_driver:
            return [WholeBatch(whole)]
        group, parts = self._options.commit_group, offsets.split_ranges(whole, offsets.read_end(end).split)
        self._earlier_scans = self._earlier_scans + 1 if self._scanned == (start, end) else 0
        self._scanned = (start, end)
        if group is not None and (whole_parts := [one for one in parts if one in whole]):
            self._hold_group(whole_parts)
        name = offsets.scan_name(parts, self._earlier_scans)
        return [
            Part(one, group if one in whole else None, Place(name, index, len(parts)))
            for index, one in enumerate(parts)
        ]

    def _ranges_of(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        explicit = self._options.start.offsets or {}
        # -2 and -1 (earliest, latest) mean other offsets now than when the batch was planned.
        named = explicit if explicit and min(explicit.values()) >= 0 else None
        return offsets.ranges_of(start, end, named)

    def _hold_group(self, parts: Sequence[Range]) -> None:
        """Hold the group back if the plan of the query reads a batch more than once.

        Spark plans all reads of a query before its first task begins, and calls `partitions` for each place in which
        the plan reads this source: in a union twice. Raises SharedGroup when the group cannot be held back.
        """
        # 1. The same batch again: several tasks will read it, so that none of them may move the group.
        # 2. The first batch of this process: undo a mark from before a restart, after which the plan may be another.
        # 3. Otherwise there is nothing to do: marks of this query only matter for the offsets of their batch.
        lookup, ends = self._open_lookup(), {one.tp: one.end for one in parts}
        again, is_first = self._earlier_scans > 0, not self._has_released
        self._has_released = True
        if lookup.group is None or not (again or is_first):
            return
        try:
            if again:
                lookup.group.hold_offsets({one.tp: one.start for one in parts}, ends)
            else:
                lookup.group.release_offsets(ends)
        except ClientError as error:
            if is_first:
                _LOG.warning("spark source: cannot read the offsets of group %s: %s", self._options.commit_group, error)
                return
            raise SharedGroup(
                f"the query reads {parts[0].tp} in several places of its plan (as in a union), and group "
                f"{self._options.commit_group} could not be marked so that no task moves it: {error}. Set "
                "commitOffsets=false, or name a group without members in kafka.group.id"
            ) from error

    def stop(self) -> None:
        """Close the connections."""
        if self._open is not None:
            self._open.close_connections()
            self._open = None

    def _open_lookup(self) -> Lookup:
        if self._open is None:
            self._open = Lookup(self._options)
        return self._open

    def _initial_offsets(self, latest: Offsets) -> Offsets:
        """The start of the query, at most `latest`: records that came since then are neither skipped nor an
        error."""
        named = self._options.start.offsets or {}
        found = self._open_lookup().resolve_position(self._options.start, sorted(latest), "starting")
        return {tp: offset if named.get(tp, LATEST) >= 0 else min(offset, latest[tp]) for tp, offset in found.items()}

    def _new_partitions(self, first: Offsets, latest: Offsets, remade: Collection[str]) -> Offsets:
        """First offsets of partitions that are new or were created again. Raises DataLoss with failOnDataLoss.

        `remade`: topics that were created again, which was reported already.
        """
        # Each is a loss of data of its own: 1. a partition is gone, 2. its log is shorter than what was read, 3. the
        # first records of a new partition were removed before the query noticed it.
        gone = sorted(tp for tp in first if tp not in latest)
        again = sorted(tp for tp in latest if latest[tp] < first.get(tp, 0) or tp.topic in remade)
        new = self._open_lookup().earliest_offsets(tp for tp in latest if tp not in first or tp in again)
        if gone:
            self._on_data_loss(f"{gone[0]} no longer exists, or the query no longer names it")
        if shorter := [tp for tp in again if tp.topic not in remade]:
            tp = shorter[0]
            self._on_data_loss(f"{tp} ends at offset {latest[tp]}, and the query had read up to {first[tp]}")
        for tp, begin in sorted(new.items()):
            if tp not in again and begin > 0:
                self._on_data_loss(f"the new partition {tp} begins at offset {begin} instead of 0")
        return new

    def _on_data_loss(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(what)
        if what != self._warned:
            _LOG.warning("spark source: %s; the query continues, because failOnDataLoss is false", what)
        self._warned = what

    def _limit_batch(self, first: Offsets, latest: Offsets) -> Offsets | None:
        """The end within min- and maxOffsetsPerTrigger; None to wait for more records."""
        least, most = self._options.min_offsets_per_trigger, self._options.max_offsets_per_trigger
        waited_ms = (time.monotonic() - self._last_trigger) * 1000
        behind = sum(latest[tp] - first[tp] for tp in latest)
        too_few = least is not None and behind < least and waited_ms < self._options.max_trigger_delay_ms
        # With availableNow the end is fixed: no record will come that could make it enough.
        if too_few and self._target is None:
            return None
        self._last_trigger = time.monotonic()
        return latest if most is None else offsets.limit_offsets(first, latest, most)
