"""The comparison of replicas: the offsets and checksums of their batches, up to the high watermark.

Zone: pure. `replica_fetches` reads the batches, `replica_verification` prints what is found.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.kafka_tools.options import ToolError
from ottla.record.batch import LOG_OVERHEAD
from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord
from ottla.record.header_fields import BASE_OFFSET, BATCH_LENGTH, CRC, LAST_OFFSET_DELTA
from ottla.record.log_entries import covered_from, entries_of, entry_checksum
from ottla.types import TopicPartition


class ReplicaBatches(NamedTuple):
    """The batches that one replica returned of a partition, in arrays of equal length."""

    high_watermark: int
    """-1: the replica did not answer."""
    last_offsets: Sequence[int]
    checksums: Sequence[int]
    """The checksums that the headers have."""
    computed: Sequence[int]
    """The checksums of the bytes, which are the same as long as neither is damaged."""


NO_BATCHES: Final = ReplicaBatches(-1, (), (), ())
"""Of a replica that did not answer."""


class DifferentOffsets(Exception):
    """Batches of two replicas end at different offsets, so that nothing after them can be compared."""


def read_batches(high_watermark: int, records: Buffer) -> ReplicaBatches:
    """The whole batches, or messages of older formats, in a response. Raises CorruptRecord."""
    last_offsets, checksums, computed = array("q"), array("I"), array("I")
    for pos, header in entries_of(records):
        last_offsets.append(header[BASE_OFFSET] + header[LAST_OFFSET_DELTA])
        checksums.append(header[CRC])
        covered = records[pos + covered_from(header) : pos + LOG_OVERHEAD + header[BATCH_LENGTH]]
        computed.append(entry_checksum(header, covered))
    return ReplicaBatches(high_watermark, last_offsets, checksums, computed)


class Lag(NamedTuple):
    """How far the comparison of one partition is behind its high watermark."""

    records: int
    tp: TopicPartition | None
    offset: int


class Verification:
    """The offsets up to which the replicas of all partitions agree."""

    def __init__(self, offsets: Mapping[TopicPartition, int], replicas: Mapping[TopicPartition, Sequence[int]]) -> None:
        """offsets: where to begin. replicas: the ids of the brokers that have each partition."""
        self.offsets = dict(offsets)
        self.order = dict.fromkeys(sorted(offsets))
        """The partitions in the order in which to fetch them: a response may be full before it has all of them."""
        self._replicas = replicas
        self._lag = Lag(-1, None, -1)

    def verify_round(self, fetched: Mapping[TopicPartition, Mapping[int, ReplicaBatches]]) -> tuple[list[str], bool]:
        """Compare what the replicas returned, and advance.

        Returns the findings, and whether a partition advanced. Raises DifferentOffsets.
        """
        found: list[str] = []
        # As in Kafka's tool, the partition and the offset stay those of an earlier round if no replica answers.
        self._lag = self._lag._replace(records=-1)
        before = sum(self.offsets.values())
        for tp in sorted(self.offsets):
            returned = fetched.get(tp, {})
            replicas = {node: returned.get(node, NO_BATCHES) for node in sorted(self._replicas[tp])}
            self.offsets[tp] = _compare_batches(tp, replicas, self.offsets[tp], found)
            self._note_lag(tp, replicas.values())
            if any(each.last_offsets for each in returned.values()):
                del self.order[tp]  # the next response begins with those that were left out of this one
                self.order[tp] = None
        return found, sum(self.offsets.values()) > before

    def _note_lag(self, tp: TopicPartition, replicas: Iterable[ReplicaBatches]) -> None:
        lag = max((each.high_watermark for each in replicas), default=-1) - self.offsets[tp]
        if lag > self._lag.records:
            self._lag = Lag(lag, tp, self.offsets[tp])

    def lag_text(self) -> str:
        """The line about the partition with the largest lag after the last round."""
        lag = self._lag
        partition = "null" if lag.tp is None else str(lag.tp)
        return (
            f"max lag is {lag.records} for partition {partition} at offset {lag.offset} "
            f"among {len(self.offsets)} partitions"
        )


def _compare_batches(tp: TopicPartition, replicas: Mapping[int, ReplicaBatches], offset: int, found: list[str]) -> int:
    """The offset after the last batch that all replicas have below their high watermarks. Raises DifferentOffsets.

    As in Kafka's tool, the next batch of each replica is compared also where one replica has none yet.
    """
    at = 0
    while True:
        # A batch that is not committed may still be truncated, and follows later in a replica that knows no commit yet.
        there = [node for node, each in replicas.items() if _has_batch(each, at)]
        for node in there[1:]:
            _compare_pair(tp, at, (there[0], replicas[there[0]]), (node, replicas[node]), found)
        if not there or len(there) < len(replicas):
            return offset
        offset = replicas[there[0]].last_offsets[at] + 1
        at += 1


def _has_batch(replica: ReplicaBatches, at: int) -> bool:
    return at < len(replica.last_offsets) and replica.last_offsets[at] < replica.high_watermark


def _compare_pair(
    tp: TopicPartition,
    at: int,
    first: tuple[int, ReplicaBatches],
    second: tuple[int, ReplicaBatches],
    found: list[str],
) -> None:
    (one, of_one), (two, of_two) = first, second
    offset = of_two.last_offsets[at]
    if of_one.last_offsets[at] != offset:
        raise DifferentOffsets(
            f"partition {tp}: replica {one}'s offset {of_one.last_offsets[at]} doesn't match replica {two}'s offset "
            f"{offset}"
        )
    # Kafka's tool compares the checksums of the headers only, which bytes that were damaged later do not change.
    is_header = of_one.checksums[at] != of_two.checksums[at]
    sums = [each.checksums[at] if is_header else each.computed[at] for each in (of_one, of_two)]
    if sums[0] != sums[1]:
        found.append(
            f"partition {tp} has unmatched checksum at offset {offset}; replica {one}'s checksum {sums[0]}; "
            f"replica {two}'s checksum {sums[1]}"
        )


def corrupt_replica_error(tp: TopicPartition, node: int, offset: int, error: CorruptRecord) -> ToolError:
    """The error for bytes of a replica that are not batches."""
    message = f"Error in processing replica {node} in partition {tp} at offset {offset}."
    return ToolError(f"{message} {error.message}", "java.lang.RuntimeException")
