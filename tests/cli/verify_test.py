"""`ottla verify` against a broker; and Kafka's own verifiable clients, whose events these are."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest


def events(text: str | bytes) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def named(found: list[dict], name: str) -> list[dict]:
    return [event for event in found if event["name"] == name]


def shapes(found: list[dict]) -> dict[str, frozenset[str]]:
    return {event["name"]: frozenset(event) for event in found}


def test_every_record_is_an_event(ottla) -> None:
    ottla("topic", "create", "verify", "-p", "1")
    words = ["--max-messages", "5", "--value-prefix", "7", "--repeating-keys", "2", "--message-create-time", "1000"]
    result = ottla("verify", "produce", "--topic", "verify", *words)
    assert result.exit_code == 0, result.stderr
    found = events(result.stdout)
    assert [event["name"] for event in found] == [
        "startup_complete", *["producer_send_success"] * 5, "shutdown_complete", "tool_data",
    ]  # fmt: skip
    sent = named(found, "producer_send_success")
    assert [(e["key"], e["value"], e["partition"], e["offset"]) for e in sent] == [
        (str(n % 2), f"7.{n}", 0, n) for n in range(5)
    ]
    assert (found[-1]["sent"], found[-1]["acked"], found[-1]["target_throughput"]) == (5, 5, -1)
    (first, *_) = events(ottla("consume", "verify", "--from-beginning", "-n", "1", "-o", "jsonl").stdout)
    assert 1_000 <= first["timestamp"] < 60_000


def test_a_failed_record_is_an_event(ottla) -> None:
    ottla("topic", "create", "verify-small", "-p", "1", "-c", "max.message.bytes=60")
    found = events(ottla("verify", "produce", "verify-small", "--max-messages", "2").stdout)
    failed = named(found, "producer_send_error")
    assert [(e["key"], e["value"], e["topic"]) for e in failed] == [
        (None, "0", "verify-small"),
        (None, "1", "verify-small"),
    ]
    assert failed[0]["exception"] == "class ottla.client.errors.RefusedError"
    assert "MESSAGE_TOO_LARGE" in failed[0]["message"]
    assert (found[-1]["sent"], found[-1]["acked"]) == (2, 0)


def test_a_group_reads_and_commits(ottla) -> None:
    ottla("topic", "create", "verify-read", "-p", "1")
    ottla("verify", "produce", "verify-read", "--max-messages", "7")
    result = ottla("verify", "consume", "verify-read", "--group-id", "verify-1", "--max-messages", "5", "--verbose")
    assert result.exit_code == 0, result.stderr
    found = events(result.stdout)
    assert [found[0]["name"], found[-1]["name"]] == ["startup_complete", "shutdown_complete"]
    place = {"topic": "verify-read", "partition": 0}
    assert named(found, "partitions_assigned")[0]["partitions"] == [place]
    assert [e["value"] for e in named(found, "record_data")] == ["0", "1", "2", "3", "4"]
    consumed = named(found, "records_consumed")
    assert sum(p["count"] for e in consumed for p in e["partitions"]) == 5
    assert consumed[-1]["partitions"][0]["maxOffset"] == 4
    committed = named(found, "offsets_committed")[-1]
    assert (committed["offsets"], committed["success"]) == ([{**place, "offset": 5}], True)
    assert named(found, "partitions_revoked")[-1]["partitions"] == [place]
    rest = ottla("verify", "consume", "verify-read", "-g", "verify-1", "--max-messages", "2", "--enable-autocommit")
    assert named(events(rest.stdout), "records_consumed")[0]["partitions"][0]["minOffset"] == 5
    assert not named(events(rest.stdout), "offsets_committed")


@pytest.mark.slow
def test_sigterm_ends_in_order(ottla, process) -> None:
    ottla("topic", "create", "verify-end", "-p", "1")
    writer = process("verify", "produce", "verify-end", "--throughput", "20")
    reader = process("verify", "consume", "verify-end", "--group-id", "verify-2")
    while b"records_consumed" not in reader.stdout.readline():
        pass
    for child in (writer, reader):
        child.send_signal(signal.SIGTERM)
    assert [writer.wait(180), reader.wait(180)] == [0, 0]
    written, read = events(writer.stdout.read()), events(reader.stdout.read())
    assert [event["name"] for event in written[-2:]] == ["shutdown_complete", "tool_data"]
    assert written[-1]["sent"] == written[-1]["acked"] > 0
    assert [event["name"] for event in read[-2:]] == ["shutdown_requested", "shutdown_complete"]
    assert b"Traceback" not in writer.stderr.read() + reader.stderr.read()


@pytest.mark.slow
@pytest.mark.kafka
def test_the_events_have_the_fields_of_kafkas(ottla, brokers: str) -> None:
    from testbench.apache_kafka.tools import command

    def kafka(name: str, *words: str) -> list[dict]:
        whole = command("4.4.0", f"kafka-verifiable-{name}", "--bootstrap-server", brokers, *words)
        return events(subprocess.run(whole, check=True, capture_output=True, timeout=300).stdout)

    ottla("topic", "create", "verify-java", "-p", "1")
    ottla("topic", "create", "verify-java-small", "-p", "1", "-c", "max.message.bytes=60")
    theirs, ours = {}, {}
    for topic, count in (("verify-java-small", "1"), ("verify-java", "3")):  # Java splits several for ever (KAFKA-8350)
        theirs |= shapes(kafka("producer", "--topic", topic, "--max-messages", count))
        ours |= shapes(events(ottla("verify", "produce", topic, "--max-messages", count).stdout))
    assert ours == theirs
    assert {"producer_send_error", "producer_send_success", "tool_data"} <= set(ours)
    words = ["--topic", "verify-java", "--max-messages", "3", "--verbose", "--group-id"]
    read_by_kafka = kafka("consumer", *words, "verify-java")
    read_by_us = events(ottla("verify", "consume", *words, "verify-ours").stdout)
    # Its way to end a process is to ask, also the one that has read all.
    asked = {"shutdown_requested": frozenset({"timestamp", "name"})}
    assert shapes(read_by_us) | asked == shapes(read_by_kafka) | asked
    assert [e["value"] for e in named(read_by_us, "record_data")] == [
        e["value"] for e in named(read_by_kafka, "record_data")
    ]
    inner = [named(each, "records_consumed")[0]["partitions"][0] for each in (read_by_us, read_by_kafka)]
    assert set(inner[0]) == set(inner[1])
