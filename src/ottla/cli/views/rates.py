"""Rates between two looks at a cluster: records and bytes per topic, hot partitions, lag and time to catch up.

Zone: pure. The JSON documents here are an interface: docs/cli.md describes them, fields are only ever added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.cli.views.output import Json
from ottla.types import TopicPartition

Offsets = Mapping[TopicPartition, int]
_COUNTER: Final = re.compile(
    r"kafka_server_brokertopicmetrics_(bytesin|bytesout)(?:persec)?(?:_total|_count)?"
    r'\{(?:[^}]*,)?topic="([^"\\]*)"[^}]*\} ([0-9.eE+]+)(?: [0-9]+)?'
)
"""A line of a broker's metrics, by the names of the JMX exporter."""


class Sample(NamedTuple):
    """One look at a cluster."""

    time_s: float
    ends: Offsets
    """The log end offset of each partition that answered."""
    sizes: Offsets
    """The bytes of each partition on its leader; empty where brokers do not report them."""
    groups: Mapping[str, Offsets]
    counters: Mapping[tuple[str, str], float]
    """`bytesin` and `bytesout` by topic, since the brokers' start; empty without their metrics."""


class TopicRate(NamedTuple):
    """A topic between two samples. Rates are per second, None where they are not known."""

    topic: str
    partitions: int
    records_in: float
    bytes_in: float | None
    bytes_out: float | None
    hottest: int | None
    """The partition that got most records; None where none got any."""
    share: float
    """Its part of the topic's records, from 0 to 1."""

    @property
    def is_hot(self) -> bool:
        """Whether one of several partitions gets more than twice its fair share."""
        return self.partitions > 1 and self.share * self.partitions > 2

    def rate_document(self) -> dict[str, Json]:
        """The JSON form."""
        hottest: Json = None
        if self.hottest is not None:
            hottest = {"partition": self.hottest, "share": round(self.share, 3), "is_hot": self.is_hot}
        return {
            "topic": self.topic,
            "partitions": self.partitions,
            "records_in_per_s": round(self.records_in, 1),
            "bytes_in_per_s": _rounded(self.bytes_in),
            "bytes_out_per_s": _rounded(self.bytes_out),
            "hottest": hottest,
        }


class GroupRate(NamedTuple):
    """The positions of a group in a topic between two samples."""

    group: str
    topic: str
    lag: int
    records_out: float
    catch_up_s: float | None
    """None: at these rates never."""

    def rate_document(self) -> dict[str, Json]:
        """The JSON form."""
        return {
            "group": self.group,
            "topic": self.topic,
            "lag": self.lag,
            "records_out_per_s": round(self.records_out, 1),
            "catch_up_s": _rounded(self.catch_up_s),
        }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def topic_rates(before: Sample, after: Sample) -> list[TopicRate]:
    """The topics of both samples, those with most records first."""
    seconds = max(after.time_s - before.time_s, 1e-3)
    grown = _grown_by_topic(before.ends, after.ends)
    sizes = _grown_by_topic(before.sizes, after.sizes)
    found = [_topic_rate(topic, counts, sizes, before, after) for topic, counts in grown.items()]
    rates = [
        each._replace(
            records_in=each.records_in / seconds,
            bytes_in=None if each.bytes_in is None else each.bytes_in / seconds,
            bytes_out=None if each.bytes_out is None else each.bytes_out / seconds,
        )
        for each in found
    ]
    return sorted(rates, key=lambda each: (-each.records_in, each.topic))


def _topic_rate(
    topic: str, counts: Mapping[int, int], sizes: Mapping[str, Mapping[int, int]], before: Sample, after: Sample
) -> TopicRate:
    """The topic with what it got between the samples, not yet per second."""
    total = sum(counts.values())
    most = max(sorted(counts), key=lambda number: counts[number]) if total else None
    bytes_in, bytes_out = (_counted(name, topic, before, after) for name in ("bytesin", "bytesout"))
    if bytes_in is None and topic in sizes:
        bytes_in = sum(sizes[topic].values())
    share = 0.0 if most is None else counts[most] / total
    return TopicRate(topic, len(counts), total, bytes_in, bytes_out, most, share)


def _grown_by_topic(before: Offsets, after: Offsets) -> dict[str, dict[int, int]]:
    """How much each partition has grown. One that has shrunk was created again, or lost old segments: 0."""
    found: dict[str, dict[int, int]] = {}
    for tp, number in after.items():
        if tp in before:
            found.setdefault(tp.topic, {})[tp.partition] = max(0, number - before[tp])
    return found


def _counted(name: str, topic: str, before: Sample, after: Sample) -> float | None:
    """How much a counter has grown; None without metrics. A counter that is missing is that of a topic at rest."""
    if not before.counters or not after.counters:
        return None
    return max(0.0, after.counters.get((name, topic), 0.0) - before.counters.get((name, topic), 0.0))


def group_rates(before: Sample, after: Sample) -> list[GroupRate]:
    """The topics of each group, those with the largest lag first."""
    found = [each for name in after.groups for each in _rates_of_group(name, before, after)]
    return sorted(found, key=lambda each: (-each.lag, each.group, each.topic))


def _rates_of_group(name: str, before: Sample, after: Sample) -> Iterator[GroupRate]:
    seconds = max(after.time_s - before.time_s, 1e-3)
    old, new = before.groups.get(name, {}), after.groups[name]
    read = _grown_by_topic(old, new)
    for topic in sorted({tp.topic for tp in new if tp in after.ends}):
        lag, lag_before = (_lag_of(topic, positions, new, at) for positions, at in ((new, after), (old, before)))
        records = sum(read.get(topic, {}).values()) / seconds
        # The lag of the same partitions: how fast it shrinks has both what is read and what is written.
        shrinks = (lag_before - lag) / seconds
        catch_up = 0.0 if lag == 0 else lag / shrinks if shrinks > 0 else None
        yield GroupRate(name, topic, lag, records, catch_up)


def _lag_of(topic: str, positions: Offsets, places: Offsets, sample: Sample) -> int:
    wanted = [tp for tp in places if tp.topic == topic and tp in positions and tp in sample.ends]
    return sum(max(0, sample.ends[tp] - positions[tp]) for tp in wanted)


def parse_counters(text: str) -> dict[tuple[str, str], float]:
    """`bytesin` and `bytesout` by topic in a broker's metrics."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        match = _COUNTER.fullmatch(line)
        if match is not None:
            key = match[1], match[2]
            found[key] = found.get(key, 0.0) + float(match[3])
    return found


def amount_text(number: float | None) -> str | None:
    """A rate for people: 3 digits and k, M or G."""
    if number is None:
        return None
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}" if number < 999.5 * size else f"{number / size:.0f}{unit}"
    return f"{number:.0f}"


def duration_text(seconds: float | None) -> str:
    """A time to catch up for people."""
    if seconds is None:
        return "never"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"


def top_rows(topics: Sequence[TopicRate], groups: Sequence[GroupRate]) -> tuple[list[Sequence[object]], ...]:
    """The rows of the two tables."""
    return (
        [
            (each.topic, each.partitions, amount_text(each.records_in), amount_text(each.bytes_in),
             amount_text(each.bytes_out), f"{each.hottest} ({each.share:.0%})" if each.is_hot else None)
            for each in topics
        ],
        [
            (each.group, each.topic, each.lag, amount_text(each.records_out), duration_text(each.catch_up_s))
            for each in groups
        ],
    )  # fmt: skip
