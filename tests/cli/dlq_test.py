"""`ottla dlq` and `ottla retry run`: dead letters are counted, shown, sent back and purged, each once.

Zone: real.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import Ottla

from ottla.client import Producer
from ottla.retry.headers import Failure, Origin, Trail, read_trail, with_trail

pytestmark = pytest.mark.slow


def bury(brokers: str, topic: str, letters: list[tuple[str, str, int]]) -> None:
    """Dead letters of `topic`: (value, exception's class, redrives so far)."""
    with Producer({"bootstrap.servers": brokers}) as producer:
        for number, (value, kind, redrives) in enumerate(letters):
            trail = Trail(4, None, 1, Origin(topic, 0, number, 5), Failure(kind, f"{value} is bad"), redrives=redrives)
            headers = with_trail([("own", b"x")], trail)
            producer.send(f"{topic}.dead", value.encode(), key=value.encode(), headers=headers, partition=number % 2)


def made(ottla: Ottla, name: str, *more: str) -> str:
    for topic in (name, f"{name}.dead", *more):
        assert ottla("topic", "create", topic, "--partitions", "2").exit_code == 0
    return name


def told(ottla: Ottla, *words: str) -> Any:
    """The JSON that a command prints."""
    result = ottla(*words, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def in_topic(ottla: Ottla, topic: str) -> list[str]:
    result = ottla("consume", topic, "--from-beginning", "-e", "-o", "jsonl", "--isolation", "read_committed")
    assert result.exit_code == 0, result.stderr
    return sorted(json.loads(line)["value"] for line in result.stdout.splitlines())


def test_letters_are_counted_by_reason_and_shown(ottla: Ottla, brokers: str) -> None:
    name = made(ottla, "dlq-shown")
    bury(brokers, name, [("a", "app.Late", 0), ("b", "app.Late", 0), ("c", "builtins.KeyError", 0)])
    rows = told(ottla, "dlq", "list", f"{name}.dead")
    assert [(row["reason"], row["origin"], row["letters"]) for row in rows] == [
        ("app.Late", name, 2),
        ("builtins.KeyError", name, 1),
    ]
    assert f"{name}.dead" in ottla("dlq", "list", "-o", "name").stdout.split()
    (shown,) = told(ottla, "dlq", "show", f"{name}.dead", "--reason", "KeyError")
    assert (shown["value"], shown["failures"], shown["origin"]["offset"]) == ("c", 3, 2)
    assert shown["failure"]["message"] == "c is bad"
    table = ottla("dlq", "show", f"{name}.dead", "--message", "^b", "-n", "1").stdout.splitlines()
    assert len(table) == 2
    assert f"{name}-0@1" in table[1]
    (only,) = told(ottla, "dlq", "show", f"{name}.dead", "--at", "0:1")
    assert only["value"] == "c"


def test_letters_are_sent_back_once_and_those_that_loop_are_left_alone(ottla: Ottla, brokers: str) -> None:
    name = made(ottla, "dlq-sent")
    bury(brokers, name, [("a", "E", 0), ("b", "F", 1), ("c", "E", 3), ("d", "E", 0)])
    dead = f"{name}.dead"
    assert told(ottla, "dlq", "redrive", dead, "--dry-run") == {
        "topic": dead, "dry_run": True, "sent": {name: 3}, "looping": 1, "nowhere": 0}  # fmt: skip
    assert in_topic(ottla, name) == []
    assert ottla("dlq", "redrive", dead).exit_code == 2, "it asks first"
    assert told(ottla, "dlq", "redrive", dead, "--yes", "--reason", "F")["sent"] == {name: 1}
    assert in_topic(ottla, name) == ["b"]
    assert told(ottla, "dlq", "redrive", dead, "--yes", "-n", "1")["sent"] == {name: 1}
    again = told(ottla, "dlq", "redrive", dead, "--yes", "--rate", "1000")
    assert (again["sent"], again["looping"]) == ({name: 1}, 1)
    assert told(ottla, "dlq", "redrive", dead, "--yes")["sent"] == {}
    assert in_topic(ottla, name) == ["a", "b", "d"]
    assert [row["letters"] for row in told(ottla, "dlq", "list", dead)] == [1]
    assert sum(row["letters"] for row in told(ottla, "dlq", "list", dead, "--all")) == 4
    assert told(ottla, "dlq", "redrive", dead, "--yes", "--max-redrives", "9")["sent"] == {name: 1}
    line = json.loads(ottla("consume", name, "--from-beginning", "-e", "-o", "jsonl", "--key", "b").stdout)
    trail = read_trail(
        [(each["key"], each["value"].encode()) for each in line["headers"] if isinstance(each["value"], str)]
    )
    assert (trail.redrives, trail.failure, trail.failures) == (2, None, 0)
    assert line["headers"][0] == {"key": "own", "value": "x"}


def test_letters_without_an_origin_need_a_target_topic(ottla: Ottla, brokers: str) -> None:
    name = made(ottla, "dlq-nowhere", "dlq-nowhere-else", "nowhere-dlt")
    with Producer({"bootstrap.servers": brokers}) as producer:
        producer.send("nowhere-dlt", b"v")
    assert told(ottla, "dlq", "redrive", "nowhere-dlt", "--yes") == {
        "topic": "nowhere-dlt", "dry_run": False, "sent": {}, "looping": 0, "nowhere": 1}  # fmt: skip
    missing = ottla("dlq", "redrive", "nowhere-dlt", "--yes", "--to", f"{name}-gone")
    assert missing.exit_code == 3
    assert told(ottla, "dlq", "redrive", "nowhere-dlt", "--yes", "--to", "dlq-nowhere-else")["sent"] == {
        "dlq-nowhere-else": 1
    }
    assert in_topic(ottla, "dlq-nowhere-else") == ["v"]


def test_letters_are_thrown_away_by_choice_and_then_deleted_from_the_start_on(ottla: Ottla, brokers: str) -> None:
    name = made(ottla, "dlq-purged")
    bury(brokers, name, [("a", "E", 0), ("b", "E", 0), ("c", "F", 0), ("d", "E", 0), ("e", "E", 0)])
    dead = f"{name}.dead"
    assert told(ottla, "dlq", "purge", dead, "--reason", "E", "--dry-run")["purged"] == 4
    assert told(ottla, "dlq", "purge", dead, "--reason", "E", "--yes")["purged"] == 4
    assert in_topic(ottla, dead) == ["c", "e"], "records after an open letter stay in the log"
    assert [each["value"] for each in told(ottla, "dlq", "show", dead)] == ["c"]
    assert told(ottla, "dlq", "purge", dead, "--yes")["purged"] == 1
    assert in_topic(ottla, dead) == []


def test_wrong_words_are_refused(ottla: Ottla) -> None:
    assert ottla("dlq", "show", "no-such-topic").exit_code == 3
    assert ottla("dlq", "show", "t", "--at", "7").exit_code == 2
    assert ottla("dlq", "show", "t", "--message", "(").exit_code == 2
    assert ottla("retry", "run", "--delay", "soon").exit_code == 2
    assert ottla("retry", "run", "--redis", "nonsense").exit_code == 2


def test_topics_for_dead_letters_are_completed(ottla: Ottla, brokers: str) -> None:
    made(ottla, "dlq-complete")
    words = {"COMP_WORDS": "ottla dlq show dlq-comp", "COMP_CWORD": "3", "_OTTLA_COMPLETE": "bash_complete"}
    from click.shell_completion import BashComplete

    from ottla.cli.main import cli

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTTLA_BROKERS", brokers)
        found = BashComplete(cli, {}, "ottla", "_OTTLA_COMPLETE").get_completions(["dlq", "show"], "dlq-comp")
    assert words
    assert [each.value for each in found] == ["dlq-complete.dead"]


def test_a_key_that_is_not_utf8_is_found(ottla: Ottla, brokers: str) -> None:
    name = made(ottla, "dlq-bytes")
    trail = Trail(4, None, 1, Origin(name, 0, 0, 5), Failure("app.Late", "m\udcff"))
    with Producer({"bootstrap.servers": brokers}) as producer:
        for key in (b"\xff\xfe", b"other"):
            producer.send(f"{name}.dead", b"v", key=key, headers=with_trail([], trail))
    (shown,) = told(ottla, "dlq", "show", f"{name}.dead", "--key", "\udcff\udcfe")
    assert shown["reason"] == "app.Late"
    assert ottla("dlq", "show", f"{name}.dead").exit_code == 0


def test_the_service_runs_as_a_process_and_prints_its_counters(
    ottla: Ottla, brokers: str, process: Callable[..., subprocess.Popen[bytes]]
) -> None:
    name = made(ottla, "dlq-run", "dlq-run.retry.1")
    with Producer({"bootstrap.servers": brokers}) as producer:
        for value in (b"a", b"b"):
            producer.send(f"{name}.retry.1", value, key=value)
    command = process("retry", "run", f"{name}.retry.1", "--group", name, "--delay", "500ms", "--idle-exit", "1",
                      "-o", "json")  # fmt: skip
    out, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors
    last = json.loads(out.splitlines()[-1])
    assert (last["returned"], last["dead"], last["waiting"], last["partitions"]) == (2, 0, 0, 2)
    assert last["late_ms_p99"] < 30_000
    assert in_topic(ottla, name) == ["a", "b"]
