"""The dump tool on damaged files: mismatches in Kafka's words, errors with names, bounded memory."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.peak import peak_of

from ottla.record.batch import Record, encode_batch
from ottla.record.control import ControlType, control_key, marker_value
from ottla.storage.checkpoints import format_epochs, format_offsets, format_snapshot
from ottla.storage.dump.indexes import IndexOptions
from ottla.storage.dump.log import LogOptions
from ottla.storage.dump.tool import Dump, Options
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.producers.producer_state import SnapshotEntry
from ottla.types import TopicPartition

BASE = f"{100:020}"
DEEP = Options(LogOptions(deep=True, contents=True))


def batch(offset: int, count: int = 2, *, size: int = 20, **more) -> bytes:
    records = [Record(offset + i, 1000 + offset + i, b"k", b"v" * size) for i in range(count)]
    return bytes(encode_batch(records, base_offset=offset, **more))


@contextmanager
def segment(directory: Path, log: bytes, index: bytes = b"", timeindex: bytes = b"") -> Iterator[dict[str, str]]:
    """A segment's files by suffix."""
    paths = {}
    for suffix, content in (("log", log), ("index", index), ("timeindex", timeindex)):
        path = directory / f"{BASE}.{suffix}"
        path.write_bytes(content)
        paths[suffix] = str(path)
    yield paths


def run(paths: list[str], options: Options = DEEP) -> tuple[list[str], list[str], bool]:
    """(stdout, stderr, failed)"""
    errors: list[str] = []
    dump = Dump(options, errors.append)
    out = [item.text() for item in dump.iter_items(paths)]
    return out, errors + list(dump.report_lines()), dump.failed


def test_a_cut_tail_and_what_comes_after_a_broken_length(tmp_path: Path) -> None:
    whole = batch(100) + batch(102)
    with segment(tmp_path, whole + batch(104)[:-1]) as paths:
        out, errors, failed = run([paths["log"]])
        assert out[1] == "Log starting offset: 100"
        assert out[-1] == f"Found {len(batch(104)) - 1} invalid bytes at the end of {BASE}.log"
        assert errors == [f"Non-consecutive offsets in {paths['log']}", "  -1 is followed by 100"]
        assert not failed
    with segment(tmp_path, whole + bytes(100)) as paths:
        out, errors, failed = run([paths["log"]])
        assert out[-1] == f"Found 100 invalid bytes at the end of {BASE}.log"
        assert f"batch of size 0 at position {len(whole)}, the least is 14" in errors[0]
        assert failed


def test_a_wrong_checksum_is_shown_and_the_walk_continues(tmp_path: Path) -> None:
    damaged = bytearray(batch(100))
    damaged[-2] ^= 1
    with segment(tmp_path, bytes(damaged) + batch(102)) as paths:
        out, _, failed = run([paths["log"]], Options())
        assert [line.rpartition(" ")[2] for line in out[2:]] == ["false", "true"]
        assert not failed, "like Kafka's tool: a wrong checksum is a finding, not a failure"


def test_a_batch_with_broken_records_is_reported_and_skipped(tmp_path: Path) -> None:
    damaged = bytearray(batch(100))
    damaged[61] = 0x7F
    with segment(tmp_path, bytes(damaged) + batch(102)) as paths:
        out, errors, failed = run([paths["log"]])
        assert "batch at position 0: a record of -64 bytes" in errors[0]
        assert out[-1].startswith("| offset: 103 CreateTime: 1103 keySize: 1 valueSize: 20 sequence: -1")
        assert failed


def test_gaps_are_reported_in_kafkas_words(tmp_path: Path) -> None:
    with segment(tmp_path, batch(100) + batch(105) + batch(110)) as paths:
        assert run([paths["log"]])[1] == [
            f"Non-consecutive offsets in {paths['log']}",
            "  -1 is followed by 100",
            "  101 is followed by 105",
            "  106 is followed by 110",
        ]


