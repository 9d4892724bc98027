"""`ottla offsets`, and the completion of names, against a broker."""

from __future__ import annotations

import json
import logging

import pytest


@pytest.fixture
def filled(ottla) -> str:
    """Three records in partition 0, the second one the youngest; nothing in partition 1."""
    if ottla("topic", "create", "offsets", "-p", "2").exit_code == 0:
        lines = [{"value": "v", "partition": 0, "timestamp": 1_700_000_000_000 + n * 1_000} for n in (0, 5, 2)]
        ottla("produce", "offsets", "--jsonl", stdin="".join(json.dumps(line) + "\n" for line in lines))
    return "offsets"


@pytest.mark.parametrize(
    ("when", "shown"),
    [
        ([], ["offsets:0:3", "offsets:1:0"]),
        (["--time", "earliest"], ["offsets:0:0", "offsets:1:0"]),
        (["--time", "-2"], ["offsets:0:0", "offsets:1:0"]),
        (["--time", "max-timestamp"], ["offsets:0:1", "offsets:1:"]),
        (["--time", "1700000001000"], ["offsets:0:1", "offsets:1:"]),
        (["--time", "@2023-11-14T22:13:20Z"], ["offsets:0:0", "offsets:1:"]),
    ],
)
def test_offsets_as_kafkas_tool_prints_them(ottla, filled: str, when: list[str], shown: list[str]) -> None:
    assert ottla("offsets", filled, *when).stdout.splitlines() == shown


def test_offsets_of_partitions_and_of_all_topics(ottla, filled: str) -> None:
    assert ottla("offsets", "-t", f"{filled}:1").stdout == "offsets:1:0\n"
    assert "offsets:0:3" in ottla("offsets", "--exclude-internal-topics").stdout.splitlines()
    (found,) = json.loads(ottla("offsets", f"{filled}:0", "--time", "1700000001000", "-o", "json").stdout)
    assert {key: found[key] for key in ("topic", "partition", "offset", "timestamp")} == {
        "topic": "offsets", "partition": 0, "offset": 1, "timestamp": 1_700_000_005_000,
    }  # fmt: skip
    assert ottla("offsets", f"{filled}:9").exit_code == 3
    assert ottla("offsets", "nowhere-at-all").exit_code == 3
    assert ottla("offsets", filled, "--time", "tomorrow").exit_code == 2
    assert ottla("offsets", f"{filled}:x").exit_code == 2


def test_topics_and_groups_are_completed(ottla, brokers: str, filled: str, monkeypatch) -> None:
    from ottla.cli.main import cli

    monkeypatch.setenv("OTTLA_BROKERS", brokers)

    def offered(*words: str) -> list[str]:
        from click.shell_completion import ShellComplete

        complete = ShellComplete(cli, {}, "ottla", "_OTTLA_COMPLETE")
        return [each.value for each in complete.get_completions(list(words[:-1]), words[-1])]

    ottla("produce", "complete-me", stdin="x\n")
    ottla("verify", "consume", "complete-me", "--group-id", "complete-group", "--max-messages", "1")
    for words in (["consume"], ["topic", "describe"], ["perf", "e2e"], ["offsets"], ["group", "reset", "g", "-t"]):
        assert "complete-me" in offered(*words, "complete"), words
        assert "__consumer_offsets" not in offered(*words, "")
    assert "__consumer_offsets" in offered("consume", "__")
    assert "complete-me" in offered("table", "complete")
    assert offered("table", "co")[0] == "copy"
    assert "--to" in offered("table", "complete-me", "--t")
    assert offered("group", "describe", "complete") == ["complete-group"]
    assert offered("topic", "describe", "complete-me", "complete") == [], "it is there already"
    assert offered("consume", "-b", "127.0.0.1:1", "complete") == [], "no reachable broker is not an error"
    assert logging.root.manager.disable == logging.NOTSET, "logging is restored after a completion"
