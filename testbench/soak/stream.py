#!/usr/bin/env python3
"""A librdkafka consumer that checks a stream while it reads it: stream.py BOOTSTRAP TOPIC PARTITIONS PRODUCERS OUT

Every record of each producer (testbench/chaos/producer.py, numbered from 0) must arrive once and in order, in spite of
faults and retention. Five times a second it prints the number of records. When its standard input ends, it reads up to
the ends of the partitions, and writes the number of records of each producer to OUT. A lost, repeated or damaged record
ends it with exit code 1.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import KafkaException, Message

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testbench.chaos.producer import SAY_S, end_of_input
from testbench.chaos.values import parse
from testbench.soak.reading import Reader


class Stream:
    """The records so far."""

    def __init__(self, partitions: int, producers: int) -> None:
        self._partitions = partitions
        self.counts = [0] * producers
        self._next = {(who, at): at for who in range(producers) for at in range(partitions)}

    def take(self, message: Message) -> None:
        """Check one more record. Raises SystemExit when it is not the next one of its producer."""
        producer, number = parse(message.value())
        key = (producer, message.partition())
        due = self._next[key]
        if number != due:
            what = f"{(number - due) // self._partitions} are missing" if number > due else "it came before"
            raise SystemExit(
                f"producer {producer}, partition {key[1]}, offset {message.offset()}:"
                f" record {number} where {due} was due, {what}"
            )
        self._next[key] = due + self._partitions
        self.counts[producer] += 1


def main(bootstrap: str, topic: str, partitions: str, producers: str, out: str) -> None:
    """Run as a program."""
    stopped = threading.Event()
    threading.Thread(target=end_of_input, args=(stopped,), daemon=True).start()
    stream = Stream(int(partitions), int(producers))
    reader = Reader(bootstrap, topic, int(partitions))
    said = time.monotonic()
    try:
        while not stopped.is_set():
            for message in reader.some():
                stream.take(message)
            if time.monotonic() > said + SAY_S:
                said = time.monotonic()
                print(sum(stream.counts), flush=True)
        for message in reader.rest():
            stream.take(message)
    except KafkaException as error:
        raise SystemExit(str(error)) from None
    Path(out).write_text(json.dumps(stream.counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
