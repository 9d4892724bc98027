"""The clients of a roll: producers, transactions, a group, and a watch over committed offsets.

Zone: real. Each is a thread, which notes its errors. The copiers, which are processes, are those of copiers.py.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from testbench.chaos.producer import SETTINGS as PRODUCER_SETTINGS
from testbench.soak.pairs import ABORTED_EVERY, Pairs

WAIT_S: Final = 180
PARTITIONS: Final = 2
FATAL: Final = (KafkaError._FATAL, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._BAD_MSG)
ALONE: Final = {"log_level": 0, "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 2_000}


class Client(threading.Thread):
    """A thread that works until `finish`. An exception ends it, and is an error."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.errors: list[str] = []
        self.ending = threading.Event()

    def run(self) -> None:
        """Work, and note why it failed."""
        try:
            self.work()
        except Exception as error:
            self.errors.append(f"{self.name}: {type(error).__name__}: {error}")

    def work(self) -> None:
        """Until `ending` is set."""
        raise NotImplementedError

    def finish(self) -> None:
        """End it, and wait."""
        self.ending.set()
        self.join(WAIT_S)
        if self.is_alive():
            self.errors.append(f"{self.name} did not end within {WAIT_S} s")

    def goal(self) -> int:
        """`reached` is at least that when something that begins now has succeeded."""
        return self.reached() + 1

    def reached(self) -> int:
        """How far it is."""
        raise NotImplementedError


class Writing(Client):
    """An idempotent producer of its name and numbers, each into the partition of its rest."""

    def __init__(self, name: str, topic: str, rate: float) -> None:
        super().__init__(name)
        self.topic = topic
        self.sent = 0
        self.acknowledged: set[int] = set()
        self._pause = 1 / rate
        self._newest = -1

    def value(self, number: int) -> bytes:
        """The value of a record."""
        return f"{self.name}:{number}".encode()

    def note(self, number: int, error: object) -> None:
        """Note the outcome of a record."""
        if error is None:
            self.acknowledged.add(number)
            self._newest = max(self._newest, number)
        else:
            self.errors.append(f"{self.name}: record {number}: {error}")

    def goal(self) -> int:
        return self.sent

    def reached(self) -> int:
        return self._newest


class LibrdkafkaWriting(Writing):
    """By librdkafka."""

    def __init__(self, bootstrap: str, topic: str, rate: float) -> None:
        super().__init__("librdkafka", topic, rate)
        self._client = confluent_kafka.Producer({**PRODUCER_SETTINGS, "log_level": 0, "bootstrap.servers": bootstrap})

    def work(self) -> None:
        while not self.ending.wait(self._pause):
            number = self.sent
            self._client.produce(
                self.topic,
                self.value(number),
                partition=number % PARTITIONS,
                on_delivery=lambda error, _message, number=number: self.note(number, error),
            )
            self.sent += 1
            self._client.poll(0)
        if self._client.flush(WAIT_S):
            self.errors.append(f"{self.name}: not all records are acknowledged at its end")


class OttlaWriting(Writing):
    """By Ottla's own client."""

    def __init__(self, bootstrap: str, topic: str, rate: float) -> None:
        from ottla.client import Producer

        super().__init__("ottla", topic, rate)
        self._client = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "delivery.timeout.ms": 600_000, "max.block.ms": 600_000}
        )

    def work(self) -> None:
        with self._client:
            while not self.ending.wait(self._pause):
                number = self.sent
                self._client.send(
                    self.topic,
                    self.value(number),
                    partition=number % PARTITIONS,
                    on_delivery=lambda _where, error, number=number: self.note(number, error),
                )
                self.sent += 1
            self._client.flush(WAIT_S)


class Transactions(Client):
    """Transactions of librdkafka over two partitions; one in ten is aborted."""

    def __init__(self, bootstrap: str, topic: str, rate: float) -> None:
        """`rate`: transactions a second."""
        super().__init__("transactions")
        self._pause = 1 / rate
        self.pairs: Pairs | None = None
        self._where = bootstrap, topic

    def work(self) -> None:
        self.pairs = Pairs(*self._where)
        done = 0
        while not self.ending.wait(self._pause):
            try:
                self.pairs.transaction(to_abort=done % ABORTED_EVERY == ABORTED_EVERY - 1)
            except KafkaException as error:
                # Release 0.1 refuses a batch like that when the leader's epoch changes while the coordinator is asked.
                if error.args[0].code() != KafkaError.INVALID_TXN_STATE:
                    raise
                self.pairs.renew()
            done += 1

    def reached(self) -> int:
        return 0 if self.pairs is None else self.pairs.committed


