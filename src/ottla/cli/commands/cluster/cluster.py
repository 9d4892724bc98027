"""`ottla cluster`: the state of the cluster as a whole.

Zone: real. Counts brokers and partitions in the metadata; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.options import common_options, connect_cluster, output_option
from ottla.cli.views.output import write_json, write_jsonl, write_line, write_table

if TYPE_CHECKING:
    from ottla.cli.views.cluster_views import ClusterState


@click.group()
def cluster() -> None:
    """Show the state of a cluster as a whole."""


@cluster.command()
@output_option("table", "json", "jsonl")
@common_options
def describe(output: str) -> None:
    """Show the brokers, and how many partitions are in each state. The exit code is 0 even when some are unhealthy."""
    from ottla.cli.views.cluster_views import read_cluster
    from ottla.client import Admin

    with connect_cluster() as client:
        state = read_cluster(Admin(client))
    if output == "json":
        write_json(state.document())
    elif output == "jsonl":
        write_jsonl([state.document()])
    else:
        _write_state(state)


def _write_state(state: ClusterState) -> None:
    document = state.document()
    for label, key in (("Cluster", "cluster_id"), ("Controller", "controller")):
        write_line(f"{label + ':':14}{document[key] if document[key] is not None else 'none'}")
    write_line(f"{'Topics:':14}{document['topics']} ({document['internal_topics']} internal)")
    write_line(f"{'Partitions:':14}{document['partitions']}")
    for name in ("under_replicated", "under_min_isr", "offline", "not_preferred", "reassigning"):
        write_line(f"  {name.replace('_', ' ') + ':':18}{document[name] if document[name] is not None else 'unknown'}")
    write_line("")
    write_table(("ID", "ADDRESS", "RACK", "CONTROLLER", "LEADS", "REPLICAS", "OUT OF SYNC"), state.broker_rows())
