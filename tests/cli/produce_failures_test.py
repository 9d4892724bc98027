"""An import that fails: the exit code, the line, how many lines are written, and how to continue."""

from __future__ import annotations

import json

import pytest


def values(ottla, topic: str, *words: str) -> list[str]:
    result = ottla("consume", topic, "--from-beginning", "--exit-at-end", *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture
def topic(ottla, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    assert ottla("topic", "create", name, "-p", "1", "-c", "max.message.bytes=5000").exit_code == 0
    return name


def test_a_line_that_is_not_a_record(ottla, topic: str) -> None:
    lines = '{"value": 1}\n{"value": 2}\n{"vlaue": 3}\n{"value": 4}\n'
    result = ottla("produce", topic, "--jsonl", stdin=lines)
    assert result.exit_code == 1
    assert "line 3 of the input: the record has the unknown field 'vlaue'" in result.stderr
    assert "2 lines are written" in result.stderr
    assert "tail -n +3" in result.stderr
    assert values(ottla, topic) == ["1", "2"]


def test_a_record_that_the_client_refuses(ottla, topic: str) -> None:
    result = ottla("produce", topic, "-X", "max.request.size=1000", stdin="one\n" + "x" * 999 + "\nthree\n")
    assert result.exit_code != 0
    assert "line 2 of the input was not written" in result.stderr
    assert "1 line is written" in result.stderr
    assert values(ottla, topic) == ["one"]


def test_a_record_that_the_broker_refuses(ottla, topic: str) -> None:
    result = ottla("produce", topic, "-X", "batch.size=0", stdin="one\n" + "x" * 9_000 + "\n")
    assert result.exit_code == 1
    assert "line 2 of the input was not written" in result.stderr
    assert "1 line is written" in result.stderr
    assert "MESSAGE_TOO_LARGE" in result.stderr
    assert values(ottla, topic) == ["one"]


def test_continuing_at_the_line_in_the_message_completes_the_import(ottla, topic: str) -> None:
    good = [json.dumps({"value": str(number)}) for number in range(50)]
    bad = [*good[:20], "no JSON", *good[20:]]
    result = ottla("produce", topic, "--jsonl", stdin="\n".join(bad))
    first = int(result.stderr.rpartition("tail -n +")[2])
    assert ottla("produce", topic, "--jsonl", stdin="\n".join(bad[first:])).exit_code == 0
    assert values(ottla, topic) == [str(number) for number in range(50)]


def test_programs_get_the_failure_as_json(ottla, topic: str) -> None:
    result = ottla("produce", topic, "--jsonl", "-o", "jsonl", stdin='{"value": 1}\n{"value": 2}\nrubbish\n')
    assert json.loads(result.stdout) == {"topic": topic, "partition": 0, "base_offset": 0, "records": 2}
    error = json.loads(result.stderr)["error"]
    assert error.pop("message").startswith("line 3 of the input: ")
    assert error == {"exit_code": 1, "line": 3, "written": 2, "not_written": [], "continue_at": 3}


def test_in_transactions_what_is_committed_counts(ottla, topic: str) -> None:
    words = ("--transactional-id", topic, "--transaction-records", "2", "--jsonl", "-o", "jsonl")
    result = ottla("produce", topic, *words, stdin='{"value":1}\n{"value":2}\n{"value":3}\nrubbish\n')
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert "2 lines are written and committed; the open transaction was aborted" in error["message"]
    assert (error["line"], error["written"], error["continue_at"]) == (4, 2, 3)
    assert values(ottla, topic, "--isolation", "read_committed") == ["1", "2"]


def test_the_code_is_that_of_the_refusal(ottla) -> None:
    result = ottla("produce", "missing", "-X", "allow.auto.create.topics=false", "--timeout", "1", stdin="x\n")
    assert result.exit_code == 3
    assert "continue with the input from line 1" in result.stderr


class Deliverer:
    """A producer whose records wait until the test delivers them."""

    def __init__(self) -> None:
        self.waiting: list = []

    def send(self, *_: object, on_delivery, **__: object) -> None:
        self.waiting.append(on_delivery)


@pytest.mark.parametrize(
    ("failed", "read", "text"),
    [((2,), 3, "2 lines are written; not acknowledged: lines 2, and no line after 3 was read"),
     ((2, 3), 3, "1 line is written. Correct the cause, then continue with the input from line 2 on: tail -n +2"),
     ((1, 3), 4, "2 lines are written; not acknowledged: lines 1, 3, and no line after 4 was read")],
)  # fmt: skip
def test_lines_after_a_failed_one_may_be_written(failed: tuple[int, ...], read: int, text: str) -> None:
    from ottla.cli.deliveries import Deliveries
    from ottla.cli.views.record_text import RecordLine
    from ottla.client import UsageError
    from ottla.client.producer import RecordMetadata

    producer = Deliverer()
    deliveries = Deliveries(printing=False, continuation="tail -n +{}".format)
    for number in range(1, read + 1):
        deliveries.send_line(producer, number, RecordLine("t", 0, None, None, b"", ()))  # type: ignore[arg-type]
    error = UsageError("it is too large")
    for number, deliver in enumerate(producer.waiting, 1):
        deliver(*((None, error) if number in failed else (RecordMetadata("t", 0, number, 0), None)))
    assert text in deliveries.as_failure(error, transactional=False).message
