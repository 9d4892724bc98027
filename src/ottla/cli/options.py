"""Options that every command about a cluster has, before the command or behind it, and the client made of them.

Zone: real. Command-line words become a `ClientConfig` here; nothing is printed but warnings about unknown settings.

Which broker: `-b`, then `-X bootstrap.servers=…`, then the file of `--command-config`, then `--context`, then the
environment variable OTTLA_BROKERS, then the context in use, then localhost:9092.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:  # so that help does not import the client
    from ottla.client.cluster import Cluster

F = TypeVar("F", bound=Callable[..., Any])

_META = "ottla.cli."
DEFAULT_TIMEOUT_S = 30.0
_LOGIN = ("sasl.", "ssl.", "security.")
"""Beginnings of the keys that say who the client is."""


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Keep a value that was given; `meta` is shared by a command and the groups above it, and the inner one wins."""
    if value not in (None, (), False):
        assert param.name is not None
        ctx.meta[_META + param.name] = value


def given(name: str, default: Any = None) -> Any:
    """The value of a common option in the running command."""
    return click.get_current_context().meta.get(_META + name, default)


def _common(*names: str, **attributes: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_remember, **attributes)


def common_options(command: F) -> F:
    """`-b`, `-X`, `--command-config`, `--timeout`, `--quiet`, `--yes`, `--debug`."""
    for option in reversed(
        [
            _common("-b", "--brokers", "--bootstrap-server", "brokers", metavar="HOST:PORT,…", help=_BROKERS_HELP),
            _common("-X", "settings", multiple=True, metavar="KEY=VALUE", help="A client setting, by Kafka's name."),
            _common(
                "--command-config",
                type=click.Path(exists=True, dir_okay=False),
                help="A properties file with client settings.",
            ),
            _common("--context", metavar="NAME", help="The context with the settings; see ottla context."),
            _common(
                "--timeout",
                "timeout_s",
                type=click.FloatRange(min=0, min_open=True),
                metavar="SECONDS",
                help=f"Give up after this time; {DEFAULT_TIMEOUT_S:g} by default.",
            ),
            _common("-q", "--quiet", is_flag=True, help="No progress and no summaries."),
            _common("-y", "--yes", is_flag=True, help="Do not ask before something is lost."),
            _common("--debug", is_flag=True, help="Show tracebacks."),
        ]
    ):
        command = option(command)
    return command


_BROKERS_HELP = "Brokers to ask first; OTTLA_BROKERS or localhost:9092 by default."


def output_option(*choices: str) -> Callable[[F], F]:
    """`-o` with the formats that a command knows; the first one is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        callback=remember_output,
        help="How results are printed.",
    )


def remember_output(ctx: click.Context, _param: click.Parameter, value: str) -> str:
    """The callback of each `-o`: errors are printed in the same form as results (`given("output")`)."""
    ctx.meta[f"{_META}output"] = value
    return value


ClientSettings = dict[str, str | int | bool]


def client_settings(
    defaults: ClientSettings | None = None, overrides: ClientSettings | None = None, more: Collection[str] = ()
) -> ClientSettings:
    """What the common options say, by Kafka's keys.

    defaults: what the command prefers to Kafka's defaults. overrides: what other options of the command said.
    more: keys that the command's client has besides those that all share.
    """
    timeout_ms = int(given("timeout_s", DEFAULT_TIMEOUT_S) * 1000)
    settings: ClientSettings = {
        "bootstrap.servers": "localhost:9092",
        "client.id": "ottla-cli",
        "default.api.timeout.ms": timeout_ms,
        "delivery.timeout.ms": timeout_ms,
        "allow.auto.create.topics": False,
    }
    settings |= defaults or {}
    settings |= _from_context(more)
    return settings | given_settings(more) | (overrides or {})


def given_settings(more: Collection[str] | None = None) -> ClientSettings:
    """What `--command-config`, `-X` and `-b` say; of the file only known keys, unless `more` is None."""
    settings: ClientSettings = dict(_from_file(more))
    settings |= parse_assignments(given("settings", ()))
    if brokers := given("brokers"):
        settings["bootstrap.servers"] = brokers
    return settings


def _from_context(more: Collection[str]) -> ClientSettings:
    """What the context that is named says, or else the one in use, whose brokers OTTLA_BROKERS overrules."""
    from ottla.cli import saved_contexts

    brokers = os.environ.get("OTTLA_BROKERS")
    named = given("context")
    name = named or saved_contexts.current()
    settings: ClientSettings = {} if name is None else _known(saved_contexts.read(name), more, f"context {name}")
    own = settings.get("bootstrap.servers")
    if brokers and (named is None or own is None):
        settings["bootstrap.servers"] = brokers
    asked = given_settings().get("bootstrap.servers") or settings.get("bootstrap.servers")
    if own is None or _addresses(asked) <= _addresses(own) or not any(key.startswith(_LOGIN) for key in settings):
        return settings
    # Other brokers than those that the context names must not get its passwords.
    if named is not None:
        raise click.UsageError(
            f"context {name} has a login for {own}, which {asked} must not get: leave out --context, or the brokers"
        )
    print_note(f"context {name} has a login for {own}: nothing of it is used for {asked}")
    return {"bootstrap.servers": brokers} if brokers else {}


def _addresses(brokers: object) -> set[str]:
    return {each.strip().lower() for each in str(brokers).split(",")}


def connect(defaults: ClientSettings | None = None, overrides: ClientSettings | None = None) -> Cluster:
    """The cluster that the options name; close it. Arguments as of `client_settings`.

    Raises ConfigError. Nothing is connected yet.
    """
    from ottla.client.cluster import Cluster
    from ottla.client.settings import ClientConfig

    return Cluster(ClientConfig.from_mapping(client_settings(defaults, overrides)))


def _from_file(more: Collection[str] | None) -> ClientSettings:
    path = given("command_config")
    if path is None:
        return {}
    from ottla.client.settings import parse_properties

    try:
        with open(path, encoding="utf-8") as file:
            found = parse_properties(file.read())
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is not a properties file in UTF-8: {error}") from error
    return dict(found) if more is None else _known(found, more, path)


def _known(settings: dict[str, str], more: Collection[str], where: str) -> ClientSettings:
    """The settings that this client has; a warning for each of the others."""
    from ottla.client.settings import split_unknown

    known, warnings = split_unknown(settings, more)
    for warning in warnings:
        print_note(f"{where}: {warning}")
    return dict(known)


def parse_assignments(words: tuple[str, ...]) -> dict[str, str]:
    """`key=value` words as a mapping. Raises click.UsageError for one without '='."""
    assignments: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{word!r} is not of the form key=value")
        assignments[key.strip()] = value
    return assignments


def print_note(text: str) -> None:
    """Tell the user something that is not data, unless `--quiet`."""
    if not given("quiet", False):
        click.echo(f"ottla: {text}", err=True)
