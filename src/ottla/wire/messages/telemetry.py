"""GetTelemetrySubscriptions (key 71) and PushTelemetry (key 72): metrics of clients.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, array, boolean, int8, int16, int32, octets, uuid


class GetTelemetrySubscriptionsRequest(Message, api_key=71, versions="0", flexible="0+"):
    """The client's instance id, zero at first (KIP-714)."""

    client_instance_id: bytes = uuid("0+")


class GetTelemetrySubscriptionsResponse(Message, api_key=71, versions="0", flexible="0+"):
    """Which metrics to push, how often, compressed how."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    accepted_compression_types: list[int] = array("0+", "int8")
    push_interval_ms: int = int32("0+")
    telemetry_max_bytes: int = int32("0+")
    delta_temporality: bool = boolean("0+")
    requested_metrics: list[str] = array("0+", "string")


class PushTelemetryRequest(Message, api_key=72, versions="0", flexible="0+"):
    """Metrics of a client as OTLP, compressed (KIP-714)."""

    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    terminating: bool = boolean("0+")
    compression_type: int = int8("0+")
    metrics: bytes = octets("0+")


class PushTelemetryResponse(Message, api_key=72, versions="0", flexible="0+"):
    """Whether the metrics were accepted."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