class Reading(Client):
    """A member of a group, which commits. Notes the value at each place: members share `seen`."""

    def __init__(self, name: str, bootstrap: str, topic: str, group: str, seen: dict[tuple[int, int], bytes]) -> None:
        super().__init__(name)
        self.seen = seen
        self.topic = topic
        self.settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
        }
        self.count = 0

    def note(self, partition: int, offset: int, value: bytes) -> None:
        """Note a record, which may come twice."""
        found = self.seen.setdefault((partition, offset), value)
        self.count += 1
        if found != value:
            self.errors.append(f"{self.name}: {partition}@{offset} was {found!r}, and is {value!r}")

    def reached(self) -> int:
        return self.count


class LibrdkafkaReading(Reading):
    """By librdkafka.

    It waits for each commit. librdkafka retries one that a former coordinator refused, also after a later one has
    succeeded, so with `enable.auto.commit` an offset may go back when the coordinator moves.
    """

    def work(self) -> None:
        own = {**ALONE, "enable.auto.commit": False, "partition.assignment.strategy": "range"}
        client = confluent_kafka.Consumer({**own, **self.settings})
        client.subscribe([self.topic])
        while not self.ending.is_set():
            messages = client.consume(500, 0.2)
            for message in messages:
                error = message.error()
                if error is None:
                    self.note(message.partition(), message.offset(), message.value())
                elif error.code() in FATAL:
                    raise KafkaException(error)
            if messages:
                _commit(client)
        client.close()


def _commit(client: confluent_kafka.Consumer) -> None:
    """Commit, and wait. One that fails in a rebalance is not repeated: the next owner reads these records again."""
    with contextlib.suppress(KafkaException):
        client.commit(asynchronous=False)


class OttlaReading(Reading):
    """By Ottla's own client."""

    def work(self) -> None:
        from ottla.client import Consumer

        own = {"auto.commit.interval.ms": 200, "partition.assignment.strategy": "range"}
        with Consumer({**own, **self.settings}) as client:
            client.subscribe([self.topic])
            while not self.ending.is_set():
                for record in client.poll(0.2):
                    self.note(record.partition, record.offset, record.value or b"")


class Committed(Client):
    """Looks at the committed offsets of groups all the time: none may go back."""

    def __init__(self, bootstrap: str, topic: str, groups: Sequence[str]) -> None:
        super().__init__("committed offsets")
        self.offsets = {group: [0] * PARTITIONS for group in groups}
        self._parts = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        self._clients = {
            group: confluent_kafka.Consumer({**ALONE, "bootstrap.servers": bootstrap, "group.id": group})
            for group in groups
        }

    def work(self) -> None:
        while not self.ending.wait(0.25):
            for group, client in self._clients.items():
                self.look(group, client)
        for client in self._clients.values():
            client.close()

    def look(self, group: str, client: confluent_kafka.Consumer) -> None:
        """Compare one group; when its coordinator does not answer there is nothing to compare."""
        try:
            found = client.committed(self._parts, 2)
        except KafkaException:
            return
        if any(each.error for each in found):
            return
        for each in found:
            before, now = self.offsets[group][each.partition], max(0, each.offset)
            if now < before:
                self.errors.append(
                    f"the offset of {group} at {each.topic}-{each.partition} went from {before} to {now}"
                )
            self.offsets[group][each.partition] = now

    def reached(self) -> int:
        # The group that is the furthest behind.
        return min(sum(each) for each in self.offsets.values())

    def wait_for(self, group: str, ends: Sequence[int]) -> bool:
        """Wait until a group has committed these offsets; False: not in time."""
        deadline = time.monotonic() + WAIT_S
        while any(found < end for found, end in zip(self.offsets[group], ends, strict=True)):
            if time.monotonic() > deadline or self.errors:
                return False
            time.sleep(0.05)
        return True
