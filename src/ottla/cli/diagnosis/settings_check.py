"""Checks of the client's settings, before anything is sent: unknown keys, wrong values, keys that conflict.

Zone: real. Reads the options of the running command, its files and its context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import click

from ottla.cli import saved_contexts
from ottla.cli.diagnosis.findings import ERROR, OK, WARNING, Finding
from ottla.cli.options import ClientSettings, client_settings, given_settings, option_value, parse_assignments
from ottla.client.consumer.settings import CONSUMER_KEYS, ConsumerConfig
from ottla.client.errors import ConfigError
from ottla.client.producer.config import PRODUCER_KEYS, ProducerConfig
from ottla.client.settings import ClientConfig, is_shared, split_unknown
from ottla.config.providers import is_provider_key

_CHECK: Final = "settings"


class CheckedSettings(NamedTuple):
    """The settings as far as they can be used."""

    config: ClientConfig | None
    """None: nothing can be sent with them."""
    given: ClientSettings
    """What the user set, with secrets."""
    findings: list[Finding]


def check_settings() -> CheckedSettings:
    """The settings of the command line, with what is wrong with them."""
    try:
        given = _given_settings()
        settings = client_settings(more=frozenset(given))
    except (ConfigError, click.ClickException) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return CheckedSettings(None, {}, [Finding(ERROR, _CHECK, "options", text, "Correct it, or leave it out")])
    known = {key: value for key, value in settings.items() if is_shared(key)}
    findings = [*_unknown_keys(given), *_client_faults(given)]
    try:
        config = ClientConfig.from_mapping(known)
    except ConfigError as error:
        findings.append(_config_finding(error))
        return CheckedSettings(None, given, findings)
    findings += [*_unused_keys(given, config), *_risky_values(given, config)]
    if not findings:
        where = f"bootstrap.servers={config.bootstrap_servers} (from {_source_of_brokers()})"
        findings.append(
            Finding(OK, _CHECK, "client", f"{where}, security.protocol={config.security.security_protocol}")
        )
    return CheckedSettings(config, given, findings)


def _given_settings() -> ClientSettings:
    name = option_value("context") or saved_contexts.current_context()
    context: ClientSettings = {} if name is None else dict(saved_contexts.read_context(name))
    # The command line and its files win over the context, as in every command.
    found = context | given_settings(None)
    return {key: value for key, value in found.items() if not is_provider_key(key)}


def _unknown_keys(given: Mapping[str, object]) -> Iterator[Finding]:
    """Keys that no client has. Those of `-X` stop every command, those of files are ignored with a warning."""
    texts = {key: str(value) for key, value in given.items()}
    known, sentences = split_unknown(texts, PRODUCER_KEYS | CONSUMER_KEYS)
    named = parse_assignments(option_value("settings", ()))
    for key, sentence in zip((key for key in texts if key not in known), sentences, strict=True):
        cause, _, hint = sentence.partition(". ")
        yield Finding(ERROR if key in named else WARNING, _CHECK, key, cause, hint)


def _client_faults(given: ClientSettings) -> Iterator[Finding]:
    """Values and conflicts that a producer or a consumer with these settings would refuse."""
    for keys, kind in ((PRODUCER_KEYS, ProducerConfig), (CONSUMER_KEYS, ConsumerConfig)):
        mine = {key: value for key, value in given.items() if key in keys or is_shared(key)}
        # Without a key of its own nothing says that the user has such a client.
        if not any(key in keys for key in mine):
            continue
        try:
            kind.from_mapping(mine)
        except ConfigError as error:
            if any(key in error.cause for key in keys):  # the shared keys have a check of their own
                yield _config_finding(error)


def _unused_keys(given: Mapping[str, object], config: ClientConfig) -> Iterator[Finding]:
    """Keys of TLS and of logins that the protocol does not use: usually the protocol was forgotten."""
    protocol = config.security.security_protocol
    for prefix, used, wanted in (
        ("sasl.", config.security.sasl, "SASL_SSL, or SASL_PLAINTEXT"),
        ("ssl.", config.security.tls, "SSL, or SASL_SSL"),
    ):
        unused = sorted(key for key in given if key.startswith(prefix) and is_shared(key))
        if unused and not used:
            yield Finding(
                WARNING,
                _CHECK,
                unused[0],
                f"{', '.join(unused)}: set, and not used with security.protocol={protocol}",
                f"Set security.protocol={wanted} for a listener of that protocol",
            )


def _risky_values(given: Mapping[str, object], config: ClientConfig) -> Iterator[Finding]:
    security = config.security
    if security.sasl and not security.tls and security.sasl_mechanism in ("PLAIN", "OAUTHBEARER"):
        text = f"sasl.mechanism={security.sasl_mechanism} sends the secret over a connection without encryption"
        yield Finding(WARNING, _CHECK, "security.protocol", text, "Use SASL_SSL, or a SCRAM mechanism")
    if security.tls and not security.ssl_endpoint_identification_algorithm:
        text = "the host name in certificates is not checked: any certificate of the same authority is accepted"
        key = "ssl.endpoint.identification.algorithm"
        yield Finding(WARNING, _CHECK, key, text, "Set it to https, and advertise the names in the certificates")
    if "request.timeout.ms" in given and config.request_timeout_ms > config.default_api_timeout_ms:
        text = (
            f"request.timeout.ms={config.request_timeout_ms} is above default.api.timeout.ms="
            f"{config.default_api_timeout_ms}: calls end before their first request is repeated"
        )
        yield Finding(WARNING, _CHECK, "request.timeout.ms", text, "Lower it, or raise --timeout")
    if config.retry_backoff_ms > config.retry_backoff_max_ms:
        text = f"retry.backoff.ms={config.retry_backoff_ms} is above retry.backoff.max.ms={config.retry_backoff_max_ms}"
        yield Finding(WARNING, _CHECK, "retry.backoff.ms", text, "Raise retry.backoff.max.ms")


def _source_of_brokers() -> str:
    import os

    if option_value("brokers"):
        return "-b"
    if "bootstrap.servers" in parse_assignments(option_value("settings", ())):
        return "-X"
    if "bootstrap.servers" in given_settings(None):
        return "--command-config"
    if option_value("context") is None and os.environ.get("OTTLA_BROKERS"):
        return "OTTLA_BROKERS"
    name = option_value("context") or saved_contexts.current_context()
    return "the default" if name is None else f"context {name}"


def _config_finding(error: ConfigError) -> Finding:
    """The finding for a value that is not allowed; its subject is the key with which the message begins."""
    first = error.cause.partition(" ")[0].partition("=")[0].rstrip(":")
    subject = first if "." in first else "client"
    return Finding(ERROR, _CHECK, subject, error.cause, error.next_step or "docs/config-client.md lists the settings")
