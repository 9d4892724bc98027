"""A broker with a proxy in front for tests of the producer, and a proxy that cuts connections."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from testbench.proxy import Proxy

from ottla.client import (
    LATEST,
    Admin,
    ClientConfig,
    Cluster,
    NewTopic,
    TopicPartition,
    fetch_range,
    records_in,
    values_of,
)
from ottla.record.batch import Record

BROKER = os.environ.get("BROKER", "ottla")
"""ottla or kafka."""
MARKS = [pytest.mark.slow, *([pytest.mark.kafka, pytest.mark.interop] if BROKER == "kafka" else [])]


class Bench:
    """A broker with a proxy in front, and topics created on demand."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.bootstrap = proxy.address
        self.cluster = Cluster(ClientConfig(bootstrap_servers=self.bootstrap))
        self._topics = 0

    def topic(self, partitions: int = 1, **configs: str) -> str:
        self._topics += 1
        name = f"topic-{self._topics}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        values_of(Admin(self.cluster).create_topics([NewTopic(name, partitions, 1, settings)]))
        return name

    def records(self, topic: str, partition: int = 0, isolation: str = "read_committed") -> list[Record]:
        tp = TopicPartition(topic, partition)
        config = ClientConfig(bootstrap_servers=self.bootstrap, isolation_level=isolation)
        with Cluster(config) as cluster:
            found = Admin(cluster).list_offsets({tp: LATEST})[tp]
            assert not isinstance(found, Exception), found
            fetched = fetch_range(cluster, tp, 0, found.offset) if found.offset else []
            return [record for one in fetched for record in records_in(one)]

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.records(topic, partition)]


@contextmanager
def trouble(proxy: Proxy) -> Iterator[None]:
    """Cuts connections repeatedly, half of the time after requests arrived and before their answers."""
    over = threading.Event()

    def cut() -> None:
        chance = random.Random(7)
        while not over.is_set():
            if chance.random() < 0.5:
                proxy.hold(forward=False)
                time.sleep(0.02)
            proxy.cut()
            proxy.release()
            time.sleep(0.1)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
