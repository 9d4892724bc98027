"""`ottla broker`: the brokers of a cluster.

Zone: real.
"""

from __future__ import annotations

import click

from ottla.cli.log_dirs import log_dirs, move
from ottla.cli.options import common_options, connect_cluster, output_option
from ottla.cli.views.output import TABLE_AND_DOCUMENTS, write_documents, write_line, write_table


@click.group()
def broker() -> None:
    """Show the brokers and their log directories, and move replicas between directories."""


broker.add_command(log_dirs)
broker.add_command(move)


@broker.command("list")
@output_option(*TABLE_AND_DOCUMENTS, "name")
@common_options
def list_(output: str) -> None:
    """List the live brokers: address, rack, and how many partitions they lead and hold."""
    from ottla.cli.views.cluster_views import read_cluster
    from ottla.client import Admin

    with connect_cluster() as client:
        state = read_cluster(Admin(client))
    if output == "name":
        for each in state.broker_states():
            write_line(str(each.node.node_id))
    elif output != "table":
        write_documents(output, [each.document() for each in state.broker_states()])
    else:
        write_table(("ID", "ADDRESS", "RACK", "CONTROLLER", "LEADS", "REPLICAS", "OUT OF SYNC"), state.broker_rows())
