"""The verdict of a chaos run: each kind of damage, planted by hand, is found and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from testbench.chaos.values import ACKNOWLEDGED, FAILED, NOTE, NOTES, UNKNOWN, parse, value
from testbench.chaos.verdict import judge_log, judge_reader, judge_replicas, read_notes

from ottla.record.batch import Record, encode_batch

PARTITIONS = 2


def notes(*rows: tuple[int, int, int, int]) -> np.ndarray:
    """(partition, offset, producer, number)"""
    return np.array(list(rows), NOTES)


GOOD = ((0, 0, 7, 0), (1, 0, 7, 1), (0, 1, 7, 2), (1, 1, 7, 3))
FATES = {7: bytes([ACKNOWLEDGED, ACKNOWLEDGED, ACKNOWLEDGED, UNKNOWN, FAILED])}


def test_what_is_as_it_should_be() -> None:
    assert judge_log(FATES, notes(*GOOD), PARTITIONS) == []
    assert judge_log(FATES, notes(*GOOD[:3]), PARTITIONS) == [], "what was not acknowledged may be there or not"


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (GOOD[1:], "producer 7: 1 acknowledged records are lost: 0 (partition 0)"),
        ((*GOOD, (0, 2, 7, 0)), "producer 7: 1 records are there more than once: 0 at 0:0 and 0:2"),
        (((0, 0, 7, 2), (0, 1, 7, 0), GOOD[1]), "producer 7, partition 0: record 0 comes after 2"),
        (((1, 0, 7, 0), *GOOD[1:3]), "producer 7: record 0 is in another partition than it was sent to"),
        ((*GOOD, (1, 2, 7, 5)), "producer 7: record 5 is in the log but was never sent"),
        ((*GOOD, (1, 2, 9, 1)), "records of a producer 9 that does not exist"),
    ],
)
def test_damage_of_the_log(rows, complaint: str) -> None:
    assert complaint in judge_log(FATES, notes(*rows), PARTITIONS)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (GOOD[:3], "c, partition 1: read 1 records of 2"),
        ((GOOD[0], *GOOD[1:], (0, 1, 7, 2)), "c, partition 0: offset 1 came where 2 was due"),
        ((*GOOD[:3], (1, 1, 7, 4)), "c, partition 1, offset 1: read record 4 of producer 7, the log holds 3 of 7"),
    ],
)
def test_damage_of_what_a_consumer_saw(rows, complaint: str) -> None:
    assert judge_reader("c", notes(*GOOD), notes(*GOOD), PARTITIONS) == []
    assert judge_reader("c", notes(*rows), notes(*GOOD), PARTITIONS) == [complaint]


def replica(directory: Path, *batches: bytes) -> Path:
    (directory / "t-0").mkdir(parents=True)
    (directory / "t-0" / f"{0:020}.log").write_bytes(b"".join(batches))
    return directory


def test_replicas_differ(tmp_path: Path) -> None:
    one, two = (bytes(encode_batch([Record(0, 5, None, text, ())])) for text in (b"one", b"two"))
    first = {"1": replica(tmp_path / "1", one, two)}
    same = replica(tmp_path / "2", one, two, one[:30])
    assert judge_replicas("t", 0, first | {"2": same}) == [], "a torn tail is no batch"
    other = judge_replicas("t", 0, first | {"3": replica(tmp_path / "3", one, one)})
    batch = f"offset 0, leader epoch {2**32 - 1}, {len(one)} bytes"
    assert other == [f"t-0: brokers 1 and 3 differ: {batch} against {batch}"]
    (short,) = judge_replicas("t", 0, first | {"4": replica(tmp_path / "4", one)})
    assert "differ: 1 batches more in one, from offset 0" in short
    (tmp_path / "5").mkdir()
    assert judge_replicas("t", 0, first | {"5": tmp_path / "5"}) == ["t-0: broker 5 has no such directory"]


def test_values_and_notes(tmp_path: Path) -> None:
    for number in (0, 1, 199, 200, 10**12):
        assert parse(value(3, number)) == (3, number)
    with pytest.raises(ValueError, match="wrong byte"):
        parse(value(3, 5)[:-1] + b"x")
    with pytest.raises(ValueError, match="3 bytes"):
        parse(b"abc")
    file = tmp_path / "notes"
    file.write_bytes(b"".join(NOTE.pack(*row) for row in GOOD) + b"cut")
    assert read_notes(file).tolist() == list(GOOD)
