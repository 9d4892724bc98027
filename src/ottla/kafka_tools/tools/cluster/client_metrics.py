"""kafka-client-metrics: subscriptions to metrics that clients push to the brokers (KIP-714).

Zone: real.
"""

from __future__ import annotations

import re
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import uuid4

from ottla.client.admin.configs import ConfigAdmin
from ottla.client.admin.types import ConfigChange, ConfigEntry, ConfigOp, Resource, ResourceType
from ottla.client.errors import ClientError, values_of
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import error_class, error_message
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    Options,
    Tool,
    ToolError,
    WordsReport,
    flag,
    refuse_together,
    single_action,
    value,
    values,
)

_ACTIONS: Final = ("alter", "delete", "describe", "list")
_SETTINGS: Final[Mapping[str, str]] = {"interval": "interval.ms", "metrics": "metrics", "match": "match"}
"""The key of each option."""
_ARGUMENT: Final = "java.lang.IllegalArgumentException"
_WHOLE: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)


def run_client_metrics(options: Options) -> int:
    """Carry out the action."""
    action = _checked_action(options)
    with open_cluster(options) as cluster:
        try:
            _RUNS[action](ConfigAdmin(cluster), options)
        except ClientError as error:
            return _print_error(error_message(error), error_class(error))
        except ToolError as error:  # an option that was given twice: Kafka's tool notices it when it runs
            return _print_error(error.message, error.java_class)
    return 0


def _checked_action(options: Options) -> str:
    """The action. Raises ToolError, WrongUsage, in the order of Kafka's tool."""
    if not options.has("bootstrap-server"):
        raise ToolError("--bootstrap-server must be specified.", _ARGUMENT)
    names = " or ".join([", ".join(f"--{action}" for action in _ACTIONS[:-1]), f"--{_ACTIONS[-1]}"])
    action = single_action(options, _ACTIONS, f"Command must include exactly one action: {names}.")
    if action == "alter":
        if options.has("name") == options.has("generate-name"):
            raise ToolError("One of --name or --generate-name must be specified with --alter.", _ARGUMENT)
        _check_interval(options.value_of("interval"))
    if action == "delete" and not options.has("name") and not options.has("generate-name"):
        raise ToolError("A client metrics resource name must be specified with --delete.", _ARGUMENT)
    refuse_together(options, "list", ["name"])
    for other in ("delete", "describe", "list"):
        refuse_together(options, other, ["generate-name", *_SETTINGS])
    return action


def _check_interval(text: str) -> None:
    # Java's integers: of 32 bits, and without Python's `_`.
    is_whole = _WHOLE.fullmatch(text) is not None and -(2**31) <= int(text) < 2**31
    if text and not is_whole:
        raise ToolError("Invalid interval value. Enter an integer, or leave empty to reset.", _ARGUMENT)


def _alter_settings(admin: ConfigAdmin, options: Options) -> None:
    name = _random_name() if options.has("generate-name") else options.value_of("name")
    given = {key: ",".join(options.values_of(option)) for option, key in _SETTINGS.items() if options.has(option)}
    # An empty value brings the default back.
    changes = [
        ConfigChange(key, text) if text else ConfigChange(key, None, ConfigOp.DELETE) for key, text in given.items()
    ]
    _send_changes(admin, name, changes)
    print(f"Altered client metrics config for {name}.")


def _random_name() -> str:
    """A UUID in the form that Kafka prints. As with Kafka's, it does not begin like an option."""
    while (name := urlsafe_b64encode(uuid4().bytes)[:22].decode()).startswith("-"):
        pass
    return name


def _delete_settings(admin: ConfigAdmin, options: Options) -> None:
    name = options.value_of("name")
    _send_changes(admin, name, [ConfigChange(entry.name, None, ConfigOp.DELETE) for entry in _entries_of(admin, name)])
    print(f"Deleted client metrics config for {name}.")


def _send_changes(admin: ConfigAdmin, name: str, changes: Sequence[ConfigChange]) -> None:
    values_of(admin.alter_configs({Resource(ResourceType.CLIENT_METRICS, name): changes}))


def _describe_settings(admin: ConfigAdmin, options: Options) -> None:
    name, names = options.value_of("name"), _all_names(admin)
    if options.has("name") and name not in names:
        print(f"The client metric resource {name} doesn't exist and doesn't have dynamic config.")
        return
    for each in [name] if options.has("name") else names:
        print(f"Client metrics configs for {each} are:")
        for entry in _entries_of(admin, each):
            print(f"  {entry.name}={entry.value}")


def _entries_of(admin: ConfigAdmin, name: str) -> Sequence[ConfigEntry]:
    """The settings of a subscription, sorted by name."""
    resource = Resource(ResourceType.CLIENT_METRICS, name)
    return values_of(admin.describe_configs([resource]))[resource]


def _list_names(admin: ConfigAdmin, options: Options) -> None:  # noqa: ARG001 - as the other actions
    print("\n".join(_all_names(admin)))


def _all_names(admin: ConfigAdmin) -> list[str]:
    return [each.name for each in admin.list_config_resources([ResourceType.CLIENT_METRICS])]


def _print_error(message: str, java_class: str) -> int:
    print(f"Error while executing client metrics command : {message}", flush=True)
    print(f"{java_class}: {message}", file=sys.stderr)
    return 1


_RUNS: Final[Mapping[str, Callable[[ConfigAdmin, Options], None]]] = {
    "alter": _alter_settings,
    "delete": _delete_settings,
    "describe": _describe_settings,
    "list": _list_names,
}
TOOL: Final = Tool(
    "This tool helps to manipulate and describe client metrics configurations.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        flag("alter", "Alter the configuration for the client metrics resource."),
        flag("delete", "Delete the configuration for the client metrics resource."),
        flag("describe", "List configurations for the client metrics resource."),
        flag("list", "List the client metrics resources."),
        value("name", "Name of client metrics configuration resource."),
        flag("generate-name", "Generate a UUID to use as the name."),
        value("interval", "The metrics push interval in milliseconds; empty: the default."),
        values("match", "Selectors of clients as k1=v1,k2=v2, of client_id, client_software_name and others."),
        values("metrics", "Prefixes of metric names as m1,m2."),
    ),
    run_client_metrics,
    wrong_words=WordsReport.WITH_USAGE,
)
