"""Options shared by the commands that run a broker, and where the broker's configuration comes from.

Zone: real. Starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:  # so that help does not import the broker
    from ottla.config.broker import BrokerConfig

_IGNORING: Final = "ottla.ignore_dynamic_configs"
F = TypeVar("F", bound=Callable[..., Any])


def broker_options(command: F) -> F:
    """`--set`, `--ignore-dynamic-configs`, `--ready-file`, `--log-level`, `--log-format`."""
    for option in reversed(
        [
            click.option(
                "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a broker key, by Kafka's name."
            ),
            click.option(
                "--ignore-dynamic-configs",
                is_flag=True,
                expose_value=False,
                callback=_remember_ignoring,
                help="Ignore the stored dynamic broker settings at start, so that a wrong one can be altered.",
            ),
            click.option(
                "--ready-file",
                type=click.Path(dir_okay=False),
                help="Write host:port to this file when requests are answered; removed at exit.",
            ),
            click.option(
                "--log-level",
                type=click.Choice(["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"], case_sensitive=False),
                default="INFO",
                show_default=True,
            ),
            click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
        ]
    ):
        command = option(command)
    return command


def _remember_ignoring(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Remember the flag: it is short for a broker key, which `read_overrides` adds."""
    context.meta[_IGNORING] = wanted


def read_overrides(settings: tuple[str, ...]) -> dict[str, str]:
    """The words of `--set` and of the options that stand for keys, as pairs. Raises click.UsageError."""
    from ottla.config.rows import ConfigError
    from ottla.config.sources import parse_assignment

    try:
        pairs = dict(map(parse_assignment, settings))
    except ConfigError as error:
        raise click.UsageError(f"--set: {error}") from None
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(_IGNORING):
        pairs["ottla.ignore.dynamic.configs"] = "true"
    return pairs


def read_environment() -> dict[str, str]:
    """The keys of KAFKA_… environment variables."""
    from ottla.config.sources import from_environment

    return from_environment(os.environ)


def read_config(path: str) -> dict[str, str]:
    """The keys of a properties or TOML file, overridden by KAFKA_… environment variables."""
    from ottla.config.rows import ConfigError
    from ottla.config.sources import merge_layers, parse_properties, parse_toml

    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        pairs = parse_toml(text) if path.endswith(".toml") else parse_properties(text)
    except ConfigError as error:
        raise click.ClickException(f"{path}: {error}") from None
    return merge_layers(read_environment(), pairs)


def resolve_secrets(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with what `${file:…}`, `${env:…}` and `${dir:…}` refer to. Raises click.UsageError by name."""
    from ottla.config.providers import resolve_values
    from ottla.config.rows import ConfigError

    try:
        return resolve_values(properties)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def make_config(properties: Mapping[str, str], written: Mapping[str, str] | None = None) -> BrokerConfig:
    """The configuration; logs the warnings about its keys. Raises click.UsageError naming a bad value.

    written: the properties before `resolve_secrets`; the error has these texts in place of the values.
    """
    import logging

    from ottla.config.broker import BrokerConfig
    from ottla.config.rows import ConfigError

    try:
        config, warnings = BrokerConfig.from_properties(properties)
    except ConfigError as error:
        text = str(error)
        for key, place in (written or {}).items():
            if key in text and (value := properties.get(key)) not in ("", place, None):
                text = text.replace(value, place)
        raise click.UsageError(text) from None
    log = logging.getLogger("ottla.config")
    for warning in warnings:
        log.warning("%s", warning)
    return config
