"""Options of every command about a cluster, given before or after its name, and the client made from them.

Zone: real. Turns options into a `ClientConfig`; prints only warnings about unknown settings.

Which broker: `-b`, then `-X bootstrap.servers=…`, then the file of `--command-config`, then `--context`, then the
environment variable OTTLA_BROKERS, then the context in use, then localhost:9092.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:  # so that help does not import the client
    from ottla.client.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

_META = "ottla.cli."
DEFAULT_TIMEOUT_S = 30.0
_LOGIN = ("sasl.", "ssl.", "security.")
"""Prefixes of the keys with which a client logs in."""


def _remember_option(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Keep a given value in `meta`, which a command shares with the groups above it; the innermost value wins."""
    if value not in (None, (), False):
        assert param.name is not None
        ctx.meta[_META + param.name] = value


def option_value(name: str, default: Any = None) -> Any:
    """The value of a common option in the running command."""
    return click.get_current_context().meta.get(_META + name, default)


def _common_option(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_remember_option, **attributes)


def common_options(command: F) -> F:
    """`-b`, `-X`, `--command-config`, `--timeout`, `--quiet`, `--yes`, `--debug`."""
    for option in reversed(
        [
            _common_option(
                "-b", "--brokers", "--bootstrap-server", "brokers", metavar="HOST:PORT,…", help=_BROKERS_HELP
            ),
            _common_option(
                "-X", "settings", multiple=True, metavar="KEY=VALUE", help="Set a client key, by Kafka's name."
            ),
            _common_option(
                "--command-config",
                type=click.Path(exists=True, dir_okay=False),
                help="Read client settings from this properties file.",
            ),
            _common_option("--context", metavar="NAME", help="Use the settings of this context; see ottla context."),
            _common_option(
                "--timeout",
                "timeout_s",
                type=click.FloatRange(min=0, min_open=True),
                metavar="SECONDS",
                help=f"Give up after this time; {DEFAULT_TIMEOUT_S:g} by default.",
            ),
            _common_option("-q", "--quiet", is_flag=True, help="Print no progress and no summaries."),
            _common_option("-y", "--yes", is_flag=True, help="Skip confirmation prompts for destructive actions."),
            _common_option("--debug", is_flag=True, help="Show tracebacks."),
        ]
    ):
        command = option(command)
    return command


_BROKERS_HELP = "Brokers to connect to first; OTTLA_BROKERS or localhost:9092 by default."


