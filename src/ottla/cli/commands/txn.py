"""`ottla txn`: show transactions, find those that hang, and end them.

Zone: real. Turns options into admin calls, and prints their results.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ottla.cli.commands.topic import confirm_action, exit_with_errors
from ottla.cli.options import common_options, connect_cluster, output_option, print_note
from ottla.cli.views.output import Json, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.client import ClientError
    from ottla.client.admin.transactions import ProducerView, TransactionAdmin, TransactionView
    from ottla.client.cluster import Cluster
    from ottla.types import TopicPartition

_MINUTE_MS = 60_000


@click.group()
def txn() -> None:
    """Show transactions, and end those that hang."""


@txn.command("list")
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only ids in this state: Ongoing, PrepareCommit, …"
)
@click.option(
    "--producer-id", "producer_ids", type=int, multiple=True, metavar="ID", help="Only ids with this producer id."
)
@click.option("--duration-filter", "longer_than_ms", type=click.IntRange(min=0), metavar="MS",
              help="Only transactions that have been open for longer.")  # fmt: skip
@output_option("table", "json", "jsonl", "name")
@common_options
def list_(states: tuple[str, ...], producer_ids: tuple[int, ...], longer_than_ms: int | None, output: str) -> None:
    """List transactional ids."""
    from ottla.client.admin.transactions import TransactionAdmin

    with connect_cluster() as cluster:
        duration = -1 if longer_than_ms is None else longer_than_ms
        found, failed = TransactionAdmin(cluster).list_transactions(states, producer_ids, duration)
    if output == "name":
        for each in found:
            write_line(each.transactional_id)
    elif output in ("json", "jsonl"):
        write_documents(output, [each._asdict() for each in found])
    else:
        write_table(("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"), found)
    exit_with_errors({str(node): error for node, error in failed.items()})


@txn.command()
@click.argument("names", nargs=-1)
@click.option("--transactional-id", "more", multiple=True, metavar="ID", help="Another way to name an id.")
@output_option("table", "json", "jsonl")
@common_options
def describe(names: tuple[str, ...], more: tuple[str, ...], output: str) -> None:
    """Show producer, state and partitions of transactional ids."""
    from ottla.cli.views.txn_views import transaction_document
    from ottla.client.admin.transactions import TransactionAdmin

    if not names + more:
        raise click.UsageError("name a transactional id")
    with connect_cluster() as cluster:
        results = _describe_ids(TransactionAdmin(cluster), names + more)
    now_ms = _now_ms()
    found = [transaction_document(result, now_ms) for result in results.values() if not isinstance(result, Exception)]
    if output in ("json", "jsonl"):
        write_documents(output, found)
    else:
        rows = [
            (d["transactional_id"], d["coordinator"], d["producer_id"], d["producer_epoch"], d["state"],
             d["timeout_ms"], d["duration_ms"], _partitions_text(d["partitions"])) for d in found
        ]  # fmt: skip
        header = ("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "EPOCH", "STATE", "TIMEOUT MS", "DURATION MS",
                  "PARTITIONS")  # fmt: skip
        write_table(header, rows)
    exit_with_errors(results)


def _describe_ids(admin: TransactionAdmin, names: Sequence[str]) -> dict[str, TransactionView | ClientError]:
    from ottla.client import ClientError

    results: dict[str, TransactionView | ClientError] = {}
    for name in dict.fromkeys(names):
        try:
            results[name] = admin.describe_transaction(name)
        except ClientError as error:
            results[name] = error
    return results


def _partitions_text(partitions: Json) -> str | None:
    assert isinstance(partitions, list)
    return ",".join(partitions) or None


@txn.command()
@click.argument("partition", metavar="TOPIC:PARTITION")
@click.option("--broker-id", type=int, help="Read from the replica on this broker, not from the leader.")
@output_option("table", "json", "jsonl")
@common_options
def producers(partition: str, broker_id: int | None, output: str) -> None:
    """Show the producers of a partition, as the partition has them."""
    from ottla.cli.partitions import parse_partition
    from ottla.cli.views.txn_views import producer_document
    from ottla.client.admin.transactions import TransactionAdmin

    tp = parse_partition(partition)
    with connect_cluster() as cluster:
        documents = [producer_document(each) for each in _read_producers(TransactionAdmin(cluster), tp, broker_id)]
    if output in ("json", "jsonl"):
        write_documents(output, documents)
    else:
        header = ("PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "LAST SEQUENCE", "LAST TIMESTAMP", "TRANSACTION START")
        write_table(header, [tuple(document.values()) for document in documents])


def _read_producers(admin: TransactionAdmin, tp: TopicPartition, broker: int | None = None) -> list[ProducerView]:
    from ottla.client import ClientError

    found = admin.describe_producers([tp], broker)[tp]
    if isinstance(found, ClientError):
        raise found
    return found


@txn.command("find-hanging")
@click.argument("words", nargs=-1, metavar="[TOPIC[:P,P]]…")
@click.option("--broker-id", type=int, help="Only partitions with a replica on this broker; read from it.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="Only transactions silent for longer; as transaction.max.timeout.ms.",
)
@output_option("table", "json", "jsonl")
@common_options
def find_hanging(words: tuple[str, ...], broker_id: int | None, minutes: int, output: str) -> None:
    """Find open transactions that no coordinator will end; in all topics when none is named."""
    from ottla.cli.views import txn_views
    from ottla.client.admin.transactions import TransactionAdmin

    now_ms = _now_ms()
    with connect_cluster() as cluster:
        partitions = _list_partitions(cluster, words, broker_id)
        found, failed = txn_views.find_hanging(
            TransactionAdmin(cluster), partitions, broker_id, now_ms - minutes * _MINUTE_MS
        )
    if output in ("json", "jsonl"):
        write_documents(output, [each.document(now_ms) for each in found])
    else:
        rows = [
            (each.tp.topic, each.tp.partition, each.producer.producer_id, each.producer.producer_epoch,
             each.producer.coordinator_epoch, each.producer.transaction_start, each.producer.last_timestamp_ms,
             (now_ms - each.producer.last_timestamp_ms) // _MINUTE_MS) for each in found
        ]  # fmt: skip
        header = ("TOPIC", "PARTITION", "PRODUCER ID", "EPOCH", "COORDINATOR EPOCH", "START OFFSET", "LAST TIMESTAMP",
                  "DURATION MIN")  # fmt: skip
        write_table(header, rows)
    exit_with_errors(failed)


def _list_partitions(cluster: Cluster, words: Sequence[str], broker: int | None) -> list[TopicPartition]:
    """The named partitions, or all; only those with a replica on `broker`, if one is given. Raises ClientError."""
    from ottla.cli.views.group_views import parse_topics
    from ottla.client import RefusedError
    from ottla.types import TopicPartition

    try:
        names = parse_topics(words)
    except ValueError as wrong:
        raise click.UsageError(f"name topics as TOPIC or TOPIC:PARTITION,…: {wrong}") from wrong
    topics = cluster.refresh(list(names) or None).topics
    found: list[TopicPartition] = []
    for name in names or topics:
        view, wanted = topics[name], names.get(name)
        if isinstance(view, RefusedError):
            raise view
        for number, partition in view.partitions.items():
            if (wanted is None or number in wanted) and (broker is None or broker in partition.replicas):
                found.append(TopicPartition(name, number))
    return found


@txn.command()
@click.argument("partition", metavar="TOPIC:PARTITION")
@click.option("--start-offset", type=int, help="The first offset of the transaction; the other values are looked up.")
@click.option("--producer-id", type=int, help="As `ottla txn find-hanging` shows it.")
@click.option("--producer-epoch", type=int, help="As `ottla txn find-hanging` shows it.")
@click.option("--coordinator-epoch", type=int, help="As `ottla txn find-hanging` shows it.")
@common_options
def abort(
    partition: str,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """Abort a hanging transaction in one partition. Asks first in a terminal, needs --yes elsewhere.

    The coordinator is not asked: do not abort a transaction that it still has. `find-hanging` prints the values to use.
    """
    from ottla.cli.partitions import parse_partition
    from ottla.client.admin.transactions import TransactionAdmin

    # Either the offset alone, or all three numbers: anything else would mix two transactions.
    who = producer_id, producer_epoch, coordinator_epoch
    if (start_offset is None) == (None in who) or (start_offset is not None and who != (None, None, None)):
        raise click.UsageError("give --start-offset, or all of --producer-id, --producer-epoch and --coordinator-epoch")
    tp = parse_partition(partition)
    with connect_cluster() as cluster:
        admin = TransactionAdmin(cluster)
        marker = _open_at(admin, tp, start_offset) if start_offset is not None else who
        confirm_action(f"Abort the transaction of producer {marker[0]}, epoch {marker[1]}, in {tp}?")
        admin.abort_transaction(tp, *marker)  # type: ignore[arg-type]  # all three were given
    print_note(f"the transaction of producer {marker[0]} in {tp} is aborted")


def _open_at(admin: TransactionAdmin, tp: TopicPartition, start_offset: int) -> tuple[int, int, int]:
    """The producer id, its epoch and the coordinator epoch of the transaction that begins there. Raises ClientError."""
    for each in _read_producers(admin, tp):
        if 0 <= start_offset == each.transaction_start:  # -1: a producer without a transaction
            return each.producer_id, each.producer_epoch, max(0, each.coordinator_epoch)
    raise click.ClickException(f"no open transaction of {tp} begins at offset {start_offset}")


def _now_ms() -> int:
    return int(time.time() * 1000)
