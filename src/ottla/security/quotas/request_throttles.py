"""Applies quotas to requests: what a request uses, how long its connection must wait, and that it waits.

Zone: deterministic.

A client is the user and the client id of a connection. Its limits are looked up once per connection and change of the
quotas. What is limited, and when it is recorded:

1. Bytes of Produce requests, when they arrive. The connection is muted at once, so that requests that follow on it do
   not arrive before the response of this one has left.
2. Bytes of Fetch responses, when they could be sent. A response that must wait is empty, and its bytes do not count.
3. The time of turns, in percent of a thread, when the shell reports it after the turn. So a request waits for the time
   of those before it. Work in later turns and in worker processes does not count.
4. Creations and deletions of partitions, before they are made (KIP-599).

The response is sent at once and contains the throttle time; then the connection is not read for that time (KIP-219).
Requests of brokers are exempt. While no quota is set the broker uses neither `ThrottledNetwork.send_reply` nor
`FrameInput.on_frame` of this module: both are attributes, and refer to the functions that they wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, cast

from ottla.errors import ApiError, ErrorCode
from ottla.seams import Clock, Gate, Network, Part, Peer, Slot
from ottla.security.broker_proof import BROKER_PRINCIPAL
from ottla.security.quotas.client_quotas import ClientQuotas, Limit, Quota
from ottla.security.quotas.rates import Windows
from ottla.security.quotas.throttle_field import with_throttle_time
from ottla.security.quotas.throttling import ClientRates, MutationRates, ThrottleTimes
from ottla.wire.apis import ApiKey

CLIENT_ID_MAX: Final = 1_000
"""Bytes of a client id that distinguish clients: client ids are kept for each connection and rate."""
# The beginning of every request: API key, version, correlation id, length of the client id.
_FIRST: Final = Struct(">hhih")
_HEADER_MIN: Final = 10
_NS_PER_MS: Final = 1_000_000
_NS_TO_PERCENT: Final = 100 / 1_000_000_000
_LIMITS: Final = {
    Quota.PRODUCER_BYTE_RATE: "produce",
    Quota.CONSUMER_BYTE_RATE: "fetch",
    Quota.REQUEST_PERCENTAGE: "time",
    Quota.CONTROLLER_MUTATION_RATE: "mutations",
}
"""The fields of `_Client` with the limits."""
OnFrame = Callable[[Slot, memoryview], Gate]


class QuotaWindows(NamedTuple):
    """How rates are measured."""

    clients: Windows
    """`quota.window.num` and `.size.seconds`."""
    controller: Windows
    """`controller.quota.window.num` and `.size.seconds`."""


class _Client:
    """The limits of a connection."""

    __slots__ = ("client_id", "fetch", "generation", "is_exempt", "mutations", "principal", "produce", "slots", "time")

    def __init__(self, quotas: ClientQuotas, principal: str, client_id: bytes) -> None:
        self.generation = quotas.generation
        self.principal = principal
        self.client_id = client_id
        user, name = principal.partition(":")[2], client_id.decode(errors="replace")
        self.produce = quotas.find_limit(Quota.PRODUCER_BYTE_RATE, user, name)
        self.fetch = quotas.find_limit(Quota.CONSUMER_BYTE_RATE, user, name)
        self.time = quotas.find_limit(Quota.REQUEST_PERCENTAGE, user, name)
        self.mutations = quotas.find_limit(Quota.CONTROLLER_MUTATION_RATE, user, name)
        self.is_exempt = False
        """Whether a follower fetches on this connection."""
        self.slots: dict[Slot, _Request] = {}
        """The requests that have no response yet."""


class _Request:
    """A request that has no response yet."""

    __slots__ = ("api_key", "delay_ms", "quota", "version")

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key = api_key
        self.version = version
        self.delay_ms = 0
        """How long its connection has to wait, as far as it is known."""
        self.quota = Quota.REQUEST_PERCENTAGE
        """The quota for which it has to wait."""

    def wait_at_least(self, delay_ms: int, quota: Quota) -> None:
        """Have its connection wait for that time, for that quota, unless it waits longer for another one."""
        if delay_ms > self.delay_ms:
            self.delay_ms, self.quota = delay_ms, quota


class ThrottledNetwork:
    """The network of the shell, with a `send_reply` that can be exchanged."""

    __slots__ = ("_network", "hold_frame", "open_gate", "send_reply")

    def __init__(self, network: Network) -> None:
        self._network = network
        self.send_reply = network.send_reply
        # Attributes of this object, because `__getattr__` costs a call.
        self.hold_frame = network.hold_frame
        self.open_gate = network.open_gate

    def __getattr__(self, name: str) -> Any:
        """Everything else is the shell's."""
        return getattr(self._network, name)


