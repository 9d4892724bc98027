"""The small files: Apache Kafka's own to the byte, any value there and back, and refused content."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage import checkpoints as cp
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.producers.producer_state import SnapshotEntry
from ottla.types import TopicPartition

CASES = [
    "records",
    "segments",
    "transactions",
    "compacted",
    "unclean",
    "consumer-offsets",
    "transaction-state",
    "cluster-metadata",
    "format-0.9.0",
    "format-0.10.0",
    "format-2.8",
]
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=20)
PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1))
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
SNAPSHOT_ENTRIES = st.builds(SnapshotEntry, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64)


@pytest.mark.parametrize("name", CASES)
def test_kafkas_own_files_are_read_and_written_again_to_the_byte(golden: Callable, name: str) -> None:
    directory = golden(name).directory
    seen = set()
    for path in directory.rglob("*"):
        if not path.is_file():
            continue
        data = path.read_bytes()
        seen.add(path.name)
        if not data:
            continue  # segments, and a checkpoint before there is something in it
        if path.name.endswith("-offset-checkpoint"):
            assert cp.format_offsets(cp.parse_offsets(data)) == data
        elif path.name == "leader-epoch-checkpoint":
            assert cp.format_epochs(cp.parse_epochs(data)) == data
        elif path.name == "partition.metadata":
            assert cp.format_partition_metadata(cp.parse_partition_metadata(data)) == data
        elif path.suffix == ".snapshot":
            assert cp.format_snapshot(cp.parse_snapshot(data)) == data
        elif path.name == ".kafka_cleanshutdown":
            assert cp.format_clean_shutdown(cp.parse_clean_shutdown(data)) == data
        elif path.name == "meta.properties":
            _meta_properties_again(data)
    assert {"meta.properties", "recovery-point-offset-checkpoint", "partition.metadata"} <= seen


def _meta_properties_again(data: bytes) -> None:
    meta = cp.parse_meta_properties(data)
    written = cp.format_meta_properties(meta, 1_700_000_000_000)
    comment = rb"#\w{3} \w{3} \d\d \d\d:\d\d:\d\d UTC \d{4}\n"
    assert re.sub(comment, b"", written) == re.sub(comment, b"", data)
    assert len(written) == len(data)


def test_known_values(golden: Callable) -> None:
    node = golden("records").directory
    meta = cp.parse_meta_properties((node / "meta.properties").read_bytes())
    assert (meta.node_id, meta.cluster_id, meta.version) == (1, "JkqDWBBNgp5hXNJkcbtEVA", 1)
    assert cp.parse_clean_shutdown((node / ".kafka_cleanshutdown").read_bytes()) == 12
    old = cp.parse_meta_properties((golden("format-2.8").directory / "meta.properties").read_bytes())
    assert (old.node_id, old.directory_id, old.version) == (1, None, 0)
    (entry,) = cp.parse_snapshot((node / "records-0" / f"{52:020}.snapshot").read_bytes())
    assert entry == SnapshotEntry(0, 0, 11, 51, 3, 1700000132000, -1, -1)
    starts = cp.parse_offsets((golden("segments").directory / "log-start-offset-checkpoint").read_bytes())
    assert starts == {TopicPartition("segments", 0): 130}
    assert cp.format_meta_properties(cp.MetaProperties(3, "c"), 0).startswith(b"#\n#Thu Jan 01 00:00:00 UTC 1970\n")


@given(st.dictionaries(PARTITIONS, INT64, max_size=5))
def test_offsets_there_and_back(offsets: dict[TopicPartition, int]) -> None:
    data = cp.format_offsets(offsets)
    assert data.decode().split("\n")[:2] == ["0", str(len(offsets))]
    assert list(cp.parse_offsets(data).items()) == list(offsets.items())


def test_an_incremental_text_equals_one_formatted_at_once() -> None:
    text, now = cp.OffsetText(), {TopicPartition("t", each): each for each in range(50, 0, -1)}
    for change in ({}, {3: 7}, {3: 7, 99: 1}, {60: 0}, {99: None}, {98: None}):
        for number, offset in change.items():
            now[TopicPartition("t", number)] = offset
        for tp, offset in now.items():
            text.set_offset(tp, offset)
        assert text.data == cp.format_offsets({tp: now[tp] for tp in sorted(now) if now[tp] is not None})
    for tp in now:
        text.set_offset(tp, None)
    assert text.data == cp.format_offsets({})


def test_only_lines_that_changed_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker writes the offsets of thousands of partitions every five seconds."""
    made: list[TopicPartition] = []
    line = cp._offset_line
    monkeypatch.setattr(cp, "_offset_line", lambda tp, offset: made.append(tp) or line(tp, offset))
    text = cp.OffsetText()
    for each in range(1000):
        text.set_offset(TopicPartition("t", each), 1)
    first = text.data
    assert len(made) == 1000
    text.set_offset(TopicPartition("t", 5), 1)
    assert text.data is first
    text.set_offset(TopicPartition("t", 5), 2)
    assert text.data is not first
    assert made[1000:] == [TopicPartition("t", 5)]


