#!/usr/bin/env python3
"""A librdkafka producer of a table, a compacted topic: table.py BOOTSTRAP TOPIC PARTITIONS KEYS RATE OUT

Each record sets a key to its number, one in ten removes it. Each second it prints: sent, acknowledged, failed. When its
standard input ends, it reads the topic from its beginning, and compares each key with the value that it wrote last. OUT
gets the counts. A difference ends it with exit code 1.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import confluent_kafka

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testbench.chaos.producer import SETTINGS, end_of_input
from testbench.soak.reading import Reader

REMOVED_EVERY = 10
SHOWN = 5


class Table:
    """The table as it was written."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, keys: int) -> None:
        self.sent = self.acknowledged = self.failed = 0
        self.rows: dict[bytes, bytes] = {}
        self._topic = topic
        self._partitions = partitions
        self._keys = keys
        self._client = confluent_kafka.Producer({**SETTINGS, "bootstrap.servers": bootstrap})

    def send(self) -> bool:
        """Send one more change; False when the buffer is full."""
        number = self.sent
        place = number * 7919 % self._keys
        key = b"key %d" % place
        value = None if number % REMOVED_EVERY == 0 else b"%d " % number + b"x" * (number % 150)
        try:
            self._client.produce(self._topic, value, key, partition=place % self._partitions, on_delivery=self._report)
        except BufferError:
            return False
        self.sent += 1
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = value
        return True

    def _report(self, error: object, _message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            print(f"a change was not written: {error}", file=sys.stderr, flush=True)

    def run(self, rate: float, stopped: threading.Event) -> None:
        """Send at a rate until `stop` is set; then wait for changes in flight."""
        began = said = time.monotonic()
        while not stopped.is_set():
            due = int((time.monotonic() - began) * rate)
            for _ in range(min(due - self.sent, 100)):
                if not self.send():
                    break
            self._client.poll(0.005)
            if time.monotonic() > said + 1:
                said = time.monotonic()
                self.say()
        self._client.flush(300)
        self.say()

    def say(self) -> None:
        """The counts so far."""
        print(self.sent, self.acknowledged, self.failed, flush=True)


def read_back(reader: Reader) -> tuple[dict[bytes, bytes], int]:
    """The table according to the topic, and the number of records read."""
    rows: dict[bytes, bytes] = {}
    count = 0
    for message in reader.rest():
        count += 1
        if message.value() is None:
            rows.pop(message.key(), None)
        else:
            rows[message.key()] = message.value()
    return rows, count


def main(bootstrap: str, topic: str, partitions: str, keys: str, rate: str, out: str) -> None:
    """Run as a program."""
    stopped = threading.Event()
    threading.Thread(target=end_of_input, args=(stopped,), daemon=True).start()
    table = Table(bootstrap, topic, int(partitions), int(keys))
    table.run(float(rate), stopped)
    found, count = read_back(Reader(bootstrap, topic, int(partitions)))
    differ = sorted(key for key in found.keys() | table.rows.keys() if found.get(key) != table.rows.get(key))
    if differ or table.failed:
        examples = ", ".join(
            f"{key!r}: {found.get(key)!r:.30} for {table.rows.get(key)!r:.30}" for key in differ[:SHOWN]
        )
        raise SystemExit(f"{table.failed} changes failed; {len(differ)} keys are wrong: {examples}")
    Path(out).write_text(json.dumps({"sent": table.sent, "rows": len(found), "read": count}))


if __name__ == "__main__":
    main(*sys.argv[1:])
