"""kafka-broker-api-versions: the versions of each API that each broker serves.

Zone: real.
"""

from __future__ import annotations

from typing import Final

from ottla.client.connections.broker_probes import BrokerProbe, probe_brokers
from ottla.client.settings import ClientConfig
from ottla.kafka_tools.connection import client_settings
from ottla.kafka_tools.options import COMMAND_CONFIG, SERVER, Options, Tool, ToolError, require_options
from ottla.wire.apis import API_TABLE, Api


def run_broker_api_versions(options: Options) -> None:
    """Print the versions of each broker. Raises ClientError when none answers."""
    require_options(options, "bootstrap-server")
    config = ClientConfig.from_mapping({"client.id": "adminclient", **client_settings(options)})
    probe = probe_brokers(config)
    if not probe.answering:
        error = probe.bootstrap[0].error
        if error is not None:
            raise error
        raise ToolError("No broker answers")
    for each in probe.brokers:
        head = f"{each.address.host}:{each.address.port} (id: {each.node_id} rack: {_rack(each)} isFenced: false) -> "
        print(f"{head}ERROR: {each.error}" if each.error is not None else f"{head}{_versions_text(each)}")


def _rack(probe: BrokerProbe) -> str:
    node = None if probe.node_id is None else probe.view.nodes.get(probe.node_id)
    return "null" if node is None or node.rack is None else node.rack


def _versions_text(probe: BrokerProbe) -> str:
    keys = sorted({*API_TABLE, *probe.versions})
    lines = ",\n".join(_api_line(key, probe.versions.get(key)) for key in keys)
    return f"(\n{lines}\n)"


def _api_line(key: int, served: tuple[int, int] | None) -> str:
    api = API_TABLE.get(key)
    name = f"{'UNKNOWN' if api is None else api.name}({key})"
    if served is None:
        return f"\t{name}: UNSUPPORTED"
    low, high = served
    versions = str(low) if low == high else f"{low} to {high}"
    return f"\t{name}: {versions}{'' if api is None else _usable(api, low, high)}"


def _usable(api: Api, low: int, high: int) -> str:
    if high < api.min_version:
        return " [unusable: node too old]"
    if low > api.max_version:
        return " [unusable: node too new]"
    return f" [usable: {min(high, api.max_version)}]"


TOOL: Final = Tool(
    "This tool helps to retrieve broker version information.", (*SERVER, *COMMAND_CONFIG), run_broker_api_versions
)
