"""The producer: records in, batches to the leaders, and what became of each.

Zone: real. This page names what users lean on. Below it is a pure core of decisions (`core`, `accumulator`, `lane`,
`batch`, `meaning`, `book`, `transaction`, `partitioning`, `config`: no clock, socket, thread or random number, so that
a simulator can drive it), and a face with threads (`face`, `intake`, `sender`, `links`, `futures`, `txn_calls`).

    with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        sent = producer.send("orders", b"value", key=b"key")
        print(sent.result(10).offset)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.on_demand import names_on_demand

if TYPE_CHECKING:
    from ottla.client.producer.config import ProducerConfig
    from ottla.client.producer.face import Producer
    from ottla.client.producer.futures import PartitionRows, RecordMetadata, SendFuture, TableFuture, TableMetadata

__all__ = [
    "PartitionRows",
    "Producer",
    "ProducerConfig",
    "RecordMetadata",
    "SendFuture",
    "TableFuture",
    "TableMetadata",
]

# Who writes whole batches in transactions of its own needs the core, and not the face with its threads.
__getattr__, __dir__ = names_on_demand(
    globals(),
    {
        "ottla.client.producer.config": "ProducerConfig",
        "ottla.client.producer.face": "Producer",
        "ottla.client.producer.futures": "PartitionRows RecordMetadata SendFuture TableFuture TableMetadata",
    },
)
