"""The metrics of quotas, under Kafka's names: kafka.server:type=Produce,user=…,client-id=… and its like.

Zone: deterministic. Clients choose their client ids, so only those that were active last are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Final, cast

from ottla.metrics import Labels, Registry
from ottla.seams import Clock
from ottla.security.quotas.client_quotas import Quota
from ottla.security.quotas.request_throttles import RequestThrottles

_TYPES: Final = {
    Quota.PRODUCER_BYTE_RATE: "produce",
    Quota.CONSUMER_BYTE_RATE: "fetch",
    Quota.REQUEST_PERCENTAGE: "request",
    Quota.CONTROLLER_MUTATION_RATE: "controllermutation",
}
Measured = Callable[[int], Iterator[tuple[Hashable, float]]]


def declare_metrics(registry: Registry, throttles: RequestThrottles, clock: Clock) -> None:
    """Register the rates and throttle times of clients with a quota."""

    def by_client(measured: Measured) -> Callable[[], list[tuple[Labels, float]]]:
        def read() -> list[tuple[Labels, float]]:
            now_ms = clock.now().mono_ns // 1_000_000
            return [(_labels_of(owner), value) for owner, value in measured(now_ms)]

        return read

    for name, what, rates in (
        ("kafka_server_produce_byte_rate", "Bytes per second of Produce requests", throttles.produced),
        ("kafka_server_fetch_byte_rate", "Bytes per second of Fetch responses", throttles.fetched),
        ("kafka_server_request_request_time", "Percentage of a thread that requests took", throttles.time),
    ):
        registry.add_gauge(name, f"{what}, of clients with a quota.", by_client(rates.measured))
    for quota, kind in _TYPES.items():
        text = f"Average throttle time in ms of clients that exceeded their {quota.value}."
        registry.add_gauge(f"kafka_server_{kind}_throttle_time", text, by_client(throttles.waits[quota].measured))


def _labels_of(owner: Hashable) -> Labels:
    user, client_id = cast("tuple[str, str]", owner)
    return {"user": user, "client_id": client_id}
