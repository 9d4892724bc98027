"""The offsets of a streaming query: their JSON in Spark's checkpoint, and the end of a batch.

Zone: pure. No request is sent to a broker here, so that the same checkpoint always gives the same plan.

An offset is `{"topic": {"0": 345}}`, the next offset of each partition, as Spark's own Kafka source writes it. The rest
of a batch's plan is stored in its END offset, under a reserved key that cannot be a topic's name (because of the `$`):

    {"orders": {"0": 25}, "$plan": {"start": {...}, "new": {...}, "minPartitions": 4, "maxRecordsPerPartition": 9}}

`start`: where the query began (first batch only; `initialOffset` is a constant, because Spark calls it again on every
replay of the first batch and does not store the result). `new`: first offsets of partitions that were found since the
batch before. `minPartitions`, `maxRecordsPerPartition`: how ranges are split. `onDriver`: the driver reads the batch,
and one task gets all of it. `ids` (with checkTopicIds): the ids of
the topics, to notice a topic that was created again, or is of another cluster. An empty plan is left out, so that
Spark's own source can continue the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ottla.spark.errors import BadCheckpoint
from ottla.types import TopicPartition

PLAN: Final = "$plan"
INITIAL: Final[Mapping[str, Any]] = {PLAN: {"initial": True}}
"""The offset before the first batch of every query."""

Offsets = dict[TopicPartition, int]


class Split(NamedTuple):
    """How to cut ranges into tasks; None: one task per partition."""

    min_partitions: int | None = None
    max_records: int | None = None


class Range(NamedTuple):
    """Offsets `start` ≤ o < `end` of a partition."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets; there may be fewer records."""
        return self.end - self.start


class End(NamedTuple):
    """The parts of an END offset."""

    offsets: Offsets
    start: Offsets | None = None
    new: Mapping[TopicPartition, int] = MappingProxyType({})
    split: Split = Split()
    ids: Mapping[str, str] = MappingProxyType({})
    """Topic ids in hex."""
    on_driver: bool = False
    """The driver reads the batch, and one task gets all of it."""


class Place(NamedTuple):
    """Where a task's input is in the query's plan: it is one of the inputs of one scan, which follow each other."""

    scan: str
    """Identifies a scan by what it reads (`scan_name`), in every run of a batch."""
    number: int
    """Of the input among those of the scan."""
    inputs: int
    """How many the scan has."""


def scan_name(ranges: Iterable[Range], earlier: int) -> str:
    """The name of one scan of a batch: a hash of its ranges, and of how many scans of the same source come before it in
    the plan."""
    text = json.dumps([earlier, [(*one.tp, one.start, one.end) for one in ranges]])
    return sha256(text.encode()).hexdigest()[:12]


