#!/usr/bin/env python3
"""A librdkafka consumer of all partitions from their beginning: consumer.py BOOTSTRAP TOPIC PARTITIONS OUT

It notes every record in OUT (values.py), and prints the number of records each second. When its standard input ends, it
gets the ends of the partitions, reads up to them, and ends. An offset out of range, or bytes that no producer wrote,
end it with exit code 1.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import IO

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testbench.chaos.login import login_settings
from testbench.chaos.producer import end_of_input
from testbench.chaos.values import NOTE, parse

SETTINGS = {
    "group.id": "chaos",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "check.crcs": True,
    "fetch.wait.max.ms": 200,
    "fetch.queue.backoff.ms": 10,
    "socket.timeout.ms": 5_000,
    "topic.metadata.refresh.interval.ms": 5_000,
    "reconnect.backoff.max.ms": 500,
    "log_level": 2,
}
FATAL = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._BAD_MSG, KafkaError._FATAL)


class Consuming:
    """One consumer, and its positions."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, notes: IO[bytes]) -> None:
        self.topic = topic
        self.count = 0
        self._next = dict.fromkeys(range(partitions), 0)
        self._notes = notes
        self._client = confluent_kafka.Consumer({**SETTINGS, **login_settings(), "bootstrap.servers": bootstrap})
        self._client.assign([TopicPartition(topic, index, 0) for index in self._next])

    def read(self, wait_s: float = 0.2) -> None:
        """Handle the messages that have arrived."""
        for message in self._client.consume(5_000, wait_s):
            error = message.error()
            if error is not None:
                if error.code() in FATAL:
                    raise KafkaException(error)
                continue
            partition, offset = message.partition(), message.offset()
            if offset != self._next[partition]:
                raise SystemExit(f"{self.topic}-{partition}: offset {offset} came, {self._next[partition]} was due")
            self._notes.write(NOTE.pack(partition, offset, *parse(message.value())))
            self._next[partition] = offset + 1
            self.count += 1

    def run(self, stopped: threading.Event) -> None:
        """Read until `stop` is set, then to the ends."""
        said = time.monotonic()
        while not stopped.is_set():
            self.read()
            if time.monotonic() > said + 1:
                said = time.monotonic()
                print(self.count, flush=True)
        ends = {partition: self._end(partition) for partition in self._next}
        while any(self._next[partition] < end for partition, end in ends.items()):
            self.read()
        print(self.count, flush=True)
        self._client.close()

    def _end(self, partition: int) -> int:
        while True:
            try:
                return int(self._client.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=10)[1])
            except KafkaException as error:
                print(f"{self.topic}-{partition}: {error}", file=sys.stderr, flush=True)


def main(bootstrap: str, topic: str, partitions: str, out: str) -> None:
    """Run as a program."""
    stopped = threading.Event()
    threading.Thread(target=end_of_input, args=(stopped,), daemon=True).start()
    with Path(out).open("wb") as notes:
        Consuming(bootstrap, topic, int(partitions), notes).run(stopped)


if __name__ == "__main__":
    main(*sys.argv[1:])
