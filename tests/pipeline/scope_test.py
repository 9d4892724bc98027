"""Whether a step's offsets can be in the transaction of its rows, without Spark."""

from __future__ import annotations

import pytest

from ottla.pipeline.scope import Scope, unit_text, with_offsets


@pytest.mark.parametrize(
    ("mode", "wanted", "stays", "has_source", "options", "because"),
    [
        ("partition", "auto", True, False, {}, ""),
        ("partition", "true", True, False, {"maxOffsetsPerTrigger": "9"}, ""),
        ("batch", "auto", False, True, {"minPartitions": "9"}, ""),
        ("batch", "auto", False, False, {}, "no column `_source`"),
        ("partition", "auto", False, True, {}, "rows change tasks"),
        ("partition", "auto", True, True, {"minPartitions": "9"}, "minPartitions splits partitions"),
        ("partition", "auto", True, True, {"MaxRecordsPerPartition": "9"}, "MaxRecordsPerPartition splits"),
        ("partition", "false", True, True, {}, "the step turns it off"),
        ("off", "auto", True, True, {}, "no transaction"),
    ],
)
def test_where_offsets_are_in_the_transaction(
    mode: str, wanted: str, stays: bool, has_source: bool, options: dict[str, str], because: str
) -> None:
    found = with_offsets(Scope(mode, "why"), wanted, stays=stays, has_source=has_source, options=options)
    assert found.offsets is (because == "")
    assert because in found.because
    assert (found.mode, found.reason) == (mode, "why")


def test_the_guarantee_in_words() -> None:
    assert (unit_text("batch", offsets=True), unit_text("auto", offsets=False)) == ("batch, with offsets", "auto")
    assert Scope("partition", "why", offsets=True).guarantee == "exactly once by partition, with offsets: why"
    assert Scope("batch", "why").guarantee == "exactly once by batch: why"
    assert Scope("off", "why").guarantee == "at least once"
