"""Files of kafka-reassign-partitions: which replicas a partition should have, and in which log directories.

Zone: pure. The format is Kafka's:

    {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/data"]}]}
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ottla.client.admin.types import Replica
from ottla.kafka_tools.json_values import INTEGER, OBJECT, STRING, int32_value, typed_field, typed_value
from ottla.kafka_tools.options import ToolError
from ottla.types import TopicPartition

FAILED: Final = "org.apache.kafka.tools.AdminCommandFailedException"
_OPERATION: Final = "org.apache.kafka.tools.AdminOperationException"
_ANY: Final = "any"
_ARRAY: Final = "`JSON array` value"
_VERSION: Final = 1
_BROKER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class Row(NamedTuple):
    """The target of one partition; a log directory for each replica."""

    tp: TopicPartition
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]


class Plan(NamedTuple):
    """A file's rows."""

    rows: tuple[Row, ...]

    @property
    def targets(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of each partition, in the order of partitions."""
        return {row.tp: row.replicas for row in sorted(self.rows)}

    @property
    def log_dirs(self) -> dict[Replica, str]:
        """Replicas that must be in a certain log directory."""
        return {
            Replica(row.tp, node): path
            for row in self.rows
            for node, path in zip(row.replicas, row.log_dirs, strict=True)
            if path != _ANY
        }


def parse_plan(text: str) -> Plan:
    """The rows of a reassignment file. Raises ToolError in the words of Kafka's tool."""
    if not text:
        raise ToolError("The input string shouldn't be empty", _OPERATION)
    return Plan(tuple(_parse_row(typed_value(row, dict, OBJECT)) for row in _rows(text, "partitions")))


def parse_topics(text: str) -> list[str]:
    """The names in a file of topics. Raises ToolError in the words of Kafka's tool."""
    return [typed_field(typed_value(row, dict, OBJECT), "topic", str, STRING) for row in _rows(text, "topics")]


def check_plan(plan: Plan) -> None:
    """Raises ToolError for a plan that cannot be executed."""
    if not plan.rows:
        raise ToolError("Partition reassignment list cannot be empty", FAILED)
    if any(not row.replicas for row in plan.rows):
        raise ToolError("Partition replica list cannot be empty", FAILED)
    if twice := _repeated(row.tp for row in plan.rows):
        raise ToolError(f"Partition reassignment contains duplicate topic partitions: {_joined(twice)}", FAILED)
    found = [f"{row.tp} contains multiple entries for {_joined(_repeated(row.replicas))}"
             for row in plan.rows if _repeated(row.replicas)]  # fmt: skip
    if found:
        raise ToolError(f"Partition replica lists may not contain duplicate entries: {'. '.join(found)}", FAILED)


def parse_brokers(text: str) -> list[int]:
    """The ids of --broker-list. Raises ToolError."""
    found = [_parse_broker(word) for word in text.split(",")]
    if twice := _repeated(found):
        raise ToolError(f"Broker list contains duplicate entries: [{', '.join(map(str, twice))}]", FAILED)
    return found


def _parse_broker(word: str) -> int:
    # As Java reads numbers: int() would also take spaces, underscores, and digits of other scripts.
    if not _BROKER.fullmatch(word) or not -(2**31) <= int(word) < 2**31:
        raise ToolError(f'For input string: "{word}"', "java.lang.NumberFormatException")
    return int(word)


def check_topics(topics: Sequence[str]) -> None:
    """Raises ToolError for a topic that is named twice."""
    if twice := _repeated(topics):
        raise ToolError(f"List of topics to reassign contains duplicate entries: [{', '.join(twice)}]", FAILED)


def plan_text(replicas: Mapping[TopicPartition, Sequence[int]], log_dirs: Mapping[Replica, str]) -> str:
    """The document of these replicas, in one line; a log directory that is not given is `any`."""
    rows = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": list(nodes),
            "log_dirs": [log_dirs.get(Replica(tp, node), _ANY) for node in nodes],
        }
        for tp, nodes in sorted(replicas.items())
    ]
    return json.dumps({"version": _VERSION, "partitions": rows}, separators=(",", ":"), ensure_ascii=False)


def _rows(text: str, name: str) -> list[Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ToolError("The input string is not a valid JSON", _OPERATION) from None
    fields = typed_value(document, dict, OBJECT)
    # A file without a version is of version 1, as those of the oldest tools.
    version = typed_value(fields.get("version", _VERSION), int, INTEGER)
    if version != _VERSION:
        raise ToolError(f"Not supported version field value {version}", _OPERATION)
    rows: list[Any] = typed_value(fields.get(name, []), list, "JSON array")
    return rows


def _parse_row(row: dict[str, Any]) -> Row:
    tp = TopicPartition(
        typed_field(row, "topic", str, STRING), int32_value(typed_field(row, "partition", int, INTEGER))
    )
    replicas = tuple(
        int32_value(typed_value(each, int, INTEGER)) for each in typed_field(row, "replicas", list, _ARRAY)
    )
    dirs = typed_value(row.get("log_dirs", [_ANY] * len(replicas)), list, _ARRAY)
    log_dirs = tuple(typed_value(each, str, STRING) for each in dirs)
    if len(log_dirs) != len(replicas):
        raise ToolError(
            f"Size of replicas list [{', '.join(map(str, replicas))}] is different from size of log dirs list "
            f"[{', '.join(log_dirs)}] for partition {tp}",
            FAILED,
        )
    return Row(tp, replicas, log_dirs)


def _repeated(values: Iterable[Any]) -> list[Any]:
    return sorted(each for each, count in Counter(values).items() if count > 1)


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))