def test_index_mismatches_are_reported_in_kafkas_words(tmp_path: Path) -> None:
    first, second = batch(100), batch(102)
    good = struct.pack(">iiii", 1, 0, 3, len(first))
    with segment(tmp_path, first + second, good) as paths:
        out, errors, _ = run([paths["index"]])
        assert out[1:] == ["offset: 101 position: 0", f"offset: 103 position: {len(first)}"]
        assert errors == []
    wrong = struct.pack(">iiiiii", 0, 0, 2, len(first), 9, 10_000)
    with segment(tmp_path, first + second, wrong) as paths:
        assert run([paths["index"]])[1] == [
            f"Mismatches in :{paths['index']}",
            "  Index offset: 109, log offset: -1",
            "  Index offset: 102, log offset: 103",
            "  Index offset: 100, log offset: 101",
        ]
        out, errors, _ = run([paths["index"]], Options(indexes=IndexOptions(verify_only=True)))
        assert len(out) == 1
        assert len(errors) == 4
    with segment(tmp_path, first + second, good) as paths:
        small = Options(indexes=IndexOptions(max_message_size=10))
        assert run([paths["index"]], small)[1][-1] == "  Index offset: 101, log offset: -1"


def test_time_index_findings_are_reported_in_kafkas_words(tmp_path: Path) -> None:
    first, second = batch(100), batch(102)
    index = struct.pack(">ii", 1, 0)
    good = struct.pack(">qiqi", 1101, 1, 1103, 3)
    with segment(tmp_path, first + second, index, good) as paths:
        out, errors, _ = run([paths["timeindex"]])
        assert out[1:] == ["timestamp: 1101 offset: 101", "timestamp: 1103 offset: 103"]
        assert errors == []
    wrong = struct.pack(">qiqiqi", 1102, 1, 1000, 2, 1000, 50)
    with segment(tmp_path, first + second, index, wrong) as paths:
        assert run([paths["timeindex"]])[1] == [
            f"Found timestamp mismatch in :{paths['timeindex']}",
            "  Index timestamp: 1102, log timestamp: 1101",
            f"The following indexed offsets are not found in :{paths['timeindex']}",
            "Indexed offset: 102, found log offset: 103",
            "Indexed offset: 150, found log offset: -1",
        ]
    falling = struct.pack(">qiqi", 1104, 1, 1103, 3)
    with segment(tmp_path, first + second, index, falling) as paths:
        assert run([paths["timeindex"]])[1] == [
            f"Found timestamp mismatch in :{paths['timeindex']}",
            "  Index timestamp: 1104, log timestamp: 1101",
            f"Found out of order timestamp in :{paths['timeindex']}",
            "  Index timestamp: 1103, Previously indexed timestamp: 1104",
        ]


def test_the_unused_part_of_a_sparse_index_is_not_shown(tmp_path: Path) -> None:
    log = batch(100)
    with segment(
        tmp_path, log, struct.pack(">ii", 1, 0) + bytes(80_000), struct.pack(">qi", 1101, 1) + bytes(120_000)
    ) as paths:
        assert run([paths["index"]])[0][1:] == ["offset: 101 position: 0"]
        assert run([paths["timeindex"]])[0][1:] == ["timestamp: 1101 offset: 101"]
        assert run([paths["timeindex"]])[1] == []


def test_an_empty_index_is_reported(tmp_path: Path) -> None:
    with segment(tmp_path, batch(100)) as paths:
        assert run([paths["index"]])[0][1:] == [f"{paths['index']} is empty."]
        assert run([paths["timeindex"]])[0][1:] == []


