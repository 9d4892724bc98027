"""Confirmation prompts in a terminal, and the exit codes of errors that are not a broker's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def in_terminal(brokers: str, answer: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Runs `ottla WORDS…` with a terminal as its input, in which `answer` is typed."""
    master, slave = os.openpty()
    try:
        os.write(master, answer)
        command = [sys.executable, "-m", "ottla", *words]
        env = {**os.environ, "OTTLA_BROKERS": brokers}
        return subprocess.run(command, check=False, stdin=slave, capture_output=True, env=env, timeout=60)
    finally:
        os.close(slave)
        os.close(master)


@pytest.mark.parametrize("answer", [b"n\n", b"\n", b"\x04"])
def test_no_is_exit_code_1_and_changes_nothing(brokers: str, ottla, answer: bytes) -> None:
    ottla("topic", "create", "asked")
    done = in_terminal(brokers, answer, "topic", "delete", "asked")
    assert done.returncode == 1
    assert done.stderr.endswith(b"not confirmed: nothing was changed\n")
    assert "asked" in ottla("topic", "list", "-o", "name").stdout.split()


def test_yes_does_it(brokers: str, ottla) -> None:
    ottla("topic", "create", "agreed")
    assert in_terminal(brokers, b"y\n", "topic", "delete", "agreed").returncode == 0


def test_purge_shows_the_number_of_letters_before_it_deletes(brokers: str, ottla) -> None:
    ottla("topic", "create", "work.dead", "-p", "1")
    ottla("produce", "work.dead", stdin="1\n2\n3\n")
    done = in_terminal(brokers, b"n\n", "dlq", "purge", "work.dead")
    assert b"Delete 3 dead letters in work.dead?" in done.stderr
    assert ottla("consume", "work.dead", "--from-beginning", "-e").stdout == "1\n2\n3\n"


def test_purge_refuses_a_topic_that_is_not_for_dead_letters(ottla) -> None:
    ottla("topic", "create", "orders", "-p", "1")
    ottla("produce", "orders", stdin="1\n")
    refused = ottla("dlq", "purge", "orders", "--yes")
    assert refused.exit_code == 1
    assert "orders is not named like a dead-letter topic" in refused.stderr
    assert ottla("consume", "orders", "--from-beginning", "-e").stdout == "1\n"
    assert ottla("dlq", "purge", "orders", "--dry-run").exit_code == 0  # which deletes nothing
    assert ottla("consume", "orders", "--from-beginning", "-e").stdout == "1\n"
    assert ottla("dlq", "purge", "orders", "--yes", "--any-name").exit_code == 0


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("kazoo", "cluster", ["up", "--brokers", "3", "--data", "DATA"]),
        ("kazoo", "cluster", ["up", "--data", "DATA", "--set", "zookeeper.connect=127.0.0.1:1"]),
        ("pyarrow", "spark", ["perf", "consume", "extras", "-n", "1", "--table", "--timeout", "2"]),
        ("redis", "redis", ["retry", "run", "extras.retry-1", "--redis", "redis://127.0.0.1:1", "--idle-exit", "1"]),
        ("pyspark", "spark", ["pipeline", "list", "FILE"]),
        ("pyspark", "spark", ["demo"]),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    brokers: str, ottla, tmp_path: Path, package: str, extra: str, words: list[str]
) -> None:
    for topic in ("extras", "extras.retry-1"):
        ottla("topic", "create", topic, "-p", "1")
    ottla("produce", "extras", stdin="1\n")
    (tmp_path / "job.py").write_text("import pyspark\n")
    words = [word.replace("DATA", str(tmp_path / "data")).replace("FILE", str(tmp_path / "job.py")) for word in words]
    code = f"import sys; sys.modules[{package!r}] = None\nfrom ottla.cli.main import main; main()"
    env = {**os.environ, "OTTLA_BROKERS": brokers}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, check=False, capture_output=True, env=env, timeout=60, text=True)
    assert done.returncode in (1, 2), done.stderr
    assert f"ottla[{extra}]" in done.stderr
    assert "a bug" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_that_cannot_be_read_is_exit_code_2(ottla, tmp_path: Path) -> None:
    for words in ((), ("-o", "json")):
        result = ottla("log", "verify", str(tmp_path / "none"), *words)
        assert result.exit_code == 2
    assert json.loads(result.stderr)["error"]["exit_code"] == 2


def test_a_wrong_option_is_a_json_document_with_output_json(ottla) -> None:
    result = ottla("offsets", "-o", "json", "x", "--time", "rubbish")
    assert result.exit_code == 2
    assert json.loads(result.stderr)["error"]["exit_code"] == 2
