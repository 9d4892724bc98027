"""kafka-transactions: list, describe, abort and terminate transactions, and find hanging ones.

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from ottla.cli.views.txn_views import Hanging, find_hanging
from ottla.client.admin.admin import Admin
from ottla.client.admin.transactions import ProducerView, TransactionAdmin
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.kafka_tools.argument_parser import Command, CommandRules, list_commands, parse_command
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import tool_error
from ottla.kafka_tools.options import COMMAND_CONFIG, SERVER, Options, Tool, ToolError, WordsReport, value
from ottla.kafka_tools.tab_table import print_tab_table
from ottla.types import TopicPartition

_MINUTE_MS: Final = 60_000
_FIRST_EPOCH: Final = 0
"""The epoch of a coordinator for an abort where -1 is shown, because none has written a marker for the producer yet."""
_SCOPE: Final = "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
_IDENTITY: Final = (
    "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) or with "
    "--producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
)
_REFUSALS: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "failed due to cluster authorization error",
    ErrorCode.INVALID_PRODUCER_EPOCH: "failed due an invalid producer epoch",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "failed since the provided coordinator epoch {epoch} has been fenced "
    "by the active coordinator",
}
"""The words of Kafka's client about markers that a broker refuses."""


def run_transactions(options: Options) -> None:
    """Carry out the command."""
    _check_options(options)
    try:
        cluster = open_cluster(options)
    except (ToolError, ClientError) as error:
        raise _failure("Failed to load admin client properties", error) from None
    with cluster:
        _RUNS[options.words[0]](cluster, options)


def _check_options(options: Options) -> None:
    """Refuse options that do not fit together. Kafka's tool also does it before it asks a broker."""
    # A partition alone is not enough: it has no meaning without its topic.
    command = options.words[0]
    if command == "find-hanging" and not (options.has("topic") or options.has("broker-id")):
        raise ToolError(_SCOPE)
    if command == "abort" and not options.has("start-offset"):
        if not options.has("producer-id"):
            raise ToolError(_IDENTITY)
        for name in ("producer-epoch", "coordinator-epoch"):
            if not options.has(name):
                raise ToolError(f"Missing required argument --{name}")


def _failure(message: str, error: ToolError | ClientError, cause: str = "") -> ToolError:
    cause = cause or (error if isinstance(error, ToolError) else tool_error(error)).message
    return ToolError(f"{message}: {cause}. Enable debug logging for additional detail.")


