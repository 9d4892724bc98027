"""The consumer: subscriptions, positions, reading and group membership.

Zone: real. The names exported here are stable for users; the modules that define them may move.
"""

from __future__ import annotations

from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.positions import GroupMetadata, OffsetAndMetadata

__all__ = ["Consumer", "ConsumerConfig", "ConsumerRecord", "GroupMetadata", "OffsetAndMetadata"]
