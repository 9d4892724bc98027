"""AlterPartition (key 56): a leader asks the controller to change an ISR.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int8, int16, int32, int64, string, uuid


class AlterPartitionRequest(Message, api_key=56, versions="0-3", flexible="0+", between_brokers=True):
    """The ISR a leader wants, with the versions it read (KIP-497).

    v1: recovery state (KIP-704). v2: topic ids. v3: broker epochs of the ISR (KIP-903).
    """

    class BrokerState(Struct):
        broker_id: int = int32("3+")
        broker_epoch: int = int64("3+", -1)

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        leader_epoch: int = int32("0+")
        new_isr: list[int] = array("0-2", "int32")
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = array("3+")
        leader_recovery_state: int = int8("1+")
        partition_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0-1", ignorable=True)
        topic_id: bytes = uuid("2+", ignorable=True)
        partitions: list[AlterPartitionRequest.PartitionData] = array("0+")

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", -1)
    topics: list[TopicData] = array("0+")


class AlterPartitionResponse(Message, api_key=56, versions="0-3", flexible="0+", between_brokers=True):
    """The partition as the controller recorded it."""

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        isr: list[int] = array("0+", "int32")
        leader_recovery_state: int = int8("1+")
        partition_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0-1")
        topic_id: bytes = uuid("2+")
        partitions: list[AlterPartitionResponse.PartitionData] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[TopicData] = array("0+")