@contextmanager
def _failing_with(message: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise _failure(message, error) from None


def _number_or_none(number: int) -> object:
    return number if number >= 0 else None


def _partition_of(options: Options) -> TopicPartition:
    return TopicPartition(options.value_of("topic"), options.number_of("partition", -1))


def _broker_of(options: Options) -> int | None:
    return options.number_of("broker-id", -1) if options.has("broker-id") else None


def _list_transactions(cluster: Cluster, options: Options) -> None:
    # One broker that fails is enough for an error: a list without its transactions would look complete.
    admin = TransactionAdmin(cluster)
    duration, pattern = options.number_of("duration-filter", -1), options.value_of("transactional-id-pattern")
    with _failing_with("Failed to list transactions"):
        found, failed = admin.list_transactions(longer_than_ms=duration, pattern=pattern)
        for node, error in failed.items():
            raise _listing_failure(node, error)
    rows = [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found]
    print_tab_table(("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), rows)


def _listing_failure(node: int, error: ClientError) -> ToolError:
    # As in Kafka's client, which does not say the reason of a refusal here, only which broker it was.
    message = "Failed to list transactions"
    if not isinstance(error, RefusedError):
        return _failure(message, error)
    return _failure(
        message, error, f"ListTransactions request sent to broker {node} failed with an unexpected exception"
    )


def _describe_transaction(cluster: Cluster, options: Options) -> None:
    name = options.value_of("transactional-id")
    message = f"Failed to describe transaction state of transactional-id `{name}`"
    try:
        view = TransactionAdmin(cluster).describe_transaction(name)
    except ClientError as error:
        raise _failure(message, error, _description_cause(name, error)) from None
    # An ended transaction has a start as well, and Kafka's tool counts its duration until now.
    started = view.start_ms >= 0
    row = (
        view.coordinator,
        view.transactional_id,
        view.producer_id,
        view.producer_epoch,
        view.state,
        view.timeout_ms,
        _number_or_none(view.start_ms),
        int(time.time() * 1000) - view.start_ms if started else None,
        ",".join(map(str, sorted(view.partitions))),
    )
    print_tab_table(_DESCRIPTION_HEAD, [row])


def _description_cause(name: str, error: ClientError) -> str:
    if isinstance(error, RefusedError) and error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return f"DescribeTransactions request for transactionalId `{name}` failed because the ID could not be found"
    return ""


_DESCRIPTION_HEAD: Final = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)
_PRODUCERS_HEAD: Final = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)


def _describe_producers(cluster: Cluster, options: Options) -> None:
    broker, tp = _broker_of(options), _partition_of(options)
    place = "leader" if broker is None else f"broker {broker}"
    rows = [
        (*producer[:5], _number_or_none(producer.transaction_start))
        for producer in _producers_of(
            cluster, tp, broker, f"Failed to describe producers for partition {tp} on {place}"
        )
    ]
    print_tab_table(_PRODUCERS_HEAD, rows)


def _producers_of(cluster: Cluster, tp: TopicPartition, broker: int | None, message: str) -> Sequence[ProducerView]:
    with _failing_with(message):
        found = TransactionAdmin(cluster).describe_producers([tp], broker).get(tp, [])
        if isinstance(found, ClientError):
            raise found
    return found


def _abort_transaction(cluster: Cluster, options: Options) -> None:
    tp = _partition_of(options)
    if options.has("start-offset"):
        ids = _open_transaction(cluster, tp, options.number_of("start-offset", -1))
    else:
        ids = _given_transaction(options)
    names = ("producerId", "producerEpoch", "coordinatorEpoch")
    fields = "".join(f", {name}={number}" for name, number in zip(names, ids, strict=True))
    spec = f"AbortTransactionSpec(topicPartition={tp}{fields})"
    try:
        TransactionAdmin(cluster).abort_transaction(tp, *ids)
    except ClientError as error:
        raise _failure(f"Failed to abort transaction {spec}", error, _abort_cause(spec, ids[2], error)) from None


def _given_transaction(options: Options) -> tuple[int, int, int]:
    producer_id, epoch = options.number_of("producer-id", -1), options.number_of("producer-epoch", -1)
    return producer_id, epoch, max(_FIRST_EPOCH, options.number_of("coordinator-epoch", -1))


def _open_transaction(cluster: Cluster, tp: TopicPartition, start: int) -> tuple[int, int, int]:
    """Producer id, producer epoch and coordinator epoch of the transaction that is open since an offset."""
    for producer in _producers_of(cluster, tp, None, f"Failed to validate producer state for partition {tp}"):
        if start >= 0 and producer.transaction_start == start:
            return producer.producer_id, producer.producer_epoch, max(_FIRST_EPOCH, producer.coordinator_epoch)
    raise ToolError(f"Could not find any open transactions starting at offset {start} on partition {tp}")


def _abort_cause(spec: str, epoch: int, error: ClientError) -> str:
    # Not a refusal of the marker: there is no partition to write it to.
    if not isinstance(error, RefusedError) or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ""
    refusal = _REFUSALS.get(error.code, "").format(epoch=epoch)
    reason = refusal or f"failed due to unexpected error: {tool_error(error).message}"
    return f"WriteTxnMarkers request with {spec} {reason}"


def _find_hanging(cluster: Cluster, options: Options) -> None:
    broker = _broker_of(options)
    silent_ms = options.number_of("max-transaction-timeout", 15) * _MINUTE_MS
    partitions = _searched_partitions(cluster, options, broker)
    now_ms = int(time.time() * 1000)
    place = "Optional.empty" if broker is None else f"Optional[{broker}]"
    message = f"Failed to describe producers for {len(partitions)} partitions on broker {place}"
    with _failing_with(message):
        found, failed = find_hanging(TransactionAdmin(cluster), partitions, broker, now_ms - silent_ms)
        # Other partitions may have been read, but a transaction that hangs in this one would be missed.
        for error in failed.values():
            raise error
    print_tab_table(_HANGING_HEAD, [_hanging_row(each, now_ms) for each in found])


_HANGING_HEAD: Final = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


def _hanging_row(hanging: Hanging, now_ms: int) -> Sequence[object]:
    producer = hanging.producer
    minutes = (now_ms - producer.last_timestamp_ms) // _MINUTE_MS
    epochs = producer.producer_id, producer.producer_epoch, producer.coordinator_epoch
    return *hanging.tp, *epochs, producer.transaction_start, producer.last_timestamp_ms, minutes


def _searched_partitions(cluster: Cluster, options: Options, broker: int | None) -> list[TopicPartition]:
    """The partition that the options name, or those of one or all topics with a replica on the broker."""
    # The broker is asked also where it has no replica of this partition: its answer says so.
    if options.has("topic") and options.has("partition"):
        return [_partition_of(options)]
    return [
        TopicPartition(topic.name, partition.partition)
        for topic in _searched_topics(cluster, options)
        for partition in topic.partitions.values()
        if broker is None or broker in partition.replicas
    ]


def _searched_topics(cluster: Cluster, options: Options) -> list[TopicView]:
    if not options.has("topic"):
        with _failing_with("Failed to list topics"):
            return Admin(cluster).list_topics(internal=True)
    name = options.value_of("topic")
    with _failing_with("Failed to describe 1 topics"):
        topic = Admin(cluster).describe_topics([name])[name]
        if isinstance(topic, ClientError):
            raise topic
    return [topic]


def _terminate_transaction(cluster: Cluster, options: Options) -> None:
    name = options.value_of("transactionalId")
    with _failing_with(f"Failed to force terminate transactionalId `{name}`"):
        TransactionAdmin(cluster).terminate_transaction(name)


_RUNS: Final[dict[str, Callable[[Cluster, Options], None]]] = {
    "list": _list_transactions,
    "describe": _describe_transaction,
    "describe-producers": _describe_producers,
    "abort": _abort_transaction,
    "find-hanging": _find_hanging,
    "forceTerminateTransaction": _terminate_transaction,
}
_TOPIC: Final = value("topic", "Topic name.")
_PARTITION: Final = value("partition", "Partition number.")
_BROKER: Final = value("broker-id", "Id of a broker whose replicas are read; the leaders by default.")
_COMMANDS: Final = (
    Command(
        "list",
        "list transactions",
        (
            value("duration-filter", "Milliseconds: only transactions that run longer; below 0: all."),
            value("transactional-id-pattern", "A regular expression that the ids match."),
        ),
        numbers={"duration-filter": "Long"},
    ),
    Command(
        "describe",
        "describe the state of an active transactional-id",
        (value("transactional-id", "The transactional id."),),
        ("transactional-id",),
    ),
    Command(
        "describe-producers",
        "describe the states of active producers for a topic partition",
        (_BROKER, _TOPIC, _PARTITION),
        ("topic", "partition"),
        {"broker-id": "Integer", "partition": "Integer"},
    ),
    Command(
        "abort",
        "abort a hanging transaction (requires administrative privileges)",
        (
            _TOPIC,
            _PARTITION,
            value("start-offset", "The first offset of the transaction."),
            value("producer-id", "The producer id."),
            value("producer-epoch", "The epoch of the producer."),
            value("coordinator-epoch", "The epoch of the transaction coordinator."),
        ),
        ("topic", "partition"),
        {
            "partition": "Integer",
            "start-offset": "Long",
            "producer-id": "Long",
            "producer-epoch": "Short",
            "coordinator-epoch": "Integer",
        },
    ),
    Command(
        "find-hanging",
        "find hanging transactions",
        (
            _BROKER,
            value("max-transaction-timeout", "Minutes that a transaction may be open; 15 by default."),
            _TOPIC,
            _PARTITION,
        ),
        numbers={"broker-id": "Integer", "max-transaction-timeout": "Integer", "partition": "Integer"},
    ),
    Command(
        "forceTerminateTransaction",
        "Force abort an ongoing transaction on transactionalId (requires administrative privileges)",
        (value("transactionalId", "The transactional id."),),
        ("transactionalId",),
    ),
)
_ADDRESS: Final = "--bootstrap-server host:port"
_PURPOSE: Final = (
    "This tool is used to analyze the transactional state of producers in the cluster. "
    "It can be used to detect and recover from hanging transactions."
)
_RULES: Final = CommandRules(
    "kafka-transactions.sh",
    ("[--command-config FILE]", _ADDRESS),
    _ADDRESS,
    ("bootstrap-server",),
    _COMMANDS,
)
_OWN: Final = {option.name: option for command in _COMMANDS for option in command.options}
TOOL: Final = Tool(
    f"{_PURPOSE}\n\n{list_commands(_COMMANDS)}\n",
    (*COMMAND_CONFIG, *SERVER, *_OWN.values()),
    run_transactions,
    wrong_words=WordsReport.PLAIN,
    parse=partial(parse_command, _RULES),
)
