"""Throttled followers, and the metrics of their lag; real leaders, a simulated network."""

from __future__ import annotations

import pytest
from tests.replication.brokers import T0, TOPIC_ID, Brokers

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.sim.world import MS, SECOND

# -- throttles ---------------------------------------------------------------------------------------------------------


def catch_up_ms(throttled: tuple[str, ...], **properties: str) -> int:
    """How long a follower that is not in the ISR takes for 600 kB."""
    brokers = Brokers(2, properties={"replica.fetch.response.max.bytes": "20000", **properties})
    config = TopicConfig(
        follower_replication_throttled_replicas=throttled, leader_replication_throttled_replicas=throttled
    )
    brokers.create(1, 2, config=config)
    brokers.network.path_between("node2", 1).inward_cut_ns = brokers.timeline.now_ns + SECOND
    brokers.elect(1, isr=(1,))
    for _ in range(60):
        brokers[1].produce(b"x" * 10_000)
    brokers.run(1500)
    before = brokers.timeline.now_ns
    brokers.until(lambda: brokers.same(1, 2))
    return (brokers.timeline.now_ns - before) // MS


@pytest.mark.slow
@pytest.mark.parametrize(("side", "other", "own"), [("follower", "0:1", "0:2"), ("leader", "0:2", "0:1")])
def test_a_throttled_replica_keeps_to_its_rate(side: str, other: str, own: str) -> None:
    rate = {f"{side}.replication.throttled.rate": "100000"}
    assert catch_up_ms(()) < 500
    assert 4000 < catch_up_ms((own,), **rate) < 8000
    assert 4000 < catch_up_ms(("*",), **rate) < 8000
    assert catch_up_ms((other, f"5{own[1:]}"), **rate) < 500, "another replica is throttled, not this one"


def test_a_follower_in_sync_is_not_throttled() -> None:
    brokers = Brokers(2, properties={"follower.replication.throttled.rate": "1"})
    config = TopicConfig(follower_replication_throttled_replicas=("*",))
    brokers.create(1, 2, config=config)
    brokers.run(600)
    for at in range(20):
        before = brokers.timeline.now_ns
        brokers[1].produce(b"%d" % at * 100)
        brokers.until(lambda: brokers.same(1, 2))
        assert brokers.timeline.now_ns - before < 50 * MS


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_lag_is_measured() -> None:
    brokers = Brokers(2, properties={"replica.fetch.max.bytes": "1"})
    brokers.create(1, 2)
    brokers.network.path_between("node2", 1).inward_cut_ns = brokers.timeline.now_ns + SECOND
    brokers.elect(1, isr=(1,))
    for _ in range(50):
        brokers[1].produce(b"a")
    fetchers = brokers[2].core.replicas.fetchers
    brokers.until(lambda: brokers[2].leo() > 0)
    assert fetchers.max_lag == 50 - brokers[2].leo() > 0
    brokers.until(lambda: brokers.settled(1, 2))
    assert fetchers.max_lag == 0
    assert brokers[2].core.replicas.shared.replication_bytes_in == len(brokers[2].content())


def test_names_are_not_taken_for_topics() -> None:
    """KIP-516: the fetcher asks by id, so it does not fetch a recreated topic of the same name."""
    brokers = Brokers(2)
    brokers.create(1, 2)
    brokers[1].produce(b"old")
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers.stop(1, T0, delete=True) == [ErrorCode.NONE]
    brokers.ids["t"] = bytes(reversed(TOPIC_ID))
    brokers.send_state(1, T0)
    brokers[1].produce(b"new", b"new")
    brokers.run(5000)
    assert brokers[2].values() == [b"old"]
    assert brokers.send_state(2, T0) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    brokers.stop(2, T0, delete=True)
    brokers.send_state(2, T0)
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[2].values() == [b"new", b"new"]
