"""Batches that Apache Kafka wrote: read to the same records, and written again to the same bytes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.record import legacy
from ottla.record.batch import (
    BatchHeader,
    Record,
    batches_of,
    crc_ok,
    encode_batch,
    header_at,
    patch_offset_and_epoch,
    records_of,
    set_append_time,
)
from ottla.record.compression import decompress
from ottla.record.control import parse_marker
from ottla.record.inspection import Recoding, RecordRules, prepare_batch
from ottla.record.validation import validate_produced

BIG = 1 << 24
CLUSTER = ["records", "segments", "transactions", "compacted", "unclean", "consumer-offsets", "transaction-state"]
TOPICS = [
    ("records", "records", "records", 0),
    ("records", "append-time", "append-time", 0),
    ("records", "broker-codec", "broker-codec", 0),
    ("segments", "segments", "segments", 130),
    ("transactions", "txn", "txn.uncommitted", 0),
    ("compacted", "compacted", "compacted", 0),
    ("format-2.8", "format-2.8", "format-2.8", 0),
]


def logs(directory: Path) -> Iterator[tuple[int, memoryview]]:
    """(partition, content) of every log file, in order."""
    for path in sorted(directory.glob("*/*.log")):
        yield int(path.parent.name.rpartition("-")[2]), memoryview(path.read_bytes())


def batches(directory: Path) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    for partition, log in logs(directory):
        end = 0
        for pos, header in batches_of(log):
            end = pos + header.size
            yield partition, header, log[pos:end]
        assert end == len(log)


@pytest.mark.parametrize(("case", "topic", "records", "start"), TOPICS)
def test_the_records_that_a_consumer_saw(golden: Callable, case: str, topic: str, records: str, start: int) -> None:
    ours = []
    for path in sorted(golden(case).directory.glob(f"{topic}-*")):
        assert path.is_dir()
        partition = int(path.name.rpartition("-")[2])
        for log in sorted(path.glob("*.log")):
            for pos, header in batches_of(log.read_bytes()):
                if header.is_control:
                    continue
                stamp = 2 if header.is_append_time else 1
                for record in records_of(log.read_bytes(), pos, max_bytes=BIG):
                    if record.offset >= start:
                        ours.append((partition, stamp, header.leader_epoch, record))
    theirs = [
        (
            row.partition if row.partition is not None else 0,
            row.timestamp_type,
            row.leader_epoch if row.leader_epoch is not None else 0,
            Record(row.offset, row.timestamp, row.key, row.value, row.headers),
        )
        for row in golden(case).records(records)
    ]
    assert theirs
    assert sorted(ours, key=lambda r: (r[0], r[3].offset)) == sorted(theirs, key=lambda r: (r[0], r[3].offset))


@pytest.mark.parametrize("case", CLUSTER)
def test_checksums_and_bytes(golden: Callable, case: str) -> None:
    """Uncompressed batches are written again byte by byte; compressed ones hold the same bytes once expanded."""
    seen = 0
    for _, header, batch in batches(golden(case).directory):
        assert crc_ok(batch, 0, len(batch))
        if header.is_append_time or (case == "compacted" and header.delete_horizon_ms is None):
            continue  # the producer's timestamps are lost; the cleaner keeps a base that no record has any more
        seen += 1
        again = encode_batch(
            records_of(batch, 0, max_bytes=BIG),
            base_offset=header.base_offset,
            codec=header.codec,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            control=header.is_control,
            leader_epoch=header.leader_epoch,
            timestamp_type=int(header.is_append_time),
            last_offset_delta=header.last_offset_delta,
            delete_horizon_ms=header.delete_horizon_ms,
        )
        if header.codec == 0:
            assert again == batch
        else:
            unlike = {"batch_length": 0, "crc": 0}
            assert header_at(again)._replace(**unlike) == header._replace(**unlike)
            assert expanded(again) == expanded(batch)
    assert seen


def expanded(batch: bytearray | memoryview) -> bytes:
    return decompress(header_at(batch).codec, batch[61:], BIG)


def test_append_time_is_stamped_as_kafka_does(golden: Callable) -> None:
    """The broker of `append-time` got CreateTime batches: removing its stamp and stamping again gives its bytes."""
    for path in golden("records").directory.glob("append-time-0/*.log"):
        log = path.read_bytes()
        for pos, header in batches_of(log):
            batch = bytearray(log[pos : pos + header.size])
            batch[22] &= ~0x08
            batch[35:43] = bytes(8)
            set_append_time(memoryview(batch), 0, header.max_timestamp)
            assert batch == log[pos : pos + header.size]


@pytest.mark.parametrize("codec", range(5))
def test_every_batch_of_kafka_survives_recompression_and_validation(golden: Callable, codec: int) -> None:
    for _, header, view in batches(golden("records").directory):
        batch = bytearray(view)
        patch_offset_and_epoch(batch, 0, 0, -1)
        again = prepare_batch(bytes(batch), RecordRules(False, 0, 1 << 62, 1 << 62), Recoding(codec, None))
        assert isinstance(again, bytes), again
        if not header.is_append_time:
            validate_produced(memoryview(again), 0, len(again), header.max_timestamp)
        assert list(records_of(again, 0, max_bytes=BIG)) == list(records_of(batch, 0, max_bytes=BIG))


def test_transaction_markers(golden: Callable) -> None:
    markers = {True: 0, False: 0}
    for _, header, batch in batches(golden("transactions").directory):
        if header.is_control:
            (record,) = records_of(batch, 0, max_bytes=BIG)
            marker = parse_marker(record.key, record.value)
            assert marker is not None
            assert marker.coordinator_epoch == 0
            markers[marker.commit] += 1
    printed = golden("transactions").dump()
    assert markers == {True: printed.count("endTxnMarker: COMMIT"), False: printed.count("endTxnMarker: ABORT")}
    assert min(markers.values()) > 0


@pytest.mark.parametrize("name", ["format-0.9.0", "format-0.10.0"])
def test_old_message_sets(golden: Callable, name: str) -> None:
    ours = []
    for _, log in logs(golden(name).directory):
        pos = 0
        while pos < len(log):
            message = legacy.message_at(log, pos)
            assert message.valid
            ours += [(m.offset, m.timestamp, m.key, m.value) for m in legacy.messages_in(message, BIG)]
            pos += message.size
    theirs = [
        (row.offset, row.timestamp if row.timestamp_type else -1, row.key, row.value) for row in golden(name).records()
    ]
    assert ours == theirs
    assert len(ours) == 48


def test_the_golden_files_are_not_empty() -> None:
    path = Path(__file__).parent.parent / "data" / "golden" / "kafka-4.4.0" / "records.records.jsonl.gz"
    assert gzip.decompress(path.read_bytes()).count(b"\n") > 100
