"""`ottla group`, against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cli.conftest import Ottla

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def work(brokers: str) -> str:
    """Topic group-work: 10 records in each of two partitions; group idle has read 4 and 10 of them and is gone."""
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic("group-work", 2, 1), NewTopic("group-other", 1, 1)]).values():
        made.result(180)
    producer = Producer({"bootstrap.servers": brokers})
    for at in range(20):
        producer.produce("group-work", b"%d" % at, partition=at % 2, timestamp=1_700_000_000_000 + at)
    producer.produce("group-other", b"x")
    assert producer.flush(180) == 0
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "idle", "log_level": 0})
    consumer.commit(
        offsets=[
            TopicPartition("group-work", 0, 4),
            TopicPartition("group-work", 1, 10),
            TopicPartition("group-other", 0, 1),
        ],
        asynchronous=False,
    )
    consumer.close()
    return brokers


@pytest.fixture
def busy(work: str) -> Iterator[str]:
    """A group with a member."""
    consumer = Consumer({"bootstrap.servers": work, "group.id": "busy", "auto.offset.reset": "earliest"})
    consumer.subscribe(["group-work"])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.commit(offsets=[TopicPartition("group-work", 0, 1)], asynchronous=False)
    yield "busy"
    consumer.close()


def test_listing(ottla: Ottla, work: str, busy: str):
    found = json.loads(ottla("group", "list", "-o", "json").stdout)
    states = {each["group_id"]: each["state"] for each in found}
    assert states["idle"] == "Empty"
    assert states["busy"] == "Stable"
    assert ottla("group", "list", "--state", "stable", "-o", "name").stdout.split() == ["busy"]
    table = ottla("group", "list").stdout.splitlines()
    assert table[0].split() == ["GROUP", "STATE", "PROTOCOL", "TYPE", "COORDINATOR"]


def test_describing(ottla: Ottla, work: str, busy: str):
    shown = ottla("group", "describe", "idle", "busy")
    assert shown.exit_code == 0
    assert "group idle has no active members" in shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[0][:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert ["idle", "group-work", "0", "4", "10", "6", "-", "-", "-"] in rows
    assert any(row[:6] == ["busy", "group-work", "0", "1", "10", "9"] and row[-1] == "rdkafka" for row in rows)
    assert any(row[:6] == ["busy", "group-work", "1", "-", "10", "-"] for row in rows), (
        "assigned, and nothing committed"
    )
    members = ottla("group", "describe", "busy", "--members").stdout.splitlines()
    assert members[1].split()[-2:] == ["rdkafka", "2"]
    state = ottla("group", "describe", "busy", "--state").stdout.splitlines()
    assert state[1].split()[-3:] == ["range", "Stable", "1"]
    document = json.loads(ottla("group", "describe", "idle", "-o", "json").stdout)[0]
    assert (document["lag"], document["state"]) == (6, "Empty")


def test_a_group_that_is_not_there(ottla: Ottla, work: str):
    shown = ottla("group", "describe", "nobody")
    assert shown.exit_code == 3
    assert "group nobody: GROUP_ID_NOT_FOUND" in shown.stderr


def test_lag(ottla: Ottla, work: str, busy: str):
    rows = [line.split() for line in ottla("group", "lag", "idle", "busy").stdout.splitlines()[1:]]
    assert [row[0] for row in rows] == ["busy", "idle"], "the worst first"
    assert rows[0][1:] == ["Stable", "1", "2", "9", "9"]
    assert {"busy", "idle"} <= {line.split()[0] for line in ottla("group", "lag").stdout.splitlines()}
    assert json.loads(ottla("group", "lag", "idle", "-o", "jsonl").stdout)["lag"] == 6


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-offset", "7"], [7, 7]),
        (["--to-offset", "99"], [10, 10]),
        (["--shift-by", "-3"], [1, 7]),
        (["--shift-by", "5"], [9, 10]),
        (["--to-current"], [4, 10]),
        (["--to-datetime", "2023-11-14T22:13:20.010Z"], [5, 5]),
        (["--by-duration", "1d"], [10, 10]),
        (["--to", "-2"], [8, 8]),
        (["--to", "+3"], [3, 3]),
    ],
)
def test_where_a_reset_leads(ottla: Ottla, work: str, words: list[str], offsets: list[int]):
    shown = ottla("group", "reset", "idle", "--topic", "group-work", *words, "-o", "jsonl")
    assert shown.exit_code == 0, shown.stderr
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [each["new_offset"] for each in found] == offsets
    assert [each["old_offset"] for each in found] == [4, 10]
    assert "nothing was changed" in shown.stderr


def test_a_reset_is_done_only_with_execute(ottla: Ottla, work: str):
    ottla("group", "reset", "moved", "--topic", "group-work:1", "--to-offset", "3", "--execute")
    document = json.loads(ottla("group", "describe", "moved", "-o", "json").stdout)[0]
    assert [(row["partition"], row["current_offset"]) for row in document["partitions"]] == [(1, 3)]


@pytest.mark.parametrize(
    "words",
    [[], ["--to-earliest", "--to-latest"], ["--to", "5:9"], ["--to", "soon"], ["--topic", "group-work:x", "--to", "1"]],
)
def test_wrong_options_of_a_reset(ottla: Ottla, work: str, words: list[str]):
    assert ottla("group", "reset", "idle", *words).exit_code == 2


def test_a_group_with_members_is_left_alone(ottla: Ottla, work: str, busy: str):
    shown = ottla("group", "reset", "busy", "--to-earliest", "--execute")
    assert shown.exit_code == 1
    says = "group busy is in use by 1 member: rdkafka at /127.0.0.1. Stop these consumers, then run this again"
    assert says in shown.stderr
    shown = ottla("group", "delete", "busy", "--yes")
    assert shown.exit_code == 1
    assert says in shown.stderr
    shown = ottla("group", "delete-offsets", "busy", "-t", "group-work:0")
    assert says in shown.stderr
    shown = ottla("group", "reset", "busy", "--to-earliest", "--execute", "-o", "json")
    errors = [json.loads(line)["error"] for line in shown.stderr.splitlines()]
    assert {(error["exit_code"], error["group"], error["members"][0]["client_id"]) for error in errors} == {
        (1, "busy", "rdkafka")
    }


def test_deleting(ottla: Ottla, work: str):
    ottla("group", "reset", "doomed", "-t", "group-work", "-t", "group-other", "--to-earliest", "--execute")
    assert ottla("group", "delete-offsets", "doomed", "-t", "group-work").exit_code == 0
    document = json.loads(ottla("group", "describe", "doomed", "-o", "json").stdout)[0]
    assert {row["topic"] for row in document["partitions"]} == {"group-other"}
    assert ottla("group", "delete", "doomed").exit_code == 2, "it wants --yes"
    assert ottla("group", "delete", "doomed", "--yes").exit_code == 0
    assert ottla("group", "delete", "doomed", "--yes").exit_code == 3
    assert "doomed" not in ottla("group", "list", "-o", "name").stdout


def test_the_topic_of_groups_is_read(ottla: Ottla, work: str):
    words = ["consume", "__consumer_offsets", "--from-beginning", "-e", "--formatter", "offsets"]
    shown = [json.loads(line) for line in ottla(*words).stdout.splitlines()]
    mine = [each for each in shown if each["key"]["data"] == {"group": "idle", "topic": "group-work", "partition": 0}]
    assert mine[0]["value"]["data"]["offset"] == 4
    assert ottla("consume", "__consumer_offsets", "--formatter", "nonsense").exit_code == 2
