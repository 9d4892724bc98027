"""Clients that log in: SaslHandshake and SaslAuthenticate (PLAIN) on every connection, and again before its end.

Zone: deterministic. The tokens are written before the waiting requests on a new connection. A client that does not
renew its sessions uses them beyond their end, and must not get answers then (KIP-368).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ottla.sim.cluster.client import ClusterClient
from ottla.sim.networks.network import Connection
from ottla.sim.networks.wire_client import Pending, WireClient
from ottla.sim.security.history import SecurityHistory
from ottla.sim.world import MS
from ottla.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.wire.schema import Message

ROOT: Final = "root"
"""The user that is a super user."""
VERSION: Final = 1
"""Of both requests: tokens in SaslAuthenticate, with the lifetime in its answer."""
RENEW: Final = 0.7
"""A session is renewed when this part of its lifetime is over."""


def password_of(user: str) -> str:
    """The password of a user."""
    return f"secret of {user}"


class LoginWire(WireClient):
    """A client of one broker that logs in on every connection."""

    user = ROOT
    renews = True
    """Whether it authenticates again before a session ends."""
    history: SecurityHistory
    _ends_ns: int | None = None
    """When the session has certainly ended at the broker; None: unknown."""

    @property
    def has_outlived(self) -> bool:
        """Whether the session of the present connection has certainly ended."""
        return self._open and self._ends_ns is not None and self.timeline.now_ns > self._ends_ns

    def _on_opened(self, connection: Connection) -> None:
        self._ends_ns = None
        self._queue = deque([*self._login_requests(again=False), *self._queue])
        super()._on_opened(connection)

    def _login_requests(self, again: bool) -> list[Pending]:
        token = f"\0{self.user}\0{password_of(self.user)}".encode()
        return [
            self._make_pending(SaslHandshakeRequest(mechanism="PLAIN"), VERSION, SaslHandshakeResponse, _ignore),
            self._make_pending(
                SaslAuthenticateRequest(auth_bytes=token),
                VERSION,
                SaslAuthenticateResponse,
                lambda response, _life: self._on_login(response, again),
            ),
        ]

    def _on_login(self, response: Message | None, again: bool) -> None:
        if not isinstance(response, SaslAuthenticateResponse):
            return
        if response.error_code:
            self.history.refused_logins.append(f"{self.name}: {response.error_message}")
            return
        self.history.logins += not again
        self.history.renewed += again
        lifetime_ns = response.session_lifetime_ms * MS
        self._ends_ns = self.timeline.now_ns + lifetime_ns if lifetime_ns else None
        if lifetime_ns and self.renews:
            self.timeline.schedule_after(int(lifetime_ns * RENEW), "login", self._renew_session, self._connection)

    def _renew_session(self, connection: Connection | None) -> None:
        if connection is None or connection is not self._connection or not self._open:
            return
        self._ends_ns = None
        for pending in self._login_requests(again=True):
            self._queue.append(pending)
            self._send_pending(pending)


class LoginClient(ClusterClient):
    """A client of a cluster that logs in to every broker."""

    user = ROOT
    renews = True
    history: SecurityHistory

    def _make_wire(self, node: int) -> LoginWire:
        wire = LoginWire(self.network, self.name, node)
        wire.user, wire.renews, wire.history = self.user, self.renews, self.history
        return wire


def _ignore(_response: Message | None, _life: int) -> None:
    """Ignore the answer to SaslHandshake: without it the token is refused."""