def is_initial(offset: Mapping[str, Any]) -> bool:
    """Whether this is the offset before the first batch."""
    return bool(offset.get(PLAN, {}).get("initial"))


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Offsets in the form of Spark's checkpoint, with topics and partitions in order."""
    found: dict[str, Any] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(offset: Mapping[str, Any]) -> Offsets:
    """Inverse of `to_json`; skips the plan. Raises BadCheckpoint for other JSON."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(number)
            for topic, parts in offset.items()
            if topic != PLAN
            for partition, number in parts.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise BadCheckpoint(f"the checkpoint's offset {offset!r} is not that of a Kafka source") from None


def write_end(end: End) -> dict[str, Any]:
    """The END offset of a batch."""
    plan: dict[str, Any] = {}
    if end.start is not None:
        plan["start"] = to_json(end.start)
    if end.new:
        plan["new"] = to_json(end.new)
    if end.split.min_partitions is not None:
        plan["minPartitions"] = end.split.min_partitions
    if end.split.max_records is not None:
        plan["maxRecordsPerPartition"] = end.split.max_records
    if end.ids:
        plan["ids"] = dict(end.ids)
    if end.on_driver:
        plan["onDriver"] = True
    return to_json(end.offsets) | ({PLAN: plan} if plan else {})


def read_end(offset: Mapping[str, Any]) -> End:
    """Inverse of `write_end`. Raises BadCheckpoint."""
    plan = offset.get(PLAN, {})
    return End(
        from_json(offset),
        from_json(plan["start"]) if "start" in plan else None,
        from_json(plan.get("new", {})),
        Split(plan.get("minPartitions"), plan.get("maxRecordsPerPartition")),
        plan.get("ids", {}),
        bool(plan.get("onDriver")),
    )


def ranges_of(start: Mapping[str, Any], end: Mapping[str, Any], explicit_start: Offsets | None = None) -> list[Range]:
    """The ranges of the batch between two offsets of the checkpoint, one per partition, without empty ones.

    `explicit_start`: offsets that the user named; used for a first batch that Spark's own source planned, which has no
    start. Raises BadCheckpoint when there is neither.
    """
    last = read_end(end)
    first = from_json(start)
    if is_initial(start):
        found = last.start if last.start is not None else explicit_start
        if found is None:
            raise BadCheckpoint(
                "the first batch of this checkpoint was planned by another source and never finished, so where it "
                "began is not known: name startingOffsets for every partition as JSON, or use a new checkpoint"
            )
        first = found
    # `new` comes last: a partition that was created again begins below its old position.
    first = {**first, **last.new}
    missing = sorted(tp for tp in last.offsets if tp not in first)
    if missing:
        raise BadCheckpoint(f"the checkpoint has no first offset of {', '.join(map(str, missing))}: use a new one")
    ranges = [Range(tp, first[tp], until) for tp, until in sorted(last.offsets.items())]
    return [one for one in ranges if one.size > 0]


def split_ranges(ranges: Iterable[Range], split: Split) -> list[Range]:
    """Cut ranges into tasks of at most `max_records`, and into at least `min_partitions` if there are as many offsets.

    Parts of one range differ by at most one offset; larger ranges get more parts.
    """
    given = list(ranges)
    counts = [1] * len(given)
    if split.max_records is not None:
        counts = [-(-one.size // split.max_records) for one in given]
    if split.min_partitions is not None:
        counts = _split_at_least(given, counts, split.min_partitions)
    return [part for one, count in zip(given, counts, strict=True) for part in _cut_range(one, count)]


def _split_at_least(ranges: list[Range], counts: list[int], least: int) -> list[int]:
    """Give more parts to the ranges with the largest parts, until there are `least`."""
    total = sum(one.size for one in ranges)
    shares = [min(one.size, one.size * least // total) for one in ranges]
    counts = [max(count, share) for count, share in zip(counts, shares, strict=True)]
    while sum(counts) < min(least, total):
        largest = max(range(len(ranges)), key=lambda number: ranges[number].size / counts[number])
        counts[largest] += 1
    return counts


def _cut_range(one: Range, count: int) -> list[Range]:
    # Integers only: a replay of the batch must cut the same ranges.
    edges = [one.start + one.size * number // count for number in range(count + 1)]
    return [Range(one.tp, low, high) for low, high in pairwise(edges)]


def limit_offsets(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], most: int) -> Offsets:
    """The end of a batch of at most `most` offsets, shared out in proportion to the lag of each partition.

    Every partition with something new advances by at least one, so that none starves: with more such partitions than
    `most`, the batch is that much larger.
    """
    behind = {tp: max(0, latest[tp] - start[tp]) for tp in sorted(latest)}
    total = sum(behind.values())
    if total <= most:
        return dict(latest)
    # 1. Proportional shares, rounded down, but at least one each.
    share = {tp: max(1, size * most // total) for tp, size in behind.items() if size}
    spare = most - sum(share.values())
    by_size = sorted(share, key=lambda tp: behind[tp], reverse=True)
    # 2. Rounding left some over: one more for the partitions with the largest lag.
    for tp in by_size[: max(0, spare)]:
        share[tp] = min(behind[tp], share[tp] + 1)
    # 3. The minimum of one made it too many: take the excess from the largest, down to one each.
    for tp in by_size:
        given_back = min(max(0, -spare), share[tp] - 1)
        share[tp] -= given_back
        spare += given_back
    return {tp: start[tp] + share.get(tp, 0) for tp in behind}
