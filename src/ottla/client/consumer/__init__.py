"""The consumer: who reads what, from where on, and with whom it is shared.

Zone: real. This page names what users may lean on; the modules behind it may move.
"""

from __future__ import annotations

from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.positions import GroupMetadata, OffsetAndMetadata

__all__ = ["Consumer", "ConsumerConfig", "ConsumerRecord", "GroupMetadata", "OffsetAndMetadata"]