@given(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), max_size=6))
def test_epochs_there_and_back(numbers: dict[int, int]) -> None:
    epochs = [EpochEntry(*pair) for pair in zip(sorted(numbers), sorted(numbers.values()), strict=True)]
    assert cp.parse_epochs(cp.format_epochs(epochs)) == epochs


@given(st.lists(SNAPSHOT_ENTRIES, max_size=6))
def test_snapshots_there_and_back(entries: list[SnapshotEntry]) -> None:
    data = cp.format_snapshot(entries)
    assert len(data) == 10 + 46 * len(entries)
    assert cp.parse_snapshot(data) == entries


@given(st.lists(SNAPSHOT_ENTRIES, max_size=3), st.data())
def test_a_damaged_snapshot_is_never_half_read(entries: list[SnapshotEntry], data: st.DataObject) -> None:
    whole = cp.format_snapshot(entries)
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(cp.CorruptCheckpoint):
        cp.parse_snapshot(bytes(damaged))
    with pytest.raises(cp.CorruptCheckpoint):
        cp.parse_snapshot(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(
    st.integers(-(2**31), 2**31 - 1),
    st.text("abc-_XYZ", min_size=1, max_size=22),
    st.none() | st.binary(min_size=16, max_size=16),
    st.integers(0, 1),
    st.integers(0, 4 * 10**12),
)
def test_meta_properties_there_and_back(
    node_id: int, cluster: str, directory: bytes | None, version: int, wall_ms: int
) -> None:
    meta = cp.MetaProperties(node_id, cluster, directory, version)
    assert cp.parse_meta_properties(cp.format_meta_properties(meta, wall_ms)) == meta


@given(st.binary(min_size=16, max_size=16).filter(any), st.integers(-1, 2**63 - 1))
def test_the_one_value_files_there_and_back(topic_id: bytes, epoch: int) -> None:
    assert cp.parse_partition_metadata(cp.format_partition_metadata(topic_id)) == topic_id
    assert cp.parse_clean_shutdown(cp.format_clean_shutdown(epoch)) == epoch


def test_a_meta_properties_written_by_hand() -> None:
    text = "! by hand\nbroker.id : 7\ncluster.id=a\\:b\nother=1\n"
    assert cp.parse_meta_properties(text.encode()) == cp.MetaProperties(7, "a:b", None, 0)


PARSERS = [
    cp.parse_offsets,
    cp.parse_epochs,
    cp.parse_partition_metadata,
    cp.parse_meta_properties,
    cp.parse_clean_shutdown,
    cp.parse_snapshot,
]


@given(st.sampled_from(PARSERS), st.binary(max_size=80) | st.text("01 2-\n:=ab{}[]\\u", max_size=60).map(str.encode))
def test_anything_else_is_a_named_error(parse: Callable[[bytes], object], data: bytes) -> None:
    with suppress(cp.CorruptCheckpoint):
        parse(data)


@pytest.mark.parametrize(
    ("parse", "data", "why"),
    [
        (cp.parse_offsets, b"0\n", "begins with"),
        (cp.parse_offsets, b"1\n0\n", "version '1'"),
        (cp.parse_offsets, b"0\n2\na 0 1\n", "1 entries where"),
        (cp.parse_offsets, b"0\n0\na 0 1\n", "1 entries where"),
        (cp.parse_offsets, b"0\n1\na 0\n", "topic partition offset"),
        (cp.parse_offsets, b"0\n1\n 0 1\n", "topic partition offset"),
        (cp.parse_offsets, b"0\n1\na -1 1\n", "twice or negative"),
        (cp.parse_offsets, b"0\n2\na 0 1\na 0 2\n", "twice or negative"),
        (cp.parse_offsets, b"0\n1\na 0 9223372036854775808\n", "not an integer in range"),
        (cp.parse_offsets, b"0\n1\na 0 1_0\n", "not an integer in range"),
        (cp.parse_offsets, b"0\n1\na 0 \xd9\xa1\n", "not an integer in range"),
        (cp.parse_offsets, b"0\n1\na 0 " + b"9" * 5000, "not an integer in range"),
        (cp.parse_offsets, b"\xff", "not UTF-8"),
        (cp.parse_epochs, b"0\n1\n1\n", "epoch offset"),
        (cp.parse_epochs, b"0\n1\n-1 0\n", "leader epoch"),
        (cp.parse_epochs, b"0\n2\n1 5\n1 6\n", "leader epoch '1 6' after"),
        (cp.parse_epochs, b"0\n2\n1 5\n2 4\n", "leader epoch '2 4' after"),
        (cp.parse_partition_metadata, b"version: 1\ntopic_id: 8gKoYy3TSTSZ9JLxourNng", "version 0"),
        (cp.parse_partition_metadata, b"version: 0\n", "topic_id"),
        (cp.parse_partition_metadata, b"version: 0\ntopic_id: short", "not a uuid"),
        (cp.parse_partition_metadata, b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "topic id zero"),
        (cp.parse_meta_properties, b"version=2\nnode.id=1\ncluster.id=a\n", "of version 2"),
        (cp.parse_meta_properties, b"version=1\nbroker.id=1\ncluster.id=a\n", "without node.id"),
        (cp.parse_meta_properties, b"version=0\nbroker.id=1\n", "or cluster.id"),
        (cp.parse_meta_properties, b"version=1\nnode.id=x\ncluster.id=a\n", "not an integer"),
        (cp.parse_meta_properties, b"a=\\uzz\n", "hexadecimal"),
        (cp.parse_clean_shutdown, b"{", "not JSON"),
        (cp.parse_clean_shutdown, b"[" * 100_000, "not JSON"),
        (cp.parse_clean_shutdown, b"[]", "not of version 0"),
        (cp.parse_clean_shutdown, b'{"version":0,"brokerEpoch":true}', "broker epoch True"),
        (cp.parse_snapshot, bytes(9), "of 9 bytes"),
        (cp.parse_snapshot, b"\0\2" + bytes(8), "of version 2"),
        (cp.parse_snapshot, b"\0\1" + bytes(8), "wrong checksum"),
        (cp.parse_snapshot, cp.format_snapshot([]) + bytes(46), "wrong checksum"),
    ],
)
def test_invalid_checkpoints_are_refused(parse: Callable[[bytes], object], data: bytes, why: str) -> None:
    with pytest.raises(cp.CorruptCheckpoint, match=why):
        parse(data)


def test_empty_files_of_kafka_are_read() -> None:
    """It creates checkpoints before there is something in them; the marker of older brokers is always empty."""
    assert cp.parse_clean_shutdown(b"") == -1
    assert cp.parse_offsets(b"") == {}
    assert cp.parse_epochs(b"") == []
