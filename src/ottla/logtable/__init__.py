"""The log as a table: `spark.read.format("ottla-log")` on the data directories of a broker, or a copy of them.

Zone: real. A tool for people, like `storage/dump`: reads ordinary files, never runs inside a broker and needs none.
The package exports only what a user's own script imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.logtable.source import OttlaLog

__all__ = ["OttlaLog"]

# Resolved on first use: PySpark is large, and importing any module of the package runs this file.
__getattr__, __dir__ = names_on_demand(globals(), {"ottla.logtable.source": "OttlaLog"})
