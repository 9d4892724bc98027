"""kafka-metadata-quorum: the quorum of an Apache Kafka cluster's controllers.

Zone: real.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.quorum import QuorumAdmin, QuorumEndpoint, QuorumReplica, QuorumView
from ottla.client.cluster import Cluster
from ottla.kafka_tools.argument_parser import Command, CommandRules, parse_command
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.options import COMMAND_CONFIG, SERVER, Options, Tool, ToolError, WordsReport, flag, value
from ottla.kafka_tools.tab_table import print_tab_table
from ottla.types import ZERO_UUID, uuid_to_text

_HEAD: Final = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)


def run_metadata_quorum(options: Options) -> None:
    """Describe the quorum."""
    _check_options(options)
    with open_cluster(options) as cluster:
        if options.has("replication"):
            _print_replication(QuorumAdmin(cluster).describe_metadata_quorum(), ago=options.has("human-readable"))
        else:
            _print_status(cluster)


def _check_options(options: Options) -> None:
    if options.has("status") and options.has("replication"):
        raise ToolError("Only one of --status or --replication should be specified with describe sub-command")
    if not options.has("status") and not options.has("replication"):
        raise ToolError("One of --status or --replication must be specified with describe sub-command")
    if options.has("status") and options.has("human-readable"):
        raise ToolError("The option --human-readable is only supported along with --replication")


def _leader_of(quorum: QuorumView) -> QuorumReplica:
    for voter in quorum.voters:
        if voter.node_id == quorum.leader_id:
            return voter
    # As in Kafka's tool: without a leader there is nothing to compare with.
    raise ToolError("No value present", "java.util.NoSuchElementException")


# -- replication -------------------------------------------------------------------------------------------------------


def _print_replication(quorum: QuorumView, *, ago: bool) -> None:
    leader = _leader_of(quorum)
    now_ms = int(time.time() * 1000) if ago else None
    followers = [voter for voter in quorum.voters if voter.node_id != leader.node_id]
    groups = (("Leader", [leader]), ("Follower", followers), ("Observer", quorum.observers))
    rows = [_replica_row(each, leader, status, now_ms) for status, some in groups for each in some]
    print_tab_table(_HEAD, rows)


def _replica_row(replica: QuorumReplica, leader: QuorumReplica, status: str, now_ms: int | None) -> Sequence[object]:
    return (
        replica.node_id,
        uuid_to_text(replica.directory_id),
        replica.log_end_offset,
        leader.log_end_offset - replica.log_end_offset,
        _time_text(replica.last_fetch_ms, now_ms, "last fetch"),
        _time_text(replica.last_caught_up_ms, now_ms, "last caught up"),
        status,
    )


def _time_text(timestamp_ms: int, now_ms: int | None, subject: str) -> str:
    """The time, or how long ago it was where `now_ms` is given. Raises ToolError for a time in the future."""
    if timestamp_ms < 0 or now_ms is None:
        return str(timestamp_ms)
    # The time is the leader's: its clock may be ahead of this one.
    if not 0 < timestamp_ms <= now_ms:
        raise ToolError(
            "Error while computing relative time, possible drift in system clock.\n"
            f"Current timestamp is {now_ms}, {subject} timestamp is {timestamp_ms}",
            "org.apache.kafka.common.KafkaException",
        )
    return f"{now_ms - timestamp_ms} ms ago"


# -- status ------------------------------------------------------------------------------------------------------------


def _print_status(cluster: Cluster) -> None:
    cluster_id = Admin(cluster).describe_cluster().cluster_id
    quorum = QuorumAdmin(cluster).describe_metadata_quorum()
    leader = _leader_of(quorum)
    last = min(quorum.voters, key=lambda voter: voter.log_end_offset)
    for name, shown in (
        ("ClusterId", cluster_id),
        ("LeaderId", quorum.leader_id),
        ("LeaderEpoch", quorum.leader_epoch),
        ("HighWatermark", quorum.high_watermark),
        ("MaxFollowerLag", leader.log_end_offset - last.log_end_offset),
        ("MaxFollowerLagTimeMs", _lag_ms(leader, last)),
        ("CurrentVoters", _replicas_text(quorum, quorum.voters)),
        ("CurrentObservers", _replicas_text(quorum, quorum.observers)),
    ):
        print(f"{name + ':':<24}{shown}")


def _lag_ms(leader: QuorumReplica, last: QuorumReplica) -> int:
    if leader is last:
        return 0
    if leader.last_caught_up_ms < 0 or last.last_caught_up_ms < 0:
        return -1
    return leader.last_caught_up_ms - last.last_caught_up_ms


def _replicas_text(quorum: QuorumView, replicas: Sequence[QuorumReplica]) -> str:
    return f"[{', '.join(_replica_text(each, quorum.endpoints.get(each.node_id, ())) for each in replicas)}]"


def _replica_text(replica: QuorumReplica, endpoints: Sequence[QuorumEndpoint]) -> str:
    parts = [f'"id": {replica.node_id}']
    if replica.directory_id != ZERO_UUID:
        parts.append(f'"directoryId": "{uuid_to_text(replica.directory_id)}"')
    if endpoints:
        parts.append(f'"endpoints": [{", ".join(map(_endpoint_text, endpoints))}]')
    return f"{{{', '.join(parts)}}}"


def _endpoint_text(endpoint: QuorumEndpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f'"{endpoint.name}://{host}:{endpoint.port}"'


_ADDRESS: Final = "--bootstrap-server BOOTSTRAP_SERVER"
_CHANGES: Final = "it changes a quorum of controllers, which Ottla does not have; use Apache Kafka's tool"
_RULES: Final = CommandRules(
    "kafka-metadata-quorum",
    ("[--command-config COMMAND_CONFIG]", _ADDRESS),
    _ADDRESS,
    ("bootstrap-server",),
    (
        Command(
            "describe",
            "Describe the metadata quorum info",
            (
                flag("status", "A short summary of the quorum status."),
                flag("replication", "Detailed information about the status of replication"),
                flag("human-readable", "Human-readable output"),
            ),
        ),
    ),
    purpose="This tool describes kraft metadata quorum status.",
    refused={"add-controller": _CHANGES, "remove-controller": _CHANGES},
)
TOOL: Final = Tool(
    _RULES.purpose,
    (
        *SERVER,
        value("bootstrap-controller", "The address of a controller.", "brokers answer for the controller"),
        *COMMAND_CONFIG,
        *_RULES.commands[0].options,
    ),
    run_metadata_quorum,
    wrong_words=WordsReport.PLAIN,
    wrap_refusals=True,
    parse=partial(parse_command, _RULES),
)
