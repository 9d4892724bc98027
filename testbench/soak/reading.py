"""Reads all partitions of a topic from their beginnings with librdkafka; an unreadable offset is an error.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

from testbench.chaos.consumer import FATAL, SETTINGS


class Reader:
    """One consumer of all partitions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, **options: str) -> None:
        self._topic = topic
        self._partitions = range(partitions)
        self._client = Consumer({**SETTINGS, **options, "bootstrap.servers": bootstrap, "enable.partition.eof": False})
        self._client.assign([TopicPartition(topic, at, OFFSET_BEGINNING) for at in self._partitions])

    def some(self, wait_s: float = 0.2) -> Iterator[Message]:
        """The messages that have arrived. Raises KafkaException for fatal errors."""
        for message in self._client.consume(5_000, wait_s):
            error = message.error()
            if error is None:
                yield message
            elif error.code() in FATAL:
                raise KafkaException(error)

    def rest(self) -> Iterator[Message]:
        """Read everything up to the present ends, then close."""
        ends = {at: self._end(at) for at in self._partitions}
        while self._behind(ends):
            yield from self.some()
        self._client.close()

    def _behind(self, ends: dict[int, int]) -> bool:
        """Whether a position is below its end. Positions also count markers and aborted records."""
        asked = [TopicPartition(self._topic, at) for at in ends]
        return any(0 < ends[each.partition] > max(each.offset, 0) for each in self._client.position(asked))

    def _end(self, partition: int) -> int:
        while True:
            try:
                return int(self._client.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=10)[1])
            except KafkaException as error:
                print(f"{self._topic}-{partition}: {error}", file=sys.stderr, flush=True)
