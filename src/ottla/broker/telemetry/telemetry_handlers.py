"""GetTelemetrySubscriptions and PushTelemetry (KIP-714).

Zone: deterministic. Any client may send them. A push that is compressed or large is read in a worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from ottla.broker.telemetry.otlp import BadPush, Point, read_push
from ottla.broker.telemetry.receiver import CODECS, ClientInstance, TelemetryReceiver, instance_text
from ottla.broker.telemetry.subscriptions import ClientFacts
from ottla.errors import ApiError, ErrorCode
from ottla.metrics import Registry
from ottla.requests import Context, handles
from ottla.seams import Clock, Entropy, Failure, Peer, Workers
from ottla.types import ZERO_UUID
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)

JOB: Final = "ottla.broker.telemetry.otlp:read_push"
HERE_MAX: Final = 4 * 1024
"""Most bytes of an uncompressed push that is read within the turn."""
_TEXT_MAX: Final = 255


class TelemetryHandlers:
    """Handles requests about metrics of clients."""

    def __init__(self, receiver: TelemetryReceiver, clock: Clock, entropy: Entropy, workers: Workers) -> None:
        self._receiver = receiver
        self._clock = clock
        self._entropy = entropy
        self._workers = workers
        self._software: dict[Peer, tuple[str, str]] = {}
        """Name and version of clients' software, by connection."""

    def note_software(self, peer: Peer, name: str, version: str) -> None:
        """Note the software of a connection's client, which it names in ApiVersions (KIP-511)."""
        self._software[peer] = name[:_TEXT_MAX], version[:_TEXT_MAX]

    def on_gone(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        self._software.pop(peer, None)

    @handles(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0, 0)
    def get_telemetry_subscriptions(
        self, context: Context, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        """Return which metrics the client is to push, and how often."""
        instance_id = bytes(request.client_instance_id)
        if instance_id == ZERO_UUID:
            instance_id = self._new_id()
        try:
            wanted = self._receiver.subscribe(instance_id, self._facts_of(context, instance_id), self._now_ms())
        except ApiError as error:
            return GetTelemetrySubscriptionsResponse(error_code=error.code)
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=wanted.subscription_id,
            accepted_compression_types=list(CODECS),
            push_interval_ms=wanted.interval_ms,
            telemetry_max_bytes=self._receiver.max_bytes,
            delta_temporality=True,
            requested_metrics=list(wanted.metrics),
        )

    @handles(ApiKey.PUSH_TELEMETRY, 0, 0)
    def push_telemetry(self, context: Context, request: PushTelemetryRequest) -> PushTelemetryResponse | None:
        """Take the metrics of a client."""
        instance_id, codec = bytes(request.client_instance_id), request.compression_type
        try:
            facts = self._facts_of(context, instance_id)
            client = self._receiver.check_push(
                instance_id, facts, request.subscription_id, request.terminating, self._now_ms()
            )
            self._receiver.check_content(client, codec, len(request.metrics))
        except ApiError as error:
            return PushTelemetryResponse(error_code=error.code)
        data = bytes(request.metrics)
        if not codec and len(data) <= HERE_MAX:
            try:
                return self._take_points(client, read_push(codec, data))
            except BadPush:
                return PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
        self._workers.run_job(
            JOB, (codec, data), context.wrap_step(self._receive_points(context, client)), context.peer
        )
        return None

    def _receive_points(self, context: Context, client: ClientInstance) -> Callable[[object | Failure], None]:
        def receive(outcome: object | Failure) -> None:
            if isinstance(outcome, Failure):  # also a job that raised: the bytes are not metrics
                context.send_reply(PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD))
            else:
                context.send_reply(self._take_points(client, cast("list[Point]", outcome)))

        return receive

    def _take_points(self, client: ClientInstance, points: list[Point]) -> PushTelemetryResponse:
        self._receiver.take_points(client, points)
        return PushTelemetryResponse()

    def _facts_of(self, context: Context, instance_id: bytes) -> ClientFacts:
        name, version = self._software.get(context.peer, ("", ""))
        client_id = (context.client_id or "")[:_TEXT_MAX]
        return ClientFacts(client_id, instance_text(instance_id), name, version, context.peer.host)

    def _now_ms(self) -> int:
        return self._clock.now().mono_ns // 1_000_000

    def _new_id(self) -> bytes:
        octets = bytearray(self._entropy.random_bytes("client instances", 16))
        octets[6] = octets[6] & 0x0F | 0x40
        octets[8] = octets[8] & 0x3F | 0x80
        return bytes(octets)

    def declare_metrics(self, registry: Registry) -> None:
        """Register what clients have pushed."""
        receiver = self._receiver
        registry.add_gauge(
            "kafka_client_telemetry",
            "Latest metrics that clients have pushed.",
            lambda: receiver.samples(self._now_ms()),
        )
        registry.add_gauge(
            "kafka_server_clientmetrics_client_metrics_instance_count",
            "Clients that may push metrics.",
            receiver.count_clients,
        )
        registry.add_counter(
            "kafka_server_clientmetrics_client_metrics_plugin_export_count_total",
            "Pushes of metrics that were taken.",
            lambda: receiver.pushes,
        )