@pytest.mark.parametrize(
    ("suffix", "content", "why"),
    [
        ("index", struct.pack(">ii", 1, 0), None),
        ("timeindex", struct.pack(">qi", 1101, 1), None),
        ("timeindex", b"", None),
        ("index", struct.pack(">ii", 1, 0) + b"x", "1 bytes after the last whole entry of 8"),
        ("index", struct.pack(">ii", -2, 0), "the last offset is 98, below the base offset 100"),
        ("timeindex", struct.pack(">qi", 1101, 1) + b"xy", "2 bytes after the last whole entry of 12"),
        ("timeindex", struct.pack(">qiqi", 5, 1, 4, 2), "the last timestamp is 4, below the first, 5"),
        ("timeindex", struct.pack(">qi", 5, -1), "the last offset is 99, below the base offset 100"),
    ],
)
def test_sanity(tmp_path: Path, suffix: str, content: bytes, why: str | None) -> None:
    with segment(tmp_path, batch(100), **{suffix: content}) as paths:
        out, errors, failed = run([paths[suffix]], Options(indexes=IndexOptions(sanity_only=True)))
        if why is None:
            assert out[1:] == [f"{paths[suffix]} passed sanity check."]
            assert not failed
        else:
            assert errors == [f"{paths[suffix]}: {why}"]
            assert failed


