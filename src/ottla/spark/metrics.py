"""The lag of a query: the metrics of Spark's own Kafka source, computed from a query's progress.

Zone: pure. Sources written in Python cannot report metrics to Spark, but a query's progress has the offsets that they
report. The figures are the same as in KafkaMicroBatchStream.metrics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ottla.spark.offsets import from_json


def offsets_behind_latest(progress: Mapping[str, Any] | Any) -> dict[str, float]:
    """avgOffsetsBehindLatest, minOffsetsBehindLatest and maxOffsetsBehindLatest over all partitions of all sources.

    `progress`: `query.lastProgress`, one of `query.recentProgress`, or that of a StreamingQueryListener. Empty when
    no source has reported its latest offset.
    """
    behind = [size for source in _sources_of(progress) for size in behind_by_partition(source).values()]
    if not behind:
        return {}
    return {
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
        "minOffsetsBehindLatest": float(min(behind)),
        "maxOffsetsBehindLatest": float(max(behind)),
    }


def behind_by_partition(source: Mapping[str, Any]) -> dict[Any, int]:
    """The lag in offsets of each TopicPartition. `source`: one of a progress' `sources`."""
    latest, end = _parse_offset(source.get("latestOffset")), _parse_offset(source.get("endOffset"))
    return {where: max(0, offset - end.get(where, 0)) for where, offset in latest.items()}


def _sources_of(progress: Any) -> list[Mapping[str, Any]]:
    found = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    return [one for one in found.get("sources", ()) if one.get("latestOffset")]


def _parse_offset(text: Any) -> dict[Any, int]:
    """Parse an offset, which Spark gives as a JSON document or its text; "null" for none."""
    found = json.loads(text) if isinstance(text, str) else text
    return from_json(found) if isinstance(found, Mapping) else {}
