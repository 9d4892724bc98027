"""The counts in Spark's progress of a query, in the forms that classic sessions and those of Spark Connect give them.

Zone: pure. Spark's documents in, figures out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def input_rows(document: Mapping[str, Any]) -> int:
    """The rows that a batch has read."""
    return int(_total(document, "numInputRows"))


def processed_rows_per_second(document: Mapping[str, Any]) -> float:
    """The rate of a batch."""
    return float(_total(document, "processedRowsPerSecond"))


def observed_counts(document: Mapping[str, Any], metrics: str, names: Iterable[str]) -> dict[str, int]:
    """Whole numbers that a query observes (`DataFrame.observe`): `names` under the name `metrics`; 0 if not there."""
    found = (document.get("observedMetrics") or {}).get(metrics) or {}
    # Spark Connect 4.3 gives the row as its values and its schema.
    schema, values = _field(found, "schema"), _field(found, "values")
    if isinstance(schema, Mapping) and isinstance(values, list):
        found = dict(zip((each["name"] for each in schema["fields"]), values, strict=True))
    return {name: int(_field(found, name) or 0) for name in names}


def _total(document: Mapping[str, Any], name: str) -> float:
    """A figure of the batch; Spark Connect gives only those of the sources."""
    whole = document.get(name)
    return whole if whole is not None else sum(each.get(name) or 0 for each in document.get("sources", ()))


def _field(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)
