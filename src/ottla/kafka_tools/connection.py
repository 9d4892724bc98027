"""The cluster that a tool's options name.

Zone: real. Reads the file of client settings; connects with the first request.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Final

from ottla.kafka_tools.options import Options, ToolError, zookeeper_connect

LARGEST_FILE: Final = 64 << 20
"""Files that a tool reads as a whole."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


def read_file(path: str, most: int = LARGEST_FILE) -> str:
    """The text of a file. Raises ToolError."""
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ToolError(f"{path} ({error.strerror})", "java.io.FileNotFoundException") from None
    if len(content) > most:
        raise ToolError(f"{path} is longer than {most} bytes: divide it", "java.io.IOException")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8: {error.reason} at byte {error.start}", "java.io.IOException") from None


def client_settings(
    options: Options,
    *,
    file_options: Iterable[str] = ("command-config",),
    more: Collection[str] = (),
    given: Iterable[str] = (),
) -> dict[str, str]:
    """The settings of a client: of the file, of `key=value` words, and the brokers. Unknown ones get a warning, as in
    Kafka.

    more: keys that this client has besides those that all share. Raises ToolError.
    """
    from ottla.client.settings import parse_properties, split_unknown
    from ottla.config.providers import PROVIDERS, is_provider_key, resolve_values

    settings: dict[str, str] = {}
    for name in file_options:
        if options.has(name):
            settings |= parse_properties(read_file(options.value_of(name)))
    settings |= dict(split_setting(each) for each in given)
    providers = {key: settings[key] for key in settings if is_provider_key(key)}
    known, _ = split_unknown({key: settings[key] for key in settings if key not in providers}, more)
    for key in settings.keys() - known.keys() - providers.keys():
        print(f"WARN The configuration '{key}' was supplied but is not used by Ottla's client.", file=sys.stderr)
    if PROVIDERS in providers:
        known = {key: value for key, value in resolve_values(known | providers).items() if key in known}
    for name in ("bootstrap-server", "broker-list", "bootstrap-controller"):
        if options.has(name):
            known["bootstrap.servers"] = options.value_of(name)
    if connect := zookeeper_connect(options):
        from ottla.kafka_tools.zookeeper_lookup import find_brokers

        known["bootstrap.servers"] = find_brokers(connect, known.get("security.protocol", "PLAINTEXT"))
    return known


def split_setting(word: str) -> tuple[str, str]:
    """(key, value) of `key=value`. Raises ToolError."""
    key, equals, value = word.partition("=")
    if not equals or not key.strip():
        raise ToolError(f"Invalid command line properties: {word!r} is not of the form key=value")
    return key.strip(), value.strip()


def open_cluster(
    options: Options, *, file_options: Iterable[str] = ("command-config",), timeout_ms: int = 60_000
) -> Cluster:
    """A client of the cluster; close it. timeout_ms: of a call, without --timeout. Raises ToolError, ClientError."""
    from ottla.client.cluster import Cluster
    from ottla.client.settings import ClientConfig

    defaults: dict[str, str | int | bool] = {"client.id": "adminclient", "default.api.timeout.ms": timeout_ms}
    settings = defaults | client_settings(options, file_options=file_options)
    if options.has("timeout"):
        settings["default.api.timeout.ms"] = options.value_of("timeout")
    return Cluster(ClientConfig.from_mapping(settings))
