"""kafka-log-dirs: the log directories of brokers and the replicas in them, as one JSON document.

Zone: real.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.log_dirs import LogDirError
from ottla.client.admin.types import LogDir
from ottla.client.errors import ClientError, RefusedError
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import error_class
from ottla.kafka_tools.options import COMMAND_CONFIG, SERVER, Options, Tool, ToolError, flag, require_options, value

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


def run_log_dirs(options: Options) -> None:
    """Print the log directories of the brokers that the options select."""
    require_options(options, "bootstrap-server", "describe")
    topics = {name for name in options.value_of("topic-list").split(",") if name}
    wanted = {_parse_broker(text) for text in options.value_of("broker-list").split(",") if text}
    # Other tools have --broker-list for addresses; here it has the ids of brokers.
    given = {name: found for name, found in options.given.items() if name != "broker-list"}
    with open_cluster(options._replace(given=given)) as cluster:
        admin = Admin(cluster)
        brokers = _selected_brokers(admin, wanted)
        print("Querying brokers for log directories information", flush=True)
        found = admin.describe_log_dirs(nodes=brokers)
    rows = [{"broker": node, "logDirs": _dir_rows(dirs, topics)} for node, dirs in found.items()]
    print(f"Received log directory information from brokers {_joined(brokers)}")
    print(json.dumps({"brokers": rows, "version": 1}, separators=(",", ":"), ensure_ascii=False))


def _parse_broker(text: str) -> int:
    if not _INTEGER.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise ToolError(f'For input string: "{text}"', "java.lang.NumberFormatException")
    return int(text)


def _selected_brokers(admin: Admin, wanted: Collection[int]) -> list[int]:
    """All brokers, or the wanted ones. Raises ToolError when one of these does not exist."""
    existing = [node.node_id for node in admin.describe_cluster().nodes]
    if missing := set(wanted).difference(existing):
        raise ToolError(
            f"ERROR: The given brokers do not exist from --broker-list: {_joined(missing)}. Current existent brokers: "
            f"{_joined(existing)}"
        )
    return sorted(wanted or existing)


def _joined(brokers: Collection[int]) -> str:
    return ",".join(map(str, sorted(brokers)))


def _dir_rows(dirs: list[LogDir | ClientError] | ClientError, topics: Collection[str]) -> list[dict[str, object]]:
    if isinstance(dirs, ClientError):
        raise dirs
    # Brokers without a field for the error of the whole response say so that the client is not authorized.
    if not dirs:
        raise RefusedError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "log directories")
    return [_dir_row(each, topics) for each in dirs]


def _dir_row(found: LogDir | ClientError, topics: Collection[str]) -> dict[str, object]:
    if isinstance(found, ClientError):
        path = found.path if isinstance(found, LogDirError) else None
        return {"partitions": [], "error": error_class(found), "logDir": path}
    replicas = sorted(each for each in found.replicas if not topics or each.tp.topic in topics)
    rows = [
        {"partition": str(each.tp), "size": each.size, "offsetLag": each.offset_lag, "isFuture": each.is_future}
        for each in replicas
    ]
    return {"partitions": rows, "error": None, "logDir": found.path}


TOOL: Final = Tool(
    "This tool helps to query log directory usage on the specified brokers.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        flag("describe", "Describe the specified log directories on the specified brokers."),
        value("topic-list", "The topics to show: topic1,topic2. All topics if it is not given."),
        value("broker-list", "The ids of the brokers to query: 0,1,2. All brokers if it is not given."),
    ),
    run_log_dirs,
    wrap_refusals=True,
)
