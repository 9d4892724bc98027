"""What each connection may do: its cached decisions, and the audit of its denials.

Zone: deterministic. A connection's object is created at its first request, and dropped with the connection. A login
changes the principal of a connection, so the object is replaced then.
"""

from __future__ import annotations

from typing import Final

from ottla.acls import CLUSTER_NAME, Operation, ResourceType, normalize_host
from ottla.seams import Peer
from ottla.security.audit_log import LINES_OF_CONNECTION_PER_S, AuditLog, LineLimit
from ottla.security.authorization.authorizer import Authorizer
from ottla.security.authorization.decision_cache import DecisionCache
from ottla.security.broker_proof import BROKER_PRINCIPAL
from ottla.wire.apis import API_TABLE, ApiKey

_CLUSTER: Final = ResourceType.CLUSTER


class ConnectionRights(DecisionCache):
    """The rights of one connection. Implements `ottla.requests.Rights`."""

    __slots__ = ("_audit", "_limit", "_peer", "may_be_brokers")

    def __init__(self, authorizer: Authorizer, audit: AuditLog, peer: Peer, may_be_brokers: bool) -> None:
        super().__init__(authorizer, peer.principal, normalize_host(peer.host))
        self.may_be_brokers = may_be_brokers
        """Whether ClusterAction makes it the connection of a broker."""
        self._audit = audit
        self._peer = peer
        self._limit = LineLimit(LINES_OF_CONNECTION_PER_S)

    def reported_operations(self, resource_type: ResourceType, name: str) -> int:
        """The `authorized_operations` of a response: allowed ones, among those that exist for the type."""
        return self._authorizer.reported_operations(self.principal, self.host, resource_type, name)

    def log_denial(self, api_key: int, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Write a denied operation to the audit log, with the reason, unless this connection has too many lines."""
        if not self._audit.admits_denial(self._limit):
            return
        resource = (resource_type, name)
        decision = self._authorizer.explain_decision(self.principal, self.host, operation, resource)
        self._audit.log_denial(
            self._peer,
            api=API_TABLE[ApiKey(api_key)].name,
            operation=operation.title,
            resource=resource_type.title,
            name=name,
            reason=decision.reason,
        )


class AllRights:
    """The rights of all connections."""

    def __init__(self, authorizer: Authorizer, audit: AuditLog, broker_listener: str | None) -> None:
        """`broker_listener`: the listener on which ClusterAction makes a connection a broker's; None: there is none,
        because brokers prove what they are, or there are no others. If there is one, a super user is a broker at
        every listener."""
        self._authorizer = authorizer
        self._audit = audit
        self._broker_listener = broker_listener
        self._rights: dict[Peer, ConnectionRights] = {}

    def rights_of(self, peer: Peer) -> ConnectionRights | None:
        """The rights of a connection; None: all, because a broker of this cluster is at its other end."""
        rights = self._rights.get(peer)
        if rights is None or rights.principal != peer.principal:
            # None of these has rights, and a login of a broker leaves those of another principal.
            if peer.principal == BROKER_PRINCIPAL or not peer.listener:
                return None
            rights = self._add_rights(peer)
        if rights.may_be_brokers and rights.is_allowed(Operation.CLUSTER_ACTION, _CLUSTER, CLUSTER_NAME):
            return None  # it may send the orders of a controller, so a further check would protect nothing
        return rights

    def _add_rights(self, peer: Peer) -> ConnectionRights:
        # A super user is a broker at any listener, as in Kafka: while a rolling restart moves the brokers to another
        # listener, those that have moved and those that have not use two.
        may_be_brokers = self._broker_listener is not None and (
            peer.listener == self._broker_listener or self._authorizer.is_super_user(peer.principal)
        )
        rights = self._rights[peer] = ConnectionRights(self._authorizer, self._audit, peer, may_be_brokers)
        self._authorizer.caches = len(self._rights)
        return rights

    def on_gone(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        if self._rights.pop(peer, None) is not None:
            self._authorizer.caches = len(self._rights)
            self._audit.report_left_out()
