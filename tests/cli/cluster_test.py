"""`ottla cluster`, `ottla broker`, and the filters of `ottla topic describe`, against a broker."""

from __future__ import annotations

import json
import os

import pytest

from ottla.cli.views.cluster_views import is_at_min_isr, is_under_min_isr
from ottla.client.metadata import PartitionView
from ottla.errors import ErrorCode
from ottla.server.embedded import EmbeddedBroker


def test_the_cluster_at_one_look(ottla, brokers: str) -> None:
    assert ottla("topic", "create", "seen", "-p", "2").exit_code == 0
    state = json.loads(ottla("cluster", "describe", "-o", "json").stdout)
    host, _, port = brokers.rpartition(":")
    (broker,) = state["brokers"]
    assert (broker["id"], broker["host"], broker["port"], broker["controller"]) == (1, host, int(port), True)
    assert state["controller"] == 1
    assert len(state["cluster_id"]) == 22
    assert broker["leads"] == broker["replicas"] == state["partitions"] >= 2
    assert [state[key] for key in ("under_replicated", "offline", "not_preferred")] == [0, 0, 0]
    assert 0 <= state["under_min_isr"] <= state["partitions"], "other tests make topics that want more replicas"
    text = ottla("cluster", "describe").stdout
    assert text.splitlines()[0].split() == ["Cluster:", state["cluster_id"]]
    assert "ADDRESS" in text


def test_the_brokers(ottla, brokers: str) -> None:
    assert ottla("broker", "list", "-o", "name").stdout == "1\n"
    (document,) = json.loads(ottla("broker", "list", "-o", "json").stdout)
    assert document["id"] == 1
    rows = ottla("broker", "list").stdout.splitlines()
    assert rows[0].split()[:2] == ["ID", "ADDRESS"]
    assert rows[1].split()[:2] == ["1", brokers]


def test_log_directories_and_moves(ottla, tmp_path) -> None:
    paths = [str(tmp_path / name) for name in ("one", "two")]
    for path in paths:
        os.mkdir(path)
    with EmbeddedBroker(config={"log.dirs": ",".join(paths)}) as broker:
        env = {"OTTLA_BROKERS": broker.bootstrap}
        assert ottla("topic", "create", "moved", env=env).exit_code == 0
        assert ottla("produce", "moved", stdin="a\nb\n", env=env).exit_code == 0
        one, two = json.loads(ottla("broker", "log-dirs", "1", "-t", "moved", "-o", "json", env=env).stdout)
        assert (one["broker"], one["directory"], one["error"], two["replicas"]) == (1, paths[0], None, [])
        assert 0 < one["usable_bytes"] < one["total_bytes"]
        (replica,) = one["replicas"]
        assert (replica["topic"], replica["partition"], replica["is_future"]) == ("moved", 0, False)
        moved = ottla("broker", "move", "1", paths[1], "moved:0", "--wait", "-o", "jsonl", env=env)
        assert json.loads(moved.stdout) == {"topic": "moved", "partition": 0, "error": None}
        rows = ottla("broker", "log-dirs", "--replicas", env=env).stdout.splitlines()
        assert rows[0].split() == ["BROKER", "DIRECTORY", "TOPIC", "PARTITION", "SIZE", "LAG", "COPY"]
        assert rows[1].split()[:4] == ["1", paths[1], "moved", "0"]
        assert paths[0] in ottla("broker", "log-dirs", env=env).stdout
        assert ottla("consume", "moved", "--from-beginning", "--exit-at-end", env=env).stdout.split() == ["a", "b"]
        refused = ottla("broker", "move", "1", "/nowhere", "moved:0", env=env)
        assert (refused.exit_code, "LOG_DIR_NOT_FOUND" in refused.stdout) == (1, True)
        assert ottla("broker", "log-dirs", "7", env=env).exit_code == 1


def test_topics_that_are_not_well(ottla) -> None:
    ottla("topic", "create", "strict", "-p", "2", "-c", "min.insync.replicas=2")
    ottla("topic", "create", "easy")

    def named(flag: str) -> list[str]:
        return ottla("topic", "describe", flag, "-o", "name").stdout.splitlines()

    assert named("--under-min-isr-partitions") == [], "a topic with one replica takes acks=all"
    assert {"easy", "strict"} <= set(named("--at-min-isr-partitions"))
    assert named("--under-replicated-partitions") == named("--unavailable-partitions") == []
    strict, _ = json.loads(ottla("topic", "describe", "strict", "easy", "--at-min-isr", "-o", "json").stdout)
    assert [part["partition"] for part in strict["partitions"]] == [0, 1]


@pytest.mark.parametrize(
    ("isr", "replicas", "min_isr", "under", "at"),
    [
        ((1,), (1,), 2, False, True),
        ((1,), (1, 2), 2, True, False),
        ((1, 2), (1, 2), 2, False, True),
        ((1, 2, 3), (1, 2, 3), 2, False, False),
        ((1, 2), (1, 2, 3), 9, True, False),
    ],
)
def test_no_more_replicas_are_asked_for_than_there_are(
    isr: tuple[int, ...], replicas: tuple[int, ...], min_isr: int, under: bool, at: bool
) -> None:
    part = PartitionView(0, 1, 0, replicas, isr, (), ErrorCode.NONE)
    assert (is_under_min_isr(part, min_isr), is_at_min_isr(part, min_isr)) == (under, at)


def test_wrong_words(ottla, tmp_path) -> None:
    broken = tmp_path / "plan.json"
    for content in ("{", '{"partitions": []}', '{"partitions": [{"topic": "t"}]}', "[]"):
        broken.write_text(content)
        assert ottla("reassign", "run", str(broken)).exit_code == 2
    assert ottla("reassign", "plan", "--to", "a").exit_code == 2
    assert "broker 9 is not alive" in ottla("reassign", "plan", "--to", "9").stderr
    assert ottla("reassign", "plan", "-t", "nowhere").exit_code == 3
    assert ottla("reassign", "cancel").exit_code == 2
    assert ottla("leader", "elect").exit_code == 2
    assert ottla("leader", "elect", "t").exit_code == 2
    assert ottla("leader", "elect", "--all", "--type", "unclean").exit_code == 2, "it asks first"
