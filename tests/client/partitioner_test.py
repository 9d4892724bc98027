"""Partitions of records with a key: Java's hash."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import murmur2, partition_of_key

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in a deprecated way
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@pytest.mark.parametrize(
    ("key", "java"),
    [
        # The vectors of Kafka's own UtilsTest.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_javas_numbers(key: bytes, java: int) -> None:
    assert murmur2(key) == java & 0xFFFFFFFF


@given(st.binary(max_size=200))
def test_murmur2_equals_kafka_pythons(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key) & 0xFFFFFFFF


@given(st.binary(), st.integers(1, 1000))
def test_a_key_has_one_partition_that_exists(key: bytes, count: int) -> None:
    assert partition_of_key(key, count) == (kafka_python_murmur2(key) & 0x7FFFFFFF) % count
