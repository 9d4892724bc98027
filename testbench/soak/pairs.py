#!/usr/bin/env python3
"""Transactions by librdkafka, and their reader: pairs.py write BOOTSTRAP TOPIC RATE OUT, or read BOOTSTRAP TOPIC OUT

A transaction writes a run of numbers to both partitions of the topic; one in ten is aborted, and marked in its values.
The reader, read_committed, must get every committed number once and in order in both partitions, and no aborted one.
Each second a line on standard output (write: sent, acknowledged, failed). Both end when their standard input ends; an
error ends them with exit code 1.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from testbench.chaos.producer import SETTINGS, end_of_input
from testbench.soak.reading import Reader

PARTITIONS = 2
SIZE = 10
"""Numbers of one transaction."""
ABORTED_EVERY = 10
TRANSACTIONAL = {"transactional.id": "soak", "transaction.timeout.ms": 60_000, "message.timeout.ms": 60_000}


class Pairs:
    """A transactional producer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.committed = 0
        """How many numbers are committed: the next one to write."""
        self.aborted = self.repeated = self.renewed = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._begin()

    def _begin(self) -> None:
        """A new producer, which aborts an open transaction of the one before."""
        self._client = confluent_kafka.Producer({**SETTINGS, **TRANSACTIONAL, "bootstrap.servers": self._bootstrap})
        self._insist(lambda: self._client.init_transactions(60))

    def _insist(self, act) -> None:  # type: ignore[no-untyped-def]
        """Retry as long as the error is retriable. Raises KafkaException."""
        while True:
            try:
                act()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def transaction(self, to_abort: bool) -> None:
        """Run one transaction; numbers of an unintended abort are written again by the next one."""
        try:
            self._client.begin_transaction()
            for number in range(self.committed, self.committed + SIZE):
                value = b"aborted" if to_abort else b"%d" % number
                for partition in range(PARTITIONS):
                    self._client.produce(self._topic, value, partition=partition)
            if not to_abort:
                self._insist(lambda: self._client.commit_transaction(60))
                self.committed += SIZE
                return
            self._client.flush(60)  # aborted records must be in the log, to test that readers leave them out
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self.repeated += 1
            print(f"a transaction is aborted and written again: {error}", file=sys.stderr, flush=True)
        self._abort()
        self.aborted += 1

    def _abort(self) -> None:
        """Abort; start a new producer after INVALID_TXN_STATE. librdkafka (its issue 4849) fails with it when it aborts
        while AddPartitionsToTxn waits for an incomplete commit, as when there is no coordinator for a while."""
        try:
            self._insist(lambda: self._client.abort_transaction(60))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_TXN_STATE:
                raise
            self.renew()

    def renew(self) -> None:
        """Replace the producer; the new one aborts an open transaction."""
        self.renewed += 1
        self._begin()

    def say(self) -> None:
        """The counts so far, in records."""
        count = self.committed * PARTITIONS
        print(count, count, 0, flush=True)


def write(bootstrap: str, topic: str, rate: str, out: str) -> None:
    """Run transactions until `stop` is set, `rate` records a second."""
    stopped = threading.Event()
    threading.Thread(target=end_of_input, args=(stopped,), daemon=True).start()
    pairs = Pairs(bootstrap, topic)
    began = said = time.monotonic()
    done = 0
    while not stopped.is_set():
        pairs.transaction(to_abort=done % ABORTED_EVERY == ABORTED_EVERY - 1)
        done += 1
        if time.monotonic() > said + 1:
            said = time.monotonic()
            pairs.say()
        stopped.wait(max(0.0, began + done * SIZE * PARTITIONS / float(rate) - time.monotonic()))
    pairs.say()
    counts = {name: getattr(pairs, name) for name in ("committed", "aborted", "repeated", "renewed")}
    Path(out).write_text(json.dumps(counts))


def read(bootstrap: str, topic: str, out: str) -> None:
    """Read all committed numbers, and check them."""
    stopped = threading.Event()
    threading.Thread(target=end_of_input, args=(stopped,), daemon=True).start()
    reader = Reader(bootstrap, topic, PARTITIONS, **{"isolation.level": "read_committed"})
    due = [0] * PARTITIONS

    def take(message: confluent_kafka.Message) -> None:
        partition = message.partition()
        if message.value() != b"%d" % due[partition]:
            raise SystemExit(
                f"{topic}-{partition}, offset {message.offset()}: {message.value()!r} where {due[partition]} was due"
            )
        due[partition] += 1

    said = time.monotonic()
    while not stopped.is_set():
        for message in reader.some():
            take(message)
        if time.monotonic() > said + 1:
            said = time.monotonic()
            print(sum(due), flush=True)
    for message in reader.rest():
        take(message)
    Path(out).write_text(json.dumps(due))


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
