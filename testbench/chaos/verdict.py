"""Whether a cluster kept acknowledged records: compares fates of producers, notes of consumers, and logs on disk.

Zone: real. No function talks to a broker. Every function returns complaints as sentences; an empty list is a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from testbench.chaos.values import ACKNOWLEDGED, NOTES

SHOWN = 5
"""Maximum of examples per kind of complaint."""
BATCH_HEAD = 61


def read_notes(path: Path) -> np.ndarray:
    """The rows of a consumer's file, without an incomplete last row."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) - len(data) % NOTES.itemsize], NOTES)


def judge_log(fates: Mapping[int, bytes], final: np.ndarray, partitions: int) -> list[str]:
    """Compare the final log with the fates: acknowledged records once, others at most once, all in order."""
    found = []
    for producer, fate in fates.items():
        rows = final[final["producer"] == producer]
        found += _judge_producer(producer, np.frombuffer(fate, np.uint8), rows, partitions)
    strangers = set(final["producer"].tolist()) - set(fates)
    return found + [f"records of a producer {each} that does not exist" for each in sorted(strangers)]


def _judge_producer(producer: int, fate: np.ndarray, rows: np.ndarray, partitions: int) -> list[str]:
    numbers = rows["number"].astype(np.int64)
    if len(numbers) and numbers.max() >= len(fate):
        return [f"producer {producer}: record {numbers.max()} is in the log but was never sent"]
    times = np.bincount(numbers, minlength=len(fate))
    found = []
    lost = np.flatnonzero((fate == ACKNOWLEDGED) & (times == 0))
    if len(lost):
        examples = ", ".join(f"{number} (partition {number % partitions})" for number in lost[:SHOWN])
        found.append(f"producer {producer}: {len(lost)} acknowledged records are lost: {examples}")
    repeated = np.flatnonzero(times > 1)
    if len(repeated):
        examples = ", ".join(f"{number} at {_offsets(rows, number)}" for number in repeated[:SHOWN])
        found.append(f"producer {producer}: {len(repeated)} records are there more than once: {examples}")
    misplaced = np.flatnonzero(numbers % partitions != rows["partition"])
    if len(misplaced):
        found.append(f"producer {producer}: record {numbers[misplaced[0]]} is in another partition than it was sent to")
    return found + _order(producer, rows, partitions)


def _offsets(rows: np.ndarray, number: int) -> str:
    hits = rows[rows["number"] == number]
    return " and ".join(f"{each['partition']}:{each['offset']}" for each in hits)


def _order(producer: int, rows: np.ndarray, partitions: int) -> list[str]:
    found = []
    for partition in range(partitions):
        mine = rows[rows["partition"] == partition]
        numbers = mine[np.argsort(mine["offset"], kind="stable")]["number"].astype(np.int64)
        back = np.flatnonzero(np.diff(numbers) < 0)
        if len(back):
            first, second = numbers[back[0]], numbers[back[0] + 1]
            found.append(f"producer {producer}, partition {partition}: record {second} comes after {first}")
    return found


def judge_reader(name: str, seen: np.ndarray, final: np.ndarray, partitions: int) -> list[str]:
    """Compare the records that a consumer got during the faults with the final log: every offset once."""
    found = []
    for partition in range(partitions):
        mine, log = (rows[rows["partition"] == partition] for rows in (seen, final))
        if not np.array_equal(mine["offset"], np.arange(len(mine))):
            jump = int(np.flatnonzero(mine["offset"] != np.arange(len(mine)))[0])
            found.append(f"{name}, partition {partition}: offset {mine['offset'][jump]} came where {jump} was due")
        elif len(mine) != len(log):
            found.append(f"{name}, partition {partition}: read {len(mine)} records of {len(log)}")
        elif len(differs := np.flatnonzero(mine != log)):
            at = int(differs[0])
            found.append(
                f"{name}, partition {partition}, offset {at}: read record {mine['number'][at]} of producer "
                f"{mine['producer'][at]}, the log holds {log['number'][at]} of {log['producer'][at]}"
            )
    return found


class Batch(NamedTuple):
    """The header of a record batch in a log file."""

    base: int
    epoch: int
    data: bytes


def batches(directory: Path) -> Iterator[Batch]:
    """The batches in a partition's directory, in order; a torn one at the end is left out."""
    for file in sorted(directory.glob("*.log")):
        data = file.read_bytes()
        at = 0
        while at + BATCH_HEAD <= len(data):
            end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            if end > len(data):
                return
            base, epoch = int.from_bytes(data[at : at + 8], "big"), int.from_bytes(data[at + 12 : at + 16], "big")
            yield Batch(base, epoch, data[at:end])
            at = end


def judge_replicas(topic: str, partition: int, directories: Mapping[str, Path]) -> list[str]:
    """Check that all replicas of a partition have the same bytes. `directories`: broker → log directory."""
    name = f"{topic}-{partition}"
    missing = [broker for broker, directory in directories.items() if not (directory / name).is_dir()]
    if missing:
        return [f"{name}: broker {broker} has no such directory" for broker in missing]
    logs = {broker: list(batches(directory / name)) for broker, directory in directories.items()}
    (first, wanted), *others = logs.items()
    return [
        f"{name}: brokers {first} and {broker} differ: {_difference(wanted, log)}"
        for broker, log in others
        if log != wanted
    ]


def _difference(one: list[Batch], other: list[Batch]) -> str:
    for left, right in zip(one, other, strict=False):
        if left != right:
            return f"{_words(left)} against {_words(right)}"
    longer = one if len(one) > len(other) else other
    return f"{abs(len(one) - len(other))} batches more in one, from {_words(longer[min(len(one), len(other))])} on"


def _words(batch: Batch) -> str:
    return f"offset {batch.base}, leader epoch {batch.epoch}, {len(batch.data)} bytes"
