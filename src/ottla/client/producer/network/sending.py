"""Queues the batches of a call on a connection.

Zone: real. Requests with one batch, the usual case for low latency, use a prepared layout; others are encoded messages.
"""

from __future__ import annotations

import struct

from ottla.client.errors import UsageError
from ottla.client.metadata import ClusterView
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.core import ProduceCall, ProducerCore
from ottla.client.producer.network.nonblocking_connection import Channel
from ottla.client.producer.network.requests import (
    FIRST_VERSION_WITH_V2_BATCHES,
    highest_produce,
    produce_request,
    topic_id,
)
from ottla.wire.apis import ApiKey
from ottla.wire.single_batch_produce import LoneProduce


def send_produce(link: Channel, call: ProduceCall, core: ProducerCore, *, self_adding: bool) -> None:
    """Queue the request of a call; its tag is (call, names of topics by the ids in the request).

    Raises ClientError, without queueing anything.
    """
    view, config = core.metadata.view, core.config
    if len(call.batches) == 1:
        _send_lone(link, call, call.batches[0], core, self_adding=self_adding)
        return
    version = _produce_version(link, call, view, self_adding=self_adding)
    names = {topic_id(view, batch.tp.topic): batch.tp.topic for batch in call.batches}
    request = produce_request(call, view, config)
    core.counts.bytes_sent += sum(batch.size for batch in call.batches)
    link.send_request(ApiKey.PRODUCE, request, version, (call, names), answered=config.acks != 0)


def _produce_version(link: Channel, call: ProduceCall, view: ClusterView, *, self_adding: bool) -> int:
    at_most = highest_produce(call, view, self_adding=self_adding)
    return link.connection.choose_version(ApiKey.PRODUCE, at_most, FIRST_VERSION_WITH_V2_BATCHES)


def _send_lone(
    link: Channel, call: ProduceCall, batch: ProducerBatch, core: ProducerCore, *, self_adding: bool
) -> None:
    tp, config = batch.tp, core.config
    identity = topic_id(core.metadata.view, tp.topic)
    key = (tp, identity, self_adding)
    # The layout depends on topic, id and protocol only, so it is prepared once per connection.
    lone = link.lones.get(key)
    if lone is None:
        version = _produce_version(link, call, core.metadata.view, self_adding=self_adding)
        client = config.client
        try:
            lone = LoneProduce(
                version,
                client.client_id,
                config.transactional_id or None,
                config.acks,
                client.request_timeout_ms,
                tp.topic,
                identity,
                tp.partition,
            )
        except (struct.error, UnicodeEncodeError) as error:
            raise UsageError(f"a value of the Produce request does not fit the protocol: {error}") from error
        link.lones[key] = lone
    records = batch.encode_batch(transactional=bool(config.transactional_id))
    core.counts.bytes_sent += len(records)
    link.send_lone(lone, records, (call, {identity: tp.topic}), answered=core.acks != 0)