def output_option(*choices: str) -> Callable[[F], F]:
    """`-o` with the formats that a command has; the first one is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        callback=remember_output,
        help="The format of the results.",
    )


def pipelines_topic_option(command: F) -> F:
    """`--pipelines-topic`; its value is `option_value("pipelines_topic", TOPIC)`."""
    return _common_option(
        "--pipelines-topic",
        metavar="TOPIC",
        help="The topic with the definitions of pipelines; _ottla-pipelines by default.",
    )(command)


def remember_output(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """The callback of each `-o`: errors are printed in the same form as results (`option_value("output")`)."""
    ctx.meta[f"{_META}output"] = value
    return value


ClientSettings = dict[str, str | int | bool]


def client_settings(
    defaults: ClientSettings | None = None, overrides: ClientSettings | None = None, more: Collection[str] = ()
) -> ClientSettings:
    """The client settings of the common options, by Kafka's keys.

    defaults: what the command prefers to Kafka's defaults. overrides: settings from other options of the command.
    more: keys that the command's client has besides those that all share.
    """
    # Weakest first: our defaults, the command's, the context's, then what the command line names itself.
    timeout_ms = int(option_value("timeout_s", DEFAULT_TIMEOUT_S) * 1000)
    settings: ClientSettings = {
        "bootstrap.servers": "localhost:9092",
        "client.id": "ottla-cli",
        "default.api.timeout.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "allow.auto.create.topics": False,
    }
    settings |= defaults or {}
    settings |= _from_context(more)
    return resolve_secrets(settings | given_settings(more) | (overrides or {}))


def settings_of_side(
    name: str | None,
    defaults: ClientSettings | None = None,
    overrides: ClientSettings | None = None,
    more: Collection[str] = (),
) -> ClientSettings:
    """The settings of one of two clusters: of a context, of `HOST:PORT,…`, or with None of the common options.

    A named cluster gets of the common options only `-X` and `--timeout`, and no login, which is another cluster's.
    """
    from ottla.cli import saved_contexts

    if name is None:
        return client_settings(defaults, overrides, more)
    given = parse_assignments(option_value("settings", ()))
    if found := [key for key in given if key.startswith(_LOGIN) or key == "bootstrap.servers"]:
        raise click.UsageError(f"-X {found[0]}=… is of one cluster, and two are named: ottla context add keeps it")
    timeout_ms = int(option_value("timeout_s", DEFAULT_TIMEOUT_S) * 1000)
    settings: ClientSettings = {
        "client.id": "ottla-cli",
        "default.api.timeout.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "allow.auto.create.topics": False,
        **(defaults or {}),
    }
    own: ClientSettings = {"bootstrap.servers": name}
    if ":" not in name:
        own = _known_settings(saved_contexts.read_context(name), more, f"context {name}")
    return resolve_secrets(settings | own | dict(given) | (overrides or {}))


def resolve_secrets(settings: ClientSettings) -> ClientSettings:
    """The settings with what `${file:…}`, `${env:…}` and `${dir:…}` refer to. Raises click.UsageError by name."""
    from ottla.config.providers import PROVIDERS, resolve_values
    from ottla.config.rows import ConfigError

    if PROVIDERS not in settings:
        return settings
    texts = {key: value for key, value in settings.items() if isinstance(value, str)}
    try:
        resolved = resolve_values(texts)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return {key: value for key, value in settings.items() if key not in texts} | resolved


def given_settings(more: Collection[str] | None = None) -> ClientSettings:
    """The settings of `--command-config`, `-X` and `-b`; of the file only known keys, unless `more` is None. They may
    refer to secrets (`resolve_secrets`).
    """
    settings: ClientSettings = dict(_from_file(more))
    settings |= parse_assignments(option_value("settings", ()))
    if brokers := option_value("brokers"):
        settings["bootstrap.servers"] = brokers
    return settings


def _from_context(more: Collection[str]) -> ClientSettings:
    """The settings of the named context, or else of the one in use, whose brokers OTTLA_BROKERS overrides."""
    from ottla.cli import saved_contexts

    brokers = os.environ.get("OTTLA_BROKERS")
    named = option_value("context")
    name = named or saved_contexts.current_context()
    settings: ClientSettings = (
        {} if name is None else _known_settings(saved_contexts.read_context(name), more, f"context {name}")
    )
    own = settings.get("bootstrap.servers")
    # A context that the command names beats the environment; the one that merely is in use does not.
    if brokers and (named is None or own is None):
        settings["bootstrap.servers"] = brokers
    asked = given_settings().get("bootstrap.servers") or settings.get("bootstrap.servers")
    if (
        own is None
        or _parse_addresses(asked) <= _parse_addresses(own)
        or not any(key.startswith(_LOGIN) for key in settings)
    ):
        return settings
    # Brokers that the context does not list must not get its passwords.
    if named is not None:
        raise click.UsageError(
            f"context {name} has a login for {own}, and {asked} must not get it: leave out --context, or the brokers"
        )
    print_note(f"context {name} has a login for {own}: its settings are not used for {asked}")
    return {"bootstrap.servers": brokers} if brokers else {}


def _parse_addresses(brokers: object) -> set[str]:
    return {each.strip().lower() for each in str(brokers).split(",")}


def connect_cluster(
    defaults: ClientSettings | None = None, overrides: ClientSettings | None = None, side: str | None = None
) -> Cluster:
    """A client of the cluster that the options name; close it. Arguments as of `settings_of_side`.

    Raises ConfigError. It connects on its first request, not here.
    """
    from ottla.client.cluster import Cluster
    from ottla.client.settings import ClientConfig

    return Cluster(ClientConfig.from_mapping(settings_of_side(side, defaults, overrides)))


def connect_definitions() -> Cluster:
    """As `connect_cluster`, with the settings that the topic of definitions needs."""
    from ottla.pipeline.definitions.definitions_topic import SETTINGS

    return connect_cluster(overrides={**SETTINGS})


def _from_file(more: Collection[str] | None) -> ClientSettings:
    path = option_value("command_config")
    if path is None:
        return {}
    from ottla.client.settings import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            found = parse_properties(file.read())
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is not a properties file in UTF-8: {error}") from error
    return dict(found) if more is None else _known_settings(found, more, path)


def _known_settings(settings: dict[str, str], more: Collection[str], where: str) -> ClientSettings:
    """The settings that this client has; prints a warning for each of the others."""
    from ottla.client.settings import split_unknown
    from ottla.config.providers import is_provider_key

    providers = {key: value for key, value in settings.items() if is_provider_key(key)}
    known, warnings = split_unknown({key: settings[key] for key in settings if key not in providers}, more)
    for warning in warnings:
        print_note(f"{where}: {warning}")
    return {**known, **providers}


def parse_assignments(words: tuple[str, ...]) -> dict[str, str]:
    """`key=value` words as a mapping. Raises click.UsageError for one without '='."""
    assignments: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{word!r} is not of the form key=value")
        assignments[key.strip()] = value
    return assignments


def parse_regex(text: str) -> re.Pattern[str]:
    """A regular expression of the command line. Raises click.UsageError."""
    try:
        return re.compile(text)
    except re.error as error:
        raise click.UsageError(f"{text!r} is not a regular expression: {error}") from error


def print_note(text: str) -> None:
    """Print a message that is not data to stderr, unless `--quiet`."""
    if not option_value("quiet", False):
        click.echo(f"ottla: {text}", err=True)
