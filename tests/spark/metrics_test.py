"""The lag of a query, from its progress."""

from __future__ import annotations

import json
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from ottla.spark import offsets_behind_latest

PARTS = st.dictionaries(st.integers(0, 9).map(str), st.integers(0, 1000), min_size=1)


def source(latest: object, end: object) -> dict[str, object]:
    return {"description": "x", "latestOffset": latest, "endOffset": end}


def test_the_figures_of_sparks_source() -> None:
    one = source(json.dumps({"a": {"0": 10, "1": 4}}), {"a": {"0": 4, "1": 4}, "$plan": {"minPartitions": 3}})
    progress = {"sources": [one]}
    wanted = {"avgOffsetsBehindLatest": 3.0, "minOffsetsBehindLatest": 0.0, "maxOffsetsBehindLatest": 6.0}
    assert offsets_behind_latest(progress) == wanted
    assert offsets_behind_latest(SimpleNamespace(json=json.dumps(progress))) == wanted


def test_a_source_without_a_latest_offset_has_no_metrics() -> None:
    assert offsets_behind_latest({"sources": [source(None, {"a": {"0": 4}})]}) == {}
    assert offsets_behind_latest({"sources": [source("null", None)]}) == {}


@given(PARTS, PARTS)
def test_lag_is_never_negative(latest: dict[str, int], end: dict[str, int]) -> None:
    """The end may be ahead of a latest offset that was asked for earlier."""
    found = offsets_behind_latest({"sources": [source({"a": latest}, {"a": end})]})
    assert 0 <= found["minOffsetsBehindLatest"] <= found["avgOffsetsBehindLatest"] <= found["maxOffsetsBehindLatest"]