def test_aborted_transactions(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.txnindex"
    entry = struct.pack(">hqqqq", 0, 7, 100, 103, 104)
    path.write_bytes(entry)
    line = "version: 0 producerId: 7 firstOffset: 100 lastOffset: 103 lastStableOffset: 104"
    assert run([str(path)]) == ([f"Dumping {path}", line], [], False)
    path.write_bytes(entry[:-1])
    assert run([str(path)])[1] == [f"{path}: 33 bytes after the last whole entry of 34"]
    path.write_bytes(b"\0\1" + entry[2:])
    assert run([str(path)])[1] == [f"{path}: an aborted transaction of version 1"]


def test_states(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.snapshot"
    path.write_bytes(
        format_snapshot([SnapshotEntry(1, 2, 1, 99, 3, 5, -1, 42), SnapshotEntry(2, 0, -1, -1, 0, 5, 7, -1)])
    )
    out, _, _ = run([str(path)])
    assert out[1:] == [
        (
            "producerId: 1 producerEpoch: 2 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong[42] "
            "lastTimestamp: 5 firstSequence: 2147483646 lastSequence: 1 lastOffset: 99 offsetDelta: 3 timestamp: 5"
        ),
        "producerId: 2 producerEpoch: 0 coordinatorEpoch: 7 currentTxnFirstOffset: OptionalLong.empty lastTimestamp: 5",
    ]
    items = [item.json() for item in Dump(DEEP, print).iter_items([str(path)])]
    assert [item["currentTxnFirstOffset"] for item in items[1:]] == [42, None]
    path.write_bytes(path.read_bytes()[:-1])
    assert run([str(path)]) == ([f"Dumping {path}"], [f"{path}: a producer snapshot with a wrong checksum"], True)
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_bytes(format_epochs([EpochEntry(0, 0), EpochEntry(3, 17)]))
    assert run([str(epochs)])[0][1:] == ["epoch: 0 startOffset: 0", "epoch: 3 startOffset: 17"]
    offsets = tmp_path / "log-start-offset-checkpoint"
    offsets.write_bytes(format_offsets({TopicPartition("t", 1): 5}))
    assert run([str(offsets)])[0][1:] == ["topic: t partition: 1 offset: 5"]


def test_missing_and_unknown_files_are_reported(tmp_path: Path) -> None:
    missing, odd, unnamed = (
        str(tmp_path / f"{BASE}.log"),
        str(tmp_path / "notes.txt"),
        str(tmp_path / "x.index"),
    )
    Path(unnamed).write_bytes(bytes(8))
    Path(odd).touch()
    _, errors, failed = run([missing, odd, unnamed])
    assert errors == [
        f"{missing}: No such file or directory",
        f"Ignoring unknown file {odd}",
        f"{unnamed}: the name does not begin with an offset",
    ]
    assert failed


def test_an_index_without_its_log(tmp_path: Path) -> None:
    with segment(tmp_path, b"", struct.pack(">ii", 1, 0), struct.pack(">qi", 1, 1)) as paths:
        os.unlink(paths["log"])
        for suffix in ("index", "timeindex"):
            assert run([paths[suffix]])[1:] == ([f"{paths['log']}: No such file or directory"], True)


def test_control_records(tmp_path: Path) -> None:
    more = {"producer_id": 5, "producer_epoch": 1, "transactional": True, "control": True}
    commit = encode_batch([Record(100, 1, control_key(ControlType.COMMIT), marker_value(9))], base_offset=100, **more)
    strange = encode_batch(
        [Record(101, 1, b"\0\0\0\x63", b""), Record(102, 1, b"\0\0\0\2", b"")], base_offset=101, **more
    )
    short = encode_batch([Record(103, 1, b"\0\0\0\0", b"")], base_offset=103, **more)
    with segment(tmp_path, bytes(commit + strange + short)) as paths:
        out, errors, failed = run([paths["log"]])
        records = [line for line in out if line.startswith("|")]
        assert records[0].endswith("headerKeys: [] endTxnMarker: COMMIT coordinatorEpoch: 9")
        assert records[1].endswith("controlType: UNKNOWN(99)")
        assert records[2].endswith("controlType: LEADER_CHANGE(2)")
        assert "batch at position" in errors[0]
        assert "value of at least 6 bytes" in errors[0]
        assert failed


def test_options_of_a_log(tmp_path: Path) -> None:
    one = batch(100)
    with segment(tmp_path, one + batch(102)) as paths:
        bounded = run([paths["log"]], Options(LogOptions(max_bytes=len(one) + 5)))
        assert len(bounded[0]) == 3, "the bytes after the limit are not called invalid"
        bare = run([paths["log"]], Options(LogOptions(deep=True, contents=True, metadata=False)))
        assert bare[0][3] == "| key: k payload: " + "v" * 20
        plain = run([paths["log"]], Options(LogOptions(deep=True)))
        assert plain[0][3] == "| offset: 100 CreateTime: 1100 keySize: 1 valueSize: 20 sequence: -1 headerKeys: []"


def test_json_is_an_object_per_item(tmp_path: Path) -> None:
    raw = encode_batch([Record(100, 1, b"\xff", None, (("h", b"1"),))], base_offset=100, producer_id=1, base_sequence=4)
    with segment(tmp_path, bytes(raw)) as paths:
        items = [json.loads(json.dumps(item.json())) for item in Dump(DEEP, print).iter_items([paths["log"]])]
    assert [item["type"] for item in items] == ["remark", "remark", "batch", "record"]
    assert items[2]["baseSequence"] == 4
    assert items[2]["isvalid"] is True
    assert items[3] == {
        "type": "record",
        "offset": 100,
        "CreateTime": 1,
        "keySize": 1,
        "valueSize": -1,
        "sequence": 4,
        "headerKeys": ["h"],
        "keyBase64": "/w==",
        "payload": None,
    }


@pytest.mark.slow
def test_a_large_log_passes_through_bounded_memory(tmp_path: Path) -> None:
    one = batch(100, 100, size=10_000)
    with segment(tmp_path, one * 64) as paths:
        assert peak_of(lambda: list(map(id, Dump(DEEP, print).iter_items([paths["log"]])))) < 8 * len(one)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.binary(max_size=200), st.binary(max_size=60), st.binary(max_size=60), st.data())
def test_any_bytes_are_findings_never_a_traceback(
    tmp_path: Path, junk: bytes, index: bytes, timeindex: bytes, data: st.DataObject
) -> None:
    log = bytearray(batch(100) + batch(102, codec=1) + junk)
    for _ in range(data.draw(st.integers(0, 4))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    with segment(tmp_path, bytes(log), index, timeindex) as paths:
        (tmp_path / f"{BASE}.txnindex").write_bytes(junk)
        (tmp_path / f"{BASE}.snapshot").write_bytes(junk)
        names = [*paths.values(), str(tmp_path / f"{BASE}.txnindex"), str(tmp_path / f"{BASE}.snapshot")]
        out, _, _ = run(names)
        assert [line for line in out if line.startswith("Dumping")] == [f"Dumping {name}" for name in names]
