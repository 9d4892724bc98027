"""Rows that Spark keeps: plans and lineages, as texts, of which the partitions stay as they were read."""

from __future__ import annotations

import pytest

from ottla.spark.foreach_batch import is_stable_lineage, is_stable_plan

KEPT = "*(1) Filter (value#1 = a)\n+- InMemoryTableScan [value#1]\n      +- InMemoryRelation [value#1]\n         +- "
LINEAGE = "(2) MapPartitionsRDD[7]\n |  MapPartitionsRDD[6]\n |  "


def test_what_is_kept_as_it_was_read_is_stable() -> None:
    assert is_stable_plan(KEPT + "*(1) Project [value#1]\n            +- BatchScan ottla[value#1]")
    assert is_stable_lineage(LINEAGE + "DataSourceRDD[1]")


@pytest.mark.parametrize("node", ["Exchange", "Coalesce 1", "Union", "AQEShuffleRead coalesced", "CartesianProduct"])
def test_a_plan_that_moves_rows_is_not_stable(node: str) -> None:
    assert not is_stable_plan(f"{KEPT}{node}\n            +- BatchScan ottla[value#1]")


def test_a_plan_that_keeps_nothing_is_left_to_the_tasks() -> None:
    assert not is_stable_plan("*(1) Project [value#1]\n+- BatchScan ottla[value#1]")


@pytest.mark.parametrize("kind", ["ShuffledRowRDD", "CoalescedRDD", "UnionRDD"])
def test_a_lineage_that_moves_rows_or_begins_elsewhere_is_not_stable(kind: str) -> None:
    assert not is_stable_lineage(f"{LINEAGE}{kind}[2]\n |  DataSourceRDD[1]")
    assert not is_stable_lineage(LINEAGE + "ParallelCollectionRDD[1]")
