"""LeaderAndIsr (key 4): the controller sends brokers the partitions that they lead and follow.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, int64, string, uuid


class LeaderAndIsrRequest(Message, api_key=4, versions="0-7", flexible="4+", between_brokers=True):
    """Leader, ISR and replicas of partitions, under the controller's and leader's epochs.

    v2: per topic (KIP-380 broker epoch). v3: reassignment in progress (KIP-455). v5: topic ids (KIP-516). v6:
    recovery state of unclean elections (KIP-704).
    """

    class LeaderAndIsrPartitionState(Struct):
        topic_name: str = string("0-1", ignorable=True)
        partition_index: int = int32("0+")
        controller_epoch: int = int32("0+")
        leader: int = int32("0+")
        leader_epoch: int = int32("0+")
        isr: list[int] = array("0+", "int32")
        partition_epoch: int = int32("0+")
        replicas: list[int] = array("0+", "int32")
        adding_replicas: list[int] = array("3+", "int32", ignorable=True)
        removing_replicas: list[int] = array("3+", "int32", ignorable=True)
        is_new: bool = boolean("1+", ignorable=True)
        leader_recovery_state: int = int8("6+")

    class LeaderAndIsrTopicState(Struct):
        topic_name: str = string("2+")
        topic_id: bytes = uuid("5+", ignorable=True)
        partition_states: list[LeaderAndIsrRequest.LeaderAndIsrPartitionState] = array("2+")

    class LeaderAndIsrLiveLeader(Struct):
        broker_id: int = int32("0+")
        host_name: str = string("0+")
        port: int = int32("0+")

    controller_id: int = int32("0+")
    is_k_raft_controller: bool = boolean("7+")
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("2+", -1, ignorable=True)
    type: int = int8("5+")
    ungrouped_partition_states: list[LeaderAndIsrPartitionState] = array("0-1")
    topic_states: list[LeaderAndIsrTopicState] = array("2+")
    live_leaders: list[LeaderAndIsrLiveLeader] = array("0+")


class LeaderAndIsrResponse(Message, api_key=4, versions="0-7", flexible="4+", between_brokers=True):
    """The outcome for every partition."""

    class LeaderAndIsrPartitionError(Struct):
        topic_name: str = string("0-4")
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class LeaderAndIsrTopicError(Struct):
        topic_id: bytes = uuid("5+")
        partition_errors: list[LeaderAndIsrResponse.LeaderAndIsrPartitionError] = array("5+")

    error_code: int = int16("0+")
    partition_errors: list[LeaderAndIsrPartitionError] = array("0-4")
    topics: list[LeaderAndIsrTopicError] = array("5+")
