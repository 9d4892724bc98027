"""kafka-transactions beside Apache Kafka's own, of 4.4 and of 3.9. Ids of producers and times are compared by form."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from testbench.clients import Confluent, Record
from tests.interop.kafka_tools.comparison import Comparison, run_ottla

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOOL = "kafka-transactions"
_VARYING = {
    "ProducerId",
    "LastTimestamp",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
}
_ID = re.compile(r"<(\w+)>")
"""The producer id of a transactional id."""
_LOGGED = re.compile(r"(ERROR - )?\[AdminClient clientId=")
_SINCE_KAFKA_4 = re.compile(r" \[--transactional-id-pattern TRANSACTIONAL_ID_PATTERN\]|, 'forceTerminateTransaction'")
"""An option and a command, in the usage that Ottla's tool prints."""
# Ottla's reason follows these words.
_UNREACHABLE = re.compile(r"(?<=Timed out waiting for a node assignment\.).*?(?= Enable debug)")


def form(text: str) -> list[str]:
    """The rows of a table without what varies, or the words of a message without line breaks."""
    lines = [line for line in text.splitlines() if not _LOGGED.match(line)]
    if not lines or "\t" not in lines[0]:
        return [re.sub(r"producerId=\d+", "producerId=N", _UNREACHABLE.sub("", " ".join(" ".join(lines).split())))]
    head, *rows = ([cell.strip() for cell in line.split("\t")] for line in lines)
    shown = [
        ["N" if name in _VARYING and cell.isdigit() else cell for name, cell in zip(head, row, strict=True)]
        for row in rows
    ]
    return ["|".join(head), *sorted("|".join(row) for row in shown)]


def _producer_id(both: Comparison, transactional_id: str) -> str:
    words = ["--bootstrap-server", both.bootstrap, "describe", "--transactional-id", transactional_id]
    return run_ottla(TOOL, words)[1].splitlines()[1].split("\t")[2].strip()


def is_kafka_4(both: Comparison) -> bool:
    return both.shell.version.startswith("4.")


def compare(both: Comparison, script: str, *, same_words: bool = False) -> None:
    """Run each line with both tools; exit codes and forms must be equal."""
    different = []
    for line in script.strip().splitlines():
        found = []
        for mine, prefix in ((False, both.kafka_prefix), (True, both.ottla_prefix)):
            filled = line.strip().replace("{name}", prefix).replace("BS", f"--bootstrap-server {both.bootstrap}")
            words = shlex.split(_ID.sub(lambda name: _producer_id(both, name[1]), filled))
            code, text = run_ottla(TOOL, words) if mine else both.shell.run(TOOL, *words)
            if mine and not is_kafka_4(both):
                text = _SINCE_KAFKA_4.sub("", text)
            found.append((code, form(text if same_words else text.replace(prefix, "NAME"))))
        if found[1] != found[0]:
            different.append(f"{line.strip()}\n  Apache Kafka {found[0]}\n  Ottla        {found[1]}")
    assert not different, "\n".join(different)


@pytest.fixture(params=["both", "both_3"], ids=["4.4", "3.9"])
def tools(request: pytest.FixtureRequest) -> Comparison:
    """The tools of one version of Kafka, and Ottla's."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Comparison)
    return found


@pytest.fixture
def transactions(tools: Comparison) -> Iterator[Comparison]:
    """For each side a topic, a transaction that is open in it, and an id whose transaction was committed."""
    producers: list[Producer] = []

    def make(prefix: str) -> None:
        Confluent().write(tools.bootstrap, f"{prefix}t", [Record(b"k", b"v", (), 1_700_000_000_000)])
        for name in ("open", "done"):
            common = {"bootstrap.servers": tools.bootstrap, "log_level": 0, "transaction.timeout.ms": 600_000}
            producer = Producer({**common, "transactional.id": f"{prefix}{name}"})
            producers.append(producer)
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce(f"{prefix}t", b"x")
            assert producer.flush(60) == 0
        producers[-1].commit_transaction(60)

    tools.prepare(make)
    yield tools
    producers.clear()


def test_transactions(transactions: Comparison) -> None:
    compare(
        transactions,
        """
        BS list
        BS list --duration-filter -1
        BS list --duration-filter 100000000
        """,
        same_words=True,
    )
    compare(
        transactions,
        """
        BS describe --transactional-id {name}open
        BS describe --transactional-id {name}done
        BS describe --transactional-id {name}nothing
        BS describe-producers --topic {name}t --partition 0
        BS describe-producers --topic {name}t --partition 0 --broker-id 1
        BS find-hanging --topic {name}t
        BS find-hanging --topic {name}t --partition 0 --max-transaction-timeout -100
        BS find-hanging --topic {name}nothing
        BS find-hanging --broker-id 1
        BS find-hanging --broker-id 9
        BS abort --topic {name}t --partition 0 --start-offset 77
        BS abort --topic {name}t --partition 0 --producer-id 12345 --producer-epoch 2 --coordinator-epoch 0
        BS abort --topic {name}t --partition 0 --producer-id <{name}open> --producer-epoch -1 --coordinator-epoch 0
        BS abort --topic {name}t --partition 0 --producer-id <{name}done> --producer-epoch 0 --coordinator-epoch -9
        BS abort --topic {name}t --partition 0 --start-offset 1
        BS abort --topic {name}t --partition 0 --start-offset 1
        BS describe-producers --topic {name}t --partition 0
        """,
    )
    if is_kafka_4(transactions):
        compare_since_kafka_4(transactions)


def compare_since_kafka_4(transactions: Comparison) -> None:
    compare(
        transactions,
        """
        BS list --transactional-id-pattern .*open
        BS list --transactional-id-pattern x(
        """,
        same_words=True,
    )
    compare(
        transactions,
        """
        BS forceTerminateTransaction --transactionalId {name}open
        BS describe --transactional-id {name}open
        BS forceTerminateTransaction --transactionalId {name}nothing
        BS describe --transactional-id {name}nothing
        """,
    )


def test_wrong_words_of_transactions(tools: Comparison, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("default.api.timeout.ms=300\nrequest.timeout.ms=200\n")
    # A port where no broker is.
    away = f"--bootstrap-server 127.0.0.1:1 --command-config {tmp_path}/short"
    compare(
        tools,
        f"""
        BS
        list
        BS nonsense
        BS --nonsense list
        BS list --nonsense
        BS list --duration-filter
        BS list --duration-filter x
        list BS
        BS describe
        BS describe-producers --topic t
        BS describe-producers --topic t --partition x
        BS find-hanging
        BS find-hanging --partition 0
        BS find-hanging --nonsense
        BS abort --topic t
        BS abort --topic t --partition 0
        BS abort --topic t --partition 0 --producer-id 5
        BS abort --topic t --partition 0 --producer-id 5 --producer-epoch 2
        BS abort --topic t --partition 0 --producer-epoch 40000
        BS abort --topic t --partition 0 --producer-epoch x
        {away} list
        {away} describe --transactional-id x
        {away} describe-producers --topic x --partition 0
        {away} find-hanging --topic x
        {away} find-hanging --broker-id 0
        """,
    )
    if is_kafka_4(tools):
        compare(tools, f"BS forceTerminateTransaction\n{away} forceTerminateTransaction --transactionalId x")
