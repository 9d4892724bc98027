"""A failed log directory is reported to the controller, or the broker stops (KIP-858).

Zone: real.
"""

from __future__ import annotations

import logging

import pytest
from tests.handcluster import SESSION_NS, HandCluster
from tests.ignoring import Listener

from ottla.sim.world import MS, SECOND

TIMEOUT_MS = 30_000


@pytest.fixture
def two():
    keys = {"zookeeper.session.timeout.ms": str(SESSION_NS // MS), "log.dir.failure.timeout.ms": str(TIMEOUT_MS)}
    return HandCluster(keys, brokers=2)


def fail_at(cluster, node_id: int) -> Listener:
    """Fail a log directory of that broker. The listener counts when the broker has to stop."""
    member = cluster[node_id]
    events = member.broker._metadata.log_dir_events
    member.process.post_turn(0, "failed", events.report_failure)
    return member.listener


def test_a_reported_failure_does_not_stop_the_broker(two) -> None:
    listener = fail_at(two, 1)
    two.pass_ms(2 * TIMEOUT_MS)
    assert not listener.not_reported


def test_a_failure_that_is_not_reported_in_time_stops_the_broker(two, caplog) -> None:
    caplog.set_level(logging.ERROR, "ottla.cluster.log_dir_events")
    two.ensemble.lose_quorum(1000 * SECOND)
    listener = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS - 1000)
    assert not listener.not_reported
    two.pass_ms(1001)
    assert listener.not_reported == 1
    assert "could not report a failed log directory to the controller within 30000 ms" in caplog.messages


def test_a_failure_is_reported_when_the_store_comes_back_in_time(two) -> None:
    two.ensemble.lose_quorum(1000 * SECOND)
    listener = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS // 2)
    two.ensemble.heal_servers()
    two.pass_ms(2 * TIMEOUT_MS)
    assert not listener.not_reported


def test_the_timeout_restarts_for_the_next_failure(two) -> None:
    listener = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS)
    two.ensemble.lose_quorum(1000 * SECOND)
    fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS - 1000)
    assert not listener.not_reported
