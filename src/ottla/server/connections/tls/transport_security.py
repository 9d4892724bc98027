"""TLS of one broker: its listeners' contexts, the one for other brokers, and their changes.

Zone: real. The contexts follow their files, which are checked every CHECK_S, and the dynamic settings of this broker
(`listener.name.<listener>.ssl.…`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from ottla.config.broker import TLS_PROTOCOLS, BrokerConfig
from ottla.seams import Failure, Kind
from ottla.security.principal_mapping import PrincipalMapper
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.listener import OpenConnection
from ottla.server.connections.tls.contexts import (
    LoadedContext,
    TlsSettings,
    load_client_context,
    load_server_context,
    settings_at,
)
from ottla.server.connections.tls.handshakes import Handshakes, ListenerTls
from ottla.server.connections.tls.outgoing import OutgoingTls
from ottla.server.connections.tls.reloading import ReloadableContext
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.types import Endpoint

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
"""Between two checks of the files."""
THREADS: Final = 2
"""Handshakes at a time: more would take the processors from the loop."""


class TransportSecurity:
    """Opens connections under TLS, accepted and outgoing ones."""

    def __init__(
        self,
        config: BrokerConfig,
        traffic: ConnectionManager,
        turns: CompletionQueue,
        give_back: Callable[[str], None],
        check_s: float = CHECK_S,
    ) -> None:
        """give_back: called with the address of an accepted connection that will not be opened.

        Raises Failure with the key of a setting that cannot be used.
        """
        self._loop = traffic.loop
        self._check_s = check_s
        self._threads = turns.add_branch(THREADS)
        self.handshakes = Handshakes(traffic, self._threads, give_back)
        endpoints = [endpoint for endpoint in config.endpoints if endpoint.protocol in TLS_PROTOCOLS]
        self._listeners = {endpoint.listener: _listener_tls(config, endpoint) for endpoint in endpoints}
        self._endpoints = endpoints
        self._between = next((each for each in endpoints if each.listener == config.inter_broker_listener), None)
        self.outgoing: OutgoingTls | None = None
        """Wraps connections to other brokers; None: those are plain."""
        self._client: ReloadableContext | None = None
        if self._between is not None:
            self._client = _source(config, self._between, "connections to other brokers", load_client_context)
            self.outgoing = OutgoingTls(self._loop, self._threads, self._client)
        self.pages = _pages_source(config)
        """TLS of the pages for monitoring; None: they are served without."""
        self._timer: asyncio.TimerHandle | None = None
        self._following = False
        if self._sources():
            self._plan_check()

    def opener(self, endpoint: Endpoint) -> OpenConnection | None:
        """Opens the connections that a listener accepts; None: it speaks no TLS."""
        tls = self._listeners.get(endpoint.listener)
        return None if tls is None else partial(self.handshakes.begin_handshake, tls=tls)

    def apply_config(self, config: BrokerConfig) -> None:
        """Follow changed settings."""
        if self._endpoints:
            self._follow(partial(self._follow_settings, config))

    def close_all(self) -> None:
        """End the handshakes and the checks: the broker stops."""
        if self._timer is not None:
            self._timer.cancel()
        self.handshakes.close_all()

    # -- changes -----------------------------------------------------------------------------------------------------

    def _plan_check(self) -> None:
        self._timer = self._loop.call_later(self._check_s, self._check_files)

    def _check_files(self) -> None:
        if not self._following:
            self._follow(self._follow_files)
        self._plan_check()

    def _follow(self, work: Callable[[], None]) -> None:
        """Read files in a thread."""
        self._following = True
        self._threads.run_in_thread(work, self._on_followed)

    def _on_followed(self, outcome: Failure | None) -> None:
        self._following = False
        if outcome is not None:
            log.error("cannot follow changes of the settings of TLS: %s", outcome)

    def _sources(self) -> list[ReloadableContext]:
        sources = [tls.source for tls in self._listeners.values()]
        return [*sources, *(source for source in (self._client, self.pages) if source is not None)]

    def _follow_files(self) -> None:
        for source in self._sources():
            source.follow_files()

    def _follow_settings(self, config: BrokerConfig) -> None:
        for endpoint in self._endpoints:
            self._listeners[endpoint.listener].source.follow_settings(settings_at(config, endpoint))
        if self._client is not None and self._between is not None:
            self._client.follow_settings(settings_at(config, self._between))


def _listener_tls(config: BrokerConfig, endpoint: Endpoint) -> ListenerTls:
    """TLS of a listener. Raises Failure."""
    source = _source(config, endpoint, f"listener {endpoint.listener}", load_server_context)
    at = config.at_listener(endpoint.listener)
    delay_ms = config.connection_failed_authentication_delay_ms
    # With SASL the login names the principal, whatever the certificate contains.
    if endpoint.protocol != "SSL":
        return ListenerTls(source, None, delay_ms)
    try:
        return ListenerTls(source, PrincipalMapper(at.ssl_principal_mapping_rules), delay_ms)
    except ValueError as error:
        raise Failure(Kind.NOT_DONE, f"listener {endpoint.listener}: ssl.principal.mapping.rules: {error}") from None


def _pages_source(config: BrokerConfig) -> ReloadableContext | None:
    """TLS of the pages for monitoring. Raises Failure."""
    path, password = config.ottla_http_ssl_keystore_location, config.ottla_http_ssl_key_password
    if not path:
        return None
    truststore, client_auth = config.ottla_http_ssl_truststore_location, config.ottla_http_ssl_client_auth
    settings = TlsSettings(path, None, None, password, truststore, None, client_auth)
    return ReloadableContext(
        "ottla.http.listener",
        settings,
        load_server_context,
        allow_subject=config.ssl_allow_dn_changes,
        allow_names=config.ssl_allow_san_changes,
    )


def _source(
    config: BrokerConfig, endpoint: Endpoint, name: str, load: Callable[[TlsSettings], LoadedContext]
) -> ReloadableContext:
    at = config.at_listener(endpoint.listener)
    return ReloadableContext(
        name,
        settings_at(config, endpoint),
        load,
        allow_subject=at.ssl_allow_dn_changes,
        allow_names=at.ssl_allow_san_changes,
    )
