"""Makes `spark.read.format("ottla-log")` known to PySpark.

Zone: real. Only a re-export: the source is in `ottla.logtable`. The name of a package cannot have a hyphen, but
PySpark registers the `DefaultSource` of every top-level package `pyspark_*` by the name that the class returns.
"""

from __future__ import annotations

from ottla.logtable.source import OttlaLog as DefaultSource

__all__ = ["DefaultSource"]
