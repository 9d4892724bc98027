"""`ottla api-versions`: the APIs, versions and features of each broker, and what this client uses of them.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from ottla.cli.options import client_settings, common_options, output_option
from ottla.cli.views.output import TABLE_AND_DOCUMENTS, Json, write_documents, write_line, write_table

if TYPE_CHECKING:
    from ottla.client.connections.broker_probes import BrokerProbe

_UNUSED_APIS: Final = {
    52: "Vote",
    53: "BeginQuorumEpoch",
    54: "EndQuorumEpoch",
    58: "Envelope",
    59: "FetchSnapshot",
    62: "BrokerRegistration",
    63: "BrokerHeartbeat",
    70: "ControllerRegistration",
    73: "AssignReplicasToDirs",
    80: "AddRaftVoter",
    81: "RemoveRaftVoter",
    82: "UpdateRaftVoter",
    88: "StreamsGroupHeartbeat",
    89: "StreamsGroupDescribe",
    93: "StreamsGroupTopologyDescriptionUpdate",
    94: "UnregisterController",
}
"""Kafka's APIs that neither Ottla's broker nor its clients have: Raft quorums and streams groups."""


@click.command("api-versions")
@click.argument("ids", nargs=-1, type=int, metavar="[ID]...")
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def api_versions(ids: tuple[int, ...], output: str) -> None:
    """Show which versions of each API brokers serve (all, or those named), and which one this client uses.

    The exit code is 1 when a broker does not answer; the others are shown.
    """
    from ottla.cli.failure import CommandFailed
    from ottla.client.connections.broker_probes import probe_brokers
    from ottla.client.settings import ClientConfig

    probe = probe_brokers(ClientConfig.from_mapping(client_settings()))
    # Nothing can be shown: the error of the first address is that of any other command.
    if not probe.answering:
        error = probe.bootstrap[0].error
        assert error is not None
        raise error
    if missing := sorted(set(ids) - {each.node_id for each in probe.brokers}):
        raise CommandFailed(f"there is no broker {', '.join(map(str, missing))} in the cluster", exit_code=3)
    shown = [each for each in probe.brokers if not ids or each.node_id in ids]
    if output == "table":
        _write_brokers(shown)
    else:
        write_documents(output, [_broker_document(each) for each in shown])
    raise click.exceptions.Exit(1 if any(each.error is not None for each in shown) else 0)


def _write_brokers(probes: Sequence[BrokerProbe]) -> None:
    for number, probe in enumerate(probes):
        if number:
            write_line("")
        write_line(f"Broker {probe.node_id} at {probe.address}")
        if probe.error is not None:
            click.echo(f"ottla: broker {probe.node_id}: {probe.error}", err=True)
            continue
        rows = [
            (key, _api_name(key), low, high, _used_version(key, low, high)) for key, low, high in _sorted_apis(probe)
        ]
        write_table(("KEY", "API", "MIN", "MAX", "USED"), rows)
        if probe.features:
            write_line("")
            features = [(each.name, each.min_level, each.max_level, each.finalized) for each in probe.features]
            write_table(("FEATURE", "MIN", "MAX", "FINALIZED"), features)


def _sorted_apis(probe: BrokerProbe) -> list[tuple[int, int, int]]:
    return sorted((key, low, high) for key, (low, high) in probe.versions.items())


def _broker_document(probe: BrokerProbe) -> dict[str, Json]:
    return {
        "id": probe.node_id,
        "host": probe.address.host,
        "port": probe.address.port,
        "error": None if probe.error is None else str(probe.error),
        "apis": [
            {"key": key, "name": _api_name(key), "min": low, "max": high, "used": _used_version(key, low, high)}
            for key, low, high in _sorted_apis(probe)
        ],
        "features": [
            {"name": each.name, "min": each.min_level, "max": each.max_level, "finalized": each.finalized}
            for each in probe.features
        ],
    }


def _api_name(key: int) -> str | None:
    """Kafka's name of an API; None: it is newer than this client."""
    from ottla.wire.apis import API_TABLE

    return API_TABLE[key].name if key in API_TABLE else _UNUSED_APIS.get(key)


def _used_version(key: int, low: int, high: int) -> int | None:
    """The highest version that broker and client have; None: they have none in common."""
    from ottla.wire.apis import API_TABLE

    api = API_TABLE.get(key)
    # The ranges of both sides must overlap; the highest common version is used, as KIP-35 has it.
    if api is None or min(high, api.max_version) < max(low, api.min_version):
        return None
    return min(high, api.max_version)
