"""Counters, gauges and histograms of a broker, under the names that Kafka's dashboards use.

Zone: pure. Numbers only, no clock and no I/O. The hot path adds to plain int attributes; a metric is a function that
reads them at a scrape. Names follow the rule of the JMX exporters of Kafka distributions:
`kafka_<domain>_<type>_<name>`, lower case; a counter ends in `_total`, a percentage in `_percent`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from math import isfinite, isnan
from typing import Final, NamedTuple

Labels = Mapping[str, str]
Read = Callable[[], "float | Iterable[tuple[Labels, float]]"]
"""Returns the present value, or one per combination of labels."""

LATENCY_BOUNDS_MS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, 30000)
"""Upper bounds of the buckets of a latency in milliseconds."""


class Kind(Enum):
    """The type of a metric in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Sample(NamedTuple):
    """One number with its labels. `suffix` belongs to the name (histograms: _bucket, _sum, _count)."""

    suffix: str
    labels: Labels
    value: float


class Metric(NamedTuple):
    """One metric of the registry: name, kind, help text, and the function that reads it."""

    name: str
    kind: Kind
    help: str
    samples: Callable[[], Iterable[Sample]]


class Histogram:
    """Counts of values by size. `observe` is two list operations; nothing is kept per value."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_MS) -> None:
        assert list(bounds) == sorted(bounds), "bounds rise"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of observed values."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket of a quantile (0…1); 0 without values, inf above the last bound."""
        # Exact only to a bucket; without values between the bounds it cannot be known better.
        wanted, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0

    def samples(self, labels: Labels | None = None) -> Iterator[Sample]:
        """Cumulative buckets, sum and count."""
        labels = labels or {}
        seen = 0
        # Prometheus wants cumulative buckets, the last one with all values.
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            yield Sample("_bucket", {**labels, "le": _format_number(bound)}, seen)
        yield Sample("_sum", labels, self.total)
        yield Sample("_count", labels, seen)


class Registry:
    """All metrics of one broker, each under one name."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add_counter(self, name: str, help_text: str, read: Read) -> None:
        """Register a number that only grows; the name ends in `_total`."""
        assert name.endswith("_total"), name
        self._add_metric(name, Kind.COUNTER, help_text, lambda: _read_samples(read))

    def add_gauge(self, name: str, help_text: str, read: Read) -> None:
        """Register a number that rises and falls."""
        self._add_metric(name, Kind.GAUGE, help_text, lambda: _read_samples(read))

    def add_histogram(self, name: str, help_text: str, read: Callable[[], Iterable[tuple[Labels, Histogram]]]) -> None:
        """Register histograms by labels."""
        self._add_metric(
            name,
            Kind.HISTOGRAM,
            help_text,
            lambda: (sample for labels, histogram in read() for sample in histogram.samples(labels)),
        )

    def _add_metric(self, name: str, kind: Kind, help_text: str, samples: Callable[[], Iterable[Sample]]) -> None:
        assert name not in self._metrics, f"metric {name} is declared twice"
        self._metrics[name] = Metric(name, kind, help_text, samples)

    def __iter__(self) -> Iterator[Metric]:
        """Metrics by name."""
        for name in sorted(self._metrics):
            yield self._metrics[name]

    def value_of(self, name: str, **labels: str) -> float:
        """One number. Raises KeyError when there is none with exactly these labels."""
        for sample in self._metrics[name].samples():
            if not sample.suffix and sample.labels == labels:
                return sample.value
        raise KeyError((name, labels))

    def total_of(self, name: str) -> float | None:
        """The sum over all labels; None for an unknown metric."""
        metric = self._metrics.get(name)
        return None if metric is None else sum(sample.value for sample in metric.samples() if not sample.suffix)

    def render_text(self) -> str:
        """All metrics as text for Prometheus (exposition format 0.0.4)."""
        return "".join(self.text_parts())

    def text_parts(self) -> Iterator[str]:
        """The text metric by metric; each is read when the iterator reaches it."""
        for metric in self:
            lines = [
                f"# HELP {metric.name} {_escape_text(metric.help)}",
                f"# TYPE {metric.name} {metric.kind.value}",
                *(
                    f"{metric.name}{sample.suffix}{_format_labels(sample.labels)} {_format_number(sample.value)}"
                    for sample in metric.samples()
                ),
                "",
            ]
            yield "\n".join(lines)


def _read_samples(read: Read) -> Iterator[Sample]:
    found = read()
    if isinstance(found, (int, float)):
        yield Sample("", {}, found)
        return
    for labels, value in found:
        yield Sample("", labels, value)


def _format_labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape_text(value, quotes=True)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escape_text(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _format_number(value: float) -> str:
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
