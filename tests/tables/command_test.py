"""`ottla table` as a user runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tests.tables.conftest import Target, Topic, sorted_rows

from ottla.cli.main import cli

pytestmark = pytest.mark.slow


def test_prints_what_it_copied(topic: Topic, target: Target) -> None:
    topic.send(0, 9)
    words = ["table", topic.name, *target.words, "--exit-at-end", "-b", topic.bootstrap]
    result = CliRunner().invoke(cli, [*words, "-o", "json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["rows"], found["commits"], found["next_offsets"]) == (9, 1, {"0": 5, "1": 4})
    assert "0 rows" in CliRunner().invoke(cli, words).stdout


def test_a_signal_commits_what_was_read(topic: Topic, target: Target) -> None:
    topic.send(0, 9)
    words = [sys.executable, "-m", "ottla", "table", topic.name, *target.words, "-b", topic.bootstrap]
    with subprocess.Popen([*words, "--commit-every", "0.1"], stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert "commit 1:" in running.stderr.readline()
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    assert sorted_rows(target.read_arrow())[:1] == topic.rows(1)


@pytest.mark.parametrize(("kind", "by"), [("delta", "bucket[4]"), ("iceberg", "bucket[0]"), ("iceberg", "week")])
def test_partitions_that_a_format_has_not_are_refused(topic: Topic, kind: str, by: str) -> None:
    words = ["table", topic.name, "--to", kind, "--table", "lake.orders", "--partition-by", by, "-b", topic.bootstrap]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2
    assert f"--partition-by {by}: with --to {kind} it must be none, day, hour" in result.stderr


def test_errors_name_the_table(topic: Topic) -> None:
    words = ["table", topic.name, "--to", "iceberg", "--table", "orders", "-b", topic.bootstrap]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert "Name it NAMESPACE.TABLE" in result.stderr
