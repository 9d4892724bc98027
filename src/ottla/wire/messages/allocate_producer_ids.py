"""AllocateProducerIds (key 67): a broker asks the controller for producer ids.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, int16, int32, int64


class AllocateProducerIdsRequest(Message, api_key=67, versions="0", flexible="0+", between_brokers=True):
    """The next block of producer ids, for one broker (KIP-730)."""

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", -1)


class AllocateProducerIdsResponse(Message, api_key=67, versions="0", flexible="0+", between_brokers=True):
    """The ids of the block: the first, and how many."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id_start: int = int64("0+")
    producer_id_len: int = int32("0+")
