"""kafka-dump-log where it differs from Apache Kafka's: words, words for damage, bounds of reports."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ottla.kafka_tools.main import load_tool, run_tool
from ottla.record.batch import Record, encode_batch
from ottla.storage.dump import indexes, log
from ottla.storage.dump.files import BatchFile

BASE = f"{0:020}"


def dump(*words: str) -> int:
    return run_tool(load_tool("kafka-dump-log"), words)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A log of three batches, whose offsets 0, 1, 5 and 9 have two gaps."""
    path = tmp_path / f"{BASE}.log"
    batches = [(0, 2), (5, 1), (9, 1)]
    path.write_bytes(
        b"".join(encode_batch([Record(first + n, 1, b"k", b"v") for n in range(count)]) for first, count in batches)
    )
    return path


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--value-decoder-class", "kafka.serializer.DefaultDecoder"), "java.lang.RuntimeException: Failed to load"),
        (("--key-decoder-class", "my.Decoder"), "java.lang.RuntimeException: Failed to load decoder class my.Decoder"),
        (("--max-bytes", "x"), "joptsimple.OptionArgumentConversionException: Cannot parse argument 'x'"),
        (("--max-bytes", "3000000000"), "joptsimple.OptionArgumentConversionException: Cannot parse argument"),
        (("--max-message-size", "-1"), "java.lang.IllegalArgumentException: Invalid size: -1"),
        (("--cluster-metadata-decoder",), "--cluster-metadata-decoder is an option of Apache Kafka's tool that"),
    ],
)
def test_words_are_checked_before_files(
    segment: Path, words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dump("--files", str(segment), *words) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert error in shown.err
    assert len(shown.err.splitlines()) == 1


def test_the_old_name_of_the_decoder(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dump("--files", str(segment), "--value-decoder-class", "kafka.serializer.StringDecoder") == 0
    assert capsys.readouterr().out.count(" key: k payload: v\n") == 4


def test_the_first_file_that_fails_ends_the_run(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment.write_bytes(segment.read_bytes() + bytes(40))
    assert dump("--deep-iteration", "--files", f"{segment},{segment}") == 1
    shown = capsys.readouterr()
    assert shown.out.count("Dumping") == 1
    assert shown.err == (
        "org.apache.kafka.common.errors.CorruptRecordException: Found record size 0 smaller than minimum record "
        f"overhead (14) in file {segment}.\n"
    )


def test_a_log_that_is_named_twice_has_the_gaps_of_one(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dump("--deep-iteration", "--files", f"{segment},{segment}") == 0
    shown = capsys.readouterr()
    assert shown.out.count("Dumping") == 2
    assert shown.err == f"Non-consecutive offsets in {segment}\n  1 is followed by 5\n  5 is followed by 9\n"


def test_a_directory_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    """In some file systems a directory has 0 bytes, and would be shown as an empty file."""
    with pytest.raises(IsADirectoryError):
        BatchFile(str(tmp_path))


def test_directories_and_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"{BASE}.txnindex").mkdir()
    assert dump("--files", f"{tmp_path}/{BASE}.txnindex") == 1
    assert f"java.io.IOException: {tmp_path}/{BASE}.txnindex: Is a directory" in capsys.readouterr().err
    assert dump("--files", f"{tmp_path}/{1:020}.txnindex") == 1
    assert capsys.readouterr().err == f"java.nio.file.NoSuchFileException: {tmp_path}/{1:020}.txnindex\n"


def test_a_cut_transaction_index_is_shown_up_to_the_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"{BASE}.txnindex"
    path.write_bytes(struct.pack(">hqqqq", 0, 1, 2, 3, 4) + b"abc")
    assert dump("--files", str(path)) == 1
    shown = capsys.readouterr()
    assert "version: 0 producerId: 1 firstOffset: 2 lastOffset: 3 lastStableOffset: 4\n" in shown.out
    assert shown.err.startswith("org.apache.kafka.storage.internals.log.CorruptIndexException: ")
    assert "3 bytes after the last whole entry" in shown.err


def test_reports_are_bounded(
    segment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(indexes, "MISMATCHES_MAX", 3)
    monkeypatch.setattr("ottla.storage.dump.tool.MISMATCHES_MAX", 3)
    monkeypatch.setattr(log, "GAPS_MAX", 1)
    index = segment.with_suffix(".index")
    index.write_bytes(b"".join(struct.pack(">ii", 100 + n, 0) for n in range(9)))
    times = segment.with_suffix(".timeindex")
    times.write_bytes(b"".join(struct.pack(">qi", 5 - n, 100 + n) for n in range(5)))
    assert dump("--deep-iteration", "--files", f"{index},{times},{segment}") == 0
    shown = capsys.readouterr().err
    assert shown.count("Index offset: ") == 3
    assert shown.count("Indexed offset: ") == 3
    assert shown.count("  There may be more: only the first 3 are listed.") == 2
    assert shown.count(" is followed by ") == 1
    assert "  There may be more: only the first 1 are listed." in shown
