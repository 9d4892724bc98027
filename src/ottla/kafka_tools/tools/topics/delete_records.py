"""kafka-delete-records: delete records before the offsets of a JSON file.

Zone: real.
"""

from __future__ import annotations

import json
from typing import Any, Final

from ottla.client.admin.admin import Admin
from ottla.client.errors import ClientError
from ottla.kafka_tools.connection import open_cluster, read_file
from ottla.kafka_tools.java_errors import error_text
from ottla.kafka_tools.options import COMMAND_CONFIG, SERVER, Options, Tool, ToolError, require_options, value
from ottla.types import TopicPartition

_OPERATION: Final = "org.apache.kafka.tools.AdminOperationException"
_MAPPING: Final = "com.fasterxml.jackson.databind.JsonMappingException"


def run_delete_records(options: Options) -> None:
    """Delete the records that the file names, and print the new start of each partition."""
    require_options(options, "bootstrap-server", "offset-json-file")
    path = options.value_of("offset-json-file")
    try:
        text = read_file(path)
    except ToolError as error:
        if error.java_class.endswith("FileNotFoundException"):
            raise ToolError(f"Unable to read file {path}", "java.io.IOException") from None
        raise
    before = parse_offsets(text)
    with open_cluster(options) as cluster:
        print("Executing records delete operation", flush=True)
        results = Admin(cluster).delete_records(before)
        print("Records delete operation completed:")
        for tp, found in results.items():
            if isinstance(found, ClientError):
                print(f"partition: {tp}\terror: {error_text(found)}")
            else:
                print(f"partition: {tp}\tlow_watermark: {found}")


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """The offsets of the file's partitions. Raises ToolError in the words of Kafka's tool."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ToolError("The input string is not a valid JSON", _OPERATION) from None
    if not isinstance(document, dict):
        raise ToolError("The input string is not a valid JSON", _OPERATION)
    if document.get("version", 1) != 1:
        raise ToolError(f"Not supported version field value {document['version']}", _OPERATION)
    rows = document.get("partitions")
    if not isinstance(rows, list):
        raise ToolError("Missing partitions field", _OPERATION)
    found = [_parse_row(row) for row in rows]
    before = dict(found)
    if len(before) < len(found):
        twice = sorted({str(tp) for tp, _ in found if sum(tp == other for other, _ in found) > 1})
        raise ToolError(
            f"Offset json file contains duplicate topic partitions: {','.join(twice)}",
            "org.apache.kafka.tools.AdminCommandFailedException",
        )
    return before


def _parse_row(row: Any) -> tuple[TopicPartition, int]:
    if not isinstance(row, dict):
        raise ToolError(f"Expected JSON object, received {json.dumps(row)}", _MAPPING)
    topic, partition, offset = (_field(row, name) for name in ("topic", "partition", "offset"))
    if not isinstance(topic, str):
        raise ToolError(f"Expected `String`, received {json.dumps(topic)[:100]}", _MAPPING)
    return TopicPartition(topic, _number(partition, 2**31)), _number(offset, 2**63)


def _field(row: dict[str, Any], name: str) -> object:
    if name not in row:
        raise ToolError(f"No such field exists: `{name}`", _MAPPING)
    return row[name]


def _number(found: object, limit: int) -> int:
    if type(found) is not int or not -1 <= found < limit:
        raise ToolError(f"Expected an integer below {limit}, received {json.dumps(found)[:100]}", _MAPPING)
    return found


TOOL: Final = Tool(
    "This tool helps to delete records of the given partitions down to the specified offset.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        value(
            "offset-json-file",
            'REQUIRED: The JSON file with offset per partition: {"partitions": [{"topic": "foo", "partition": 1, '
            '"offset": 1}], "version":1}',
        ),
    ),
    run_delete_records,
)
