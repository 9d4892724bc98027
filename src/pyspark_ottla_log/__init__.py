"""Found by PySpark without registration: `spark.read.format("ottla-log")`.

Zone: real. Only the re-export lives here; the source is in `ottla.logtable`. A package's name has no hyphen, but
PySpark registers the `DefaultSource` of every top-level package `pyspark_*` under the name that the class itself says.
"""

from __future__ import annotations

from ottla.logtable.source import OttlaLog as DefaultSource

__all__ = ["DefaultSource"]
