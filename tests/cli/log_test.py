"""`ottla log dump` as people run it: options of kafka-dump-log, text and JSON, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ottla.cli.commands.log import log


def dump(*words: str) -> Result:
    return CliRunner().invoke(log, ["dump", *words])


def test_files_in_kafkas_words_and_in_ours(golden: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(golden("records").directory)
    names = [f"records-0/{0:020}.log", f"records-0/{52:020}.snapshot"]
    kafka = dump("--files", ",".join(names), "--deep-iteration", "--print-data-log")
    ours = dump(*names, "--print-data-log")
    assert kafka.exit_code == ours.exit_code == 0
    assert kafka.stdout == ours.stdout
    assert kafka.stdout.splitlines()[-1].startswith("producerId: 0 producerEpoch: 0 coordinatorEpoch: -1")
    printed = golden("records").dump().splitlines()
    assert [line for line in kafka.stdout.splitlines() if line not in printed] == []
    assert len(kafka.stdout.splitlines()) > 60


def test_reports_go_to_stderr(golden: Callable) -> None:
    path = str(golden("segments").directory / "segments-0" / f"{94:020}.log")
    result = dump(path, "--deep-iteration")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [f"Non-consecutive offsets in {path}", "  -1 is followed by 94"]


def test_json_lines(golden: Callable) -> None:
    result = dump(str(golden("records").directory / "records-1" / f"{0:020}.log"), "-o", "json", "--deep-iteration")
    items = [json.loads(line) for line in result.stdout.splitlines()]
    assert [item["type"] for item in items[:4]] == ["remark", "remark", "batch", "record"]
    assert {item["compresscodec"] for item in items if item["type"] == "batch"} == {
        "none",
        "gzip",
        "snappy",
        "lz4",
        "zstd",
    }


@pytest.mark.parametrize(
    ("case", "option", "words"),
    [
        ("consumer-offsets", "--offsets-decoder", '"group":"classic-group"'),
        ("transaction-state", "--transaction-log-decoder", '"transactionalId":"tx-a"'),
    ],
)
def test_a_decoder_implies_printing(golden: Callable, case: str, option: str, words: str) -> None:
    (path,) = golden(case).directory.glob("__*/*.log")
    result = dump(str(path), option)
    assert result.exit_code == 0
    assert words in result.stdout
    assert words not in dump(str(path), "--print-data-log").stdout


def test_index_options(golden: Callable) -> None:
    path = str(golden("segments").directory / "segments-0" / f"{94:020}.index")
    assert dump(path, "--index-sanity-check").stdout == f"Dumping {path}\n{path} passed sanity check.\n"
    assert dump(path, "--verify-index-only").stdout == f"Dumping {path}\n"
    small = dump(path, "--verify-index-only", "--max-message-size", "100")
    assert small.stderr.startswith(f"Mismatches in :{path}\n  Index offset: 187, log offset: -1\n")


def test_record_and_size_options(golden: Callable) -> None:
    path = str(golden("records").directory / "records-0" / f"{0:020}.log")
    bare = dump(path, "--print-data-log", "--skip-record-metadata").stdout.splitlines()
    assert bare[3] == "| key: key-0 payload: none value 1 "
    assert len(dump(path, "--max-bytes", "1400").stdout.splitlines()) == 3


def test_what_cannot_be_read_is_exit_code_1(tmp_path: Path) -> None:
    missing = str(tmp_path / f"{0:020}.log")
    result = dump(missing)
    assert result.exit_code == 1
    assert result.stderr == f"{missing}: No such file or directory\n"


def test_a_missing_file_of_any_name_is_an_error_and_a_directory_gets_a_hint(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    assert dump(missing).exit_code == 1
    assert "No such file" in dump(missing).stderr
    assert "a directory; name the files in it" in dump(str(tmp_path)).stderr


def test_usage() -> None:
    assert dump().exit_code == 2
    both = dump("x", "--offsets-decoder", "--transaction-log-decoder")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr
