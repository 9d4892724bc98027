"""The controller's counters, and its metrics under the names that Kafka's dashboards use.

Zone: deterministic. Values are computed when the metrics are read.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cluster.controller.context import ControllerContext
from ottla.metrics import Histogram, Registry

_CONTROLLER = "kafka_controller_kafkacontroller_"
_STATS = "kafka_controller_controllerstats_"


class Counters:
    """Counts of all of one broker's terms as controller together."""

    def __init__(self) -> None:
        self.unclean_elections = 0
        self.election_ms = Histogram()
        """Time from the detection of missing leaders until the new ones are queued for their brokers."""


def declare_metrics(registry: Registry, counters: Counters, context: Callable[[], ControllerContext | None]) -> None:
    """Register the metrics. `context` returns the controller's state, None while this broker is not the controller."""

    def count(read: Callable[[ControllerContext], int]) -> Callable[[], float]:
        def value() -> float:
            known = context()
            return 0.0 if known is None else float(read(known))

        return value

    add = registry.add_gauge
    add(f"{_CONTROLLER}activecontrollercount", "1 on the active controller.", count(lambda _: 1))
    add(f"{_CONTROLLER}offlinepartitionscount", "Partitions without a leader.", count(lambda c: c.offline_partitions()))
    add(
        f"{_CONTROLLER}preferredreplicaimbalancecount",
        "Partitions that are not led by their first replica.",
        count(lambda c: c.not_led_by_preferred()),
    )
    add(f"{_CONTROLLER}globaltopiccount", "Topics.", count(lambda c: len(c.topics)))
    add(f"{_CONTROLLER}globalpartitioncount", "Partitions.", count(lambda c: sum(1 for _ in c.all_partitions())))
    add(f"{_CONTROLLER}activebrokercount", "Live brokers.", count(lambda c: len(c.brokers)))
    add(f"{_CONTROLLER}topicstodeletecount", "Topics whose deletion is decided.", count(lambda c: len(c.deleting)))
    registry.add_counter(
        f"{_STATS}uncleanleaderelections_total",
        "Leaders elected out of sync: records may have been lost.",
        lambda: float(counters.unclean_elections),
    )
    registry.add_histogram(
        f"{_STATS}leaderelectionrateandtimems",
        "Elections, and how long they took in milliseconds.",
        lambda: [({}, counters.election_ms)],
    )
