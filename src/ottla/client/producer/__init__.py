"""The producer: collects records in batches, sends them to partition leaders, and reports the outcome of each.

Zone: real. The names exported here are stable for users. The package has a pure core of decisions (`core`,
`accumulator`, `partition_queue`, `batch`, `error_classification`, `topic_metadata`, `transaction`, `partitioning`,
`config`: no clock, socket, thread or random number, so that a simulator can drive it), and a shell with threads
(`producer`, `record_appender`, `sender`, `nonblocking_connection`, `futures`, `txn_calls`).

    with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        sent = producer.send("orders", b"value", key=b"key")
        print(sent.result(10).offset)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.lazy_imports import names_on_demand

if TYPE_CHECKING:
    from ottla.client.producer.config import ProducerConfig
    from ottla.client.producer.futures import (
        PartitionRows,
        PartlyAcceptedError,
        RecordMetadata,
        SendFuture,
        TableFuture,
        TableMetadata,
    )
    from ottla.client.producer.producer import Producer

__all__ = [
    "PartitionRows",
    "PartlyAcceptedError",
    "Producer",
    "ProducerConfig",
    "RecordMetadata",
    "SendFuture",
    "TableFuture",
    "TableMetadata",
]

# `batch_transaction` needs the core, and not the shell with its threads.
__getattr__, __dir__ = names_on_demand(
    globals(),
    {
        "ottla.client.producer.config": "ProducerConfig",
        "ottla.client.producer.producer": "Producer",
        "ottla.client.producer.futures": (
            "PartitionRows PartlyAcceptedError RecordMetadata SendFuture TableFuture TableMetadata"
        ),
    },
)
