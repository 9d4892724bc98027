"""kafka-cluster: the id of the cluster, and the addresses of its brokers.

Zone: real.
"""

from __future__ import annotations

import sys
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.cluster import Cluster
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.options import COMMAND_CONFIG, SERVER, Options, Tool, ToolError, flag, value

_USAGE: Final = "usage: kafka-cluster [-h] {cluster-id,unregister,list-endpoints} ..."


def run_cluster(options: Options) -> int:
    """Carry out the subcommand."""
    action = options.words[0] if options.words else ""
    if action == "unregister":
        raise ToolError("unregister is for KRaft clusters: a stopped broker of this cluster is not registered")
    if action not in ("cluster-id", "list-endpoints"):
        print(_USAGE, file=sys.stderr)
        fault = f"invalid choice: '{action}' (choose from 'cluster-id', 'unregister', 'list-endpoints')"
        print(
            f"kafka-cluster: error: {fault}" if action else "kafka-cluster: error: too few arguments", file=sys.stderr
        )
        return 1
    if not options.has("bootstrap-server"):
        print(f"usage: kafka-cluster {action} [-h] --bootstrap-server BOOTSTRAP_SERVER", file=sys.stderr)
        print("kafka-cluster: error: argument --bootstrap-server is required", file=sys.stderr)
        return 1
    with open_cluster(options, file_options=("config", "command-config")) as cluster:
        (_print_id if action == "cluster-id" else _print_endpoints)(cluster)
    return 0


def _print_id(cluster: Cluster) -> None:
    print(f"Cluster ID: {Admin(cluster).describe_cluster().cluster_id}")


def _print_endpoints(cluster: Cluster) -> None:
    nodes = Admin(cluster).describe_cluster().nodes
    wide = max([20, *(len(node.host) for node in nodes)])
    print(f"{'ID':<10} {'HOST':<{wide}} {'PORT':<10} {'RACK':<15} {'ENDPOINT_TYPE':<15}")
    for node in nodes:
        print(f"{node.node_id:<10} {node.host:<{wide}} {node.port:<10} {node.rack or 'null':<15} {'broker':<15}")


TOOL: Final = Tool(
    "The Kafka cluster tool.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        value("config", "A property file containing configurations for the Admin client."),
        value("bootstrap-controller", "The address of a controller.", "brokers answer for the controller"),
        value("id", "The id of the broker to unregister."),
        flag("include-fenced-brokers", "Also list fenced brokers.", "brokers of this cluster are not fenced"),
    ),
    run_cluster,
)
