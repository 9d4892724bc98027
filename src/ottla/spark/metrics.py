"""How far a query is behind: the metrics of Spark's own Kafka source, out of a query's progress.

Zone: pure. Spark takes no metrics of their own from sources written in Python, but shows the offsets that such a
source tells; these are the same figures (KafkaMicroBatchStream.metrics).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ottla.spark.offsets import from_json


def offsets_behind_latest(progress: Mapping[str, Any] | Any) -> dict[str, float]:
    """avgOffsetsBehindLatest, minOffsetsBehindLatest and maxOffsetsBehindLatest over all partitions of all sources.

    `progress`: one of `query.recentProgress`, `query.lastProgress`, or what a StreamingQueryListener gets. Empty when
    no source has told its latest offset.
    """
    behind = [size for source in _sources(progress) for size in behind_by_partition(source).values()]
    if not behind:
        return {}
    return {
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "minOffsetsBehindLatest": float(min(behind)),
        "maxOffsetsBehindLatest": float(max(behind)),
    }


def behind_by_partition(source: Mapping[str, Any]) -> dict[Any, int]:
    """Offsets behind the latest one, by TopicPartition. `source`: one of a progress' `sources`."""
    latest, end = _offset(source.get("latestOffset")), _offset(source.get("endOffset"))
    return {where: max(0, offset - end.get(where, 0)) for where, offset in latest.items()}


def _sources(progress: Any) -> list[Mapping[str, Any]]:
    found = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    return [one for one in found.get("sources", ()) if one.get("latestOffset")]


def _offset(text: Any) -> dict[Any, int]:
    """Spark shows offsets as JSON, as a document or as text; "null" where there is none."""
    found = json.loads(text) if isinstance(text, str) else text
    return from_json(found) if isinstance(found, Mapping) else {}
