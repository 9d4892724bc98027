"""`ottla txn`, against a broker with open transactions of librdkafka, and one that hangs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cli.conftest import Ottla
from tests.hanging import PRODUCER_ID, hang

from ottla.cli.main import cli
from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def work() -> Iterator[str]:
    """Topic txn-work: an open transaction of id shop in partition 0, a hanging one in partition 1."""
    config = {"transaction.partition.verification.enable": "false", "transaction.state.log.num.partitions": "4"}
    with EmbeddedBroker(config=config) as broker:
        address = broker.bootstrap
        admin = AdminClient({"bootstrap.servers": address})
        for made in admin.create_topics([NewTopic(name, 2, 1) for name in ("txn-work", "txn-other")]).values():
            made.result(180)
        shop = Producer({"bootstrap.servers": address, "transactional.id": "shop", "log_level": 0})
        shop.init_transactions(30)
        shop.begin_transaction()
        shop.produce("txn-work", b"x", partition=0)
        assert shop.flush(180) == 0
        hang(address, "txn-work")
        yield address


@pytest.fixture
def txn(work: str) -> Ottla:
    def run(*words: str, **_: Any) -> Result:
        return CliRunner().invoke(cli, ["txn", *words], env={"OTTLA_BROKERS": work})

    return run


def documents(shown: Result) -> list[dict[str, Any]]:
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout)


def test_listing(txn: Ottla) -> None:
    (found,) = documents(txn("list", "-o", "json"))
    assert (found["transactional_id"], found["coordinator"], found["state"]) == ("shop", 1, "Ongoing")
    assert documents(txn("list", "--state", "Empty", "-o", "json")) == []
    assert documents(txn("list", "--producer-id", "77", "-o", "json")) == []
    assert documents(txn("list", "--duration-filter", "999999", "-o", "json")) == []
    assert txn("list", "--state", "Ongoing", "-o", "name").stdout.split() == ["shop"]
    header, row = txn("list").stdout.splitlines()
    assert header.split() == ["TRANSACTIONAL", "ID", "COORDINATOR", "PRODUCER", "ID", "STATE"]
    assert row.split() == ["shop", "1", str(found["producer_id"]), "Ongoing"]


def test_describing(txn: Ottla) -> None:
    (found,) = documents(txn("describe", "shop", "-o", "json"))
    assert (found["state"], found["partitions"], found["timeout_ms"]) == ("Ongoing", ["txn-work-0"], 60_000)
    assert found["duration_ms"] >= 0
    row = txn("describe", "--transactional-id", "shop").stdout.splitlines()[1].split()
    assert (row[0], row[4], row[-1]) == ("shop", "Ongoing", "txn-work-0")
    shown = txn("describe", "nobody")
    assert shown.exit_code == 3
    assert "transactional id nobody: TRANSACTIONAL_ID_NOT_FOUND" in shown.stderr
    assert txn("describe").exit_code == 2


def test_producers_of_a_partition(txn: Ottla) -> None:
    (found,) = documents(txn("producers", "txn-work:1", "-o", "json"))
    assert found == {
        "producer_id": PRODUCER_ID,
        "producer_epoch": 3,
        "coordinator_epoch": -1,
        "last_sequence": 0,
        "last_timestamp_ms": 1000,
        "transaction_start": 0,
    }
    assert documents(txn("producers", "txn-work:1", "--broker-id", "1", "-o", "json")) == [found]
    assert txn("producers", "txn-work:1").stdout.splitlines()[1].split() == ["900", "3", "-1", "0", "1000", "0"]
    assert txn("producers", "txn-work:9").exit_code == 3
    assert txn("producers", "txn-work").exit_code == 2


@pytest.mark.parametrize("words", [[], ["txn-work"], ["txn-work:0,1"], ["--broker-id", "1"]])
def test_finding_what_hangs(txn: Ottla, words: list[str]) -> None:
    (found,) = documents(txn("find-hanging", *words, "-o", "json"))
    assert (found["topic"], found["partition"], found["producer_id"], found["start_offset"]) == ("txn-work", 1, 900, 0)


def test_transactions_that_do_not_hang(txn: Ottla) -> None:
    assert documents(txn("find-hanging", "txn-work:0", "-o", "json")) == []
    assert documents(txn("find-hanging", "txn-work:0", "--max-transaction-timeout", "0", "-o", "json")) == [], (
        "its coordinator knows it"
    )
    assert documents(txn("find-hanging", "--broker-id", "7", "-o", "json")) == []
    row = txn("find-hanging").stdout.splitlines()[1].split()
    assert row[:6] == ["txn-work", "1", "900", "3", "-1", "0"]
    assert txn("find-hanging", "nothing").exit_code == 3
    assert txn("find-hanging", "txn-work:x").exit_code == 2


def test_options_of_abort(txn: Ottla) -> None:
    assert txn("abort", "txn-work:1").exit_code == 2
    assert txn("abort", "txn-work:1", "--producer-id", "900").exit_code == 2
    assert txn("abort", "txn-work:1", "--start-offset", "0", "--producer-id", "900").exit_code == 2
    shown = txn("abort", "txn-work:1", "--start-offset", "5", "--yes")
    assert (shown.exit_code, "begins at offset 5" in shown.stderr) == (1, True)
    shown = txn("abort", "txn-work:1", "--start-offset", "0")
    assert (shown.exit_code, "--yes" in shown.stderr) == (2, True)


def test_a_hanging_transaction_is_aborted(txn: Ottla, work: str) -> None:
    hang(work, "txn-other")
    shown = txn("abort", "txn-other:1", "--start-offset", "0", "--yes")
    assert (shown.exit_code, "producer 900 in txn-other-1 is aborted" in shown.stderr) == (0, True)
    assert documents(txn("find-hanging", "txn-other", "-o", "json")) == []
    (left,) = documents(txn("producers", "txn-other:1", "-o", "json"))
    assert left["transaction_start"] is None
    who = ["--producer-id", "900", "--producer-epoch", "3", "--coordinator-epoch", "0"]
    shown = txn("abort", "txn-other:1", *who, "--yes")
    assert (shown.exit_code, "INVALID_TXN_STATE" in shown.stderr) == (1, True)
