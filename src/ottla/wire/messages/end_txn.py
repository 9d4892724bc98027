"""EndTxn (key 26) and WriteTxnMarkers (key 27): ends a transaction, and writes markers to its partitions.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, int64, string


class EndTxnRequest(Message, api_key=26, versions="0-5", flexible="3+"):
    """Commit or abort. v5: the epoch grows with every transaction (KIP-890)."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


class EndTxnResponse(Message, api_key=26, versions="0-5", flexible="3+"):
    """Whether the end was accepted. v5: the producer id and epoch to continue with."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", -1)
    producer_epoch: int = int16("5+", -1)


class WriteTxnMarkersRequest(Message, api_key=27, versions="0-2", flexible="1+", between_brokers=True):
    """Commit and abort markers for partitions, from the coordinator.

    v2: which version of the transaction protocol (KIP-1228).
    """

    class WritableTxnMarkerTopic(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("0+", "int32")

    class WritableTxnMarker(Struct):
        producer_id: int = int64("0+")
        producer_epoch: int = int16("0+")
        transaction_result: bool = boolean("0+")
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = array("0+")
        coordinator_epoch: int = int32("0+")
        transaction_version: int = int8("2+", ignorable=True)

    markers: list[WritableTxnMarker] = array("0+")


class WriteTxnMarkersResponse(Message, api_key=27, versions="0-2", flexible="1+", between_brokers=True):
    """The outcome for every marker and partition."""

    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class WritableTxnMarkerTopicResult(Struct):
        name: str = string("0+")
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = array("0+")

    class WritableTxnMarkerResult(Struct):
        producer_id: int = int64("0+")
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = array("0+")

    markers: list[WritableTxnMarkerResult] = array("0+")
