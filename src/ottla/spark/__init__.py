"""The PySpark data source and sink `format("ottla")`, an ordinary Kafka client, and the Java they run on.

Zone: real. Exports only what users' scripts import. The metrics are imported on first use: Spark's workers, which
import this package, serve no pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.lazy_imports import names_on_demand
from ottla.spark.environment import activate_session
from ottla.spark.foreach_batch import write_batch
from ottla.spark.java import NoJava, java_home
from ottla.spark.metrics import offsets_behind_latest

if TYPE_CHECKING:
    from ottla.spark.monitoring.query_metrics import QueryMetrics
    from ottla.spark.monitoring.query_spans import QuerySpans

__all__ = [
    "NoJava",
    "QueryMetrics",
    "QuerySpans",
    "activate_session",
    "java_home",
    "offsets_behind_latest",
    "write_batch",
]

__getattr__, __dir__ = names_on_demand(
    globals(),
    {
        "ottla.spark.monitoring.query_metrics": "QueryMetrics",
        "ottla.spark.monitoring.query_spans": "QuerySpans",
    },
)
