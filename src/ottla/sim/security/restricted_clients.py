"""Restricted clients: they need permission for what they do, and note the answers.

Zone: deterministic. A client sends one request after the other: single ones, and transactions. All clients know all
producers, so that they also try to continue the transactions of others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from ottla.sim.cluster.client import Seen
from ottla.sim.entropy import Stream
from ottla.sim.networks.wire_client import Route
from ottla.sim.security.history import Attempt, SecurityHistory
from ottla.sim.security.logins import LoginClient, LoginWire
from ottla.sim.security.requests import (
    COORDINATED,
    SINGLE,
    TRANSACTION,
    Identity,
    Place,
    Sending,
    codes_in,
    find_coordinator,
    needs_of,
    request_of,
)
from ottla.sim.security.rules import REFUSED
from ottla.sim.world import MS
from ottla.wire.messages import FindCoordinatorResponse, InitProducerIdResponse
from ottla.wire.schema import Message

TOPICS: Final = ("red-one", "red-two", "blue-one")
GROUPS: Final = ("red-group", "blue-group")
IDS: Final = ("red-id", "blue-id")
PAUSE_NS: Final = 40 * MS
"""Mean time between an answer and the next request."""
FOREIGN: Final = 0.1
"""Chance that a transactional request has the producer of another transactional id."""
ANYWHERE: Final = 0.15
"""Chance that a request goes to any broker."""
FIND_NS: Final = 100 * MS
_NO_IDENTITY: Final = Identity(-1, -1, 0)


class ClusterLocations:
    """What all restricted clients know: producers, leaders and coordinators. A super user finds them."""

    def __init__(self, client: LoginClient, random: Stream, view: dict[Route, Seen]) -> None:
        self._client = client
        self._random = random
        self._view = view
        self.identities: dict[str, Identity] = {}
        """The newest producer of each transactional id."""
        self._coordinators: dict[str, int] = {}
        self._keys = deque([(0, group) for group in GROUPS] + [(1, name) for name in IDS])

    def find_next(self) -> None:
        """Find one coordinator after the other, again and again."""
        kind, key = self._keys[0]
        self._keys.rotate()

        def found(response: Message | None, _life: int) -> None:
            if isinstance(response, FindCoordinatorResponse) and not response.error_code:
                self._coordinators[key] = response.node_id
            self._client.timeline.schedule_after(FIND_NS, "locations", self.find_next)

        sending = find_coordinator(kind, key)
        self._client.send_request(sending.message, sending.version, sending.response, found)

    def broker_for(self, api: str, place: Place, random: Stream) -> int:
        """The broker that can carry out a request, as far as it is known; sometimes any."""
        found = None
        if api in ("produce", "fetch", "list offsets", "produce in transaction"):
            seen = self._view.get((place.topic, 0))
            found = seen.leader if seen is not None and seen.leader >= 0 else None
        elif api in ("commit offsets", "fetch offsets", "commit offsets in transaction"):
            found = self._coordinators.get(place.group)
        elif api in TRANSACTION:
            found = self._coordinators.get(place.transactional_id)
        # Also a wrong broker must refuse what is not allowed, before it says that it is the wrong one.
        if found is None or random.chance(ANYWHERE):
            return random.choice(self._client.nodes)
        return found

    def next_identity(self, transactional_id: str, writes: bool) -> Identity:
        """The producer of a transactional id; if it writes, its next sequence number is used up."""
        found = self.identities.get(transactional_id, _NO_IDENTITY)
        if writes:
            self.identities[transactional_id] = found._replace(sequence=found.sequence + 1)
        return found


class RestrictedClient:
    """One client, with the rights of its principal at its host."""

    def __init__(
        self, client: LoginClient, random: Stream, history: SecurityHistory, locations: ClusterLocations
    ) -> None:
        self.client = client
        self._random = random
        self._history = history
        self._locations = locations
        self._script: deque[tuple[str, Place]] = deque()
        self.working = True
        self.is_waiting = False
        """Whether a request has no answer yet."""

    def start_asking(self) -> None:
        """Send a request, and another one after each answer."""
        if self.working:
            api, place = self._next_request()
            self._send_attempt(api, place)

    def _next_request(self) -> tuple[str, Place]:
        random = self._random
        if not self._script:
            place = Place(random.choice(TOPICS), random.choice(GROUPS), random.choice(IDS))
            apis: Sequence[str] = TRANSACTION if random.chance(0.15) else (random.choice(SINGLE),)
            self._script.extend((api, place) for api in apis)
        return self._script.popleft()

    def _send_attempt(self, api: str, place: Place) -> None:
        broker = self._locations.broker_for(api, place, self._random)
        # Foreign: the client's own transactional id with the producer id of the other one.
        is_foreign = api in COORDINATED and self._random.chance(FOREIGN)
        owner = next(name for name in IDS if (name == place.transactional_id) is not is_foreign)
        identity = self._locations.next_identity(owner, api == "produce in transaction")
        attempt = self._note_attempt(api, place, broker, is_foreign and identity.producer_id >= 0)
        self._send(broker, request_of(api, place, identity, attempt.number), attempt, place)

    def _note_attempt(self, api: str, place: Place, broker: int, is_foreign: bool) -> Attempt:
        attempts, client = self._history.attempts, self.client
        attempt = Attempt(
            len(attempts),
            api,
            f"User:{client.user}",
            client.name,
            broker,
            needs_of(api, place),
            client.timeline.now_ns,
            text=f"{api} by {client.user} at {client.name}, broker {broker}, {' '.join(place)}",
            is_foreign=is_foreign,
        )
        attempts.append(attempt)
        return attempt

    def _send(self, broker: int, sending: Sending, attempt: Attempt, place: Place) -> None:
        wire = self.client.wire_client(broker)
        assert isinstance(wire, LoginWire)
        has_outlived = wire.has_outlived

        def on_response(response: Message | None, life: int) -> None:
            self.is_waiting = False
            if has_outlived:
                self._note_outlived(response, attempt)
            if response is not None:
                self._note_response(attempt, response, life)
                self._keep_identity(attempt, response, place)
            pause_ns = int(self._random.exponential(PAUSE_NS))
            self.client.timeline.schedule_after(pause_ns, "restricted client", self.start_asking)

        self.is_waiting = True
        wire.send_request(sending.message, sending.version, sending.response, on_response)

    def _note_outlived(self, response: Message | None, attempt: Attempt) -> None:
        if response is None:
            self._history.expired += 1
        else:
            self._history.outlived.append(attempt.text)

    def _note_response(self, attempt: Attempt, response: Message, life: int) -> None:
        codes = list(codes_in(response))
        # A response has a code per resource: one that denies is judged, whatever the others say.
        refused = [code for code in codes if code in REFUSED.values()]
        attempt.code = (refused or codes or [0])[0]
        attempt.life, attempt.answered_ns = life, self.client.timeline.now_ns

    def _keep_identity(self, attempt: Attempt, response: Message, place: Place) -> None:
        if isinstance(response, InitProducerIdResponse) and attempt.api == "init" and not attempt.code:
            identity = Identity(response.producer_id, response.producer_epoch, 0)
            self._locations.identities[place.transactional_id] = identity
