"""UpdateMetadata (key 6): the controller sends brokers the state of the cluster.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, int64, nullable_string, string, uuid


class UpdateMetadataRequest(Message, api_key=6, versions="0-8", flexible="6+", between_brokers=True):
    """Brokers, their listeners, and the state of partitions, for brokers to answer Metadata from.

    v5: per topic, broker epoch. v7: topic ids.
    """

    class UpdateMetadataPartitionState(Struct):
        topic_name: str = string("0-4", ignorable=True)
        partition_index: int = int32("0+")
        controller_epoch: int = int32("0+")
        leader: int = int32("0+")
        leader_epoch: int = int32("0+")
        isr: list[int] = array("0+", "int32")
        zk_version: int = int32("0+")
        replicas: list[int] = array("0+", "int32")
        offline_replicas: list[int] = array("4+", "int32", ignorable=True)

    class UpdateMetadataTopicState(Struct):
        topic_name: str = string("5+")
        topic_id: bytes = uuid("7+", ignorable=True)
        partition_states: list[UpdateMetadataRequest.UpdateMetadataPartitionState] = array("5+")

    class UpdateMetadataEndpoint(Struct):
        port: int = int32("1+")
        host: str = string("1+")
        listener: str = string("3+", ignorable=True)
        security_protocol: int = int16("1+")

    class UpdateMetadataBroker(Struct):
        id: int = int32("0+")
        v0_host: str = string("0", ignorable=True)
        v0_port: int = int32("0", ignorable=True)
        endpoints: list[UpdateMetadataRequest.UpdateMetadataEndpoint] = array("1+", ignorable=True)
        rack: str | None = nullable_string("2+", "0+", "", ignorable=True)

    controller_id: int = int32("0+")
    is_k_raft_controller: bool = boolean("8+")
    type: int = int8("8+", tag=0)
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("5+", -1, ignorable=True)
    ungrouped_partition_states: list[UpdateMetadataPartitionState] = array("0-4")
    topic_states: list[UpdateMetadataTopicState] = array("5+")
    live_brokers: list[UpdateMetadataBroker] = array("0+")


class UpdateMetadataResponse(Message, api_key=6, versions="0-8", flexible="6+", between_brokers=True):
    """Whether the update was applied."""

    error_code: int = int16("0+")
