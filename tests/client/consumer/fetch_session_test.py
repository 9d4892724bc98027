"""Fetch sessions with a real broker: Ottla, or Apache Kafka with BROKER=kafka."""

from __future__ import annotations

import pytest
from tests.client.consumer.conftest import create, write

from ottla.client import ClientConfig, Cluster, Fetcher, TopicPartition, records_in
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FetchRequest, FetchResponse

COUNT = 4


class Reading:
    """A fetcher of a topic's partitions, which are empty at first, and the values that it has read."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.cluster = Cluster(ClientConfig(bootstrap_servers=bootstrap, fetch_max_wait_ms=50))
        self.places = [TopicPartition(topic, number) for number in range(COUNT)]
        self.fetcher = Fetcher(self.cluster, dict.fromkeys(self.places, 0), sessions=True)
        self.seen: list[tuple[int, str]] = []

    def read(self, count: int) -> list[tuple[int, str]]:
        """(partition, value) of the next records."""
        before = len(self.seen)
        while len(self.seen) < before + count:
            for fetched in self.fetcher.poll(20_000):
                assert fetched.error is None
                self.seen += [(fetched.tp.partition, str(each.value, "ascii")) for each in records_in(fetched)]
        return sorted(self.seen[before:])

    @property
    def session(self):
        """The session with the only broker of the cluster."""
        (node,) = self.cluster.view.nodes
        return self.fetcher.session(node)


@pytest.fixture
def reading(bootstrap: str, cluster: Cluster, name: str):
    made = Reading(bootstrap, create(cluster, name, COUNT))
    with made.cluster:
        yield made


def test_many_answers_in_one_session(reading: Reading, cluster: Cluster) -> None:
    topic = reading.places[0].topic
    for number in range(6):
        write(cluster, topic, [str(number)], partition=number % COUNT)
        assert reading.read(1) == [(number % COUNT, str(number))]
    held = reading.session.session_id
    assert held != 0
    assert reading.session.epoch >= 5
    gone = reading.places[1]
    reading.fetcher.remove(gone)
    write(cluster, topic, ["a", "b", "c", "d"], partition=None)
    assert reading.read(3) == [(0, "a"), (2, "c"), (3, "d")]
    reading.fetcher.seek(gone, 1)
    assert reading.read(2) == [(1, "5"), (1, "b")]
    assert reading.session.session_id == held, "all in one session"


def end_session(reading: Reading, cluster: Cluster) -> None:
    """Another client ends the session, so the broker does not know it any more."""
    request = FetchRequest(session_id=reading.session.session_id, session_epoch=-1, max_wait_ms=0, min_bytes=0)
    cluster.send_request(ApiKey.FETCH, lambda _: request, FetchResponse)


def miscount(reading: Reading, _: Cluster) -> None:
    """Changes the epoch to one that the broker does not expect, as after a lost answer."""
    reading.session.epoch += 1_000


@pytest.mark.parametrize("spoil", [end_session, miscount])
def test_a_session_that_the_broker_forgot_is_replaced(reading: Reading, cluster: Cluster, spoil) -> None:
    topic = reading.places[0].topic
    write(cluster, topic, ["one"])
    assert reading.read(1) == [(0, "one")]
    before = reading.session.session_id
    spoil(reading, cluster)
    for _ in range(3):  # a request was unanswered
        write(cluster, topic, ["a", "b", "c", "d"], partition=None)
        assert reading.read(4) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert reading.session.session_id not in (0, before)
    assert 0 < reading.session.epoch < 1_000
