"""The registry of metrics: reads, rendering, histograms.

Zone: real.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.metrics import Histogram, Registry


def test_a_metric_is_read_at_each_scrape():
    registry, counted = Registry(), {"n": 0}
    registry.add_counter("kafka_server_things_total", "Things.", lambda: counted["n"])
    assert registry.value_of("kafka_server_things_total") == 0
    counted["n"] = 7
    assert registry.value_of("kafka_server_things_total") == 7


def test_the_text_that_prometheus_reads():
    registry = Registry()
    registry.add_gauge(
        "kafka_log_log_size",
        "Bytes of a log.\nOf its segments.",
        lambda: [({"topic": 'a"b\\c', "partition": "0"}, 12), ({"topic": "x", "partition": "1"}, 0.5)],
    )
    registry.add_counter("kafka_a_total", "Counted.", lambda: 3)
    assert registry.render_text() == (
        "# HELP kafka_a_total Counted.\n"
        "# TYPE kafka_a_total counter\n"
        "kafka_a_total 3\n"
        "# HELP kafka_log_log_size Bytes of a log.\\nOf its segments.\n"
        "# TYPE kafka_log_log_size gauge\n"
        'kafka_log_log_size{topic="a\\"b\\\\c",partition="0"} 12\n'
        'kafka_log_log_size{topic="x",partition="1"} 0.5\n'
    )
    assert registry.value_of("kafka_log_log_size", topic="x", partition="1") == 0.5
    with pytest.raises(KeyError):
        registry.value_of("kafka_log_log_size", topic="x")


def test_a_name_is_registered_once_and_counters_end_in_total():
    registry = Registry()
    registry.add_gauge("a", "A.", lambda: 1)
    with pytest.raises(AssertionError, match="twice"):
        registry.add_gauge("a", "A.", lambda: 1)
    with pytest.raises(AssertionError):
        registry.add_counter("b", "B.", lambda: 1)


def test_a_histogram_renders_cumulative_buckets():
    registry, times = Registry(), Histogram((1, 5))
    for value in (0.5, 1, 3, 100):
        times.observe(value)
    registry.add_histogram("kafka_times", "Times.", lambda: [({"request": "Fetch"}, times)])
    assert registry.render_text().splitlines()[2:] == [
        'kafka_times_bucket{request="Fetch",le="1"} 2',
        'kafka_times_bucket{request="Fetch",le="5"} 3',
        'kafka_times_bucket{request="Fetch",le="+Inf"} 4',
        'kafka_times_sum{request="Fetch"} 104.5',
        'kafka_times_count{request="Fetch"} 4',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1e300, str(int(1e300))), (0.5, "0.5")],
)
def test_every_number_can_be_shown(value, text):
    """Clients push numbers of any kind; one that could not be written took the whole page."""
    registry = Registry()
    registry.add_gauge("kafka_any", "Any number.", lambda: value)
    assert "".join(registry.text_parts()).splitlines()[-1] == f"kafka_any {text}"


@pytest.mark.slow
@given(st.lists(st.floats(0, 100_000), max_size=50), st.floats(0, 1))
def test_a_quantile_is_never_below_the_true_one_nor_above_its_bucket(values, share):
    times = Histogram()
    for value in values:
        times.observe(value)
    assert times.count == len(values)
    if not values:
        assert times.quantile(share) == 0
        return
    bound = times.quantile(share)
    below = sum(1 for value in values if value <= bound)
    assert below >= share * len(values)
    assert bound in (*times.bounds, float("inf"))
