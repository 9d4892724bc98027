"""Topics and clients of a run with an authorizer.

Zone: deterministic. Super users write and read `events` as in any cluster. Restricted clients need permission
for what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from ottla.sim.cluster.admin import ClusterAdmin
from ottla.sim.cluster.client import ClusterClient
from ottla.sim.cluster.faults import Deed
from ottla.sim.cluster.nemesis import Nemesis
from ottla.sim.cluster.workload import ClusterWorkload
from ottla.sim.security.administrator import Administrator
from ottla.sim.security.effects import EffectReader
from ottla.sim.security.history import SecurityHistory
from ottla.sim.security.logins import LoginClient
from ottla.sim.security.restricted_clients import TOPICS, ClusterLocations, RestrictedClient
from ottla.sim.workload.catalog import Role

RESTRICTED_CLIENTS: Final = (
    ("alice-1", "alice", True),
    ("alice-2", "alice", False),
    ("bob-1", "bob", True),
    ("carol-1", "carol", False),
)
"""Host, user, and whether it renews its sessions."""
HOSTS: Final = tuple(host for host, _, _ in RESTRICTED_CLIENTS)
USERS: Final = ("alice", "bob", "carol")


class SecurityAdmin(ClusterAdmin):
    """The administrator of topics, a super user."""

    plan: ClassVar[Sequence[tuple[Role, str, int]]] = (
        (Role.EVENTS, "events", 2),
        *((Role.RESTRICTED, name, 1) for name in TOPICS),
    )


class SecurityNemesis(Nemesis):
    """The nemesis of a cluster whose topics stay."""

    def _admin_deeds(self, admin: ClusterAdmin) -> dict[str, Deed]:
        return self._count_deeds(
            {
                "reassignment": admin.reassign_partition,
                "cancelled reassignment": admin.cancel_reassignment,
                "preferred election": lambda _random: admin.elect_preferred(),
                "settings": admin.change_settings,
            }
        )


class SecurityWorkload(ClusterWorkload):
    """All clients of one run."""

    admin_type: ClassVar[type[ClusterAdmin]] = SecurityAdmin
    client_type: ClassVar[type[ClusterClient]] = LoginClient
    producer_kinds: ClassVar[Sequence[tuple[Role, bool]]] = ((Role.EVENTS, True),)
    reader_kinds: ClassVar[Sequence[tuple[Role, bool]]] = ((Role.EVENTS, True),)
    last_roles: ClassVar[Sequence[Role]] = (Role.EVENTS,)

    restricted_clients: Sequence[RestrictedClient] = ()
    administrator: Administrator
    effects: EffectReader

    @property
    def security_history(self) -> SecurityHistory:
        """The history."""
        assert isinstance(self.history, SecurityHistory), "a run with an authorizer"
        return self.history

    def make_client(self, name: str) -> ClusterClient:
        """Create one more client, a super user."""
        client = super().make_client(name)
        assert isinstance(client, LoginClient)
        client.history = self.security_history
        return client

    def _make_login(self, name: str) -> LoginClient:
        client = self.make_client(name)
        assert isinstance(client, LoginClient)
        return client

    def _make_restricted_client(
        self, locations: ClusterLocations, host: str, user: str, renews: bool
    ) -> RestrictedClient:
        client = self._make_login(host)
        client.user, client.renews = user, renews
        return RestrictedClient(
            client, self.named_stream(f"restricted client {host}"), self.security_history, locations
        )

    def make_restricted_clients(self) -> None:
        """Create the clients that need ACLs, before the nemesis learns the names of all clients."""
        history = self.security_history
        finder = self._make_login("finder")
        locations = ClusterLocations(finder, self.named_stream("finder"), self.watcher.view)
        self.restricted_clients = [self._make_restricted_client(locations, *kind) for kind in RESTRICTED_CLIENTS]
        acls = self._make_login("acls")
        self.administrator = Administrator(acls, self.named_stream("acls"), history, USERS, HOSTS)
        self.effects = EffectReader(self._make_login("effects"), history)
        self._locations = locations

    def start_clients(self) -> None:
        """Start all clients."""
        super().start_clients()
        self.administrator.start_changing()
        self._locations.find_next()
        self._look_at_metadata()
        for client in self.restricted_clients:
            client.start_asking()

    def _look_at_metadata(self) -> None:
        """Keep the leaders that restricted clients know from the watcher fresh."""
        self.watcher.mark_metadata_stale()
        self.network.timeline.schedule_after(500_000_000, "watcher", self._look_at_metadata)

    def wind_down(self) -> None:
        """Stop changes and requests, too."""
        super().wind_down()
        self.administrator.working = False
        for client in self.restricted_clients:
            client.working = False

    def unanswered_clients(self) -> list[str]:
        """Clients that wait for an answer."""
        return [client.client.name for client in self.restricted_clients if client.is_waiting]
