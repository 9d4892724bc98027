"""Messages that the members of a classic consumer group exchange through the coordinator.

Zone: pure. Declarations only. Each begins with an int16, its version, which is not one of its fields.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int32, nullable_octets, nullable_string, string


class ConsumerProtocolSubscription(Message, versions="0-3"):
    """A member's subscription: its topics, and the partitions that it owns."""

    class TopicPartition(Struct):
        """Partitions of a topic that it owns."""

        topic: str = string("1+")
        partitions: list[int] = array("1+", of="int32")

    topics: list[str] = array("0+", of="string")
    user_data: bytes | None = nullable_octets("0+", "0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = array("1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = nullable_string("3+", "3+", default=None, ignorable=True)


class ConsumerProtocolAssignment(Message, versions="0-3"):
    """A member's assignment."""

    class TopicPartition(Struct):
        """Partitions of a topic."""

        topic: str = string("0+")
        partitions: list[int] = array("0+", of="int32")

    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = array("0+")
    user_data: bytes | None = nullable_octets("0+", "0+", default=None)
