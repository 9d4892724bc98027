"""A simulated broker with an authorizer, and a listener on which clients log in.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.seams import World
from ottla.sim.cluster.node import ClusterNode
from ottla.sim.machines.machine import Process
from ottla.sim.networks.node_network import BROKERS, NodeNetwork
from ottla.sim.security.logins import ROOT, password_of
from ottla.types import Endpoint

CLIENTS: Final = "CLIENTS"
"""The listener of clients."""


class SecurityNode(ClusterNode):
    """A broker with two listeners."""

    def _make_world(self, process: Process, shell: NodeNetwork) -> World:
        shell.client_listener = CLIENTS
        return super()._make_world(process, shell)

    def _endpoints(self) -> list[Endpoint]:
        return [*super()._endpoints(), Endpoint(CLIENTS, f"node{self.number}", 9093)]


def security_properties(users: Iterable[str], reauth_ms: int) -> dict[str, str]:
    """The settings of such a broker. Brokers are known by their listener, whose connections are those of a super user.

    reauth_ms: the lifetime of a session.
    """
    logins = " ".join(f'user_{user}="{password_of(user)}"' for user in users)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "listeners": f"{BROKERS}://localhost:9092,{CLIENTS}://localhost:9093",
        "listener.security.protocol.map": f"{BROKERS}:PLAINTEXT,{CLIENTS}:SASL_PLAINTEXT",
        "inter.broker.listener.name": BROKERS,
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{CLIENTS.lower()}.plain.sasl.jaas.config": f"{module} required {logins};",
        "connections.max.reauth.ms": str(reauth_ms),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{ROOT}",
    }
