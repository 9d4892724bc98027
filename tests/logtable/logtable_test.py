"""The log as a table, without Spark: golden directories compared with the output of Kafka's tools and consumers."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.logtable.columns import ARROW_SCHEMA
from ottla.logtable.errors import CorruptLog, LogChanged
from ottla.logtable.options import log_options
from ottla.logtable.reading import ROWS, read_segment, segments_of
from ottla.record.batch import HEADER_SIZE, Record, encode_batch, patch_offset_and_epoch, seal_crc
from ottla.record.control import Marker, marker_batch
from ottla.spark.errors import BadOption


def table(path: Path | str, **options: str) -> pa.Table:
    batches = [
        batch for segment in segments_of(log_options({"path": str(path), **options})) for batch in read_segment(segment)
    ]
    assert all(batch.num_rows <= ROWS for batch in batches)
    return pa.Table.from_batches(batches, ARROW_SCHEMA)


def rows(path: Path | str, **options: str) -> list[dict[str, Any]]:
    return table(path, **options).to_pylist()


def as_consumer_saw(row: Mapping[str, Any]) -> tuple[Any, ...]:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    millis = -1 if row["timestamp"] is None else round(row["timestamp"].timestamp() * 1000)
    kind = row["timestampType"] + 1
    millis = millis if kind else 0  # what that consumer printed without a timestamp
    return (row["partition"], row["offset"], millis, kind, row["key"], row["value"], headers, row["leaderEpoch"])


@pytest.mark.parametrize(
    ("case", "topic", "file", "isolation"),
    [
        ("records", "records", "records", "read_committed"),
        ("records", "append-time", "append-time", "read_uncommitted"),
        ("records", "broker-codec", "broker-codec", "read_committed"),
        ("segments", "segments", "segments", "read_uncommitted"),
        ("transactions", "txn", "txn.committed", "read_committed"),
        ("transactions", "txn", "txn.uncommitted", "read_uncommitted"),
        ("compacted", "compacted", "compacted", "read_committed"),
        ("format-0.9.0", "format-0.9.0", "format-0.9.0", "read_uncommitted"),
        ("format-0.10.0", "format-0.10.0", "format-0.10.0", "read_committed"),
        ("format-2.8", "format-2.8", "format-2.8", "read_committed"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_isolation_level_shows_what_its_consumer_saw(
    golden: Callable, case: str, topic: str, file: str, isolation: str
) -> None:
    found = golden(case)
    expected = sorted(tuple(record) for record in found.records(file))
    seen = sorted(as_consumer_saw(row) for row in rows(found.directory, topic=topic, isolation=isolation))
    if expected[0][0] is None:  # there is one partition, and consumers did not print epochs then
        seen = [(None, *row[1:-1], None) for row in seen]
    assert len(seen) == len(expected)
    assert seen == expected


BATCH = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*producerId: (-?\d+) producerEpoch: (-?\d+) "
    r"partitionLeaderEpoch: (-?\d+) .*isControl: (\w+) .*position: (\d+) .*compresscodec: (\w+)"
)


@pytest.mark.parametrize("case", ["records", "segments", "transactions", "compacted", "unclean", "consumer-offsets"])
def test_everything_in_the_files_is_what_the_dump_tool_printed(golden: Callable, case: str) -> None:
    """Batch by batch, with the fields of its header; a batch that the cleaner emptied has no rows."""
    found = golden(case)
    file, printed = "", {}
    for line in found.dump().splitlines():
        if line.startswith("Dumping "):
            file = line.removeprefix("Dumping ")
        elif match := BATCH.match(line):
            base, last, count, producer, epoch, leader, control, position, codec = match.groups()
            about = int(base), int(last), int(producer), int(epoch), int(leader), control == "true", codec.lower()
            if int(count):
                printed[file, int(position)] = (int(count), *about)
    seen: Counter[Any] = Counter()
    names = ("batchBaseOffset", "batchLastOffset", "producerId", "producerEpoch", "leaderEpoch")
    for row in rows(found.directory):
        file = str(Path(row["segment"]).relative_to(found.directory))
        about = [-1 if row[name] is None else row[name] for name in names]
        seen[(file, row["position"]), (*about, row["control"] is not None, row["compression"])] += 1
    dumped = {file for file, _ in printed}
    assert {at: (count, *about) for (at, about), count in seen.items() if at[0] in dumped} == printed


def test_the_outcome_of_transactions_is_shown(golden: Callable) -> None:
    """read_committed leaves out aborted records, and everything from the first open transaction on."""
    found = golden("transactions")
    everything = rows(found.directory, topic="txn")
    committed = {(record.partition, record.offset) for record in found.records("txn.committed")}
    by_state = Counter(row["transaction"] for row in everything if row["control"] is None)
    assert by_state == {"committed": 211, "aborted": 150, "open": 1, None: 30}
    ends = {row["partition"]: row["offset"] for row in reversed(everything) if row["transaction"] == "open"}
    good = [row for row in everything if row["control"] is None and row["transaction"] in ("committed", None)]
    places = {(row["partition"], row["offset"]) for row in good}
    assert {place for place in places if place[1] < ends.get(place[0], 1 << 60)} == committed
    assert {row["control"] for row in everything} == {None, "COMMIT", "ABORT"}
    assert all(row["transaction"] is None for row in everything if row["control"] is not None)


def test_records_below_the_start_of_the_log_are_marked(golden: Callable) -> None:
    found = golden("segments")
    below = [row["offset"] for row in rows(found.directory, topic="segments") if row["belowLogStart"]]
    assert below == list(range(94, 130))


def test_sequences_count_on_within_a_batch_and_around_the_end(tmp_path: Path) -> None:
    records = [Record(number, 5, b"k", b"v") for number in range(3)]
    write(tmp_path, 0, encode_batch(records, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert [row["sequence"] for row in rows(tmp_path)] == [2**31 - 2, 2**31 - 1, 0]


def write(directory: Path, base_offset: int, *batches: bytes | bytearray, name: str = "t-0") -> Path:
    path = directory / name / f"{base_offset:020}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(batches))
    return path


def in_transaction(offset: int, producer: int = 7) -> bytearray:
    records = [Record(offset, 5, None, b"v%d" % offset)]
    return encode_batch(records, base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True)


def marker(offset: int, commit: bool, producer: int = 7) -> bytearray:
    batch = marker_batch(producer, 0, Marker(commit, 0), 5)
    patch_offset_and_epoch(batch, 0, offset, 0)
    return batch


def test_a_transaction_may_end_in_a_later_segment(tmp_path: Path) -> None:
    write(tmp_path, 0, in_transaction(0), in_transaction(1, producer=8))
    write(tmp_path, 2, in_transaction(2, producer=9), in_transaction(3))
    write(tmp_path, 4, marker(4, commit=True, producer=8), marker(5, commit=False), in_transaction(6))
    states = {row["offset"]: row["transaction"] for row in rows(tmp_path) if row["control"] is None}
    assert states == {0: "aborted", 1: "committed", 2: "open", 3: "aborted", 6: "open"}
    assert [row["offset"] for row in rows(tmp_path, isolation="read_committed")] == [1]
    assert [row["offset"] for row in rows(tmp_path, isolation="read_uncommitted")] == [0, 1, 2, 3, 6]


def test_a_batch_cut_by_a_crash_ends_the_log(tmp_path: Path) -> None:
    path = write(tmp_path, 0, in_transaction(0), in_transaction(1)[:-1])
    assert [row["offset"] for row in rows(tmp_path)] == [0]
    path.write_bytes(in_transaction(0) + bytes(5000))  # space that was reserved
    assert [row["offset"] for row in rows(tmp_path)] == [0]
    path.write_bytes(in_transaction(0) + in_transaction(1)[:-1])
    write(tmp_path, 2, in_transaction(2))
    with pytest.raises(CorruptLog, match=r"0\.log at position \d+: \d+ bytes are not a whole batch.*copy it again"):
        rows(tmp_path)
    assert [row["offset"] for row in rows(tmp_path, onCorrupt="skip")] == [0, 2]


def test_a_damaged_batch_is_reported_or_skipped(tmp_path: Path) -> None:
    bad_sum, bad_records, huge = in_transaction(1), in_transaction(2), in_transaction(4)
    bad_sum[-1] ^= 1
    bad_records[HEADER_SIZE] = 0x7E  # a record that is longer than its batch, with a matching checksum
    seal_crc(bad_records, 0, len(bad_records))
    path = write(tmp_path, 0, in_transaction(0), bad_sum, bad_records, in_transaction(3))
    with pytest.raises(CorruptLog, match="the batch at offset 1 does not match its checksum"):
        rows(tmp_path)
    assert [row["offset"] for row in rows(tmp_path, onCorrupt="skip")] == [0, 3]
    path.write_bytes(in_transaction(0) + bad_records)
    with pytest.raises(CorruptLog, match="a record"):
        rows(tmp_path)
    huge[8:12] = (10).to_bytes(4, "big")
    path.write_bytes(in_transaction(0) + huge)
    with pytest.raises(CorruptLog, match="batch of size 10"):
        rows(tmp_path)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": ""}, "path is missing"),
        ({"path": "{}/nowhere"}, "path cannot be read.*No such file"),
        ({"path": "{}/t-0/x"}, "holds no directory of a partition"),
        ({"path": "{}, {}/t-0"}, "holds t-0 twice.*the directories of one broker"),
        ({"topic": "t,u"}, "'u' is not in the directories; there are: t"),
        ({"partition": "1"}, "1 is not in the directories"),
        ({"partition": "0,x"}, "must be numbers with commas between them, not 'x'"),
        ({"isolation": "serializable"}, "isolation must be all, read_uncommitted or read_committed"),
        ({"onCorrupt": "perhaps"}, "must be fail or skip"),
        ({"isolationn": "all"}, "did you mean isolation"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_invalid_options_are_refused_by_name(tmp_path: Path, options: dict[str, str], text: str) -> None:
    write(tmp_path, 0, in_transaction(0))
    (tmp_path / "t-0" / "x").mkdir()
    given = {"path": str(tmp_path), **{key: value.replace("{}", str(tmp_path)) for key, value in options.items()}}
    with pytest.raises(BadOption, match=f"Option .*{text}"):
        segments_of(log_options(given))


def test_a_partition_alone_and_several_directories_can_be_named(golden: Callable, tmp_path: Path) -> None:
    directory = golden("transactions").directory
    write(tmp_path, 0, in_transaction(0))
    one = rows(directory / "txn-1")
    assert {row["partition"] for row in one} == {1}
    assert len(rows(f"{directory / 'txn-1'}, file://{tmp_path}")) == len(one) + 1
    assert {row["topic"] for row in rows(f"{directory},{tmp_path}", partition="0", topic="t,txn")} == {"t", "txn"}


def test_a_segment_removed_during_the_query_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, 0, in_transaction(0))
    (segment,) = segments_of(log_options({"path": str(tmp_path)}))
    path.rename(path.with_name(path.name + ".deleted"))
    with pytest.raises(LogChanged, match=r"0\.log: No such file or directory.*read a copy"):
        list(read_segment(segment))
    assert rows(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", ["records", "transactions", "format-0.9.0", "format-0.10.0"])
def test_bytes_changed_at_random_are_reported_or_skipped(golden: Callable, case: str, tmp_path: Path) -> None:
    chance = random.Random(case)
    source = next(path for path in sorted(golden(case).directory.glob("*-0/*.log")) if path.stat().st_size > 500)
    good = source.read_bytes()
    told = 0
    for _ in range(15):
        bad = bytearray(good)
        for _ in range(chance.choice((1, 1, 3))):
            bad[chance.randrange(min(len(bad), 3000))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        write(tmp_path, 0, bad[: chance.choice((len(bad), chance.randrange(len(bad))))])
        for isolation in ("all", "read_committed"):
            try:
                rows(tmp_path, isolation=isolation)
            except CorruptLog:
                told += 1
            rows(tmp_path, isolation=isolation, onCorrupt="skip")
    assert told > 10


@pytest.mark.parametrize("case", ["transactions", "format-0.9.0", "format-0.10.0"])
@pytest.mark.parametrize("offset", [2**63 - 1, -1, -(2**63)])
def test_impossible_offsets_are_reported(golden: Callable, case: str, offset: int, tmp_path: Path) -> None:
    """The checksum does not cover them."""
    source = next(path for path in sorted(golden(case).directory.glob("*-0/*.log")) if path.stat().st_size > 500)
    bad = bytearray(source.read_bytes())
    bad[:8] = offset.to_bytes(8, "big", signed=True)
    write(tmp_path, 0, bad)
    with pytest.raises(CorruptLog, match=r"\.log at position \d+: .*offset"):
        rows(tmp_path)
    rows(tmp_path, onCorrupt="skip", isolation="read_committed")


@pytest.mark.parametrize("case", ["format-0.9.0", "format-0.10.0"])
def test_messages_of_old_formats_are_also_checked(golden: Callable, case: str, tmp_path: Path) -> None:
    source = next(path for path in sorted(golden(case).directory.glob("*-0/*.log")) if path.stat().st_size > 500)
    bad = bytearray(source.read_bytes())
    size = 12 + int.from_bytes(bad[8:12], "big")
    bad[size - 1] ^= 1  # the last byte of the first value
    write(tmp_path, 0, bad)
    with pytest.raises(CorruptLog, match="position 0: the message at offset 0 does not match its checksum"):
        rows(tmp_path)
    assert rows(tmp_path, onCorrupt="skip")[0]["offset"] == 1
