"""`ottla topic delete-records` against a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Ottla


@pytest.fixture
def topic(ottla: Ottla, request: pytest.FixtureRequest) -> str:
    """A topic with 10 records, a second apart, in each of two partitions."""
    name = f"deletion-{abs(hash(request.node.name))}"
    assert ottla("topic", "create", name, "-p", "2").exit_code == 0
    lines = [
        {"partition": at % 2, "value": str(at), "timestamp": 1_700_000_000_000 + at // 2 * 1000} for at in range(20)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert ottla("produce", name, "--jsonl", "--acks", "all", stdin=text).exit_code == 0
    return name


def starts(ottla: Ottla, topic: str) -> list[int]:
    (described,) = json.loads(ottla("topic", "describe", topic, "-o", "json").stdout)
    return [each["start_offset"] for each in described["partitions"]]


@pytest.mark.parametrize(
    ("before", "low"),
    [("4", 4), ("end", 10), ("-3", 7), ("+2", 2), ("@2023-11-14T22:13:25Z", 5), ("@1800000000", 10), ("start", 0)],
)
def test_where_records_are_deleted(ottla: Ottla, topic: str, before: str, low: int) -> None:
    shown = ottla("topic", "delete-records", topic, "--before", before, "--yes", "-o", "jsonl")
    assert shown.exit_code == 0, shown.stderr
    assert [json.loads(line) for line in shown.stdout.splitlines()] == [
        {"topic": topic, "partition": number, "start_offset": 0, "before": low, "low_watermark": low}
        for number in (0, 1)
    ]
    assert starts(ottla, topic) == [low, low]


def test_a_dry_run_and_a_missing_yes_delete_nothing(ottla: Ottla, topic: str) -> None:
    shown = ottla("topic", "delete-records", f"{topic}:1", "--before", "end", "--dry-run")
    assert shown.stdout.splitlines()[1].split() == [topic, "1", "0", "10", "-"]
    assert "nothing was deleted" in shown.stderr
    refused = ottla("topic", "delete-records", topic, "--before", "end")
    assert (refused.exit_code, "add --yes" in refused.stderr) == (2, True)
    assert starts(ottla, topic) == [0, 0]


def test_an_offset_past_the_end_is_refused_for_its_partition(ottla: Ottla, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    rows = [{"topic": topic, "partition": 0, "offset": 11}, {"topic": topic, "partition": 1, "offset": 3}]
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    shown = ottla("topic", "delete-records", "--offset-json-file", str(file), "--yes", "-o", "json")
    assert shown.exit_code == 1
    assert json.loads(shown.stderr)["error"]["code"] == "OFFSET_OUT_OF_RANGE"
    assert [(each["partition"], each["low_watermark"]) for each in json.loads(shown.stdout)] == [(1, 3)]
    assert starts(ottla, topic) == [0, 3]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"partitions": []}', '{"partitions": [{"topic": "t"}]}', '{"partitions": [1]}', "[" * 100_000,
     '{"partitions": [{"topic": "t", "partition": true, "offset": 1}]}',
     '{"partitions": [{"topic": "t", "partition": 0, "offset": 1e3}]}',
     '{"partitions": [{"topic": "t", "partition": 0, "offset": -2}]}',
     '{"version": 2, "partitions": [{"topic": "t", "partition": 0, "offset": 1}]}',
     '{"partitions": [{"topic": "t", "partition": 0, "offset": 1}, {"topic": "t", "partition": 0, "offset": 2}]}'],
)  # fmt: skip
def test_bad_files(ottla: Ottla, text: str) -> None:
    shown = ottla("topic", "delete-records", "--offset-json-file", "-", "--yes", stdin=text)
    assert shown.exit_code == 2, shown.stderr


def test_wrong_words(ottla: Ottla, topic: str) -> None:
    for words in ([], [topic], ["--before", "1"], [topic, "--before", "1:2"], [topic, "--before", "soon"],
                  [f"{topic}:x", "--before", "1"], [topic, "--before", "1", "--offset-json-file", "-"]):  # fmt: skip
        assert ottla("topic", "delete-records", *words, "--yes").exit_code == 2, words
    assert ottla("topic", "delete-records", "not-there", "--before", "1", "--yes").exit_code == 3
    assert ottla("topic", "delete-records", f"{topic}:7", "--before", "1", "--yes").exit_code == 3
    assert ottla("topic", "delete-records", "--offset-json-file", "/not/there", "--yes").exit_code in (1, 2)
