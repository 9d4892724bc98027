"""kafka-dump-log beside Apache Kafka's own: files of both brokers, damaged files, and files that are no logs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator
from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from testbench.clients import Confluent, Record
from testbench.ottla_node import OttlaNode
from tests.conftest import Golden
from tests.interop.kafka_tools.comparison import Comparison

from ottla.record import batch

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

KINDS = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "2048"}
VALUE = bytes(range(200)) * 20
RECORDS = [Record(b"k%d" % number, VALUE, (("h", b"1"),), 1_700_000_000_000 + number) for number in range(200)]
OPTIONS = (
    "",
    "--deep-iteration",
    "--print-data-log",
    "--print-data-log --skip-record-metadata",
    "--value-decoder-class org.apache.kafka.tools.api.StringDecoder --max-bytes 9000",
    "--verify-index-only --max-message-size 200000",
)
BASE = f"{0:020}"
_SIZE = struct.Struct(">i")


def compare_segments(both: Comparison, directory: Path, *options: str, kinds: Collection[str] = KINDS) -> None:
    """The files of each segment in a run of its own, because Kafka's reports come in the order of a hash table."""
    found = [each for each in sorted(directory.iterdir()) if each.suffix in kinds]
    assert found, directory
    for _, files in groupby(found, lambda each: each.stem):
        compare_files(both, ",".join(map(str, files)), *options)


def compare_files(both: Comparison, files: str, *options: str) -> None:
    lines = "\n".join(f"{each} --files {files}" for each in options)
    both.compare("kafka-dump-log", lines, same_words=True)


@pytest.fixture
def written(both: Comparison, authorized_node: OttlaNode) -> Iterator[Path]:
    """The data directory of an Ottla broker with every codec, an aborted transaction, and a group."""
    topic = f"{both.ottla_prefix}t"
    admin = AdminClient({"bootstrap.servers": both.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=SMALL)])[topic].result(60)
    producer = Producer({"bootstrap.servers": both.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"value", b"key")
        assert producer.flush(60) == 0
        end(60)
    # After the abort, because the transaction index is in its file when the segment is closed.
    for codec in ("none", "none", "gzip", "snappy", "lz4", "zstd"):
        Confluent().write(both.bootstrap, topic, RECORDS, codec, **{"batch.num.messages": 20})
    consumer = Consumer({"bootstrap.servers": both.bootstrap, "group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    yield authorized_node.data
    admin.delete_topics([topic])[topic].result(60)


def test_files_of_ottla(both: Comparison, written: Path) -> None:
    directory = written / f"{both.ottla_prefix}t-0"
    assert len(list(directory.glob("*.log"))) > 1
    assert any(each.stat().st_size for each in directory.glob("*.txnindex"))
    compare_segments(both, directory, *OPTIONS)
    compare_segments(both, directory, "--index-sanity-check", kinds=(".index", ".timeindex"))


def test_internal_topics_of_ottla(both: Comparison, written: Path) -> None:
    for topic, option in (("__consumer_offsets", "offsets"), ("__transaction_state", "transaction-log")):
        logs = [each for each in written.glob(f"{topic}-*/*.log") if each.stat().st_size]
        assert logs
        for log in logs:
            compare_files(both, str(log), f"--{option}-decoder", f"--{option}-decoder --skip-record-metadata")


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("records", OPTIONS),
        ("transactions", OPTIONS[:4]),
        ("compacted", OPTIONS[:2]),
        ("consumer-offsets", ("--offsets-decoder",)),
        ("transaction-state", ("--transaction-log-decoder",)),
    ],
)
def test_files_of_apache_kafka(
    both: Comparison, golden: Callable[[str], Golden], case: str, options: tuple[str, ...]
) -> None:
    for directory in sorted(each for each in golden(case).directory.glob("*-[0-9]*") if each.is_dir()):
        if any(each.stat().st_size for each in directory.glob("*.log")):
            compare_segments(both, directory, *options)


def replaced(data: bytes, at: int, part: bytes) -> bytes:
    return data[:at] + part + data[at + len(part) :]


def end_of_first(log: bytes) -> int:
    return 12 + _SIZE.unpack_from(log, 8)[0]


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "cut": ("log", lambda log: log[:-7]),
    "cut-header": ("log", lambda log: log[: end_of_first(log) + 10]),
    "checksum": ("log", lambda log: replaced(log, 17, b"\0\1\2\3")),
    "records": ("log", lambda log: replaced(log, end_of_first(log) - 1, b"\1")),
    "count": ("log", lambda log: replaced(log, 57, _SIZE.pack(99))),
    "zeros": ("log", lambda log: log[: end_of_first(log)] + bytes(200)),
    "size-first": ("log", lambda log: replaced(log, 8, _SIZE.pack(-1))),
    "size-second": ("log", lambda log: replaced(log, end_of_first(log) + 8, _SIZE.pack(13))),
    "size-large": ("log", lambda log: replaced(log, 8, _SIZE.pack(2**31 - 1))),
    "text": ("log", lambda log: b"This is a text, which is longer than a header of a batch. " * 5),
    "few-bytes": ("log", lambda log: b"abc"),
    "empty": ("log", lambda log: b""),
    "index-cut": ("index", lambda index: b"abc"),
    "index-negative": ("index", lambda index: struct.pack(">iiii", -5, 0, -7, 0)),
    "time-cut": ("timeindex", lambda index: index[:-5]),
    "time-order": ("timeindex", lambda index: struct.pack(">qiqiqi", 5, 7, 4, 15, 3, 16)),
    "snapshot-checksum": ("snapshot", lambda snapshot: replaced(snapshot, 2, b"\0\0\0\0")),
    "snapshot-version": ("snapshot", lambda snapshot: replaced(snapshot, 0, b"\0\7")),
    "snapshot-empty": ("snapshot", lambda snapshot: b""),
}