class RequestThrottles:
    """The quotas of requests, and what clients have used."""

    def __init__(self, quotas: ClientQuotas, clock: Clock, network: Network, windows: QuotaWindows) -> None:
        self.is_active = False
        """Whether any client has a quota."""
        self.quotas = quotas
        self._now = clock.now
        self._shell = network
        self._network = ThrottledNetwork(network)
        self.produced = ClientRates(windows.clients)
        self.fetched = ClientRates(windows.clients)
        self.time = ClientRates(windows.clients, waits_one_window=True)
        self.mutations = MutationRates(windows.controller)
        self.waits = {quota: ThrottleTimes(windows.clients) for quota in _LIMITS}
        """How long clients had to wait, by quota."""
        self._clients: dict[Peer, _Client] = {}
        self._measures_time = False

    @property
    def network(self) -> Network:
        """The network by which the broker sends its responses."""
        return cast("Network", self._network)

    def refresh_quotas(self) -> None:
        """Apply other quotas from now on."""
        kinds = {quota for quota in Quota if self.quotas.is_set(quota)} - {Quota.CONNECTION_CREATION_RATE}
        self.is_active = bool(kinds)
        self._network.send_reply = self._send_reply if kinds else self._shell.send_reply
        if not kinds:
            self._clients.clear()
        measures_time = Quota.REQUEST_PERCENTAGE in kinds
        if measures_time is not self._measures_time:
            self._measures_time = measures_time
            self._shell.measure_turns(self._on_turn_time if measures_time else None)

    # -- requests ------------------------------------------------------------------------------------------------

    def start_request(self, slot: Slot, frame: memoryview) -> None:
        """Note a request of a client, before it is handled."""
        peer = slot.peer
        api_key, version, _, length = _FIRST.unpack_from(frame)
        client_id = bytes(frame[_HEADER_MIN : _HEADER_MIN + min(length, CLIENT_ID_MAX)]) if length > 0 else b""
        client = self._clients.get(peer)
        if (
            client is None
            or client.generation != self.quotas.generation
            or client.client_id != client_id
            or client.principal != peer.principal
        ):
            client = self._renew_client(client, peer, client_id)
        request = client.slots[slot] = _Request(api_key, version)
        if api_key == ApiKey.PRODUCE and client.produce.bound is not None:
            now = self._now()
            request.delay_ms = self.produced.record_use(client.produce, len(frame), now.mono_ns // _NS_PER_MS)
            if request.delay_ms:
                request.quota = Quota.PRODUCER_BYTE_RATE
                self._shell.pause_reading(peer, now.mono_ns + request.delay_ms * _NS_PER_MS)

    def _renew_client(self, old: _Client | None, peer: Peer, client_id: bytes) -> _Client:
        client = self._clients[peer] = _Client(self.quotas, peer.principal, client_id)
        # The same connection with other limits: responses to its requests in progress still have to be throttled.
        if old is not None:
            client.slots = old.slots
            client.is_exempt = old.is_exempt
        return client

    def on_gone(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        self._clients.pop(peer, None)

    def _on_turn_time(self, peer: Peer, elapsed_ns: int) -> None:
        """Record the time of a turn of a connection."""
        client = self._clients.get(peer)
        if client is not None and not client.is_exempt:
            self.time.record_use(client.time, elapsed_ns * _NS_TO_PERCENT, self._now().mono_ns // _NS_PER_MS)

    def _send_reply(self, slot: Slot, parts: Sequence[Part]) -> None:
        client = self._clients.get(slot.peer)
        request = None if client is None else client.slots.pop(slot, None)
        if client is None or request is None:
            self._shell.send_reply(slot, parts)
            return
        now = self._now()
        now_ms = now.mono_ns // _NS_PER_MS
        if client.time.bound is not None and not client.is_exempt:
            request.wait_at_least(self.time.record_use(client.time, 0, now_ms), Quota.REQUEST_PERCENTAGE)
        delay_ms = request.delay_ms
        if delay_ms and parts:
            parts = with_throttle_time(request.api_key, request.version, parts, delay_ms)
        # Sent before the connection is muted: the client learns from the response how long it has to wait (KIP-219).
        # Before Kafka 2.0 the response itself was delayed, and clients took that for a broker that does not answer.
        self._shell.send_reply(slot, parts)
        if delay_ms:
            self._shell.pause_reading(slot.peer, now.mono_ns + delay_ms * _NS_PER_MS)
            limit: Limit = getattr(client, _LIMITS[request.quota])
            self.waits[request.quota].record_wait(limit, delay_ms, now_ms)

    def _request_of(self, slot: Slot) -> tuple[_Client, _Request] | None:
        client = self._clients.get(slot.peer)
        request = None if client is None else client.slots.get(slot)
        return None if client is None or request is None else (client, request)

    # -- Fetch ---------------------------------------------------------------------------------------------------

    def most_fetched(self, slot: Slot, max_bytes: int) -> int:
        """The most bytes of a response: what the quota allows in all windows, so that a wait for it can end."""
        found = self._request_of(slot)
        most = None if found is None else self.fetched.most_at_once(found[0].fetch)
        return max_bytes if most is None else min(max_bytes, int(most))

    def admit_fetch(self, slot: Slot, size: int) -> bool:
        """Record the bytes of a response; False: it has to be an empty one instead.

        A batch that is larger than all windows allow is admitted when nothing else was fetched lately. Apache Kafka
        never delivers it.
        """
        found = self._request_of(slot)
        if found is None:
            return True
        client, request = found
        now_ms = self._now().mono_ns // _NS_PER_MS
        # Recording nothing returns the present wait.
        waits_ms = self.time.record_use(client.time, 0, now_ms)
        before_ms = self.fetched.record_use(client.fetch, 0, now_ms)
        after_ms = self.fetched.record_use(client.fetch, size, now_ms)
        most = self.fetched.most_at_once(client.fetch)
        fits = not after_ms or (most is not None and size > most and not before_ms)
        if fits and not waits_ms:
            return True
        self.fetched.take_back(client.fetch, size, now_ms)
        request.wait_at_least(waits_ms, Quota.REQUEST_PERCENTAGE)
        request.wait_at_least(after_ms, Quota.CONSUMER_BYTE_RATE)
        return False

    def exempt_follower(self, peer: Peer) -> None:
        """Limit a connection no more: a broker fetches as a replica on it."""
        client = self._clients.get(peer)
        if client is not None:
            client.is_exempt = True

    # -- creations and deletions of partitions -------------------------------------------------------------------

    def admit_mutations(self, slot: Slot, partitions: float, strict: bool) -> None:
        """Record that a request creates or deletes partitions. In any case, unless it is strict.

        Raises ApiError THROTTLING_QUOTA_EXCEEDED if earlier ones have exceeded the quota, and it is strict.
        """
        found = self._request_of(slot) if self.is_active else None
        if found is None or found[0].mutations.bound is None:
            return
        client, request = found
        now_ms = self._now().mono_ns // _NS_PER_MS
        record = self.mutations.admit_mutations if strict else self.mutations.record_mutations
        delay_ms = record(client.mutations, partitions, now_ms)
        request.wait_at_least(delay_ms, Quota.CONTROLLER_MUTATION_RATE)
        if delay_ms and strict:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


class FrameInput:
    """The inputs of connections: passes frames to the broker's dispatch, and notes them before if there are quotas."""

    __slots__ = ("_dispatch", "_is_for_brokers", "_on_gone", "_throttles", "find_address_limit", "on_frame")

    def __init__(
        self,
        throttles: RequestThrottles,
        dispatch: OnFrame,
        is_for_brokers: Callable[[int, int], bool],
        on_gone: Callable[[Peer], None],
    ) -> None:
        """`is_for_brokers`: whether only brokers send the API in a version. `on_gone`: what else forgets a connection
        that has ended."""
        self._throttles = throttles
        self._on_gone = on_gone
        self._dispatch = dispatch
        self._is_for_brokers = is_for_brokers
        self.on_frame = dispatch
        self.find_address_limit = throttles.quotas.find_address_limit

    def on_gone(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        self._throttles.on_gone(peer)
        self._on_gone(peer)

    def refresh_quotas(self) -> None:
        """Apply other quotas from now on."""
        self._throttles.refresh_quotas()
        self.on_frame = self._on_limited_frame if self._throttles.is_active else self._dispatch

    def _on_limited_frame(self, slot: Slot, frame: memoryview) -> Gate:
        if len(frame) >= _HEADER_MIN and not self._is_exempt(slot.peer, frame):
            self._throttles.start_request(slot, frame)
        return self._dispatch(slot, frame)

    def _is_exempt(self, peer: Peer, frame: memoryview) -> bool:
        # A broker's request to itself has no listener.
        if not peer.listener or peer.principal == BROKER_PRINCIPAL:
            return True
        api_key, version, _, _ = _FIRST.unpack_from(frame)
        return self._is_for_brokers(api_key, version)
