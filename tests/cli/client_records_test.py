"""`ottla produce` in transactions and `ottla consume` in groups."""

from __future__ import annotations

import json
import signal

import pytest

from ottla.client import Producer


def committed(ottla, topic: str) -> list[str]:
    result = ottla("consume", topic, "--from-beginning", "-e", "--isolation", "read_committed")
    return result.stdout.split()


def test_the_whole_input_is_one_transaction(ottla) -> None:
    ottla("topic", "create", "txn-one", "-p", "1")
    result = ottla("produce", "txn-one", "--transactional-id", "one", "-o", "jsonl", stdin="a\nb\nc\n")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"topic": "txn-one", "partition": 0, "base_offset": 0, "records": 3}
    assert committed(ottla, "txn-one") == ["a", "b", "c"]
    assert ottla("offsets", "txn-one").stdout == "txn-one:0:4\n", "one marker"


def test_a_bad_line_takes_the_open_transaction_back(ottla) -> None:
    ottla("topic", "create", "txn-bad", "-p", "1")
    words = ["produce", "txn-bad", "--transactional-id", "bad", "-K", ":"]
    result = ottla(*words, "--transaction-records", "2", stdin="k:1\nk:2\nk:3\nnothing\n")
    assert result.exit_code == 1
    assert "line 4 of the input" in result.stderr
    assert committed(ottla, "txn-bad") == ["1", "2"]
    assert ottla(*words, stdin="k:4\n").exit_code == 0
    assert committed(ottla, "txn-bad") == ["1", "2", "4"]


def test_a_record_that_is_refused_takes_the_transaction_back(ottla) -> None:
    ottla("topic", "create", "txn-refused", "-p", "1", "-c", "max.message.bytes=100")
    result = ottla("produce", "txn-refused", "--transactional-id", "refused", stdin=b"fits\n" + b"x" * 200 + b"\n")
    assert result.exit_code == 1
    assert "MESSAGE_TOO_LARGE" in result.stderr
    assert committed(ottla, "txn-refused") == []


def test_a_group_continues_after_what_was_written_out(ottla) -> None:
    ottla("topic", "create", "grouped", "-p", "1")
    ottla("produce", "grouped", stdin="".join(f"{n}\n" for n in range(10)))
    words = ["consume", "grouped", "--group", "reader", "--from-beginning", "-f", "%s"]
    assert ottla(*words, "-n", "3").stdout == "012"
    (row,) = json.loads(ottla("group", "describe", "reader", "-o", "json").stdout)[0]["partitions"]
    assert row["current_offset"] == 3
    assert ottla(*words, "-n", "2", "--value-regex", "[5-9]").stdout == "56"
    assert ottla(*words, "-e").stdout == "789"
    again = ottla(*words, "-e")
    assert (again.exit_code, again.stdout) == (0, "")
    assert ottla(*words, "--timeout", "0.05").exit_code == 5


def test_a_new_group_begins_at_the_end_by_default(ottla) -> None:
    ottla("topic", "create", "grouped-end", "-p", "1")
    ottla("produce", "grouped-end", stdin="old\n")
    assert ottla("consume", "grouped-end", "--group", "late", "-e").stdout == ""
    assert ottla("consume", "grouped-end", "--group", "early", "--offset", "start", "-e").stdout == "old\n"


def test_a_group_reads_committed_records_only(ottla, brokers: str) -> None:
    ottla("topic", "create", "grouped-txn", "-p", "1")
    with Producer({"bootstrap.servers": brokers, "transactional.id": "grouped"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("grouped-txn", b"no")
        producer.flush()
        producer.abort_transaction()
    ottla("produce", "grouped-txn", stdin="yes\n")
    words = ["consume", "grouped-txn", "--from-beginning", "-e", "--group"]
    assert ottla(*words, "g-committed", "--isolation", "read_committed").stdout == "yes\n"
    assert ottla(*words, "g-uncommitted").stdout == "no\nyes\n"


@pytest.mark.parametrize("ending", ["commit_transaction", "abort_transaction"])
def test_a_group_that_has_read_all_has_no_lag_despite_a_marker(ottla, brokers: str, ending: str) -> None:
    topic = f"grouped-{ending.replace('_', '-')}"
    ottla("topic", "create", topic, "-p", "1")
    with Producer({"bootstrap.servers": brokers, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"v")
        producer.flush()
        getattr(producer, ending)()
    words = ["--from-beginning", "-e", "--isolation", "read_committed"]
    assert ottla("consume", topic, "--group", topic, *words).exit_code == 0
    rows = json.loads(ottla("group", "describe", topic, "-o", "json").stdout)[0]["partitions"]
    assert [(row["current_offset"], row["lag"]) for row in rows] == [(2, 0)]


def test_words_that_do_not_go_with_a_group_or_a_transaction(ottla) -> None:
    for words in (
        ["consume", "t", "--group", "g", "-p", "0"],
        ["consume", "t", "--group", "g", "--offset", "5"],
        ["consume", "t", "--group", "g", "--offset", "0:9"],
        ["produce", "t", "--transaction-records", "5"],
        ["produce", "t", "--transactional-id", "x", "--acks", "1"],
        ["produce", "t", "-X", "group.id=x"],
        ["consume", "t", "--group", "g", "-X", "linger.ms=1"],
    ):
        result = ottla(*words, stdin="x\n")
        assert result.exit_code == 2, (words, result.stderr)
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_ctrl_c_commits_what_was_written(ottla, process) -> None:
    ottla("produce", "grouped-int", "-p", "0", stdin="one\ntwo\n")
    child = process("consume", "grouped-int", "--group", "interrupted", "--from-beginning")
    assert [child.stdout.readline(), child.stdout.readline()] == [b"one\n", b"two\n"]
    child.send_signal(signal.SIGINT)
    assert child.wait(180) == 130
    assert b"Traceback" not in child.stderr.read()
    rows = json.loads(ottla("group", "describe", "interrupted", "-o", "json").stdout)[0]["partitions"]
    # Ctrl-C may come between writing the second one and taking note of it: then it is read again, never lost.
    assert [row["current_offset"] for row in rows if row["partition"] == 0] in ([1], [2])
