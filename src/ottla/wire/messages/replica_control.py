"""StopReplica (key 5) and ControlledShutdown (key 7): replicas and brokers that leave.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, int64, string


class StopReplicaRequest(Message, api_key=5, versions="0-4", flexible="2+", between_brokers=True):
    """Replicas the receiver shall stop, and perhaps delete. From the controller only.

    v1: broker epoch (KIP-380). v3: per topic, leader epochs (KIP-570).
    """

    class StopReplicaPartitionV0(Struct):
        topic_name: str = string("0")
        partition_index: int = int32("0")

    class StopReplicaTopicV1(Struct):
        name: str = string("1-2")
        partition_indexes: list[int] = array("1-2", "int32")

    class StopReplicaPartitionState(Struct):
        partition_index: int = int32("3+")
        leader_epoch: int = int32("3+", -1)
        delete_partition: bool = boolean("3+")

    class StopReplicaTopicState(Struct):
        topic_name: str = string("3+")
        partition_states: list[StopReplicaRequest.StopReplicaPartitionState] = array("3+")

    controller_id: int = int32("0+")
    is_k_raft_controller: bool = boolean("4+")
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("1+", -1, ignorable=True)
    delete_partitions: bool = boolean("0-2")
    ungrouped_partitions: list[StopReplicaPartitionV0] = array("0")
    topics: list[StopReplicaTopicV1] = array("1-2")
    topic_states: list[StopReplicaTopicState] = array("3+")


class StopReplicaResponse(Message, api_key=5, versions="0-4", flexible="2+", between_brokers=True):
    """The outcome for every partition."""

    class StopReplicaPartitionError(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    error_code: int = int16("0+")
    partition_errors: list[StopReplicaPartitionError] = array("0+")


class ControlledShutdownRequest(Message, api_key=7, versions="0-3", flexible="3+", between_brokers=True):
    """A broker asks the controller to move its leaderships away before it stops.

    v0 has a request header without client id. v2: broker epoch.
    """

    broker_id: int = int32("0+")
    broker_epoch: int = int64("2+", -1, ignorable=True)


class ControlledShutdownResponse(Message, api_key=7, versions="0-3", flexible="3+", between_brokers=True):
    """The partitions that the broker still leads."""

    class RemainingPartition(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    error_code: int = int16("0+")
    remaining_partitions: list[RemainingPartition] = array("0+")