def test_damaged_files(both: Comparison, golden: Callable[[str], Golden], tmp_path: Path) -> None:
    source = golden("records").directory / "records-0"
    for name, (damaged, change) in DAMAGE.items():
        (tmp_path / name).mkdir()
        for kind in ("log", "index", "timeindex", "snapshot"):
            (found,) = source.glob(f"*.{kind}")
            content = found.read_bytes()
            (tmp_path / name / f"{BASE}.{kind}").write_bytes(change(content) if kind == damaged else content)
        options = ["", "--deep-iteration"]
        if damaged.endswith("index"):
            options += ["--index-sanity-check", "--verify-index-only"]
        compare_files(both, str(tmp_path / name / f"{BASE}.{damaged}"), *options)


def test_files_that_are_named_twice(both: Comparison, tmp_path: Path) -> None:
    """A log without gaps, one with gaps, and indexes with faults."""
    first, second = (batch.encode_batch([batch.Record(offset, 5, b"k", b"v")]) for offset in (0, 7))
    (tmp_path / f"{BASE}.log").write_bytes(first)
    (tmp_path / f"{1:020}.log").write_bytes(first + second)
    (tmp_path / f"{BASE}.index").write_bytes(struct.pack(">iiii", 3, 0, 4, 0))
    (tmp_path / f"{BASE}.timeindex").write_bytes(struct.pack(">qiqi", 9, 3, 8, 4))
    for name in (f"{BASE}.log", f"{1:020}.log", f"{BASE}.index", f"{BASE}.timeindex"):
        compare_files(both, f"{tmp_path}/{name},{tmp_path}/{name}", "", "--deep-iteration")


def test_other_files_and_words(both: Comparison, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "x.index").write_bytes(bytes(8))
    (tmp_path / f"{9:020}.index").write_bytes(bytes(8))
    both.compare(
        "kafka-dump-log",
        f"""
        --files {tmp_path}
        --files {tmp_path}/notes.txt,,{tmp_path}/missing.txt,,
        --files=''
        --files {tmp_path}/x.index,{tmp_path}/notes.txt
        --files {tmp_path}/missing.log
        --files {tmp_path}/{9:020}.index
        --files {tmp_path}/{BASE}.log
        --files {tmp_path}/{BASE}.snapshot
        --files x --files y
        -files x ignored --deep-iteration
        --files
        --fil x
        --print-data-log
        --nonsense
        """,
    )
