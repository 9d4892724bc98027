"""`ottla cluster`: the state and the health of the cluster as a whole.

Zone: real. Reads the metadata, and visits each broker for the health; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.commands.cluster.features import features
from ottla.cli.options import (
    client_settings,
    common_options,
    connect_cluster,
    connect_definitions,
    option_value,
    output_option,
    pipelines_topic_option,
    print_note,
)
from ottla.cli.views.output import (
    TABLE_AND_DOCUMENTS,
    one_line,
    write_document,
    write_json,
    write_line,
    write_table,
    write_verdict,
)
from ottla.cli.views.watch import watch_option, watch_view

if TYPE_CHECKING:
    from ottla.cli.views.cluster_views import ClusterState
    from ottla.cli.views.health import Health

_SHOWN = 20
"""Rows of one kind of problem in a table."""


@click.group()
def cluster() -> None:
    """Show the state and the health of a cluster as a whole."""


cluster.add_command(features)


@cluster.command()
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def describe(output: str) -> None:
    """Show the brokers, and how many partitions are in each state. The exit code is 0 even when some are unhealthy."""
    from ottla.cli.views.cluster_views import read_cluster
    from ottla.client import Admin

    with connect_cluster() as client:
        state = read_cluster(Admin(client))
    if output == "table":
        _write_state(state)
    else:
        write_document(output, state.document())


@cluster.command()
@watch_option
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def health(watch_s: float | None, output: str) -> None:
    """Show brokers that do not answer, and partitions without a leader or replicas. Exit code 0: healthy; 1: not.

    One bootstrap address that answers is enough. Leaders that are not the preferred ones are a warning, and healthy.
    """
    from ottla.cli.views.health import health_document, read_health
    from ottla.client.settings import ClientConfig

    config = ClientConfig.from_mapping(client_settings())

    def write(found: Health) -> None:
        if output == "table":
            _write_health(found)
        else:
            write_document(output, health_document(found))
        raise click.exceptions.Exit(0 if found.healthy else 1)

    watch_view(watch_s, lambda: read_health(config), write)


def _write_health(health: Health) -> None:
    view = health.probe.view
    controller = view.controller_id if view.controller_id >= 0 else "none"
    answering = sum(each.error is None for each in health.probe.brokers)
    write_verdict("yes" if health.healthy else "no", "", before=f"{'Healthy:':14}")
    write_line(f"{'Cluster:':14}{view.cluster_id or 'unknown'}, controller {controller}")
    write_line(f"{'Brokers:':14}{answering} of {len(health.probe.brokers)} answer")
    if health.partitions is not None:
        write_line(f"{'Partitions:':14}{health.partitions} of {health.topics} topics")
    for kind in dict.fromkeys(each.kind for each in health.problems):
        found = [each for each in health.problems if each.kind == kind]
        write_line("")
        for each in found[:_SHOWN]:
            write_verdict(f"{each.severity:9}", one_line(f"{each.subject}: {each.message}"))
        if len(found) > _SHOWN:
            write_line(f"{'':9}and {len(found) - _SHOWN} more: see -o json")
        for step in dict.fromkeys(each.next_step for each in found if each.next_step):
            write_line(f"{'':9}{one_line(step)}")


@cluster.command("export")
@click.option(
    "--section",
    "sections",
    multiple=True,
    type=click.Choice(("topics", "brokers", "groups", "users", "acls", "quotas", "pipelines")),
    help="Only this section; by default all.",
)
@pipelines_topic_option
@output_option("yaml", "json")
@common_options
def export_state(sections: tuple[str, ...], output: str) -> None:
    """Print the cluster as a file for `ottla apply`.

    It has topics, settings, users (without passwords), ACLs, quotas and definitions of pipelines.
    """
    from ottla.cli.manifest.documents import state_document
    from ottla.cli.manifest.reading import StateReader
    from ottla.cli.manifest.state import ClusterState
    from ottla.cli.manifest.tree import yaml_text
    from ottla.pipeline.definitions.definitions_topic import TOPIC

    wanted = ClusterState() if sections else None
    for name in sections:
        setattr(wanted, name, {})
    with connect_definitions() as client:
        reader = StateReader(client, option_value("pipelines_topic", TOPIC))
        document = state_document(reader.read_state(wanted, whole=True))
    for note in reader.notes:
        print_note(f"left out: {note}")
    if output == "json":
        write_json(document)
    else:
        click.echo(yaml_text(document), nl=False)


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
