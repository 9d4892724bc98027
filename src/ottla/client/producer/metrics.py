"""A producer's metrics, by Kafka's names.

Zone: real. Reads the counters of the core and the sender.
"""

from __future__ import annotations

from ottla.client.producer.core import ProducerCore
from ottla.client.producer.network.sender import Sender


def producer_metrics(core: ProducerCore, sender: Sender) -> dict[str, float]:
    """Values of the group producer-metrics; totals since the start, times in ms, sizes in bytes."""
    counts = core.counts
    batches = max(1, counts.batches_sent)
    return {
        "record-send-total": counts.records_sent,
        "record-error-total": counts.records_failed,
        "record-retry-total": counts.records_retried,
        "batch-split-total": counts.batches_split,
        "batch-size-avg": counts.bytes_sent / batches,
        "records-per-request-avg": counts.records_sent / max(1, counts.requests),
        "record-queue-time-avg": counts.queue_seconds * 1000 / batches,
        "request-total": counts.requests,
        "outgoing-byte-total": counts.bytes_sent,
        "requests-in-flight": sum(len(calls) for calls in core.in_flight.values()),
        "request-latency-avg": sender.latency_sum * 1000 / max(1, sender.answers),
        "request-latency-max": sender.latency_max * 1000,
        "connection-count": sender.connection_count,
        "buffer-total-bytes": core.accumulator.limit,
        "buffer-available-bytes": max(0, core.accumulator.limit - core.accumulator.used),
        "waiting-threads": core.accumulator.memory_waiters,
        "producer-epochs-begun-total": counts.epochs_begun,
    }
