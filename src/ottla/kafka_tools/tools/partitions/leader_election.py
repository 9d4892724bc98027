"""kafka-leader-election: elect the preferred leader of partitions, or an unclean one.

Zone: real.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.partitions import ElectionType
from ottla.client.errors import ClientError, RefusedError
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import open_cluster, read_file
from ottla.kafka_tools.java_errors import EXECUTION, error_class, error_text
from ottla.kafka_tools.json_values import (
    INTEGER,
    JSON_MAPPING,
    OBJECT,
    STRING,
    int32_value,
    require_fields,
    typed_field,
    typed_value,
)
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    Options,
    Tool,
    ToolError,
    flag,
    refuse_together,
    value,
)
from ottla.types import TopicPartition

_FAILED: Final = "org.apache.kafka.tools.AdminCommandFailedException"
_OPERATION: Final = "org.apache.kafka.tools.AdminOperationException"
_RUNTIME: Final = "java.lang.RuntimeException"
_CONVERSION: Final = "joptsimple.OptionArgumentConversionException"
_TARGETS: Final = ("topic", "all-topic-partitions", "path-to-json-file")
_Results = Mapping[TopicPartition, ClientError | None]


def run_leader_election(options: Options) -> None:
    """Elect leaders of the partitions that the options select, and print the result of each."""
    refuse_together(options, "admin.config", ("command-config",))
    kind, number = _parse_kind(options), _parse_number(options)
    _check_options(options)
    if options.has("admin.config"):
        print(
            "Option --admin.config has been deprecated and will be removed in a future version. Use --command-config "
            "instead."
        )
    partitions = _selected_partitions(options, number)
    with open_cluster(options, file_options=("admin.config", "command-config")) as cluster:
        results = _elect_leaders(Admin(cluster), kind, partitions)
    _print_results(kind, results)


def _parse_kind(options: Options) -> ElectionType:
    text = options.value_of("election-type", "preferred")
    if text.upper() not in ElectionType.__members__:
        raise ToolError(f"Cannot parse argument '{text}' of option election-type", _CONVERSION)
    return ElectionType[text.upper()]


def _parse_number(options: Options) -> int:
    number = options.number_of("partition", 0)
    if not -(2**31) <= number < 2**31:
        raise ToolError(f"Cannot parse argument '{number}' of option partition", _CONVERSION)
    return number


def _check_options(options: Options) -> None:
    _refuse_missing(options, "bootstrap-server", "election-type")
    if sum(options.has(name) for name in _TARGETS) != 1:
        raise ToolError(f"One and only one of the following options is required: {', '.join(_TARGETS)}", _FAILED)
    if options.has("topic"):
        _refuse_missing(options, "partition")
    elif options.has("partition"):
        raise ToolError("Option partition is only allowed if topic is used", _FAILED)


def _refuse_missing(options: Options, *names: str) -> None:
    if missing := [name for name in names if not options.has(name)]:
        raise ToolError(f"Missing required option(s): {', '.join(missing)}", _FAILED)


def _selected_partitions(options: Options, number: int) -> list[TopicPartition] | None:
    if options.has("topic"):
        return [TopicPartition(options.value_of("topic"), number)]
    if options.has("all-topic-partitions"):
        return None
    path = options.value_of("path-to-json-file")
    try:
        return parse_partitions(read_file(path))
    except ToolError as error:
        if error.java_class.endswith("FileNotFoundException"):
            raise ToolError(f"java.io.IOException: Unable to read file {path}", _RUNTIME) from None
        raise


def parse_partitions(text: str) -> list[TopicPartition]:
    """The partitions of the file. Raises ToolError in the words of Kafka's tool."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ToolError("Replica election data is empty", _OPERATION) from None
    try:
        found = [_parse_row(typed_value(row, dict, OBJECT)) for row in _rows(document)]
    except ToolError as error:
        # Kafka's tool wraps what its parser raises, and nothing else.
        if error.java_class == JSON_MAPPING:
            raise ToolError(f"{JSON_MAPPING}: {error.message}", _RUNTIME) from None
        raise
    if twice := sorted(tp for tp, count in Counter(found).items() if count > 1):
        names = ", ".join(map(str, twice))
        raise ToolError(f"Replica election data contains duplicate partitions: [{names}]", _OPERATION)
    return found


def _rows(document: object) -> list[Any]:
    rows = typed_value(document, dict, OBJECT).get("partitions")
    if rows is None:
        raise ToolError('Replica election data is missing "partitions" field', _OPERATION)
    found: list[Any] = typed_value(rows, list, "JSON array")
    return found


def _parse_row(row: dict[str, Any]) -> TopicPartition:
    # As Kafka's tool: both fields are looked for before one is read.
    require_fields(row, "topic", "partition")
    topic = typed_field(row, "topic", str, STRING)
    return TopicPartition(topic, int32_value(typed_field(row, "partition", int, INTEGER)))


def _elect_leaders(admin: Admin, kind: ElectionType, partitions: list[TopicPartition] | None) -> _Results:
    """The results. Raises ToolError in the words of Kafka's tool."""
    try:
        return admin.elect_leaders(kind, partitions)
    except ClientError as error:
        raise _election_error(error) from None


def _election_error(error: ClientError) -> ToolError:
    """The error of a whole election. Two of them Kafka's tool also prints to standard output."""
    found = error_class(error)
    if found.endswith(".ClusterAuthorizationException"):
        message, reason = "Not authorized to perform leader election", ""
    elif found.endswith(".TimeoutException"):
        message, reason = "Timeout waiting for election results", f". {error}"
    else:
        return ToolError(f"{EXECUTION}: {error_text(error)}", _RUNTIME)
    print(message, flush=True)
    return ToolError(f"{message}{reason}", _FAILED)


def _print_results(kind: ElectionType, results: _Results) -> None:
    elected, valid, failed = [], [], []
    for tp, error in sorted(results.items(), key=lambda item: item[0]):
        if error is None:
            elected.append(str(tp))
        elif isinstance(error, RefusedError) and error.code is ErrorCode.ELECTION_NOT_NEEDED:
            valid.append(str(tp))
        else:
            failed.append(f"{tp}: {error_text(error)}")
    if elected:
        print(f"Successfully completed leader election ({kind.name}) for partitions {', '.join(elected)}")
    if valid:
        print(f"Valid replica already elected for partitions {', '.join(valid)}")
    for line in failed:
        print(f"Error completing leader election ({kind.name}) for partition: {line}")
    if failed:
        raise ToolError(f"{len(failed)} replica(s) could not be elected", _FAILED)


TOOL: Final = Tool(
    "This tool attempts to elect a new leader for a set of topic partitions. The type of elections supported are "
    "preferred replicas and unclean replicas.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        value("admin.config", "The old name of --command-config."),
        value(
            "election-type",
            "REQUIRED: preferred: the first replica becomes leader if it is in sync. unclean: any live replica, if "
            "there is no leader; records may be lost.",
        ),
        value("topic", "Name of the topic for which to perform an election, with --partition."),
        value("partition", "Partition id for which to perform an election. REQUIRED if --topic is specified."),
        value(
            "path-to-json-file",
            'The JSON file with the partitions: {"partitions": [{"topic": "foo", "partition": 1}]}',
        ),
        flag("all-topic-partitions", "Perform elections for all partitions that need one."),
    ),
    run_leader_election,
)
