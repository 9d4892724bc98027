"""Our dump of the golden directories has the same lines as that of Apache Kafka's tool."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from ottla.storage.dump.decoders import as_offsets, as_transactions
from ottla.storage.dump.log import Decoder, LogOptions
from ottla.storage.dump.tool import Dump, Options

PLAIN = ["records", "segments", "transactions", "compacted", "unclean"]
OLD = ["format-0.9.0", "format-0.10.0", "format-2.8"]


class Run(NamedTuple):
    """One run of Kafka's tool inside a golden dump: its file arguments, and its output."""

    files: list[str]
    shallow: bool
    printed: list[str]


def runs_of(text: str) -> Iterator[Run]:
    """A run's lines begin with a file's "Dumping"; headings and the text files before it are the collector's own."""
    run: Run | None = None
    for line in text.splitlines():
        heading = line.startswith(("##### ", "== "))
        if run is not None and heading:
            yield run
        if heading:
            run = None
            shallow = line.startswith("== shallow")
        elif line.startswith("Dumping ") and run is None:
            run = Run([], shallow, [])
        if run is not None:
            run.printed.append(line)
            if line.startswith("Dumping "):
                run.files.append(line.removeprefix("Dumping "))
    if run is not None:
        yield run


def our_lines(run: Run, decoder: Decoder | None = None) -> list[str]:
    options = Options(LogOptions() if run.shallow else LogOptions(deep=True, contents=True))
    if decoder is not None:
        options = Options(options.logs._replace(decoder=decoder))
    complaints: list[str] = []
    dump = Dump(options, complaints.append)
    lines = [item.text() for item in dump.iter_items(run.files)]
    return lines + complaints + [line.replace(os.getcwd() + os.sep, "") for line in dump.report_lines()]


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_lines(name: str, golden: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    case = golden(name)
    monkeypatch.chdir(case.directory)
    runs = list(runs_of(case.dump()))
    assert runs
    for run in runs:
        assert our_lines(run) == run.printed


@pytest.mark.parametrize("name", OLD)
def test_the_same_lines_as_the_tool_of_3_9(name: str, golden: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """That tool had a stray brace after the checksum of v0 and v1 records, and a space after a snapshot's line."""
    case = golden(name)
    monkeypatch.chdir(case.directory)
    runs = list(runs_of(case.dump()))
    assert runs
    for run in runs:
        theirs = [re.sub(r"( isValid: \w+ crc: \d+)}", r"\1", line) for line in run.printed]
        assert our_lines(run) == theirs


@pytest.mark.parametrize(
    ("name", "decoder"), [("consumer-offsets", as_offsets), ("transaction-state", as_transactions)]
)
def test_the_same_lines_of_internal_topics(
    name: str, decoder: Decoder, golden: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = golden(name)
    monkeypatch.chdir(case.directory)
    runs = list(runs_of(case.dump()))
    assert runs
    for run in runs:
        assert our_lines(run, decoder) == run.printed


def test_the_same_batches_and_indexes_of_the_cluster_metadata(
    golden: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of KRaft's own records the metadata is compared and not the content: they are not decoded here."""
    case = golden("cluster-metadata")
    monkeypatch.chdir(case.directory)
    content = re.compile(r" (payload|controlType|LeaderChange|SnapshotHeader|SnapshotFooter|KRaft\w+):? .*", re.DOTALL)
    runs = list(runs_of(case.dump()))
    assert runs
    for run in runs:
        ours = [content.sub("", line) for line in our_lines(run)]
        assert ours == [content.sub("", line) for line in run.printed]
