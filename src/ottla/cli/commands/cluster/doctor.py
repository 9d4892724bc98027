"""`ottla doctor`: what is wrong with the settings, the addresses and the cluster, each with a next step.

Zone: real. Changes nothing; one address that answers is enough for the checks of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ottla.cli.options import common_options, option_value, output_option
from ottla.cli.views.output import TABLE_AND_DOCUMENTS, one_line, write_documents, write_line, write_verdict

if TYPE_CHECKING:
    from ottla.cli.diagnosis.findings import Finding


@click.command()
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def doctor(output: str) -> None:
    """Check settings, names, ports, TLS, logins, advertised addresses, partitions, versions, clocks and disks.

    Every finding has a next step. Exit code 0: no errors, warnings at most; 1: errors. --quiet leaves out what is well.
    """
    quiet = option_value("quiet", False)
    findings = [each for each in _examine() if each.level != "ok" or not quiet]
    if output == "table":
        for each in findings:
            _write_finding(each)
    else:
        write_documents(output, [each._asdict() for each in findings])
    raise click.exceptions.Exit(1 if any(each.level == "error" for each in findings) else 0)


def _examine() -> Iterator[Finding]:
    """All findings, in the order in which a client meets them: each step needs the one before."""
    from ottla.cli.diagnosis.address_check import check_addresses
    from ottla.cli.diagnosis.cluster_check import check_cluster, check_health, check_versions
    from ottla.cli.diagnosis.findings import ERROR, Finding
    from ottla.cli.diagnosis.settings_check import check_settings
    from ottla.cli.views.health import read_health
    from ottla.client import Cluster, ConfigError
    from ottla.client.connections.broker_probes import reachable_config

    checked = check_settings()
    yield from checked.findings
    config = checked.config
    if config is None:
        return
    try:
        health = read_health(config)
    except ConfigError as error:
        yield Finding(ERROR, "settings", "client", error.cause, error.next_step)
        return
    yield from check_addresses(health.probe, config)
    if not health.probe.answering:
        return
    yield from check_health(health)
    yield from check_versions(health.probe)
    with Cluster(reachable_config(config, health.probe)) as cluster:
        yield from check_cluster(cluster, health.probe, checked.given)


def _write_finding(finding: Finding) -> None:
    rest = f" {finding.check:11} {one_line(f'{finding.subject}: {finding.message}')}"
    write_verdict(f"{finding.level:8}", rest)
    if finding.next_step:
        write_line(f"{'':20} next: {one_line(finding.next_step)}")
