"""Partitions of whole columns, compared with the plain partitioner and with that of kafka-python."""

from __future__ import annotations

import warnings
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.columns.columnar import fields_of
from ottla.client.columns.columnar_partitions import murmur2, partitions_of_keys, spread_rows
from ottla.client.partitioner import partition_of_key

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its files in a deprecated way
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2

keys = st.lists(st.none() | st.binary(max_size=9) | st.binary(min_size=30, max_size=70), max_size=20)


@pytest.mark.slow
@settings(deadline=None)
@given(keys, st.integers(1, 50))
def test_keys_go_where_the_plain_partitioner_sends_them(column: list[bytes | None], count: int) -> None:
    chosen = partitions_of_keys(fields_of(pa.array(column, pa.binary())), count)
    assert chosen.tolist() == [-1 if key is None else partition_of_key(key, count) for key in column]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=10))
def test_the_hash_is_that_of_another_client(column: list[bytes]) -> None:
    hashes = murmur2(fields_of(pa.array(column, pa.binary())))
    assert hashes.tolist() == [kafka_python_murmur2(key) & 0xFFFFFFFF for key in column]


def test_keys_of_a_slice_are_its_own() -> None:
    column = pa.array([b"a", b"bc", None, b"def"], pa.binary())
    whole = partitions_of_keys(fields_of(column), 1000).tolist()
    assert partitions_of_keys(fields_of(column.slice(1, 3)), 1000).tolist() == whole[1:]


@settings(deadline=None)
@given(st.integers(0, 5000), st.sets(st.integers(0, 9), min_size=1), st.integers(0, 100))
def test_rows_without_a_key_spread_over_available_partitions_in_runs(rows: int, available: set[int], turn: int) -> None:
    led = sorted(available)
    chosen = spread_rows(rows, led, turn).tolist()
    assert set(chosen) <= available
    runs = [number for at, number in enumerate(chosen) if at == 0 or number != chosen[at - 1]]
    assert len(runs) <= max(1, min(len(led), rows // 512))
    if rows >= 512 * len(led):
        assert len(Counter(chosen)) == len(led)


def test_the_next_batch_begins_with_the_next_partition() -> None:
    assert [spread_rows(1, [0, 1, 2], turn).tolist() for turn in range(4)] == [[0], [1], [2], [0]]
