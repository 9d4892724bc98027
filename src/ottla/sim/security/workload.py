"""Topics and clients of a run with an authorizer.

Zone: deterministic. Super users write and read `events` as in any cluster. Guests need permission for what they do.
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
from ottla.sim.security.guests import TOPICS, Guest, Whereabouts
from ottla.sim.security.history import SecurityHistory
from ottla.sim.security.logins import LoginClient
from ottla.sim.workload.catalog import Role

GUESTS: Final = (
    ("alice-1", "alice", True),
    ("alice-2", "alice", False),
    ("bob-1", "bob", True),
    ("carol-1", "carol", False),
)
"""Host, user, and whether it renews its sessions."""
HOSTS: Final = tuple(host for host, _, _ in GUESTS)
USERS: Final = ("alice", "bob", "carol")


class SecurityAdmin(ClusterAdmin):
    """The administrator of topics, a super user."""

    plan: ClassVar[Sequence[tuple[Role, str, int]]] = (
        (Role.EVENTS, "events", 2),
        *((Role.GUEST, name, 1) for name in TOPICS),
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

    guests: Sequence[Guest] = ()
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

    def _make_guest(self, whereabouts: Whereabouts, host: str, user: str, renews: bool) -> Guest:
        client = self._make_login(host)
        client.user, client.renews = user, renews
        return Guest(client, self.named_stream(f"guest {host}"), self.security_history, whereabouts)

    def make_guests(self) -> None:
        """Create the clients that do with ACLs, before the nemesis learns the names of all clients."""
        history = self.security_history
        scout = self._make_login("scout")
        whereabouts = Whereabouts(scout, self.named_stream("scout"), self.watcher.view)
        self.guests = [self._make_guest(whereabouts, *kind) for kind in GUESTS]
        acls = self._make_login("acls")
        self.administrator = Administrator(acls, self.named_stream("acls"), history, USERS, HOSTS)
        self.effects = EffectReader(self._make_login("effects"), history)
        self._whereabouts = whereabouts

    def start_clients(self) -> None:
        """Start all clients."""
        super().start_clients()
        self.administrator.start_changing()
        self._whereabouts.find_next()
        self._look_at_metadata()
        for guest in self.guests:
            guest.start_asking()

    def _look_at_metadata(self) -> None:
        """Keep the leaders that guests know from the watcher fresh."""
        self.watcher.mark_metadata_stale()
        self.network.timeline.schedule_after(500_000_000, "watcher", self._look_at_metadata)

    def wind_down(self) -> None:
        """Stop changes and requests, too."""
        super().wind_down()
        self.administrator.working = False
        for guest in self.guests:
            guest.working = False

    def unanswered_guests(self) -> list[str]:
        """Guests that wait for an answer."""
        return [guest.client.name for guest in self.guests if guest.is_waiting]
