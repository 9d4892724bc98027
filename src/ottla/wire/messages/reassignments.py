"""ElectLeaders (key 43), AlterPartitionReassignments (key 45), ListPartitionReassignments (key 46).

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, nullable_string, string


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    """Partitions whose leaders are to be elected; null means all (KIP-183). v1: also unclean elections (KIP-460)."""

    class TopicPartitions(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array("0+", nullable="0+")
    timeout_ms: int = int32("0+", 60000)


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    """The outcome for every partition."""

    class PartitionResult(Struct):
        partition_id: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")

    class ReplicaElectionResult(Struct):
        topic: str = string("0+")
        partition_result: list[ElectLeadersResponse.PartitionResult] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array("0+")


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0-1", flexible="0+"):
    """Target replicas per partition; null cancels (KIP-455). v1: whether the replication factor may change
    (KIP-860).
    """

    class ReassignablePartition(Struct):
        partition_index: int = int32("0+")
        replicas: list[int] | None = array("0+", "int32", nullable="0+", null=True, most=1_000)

    class ReassignableTopic(Struct):
        name: str = string("0+")
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = array("0+")

    timeout_ms: int = int32("0+", 60000)
    allow_replication_factor_change: bool = boolean("1+", True)
    topics: list[ReassignableTopic] = array("0+")


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    """The outcome for every partition."""

    class ReassignablePartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", "")

    class ReassignableTopicResponse(Struct):
        name: str = string("0+")
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = array("0+")

    throttle_time_ms: int = int32("0+")
    allow_replication_factor_change: bool = boolean("1+", True)
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")
    responses: list[ReassignableTopicResponse] = array("0+")


class ListPartitionReassignmentsRequest(Message, api_key=46, versions="0", flexible="0+"):
    """Partitions to list; null means all (KIP-455)."""

    class ListPartitionReassignmentsTopics(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("0+", "int32")

    timeout_ms: int = int32("0+", 60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array("0+", nullable="0+", null=True)


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0", flexible="0+"):
    """Replicas that are being added and removed."""

    class OngoingPartitionReassignment(Struct):
        partition_index: int = int32("0+")
        replicas: list[int] = array("0+", "int32")
        adding_replicas: list[int] = array("0+", "int32")
        removing_replicas: list[int] = array("0+", "int32")

    class OngoingTopicReassignment(Struct):
        name: str = string("0+")
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")
    topics: list[OngoingTopicReassignment] = array("0+")
