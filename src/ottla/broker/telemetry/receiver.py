"""The clients that push metrics, their latest pushes, and the rules of KIP-714 for both requests.

Zone: deterministic. Clients choose their instance ids, so the table is bounded: the client that was active the longest
time ago is forgotten, with its metrics. Each connection that ends leaves its client in the table, because the client
continues on another connection, and its last values are worth a scrape.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from ottla.broker.telemetry.otlp import Point
from ottla.broker.telemetry.subscriptions import ClientFacts, Subscriptions, Wanted
from ottla.errors import ApiError, ErrorCode
from ottla.metrics import Labels
from ottla.types import ZERO_UUID, uuid_to_text

CLIENTS_MAX: Final = 1_000
SERIES_MAX: Final = 200
"""Most numbers of one client."""
SHOWN_MAX: Final = 10_000
"""Most numbers of all clients; those of clients beyond that are dropped."""
KEPT_INTERVALS: Final = 3
"""For how many push intervals the numbers of a silent client are shown."""
CODECS: Final = (4, 3, 1, 2)
"""Codecs of pushes, preferred first: zstd, lz4, gzip, snappy. 0 is none."""
_RESERVED: Final = bytes(15) + b"\1"
_CLIENT_LABELS: Final = ("client_id", "client_instance_id", "client_software_name", "client_software_version")
SeriesKey = tuple[str, tuple[tuple[str, str], ...]]


class ClientInstance:
    """A client, by its instance id."""

    __slots__ = (
        "facts",
        "generation",
        "get_ms",
        "has_subscribed",
        "last_error",
        "push_ms",
        "series",
        "terminating",
        "wanted",
    )

    def __init__(self, facts: ClientFacts, wanted: Wanted, generation: int) -> None:
        self.facts = facts
        self.wanted = wanted
        self.generation = generation
        self.get_ms = self.push_ms = 0
        """Monotonic times of the last requests; 0: there was none."""
        self.has_subscribed = False
        """Whether it got its subscriptions since its last push."""
        self.last_error = ErrorCode.NONE
        self.terminating = False
        self.series: dict[SeriesKey, float] = {}


class TelemetryReceiver:
    """All clients."""

    def __init__(self, subscriptions: Subscriptions, max_bytes: int) -> None:
        """`max_bytes`: `telemetry.max.bytes`."""
        self._subscriptions = subscriptions
        self.max_bytes = max_bytes
        self._clients: OrderedDict[bytes, ClientInstance] = OrderedDict()
        self._count = 0
        """Numbers of all clients."""
        self.pushes = 0

    # -- requests ------------------------------------------------------------------------------------------------

    def subscribe(self, instance_id: bytes, facts: ClientFacts, now_ms: int) -> Wanted:
        """What a client is to push. Raises ApiError THROTTLING_QUOTA_EXCEEDED if it asks too often."""
        client = self._find_client(instance_id, facts)
        last_ms = max(client.get_ms, client.push_ms)
        may_ask_again = client.last_error in (
            ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )
        if last_ms and now_ms - last_ms < client.wanted.interval_ms and not may_ask_again:
            raise self._failed(client, _too_early())
        client.get_ms = now_ms
        client.has_subscribed = True
        client.last_error = ErrorCode.NONE
        return client.wanted

    def check_push(
        self, instance_id: bytes, facts: ClientFacts, subscription_id: int, terminating: bool, now_ms: int
    ) -> ClientInstance:
        """The client of a push that may be sent now. Raises ApiError, as Kafka."""
        if instance_id in (ZERO_UUID, _RESERVED):
            raise ApiError(ErrorCode.INVALID_REQUEST, "client instance id is missing or invalid")
        client = self._find_client(instance_id, facts)
        try:
            if client.terminating:
                text = "the client's previous request was its last one, as it stated by Terminating"
                raise ApiError(ErrorCode.INVALID_REQUEST, text)
            self._check_interval(client, terminating, now_ms)
            if subscription_id != client.wanted.subscription_id:
                raise ApiError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscriptions have changed; get them again")
        except ApiError as error:
            raise self._failed(client, error.as_value()) from None
        finally:
            client.terminating = client.terminating or terminating
        return client

    @staticmethod
    def _check_interval(client: ClientInstance, terminating: bool, now_ms: int) -> None:
        # The first push after the subscriptions may be early: clients spread theirs over the interval.
        is_early = now_ms - client.push_ms < client.wanted.interval_ms
        if is_early and not (client.has_subscribed or terminating):
            raise _too_early()
        client.has_subscribed = False
        client.push_ms = now_ms

    def check_content(self, client: ClientInstance, compression_type: int, size: int) -> None:
        """Check codec and size of a push. Raises ApiError."""
        if compression_type and compression_type not in CODECS:
            error = ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {compression_type}")
            raise self._failed(client, error)
        if size > self.max_bytes:
            text = f"{size} bytes are more than telemetry.max.bytes={self.max_bytes}"
            raise self._failed(client, ApiError(ErrorCode.TELEMETRY_TOO_LARGE, text))

    @staticmethod
    def _failed(client: ClientInstance, error: ApiError) -> ApiError:
        client.last_error = error.code
        return error

    def _find_client(self, instance_id: bytes, facts: ClientFacts) -> ClientInstance:
        client = self._clients.get(instance_id)
        generation = self._subscriptions.generation
        if client is None:
            client = ClientInstance(facts, self._subscriptions.wanted_from(facts), generation)
            self._clients[instance_id] = client
            if len(self._clients) > CLIENTS_MAX:
                self._forget_oldest()
            return client
        self._clients.move_to_end(instance_id)
        if client.generation != generation or client.facts != facts:
            client.facts, client.generation = facts, generation
            client.wanted = self._subscriptions.wanted_from(facts)
        return client

    # -- metrics -------------------------------------------------------------------------------------------------

    def take_points(self, client: ClientInstance, points: Sequence[Point]) -> None:
        """Take the numbers of a push: they replace the client's earlier ones, or add to them."""
        self.pushes += 1
        series = client.series
        before = len(series)
        for point in points:
            key = point.name, point.labels
            if point.is_delta:
                series[key] = series.get(key, 0.0) + point.value if key in series or len(series) < SERIES_MAX else 0.0
            else:
                series[key] = point.value
            if len(series) > SERIES_MAX:
                del series[key]
        self._count += len(series) - before
        while self._count > SHOWN_MAX and len(self._clients) > 1:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, client = self._clients.popitem(last=False)
        self._count -= len(client.series)
        client.series = {}

    def samples(self, now_ms: int) -> Iterator[tuple[Labels, float]]:
        """The latest numbers of clients that are not silent."""
        for client in list(self._clients.values()):
            if not client.series or now_ms - client.push_ms > KEPT_INTERVALS * client.wanted.interval_ms:
                continue
            who = {name: client.facts.value_of(name) for name in _CLIENT_LABELS}
            for (name, labels), value in client.series.items():
                # A client's own labels cannot replace those that identify it.
                yield {**{f"attribute_{_plain(key)}": text for key, text in labels}, **who, "metric": name}, value

    def count_clients(self) -> int:
        """How many clients are known."""
        return len(self._clients)


def instance_text(instance_id: bytes) -> str:
    """An instance id as Kafka's tools show it."""
    return uuid_to_text(instance_id)


def _plain(key: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in key)


def _too_early() -> ApiError:
    text = "the request arrived before the next push interval time"
    return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
