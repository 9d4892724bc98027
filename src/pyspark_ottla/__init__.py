"""Makes `spark.read.format("ottla")` known to PySpark, and exports the names for scripts with pipelines.

Zone: real. Only re-exports: the source and the sink are in `ottla.spark`, pipelines in `ottla.pipeline`.
PySpark imports every top-level package `pyspark_*` and registers its `DefaultSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.lazy_imports import names_on_demand
from ottla.spark.gc_freeze import freeze_loaded_modules
from ottla.spark.source.source import OttlaSource as DefaultSource

if TYPE_CHECKING:
    from ottla.pipeline import (
        Out,
        Pipeline,
        Poison,
        Record,
        delta,
        iceberg,
        map_batches,
        map_rows,
        offsets_after_history,
        parquet,
        topic_with_history,
    )

__all__ = [
    "DefaultSource",
    "Out",
    "Pipeline",
    "Poison",
    "Record",
    "delta",
    "iceberg",
    "map_batches",
    "map_rows",
    "offsets_after_history",
    "parquet",
    "topic_with_history",
]

# Pipelines are imported on first use, because every worker of Spark imports this package.
_PIPELINES = (
    "Out Pipeline Poison Record delta iceberg map_batches map_rows offsets_after_history parquet topic_with_history"
)
__getattr__, __dir__ = names_on_demand(globals(), {"ottla.pipeline": _PIPELINES})

freeze_loaded_modules()
