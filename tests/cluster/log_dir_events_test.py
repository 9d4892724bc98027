"""A failed log directory is reported to the controller, or the broker stops (KIP-858).

Zone: real.
"""

from __future__ import annotations

import logging

import pytest
from tests.handcluster import SESSION_NS, HandCluster

from ottla.sim.world import MS, SECOND

TIMEOUT_MS = 30_000


@pytest.fixture
def two():
    keys = {"zookeeper.session.timeout.ms": str(SESSION_NS // MS), "log.dir.failure.timeout.ms": str(TIMEOUT_MS)}
    return HandCluster(keys, brokers=2)


def fail_at(cluster, node_id: int) -> list[str]:
    """Fail a log directory of that broker. The list gets an entry when the broker has to stop."""
    member, gave_up = cluster[node_id], []
    events = member.broker._control.log_dir_events
    events.on_not_reported = lambda: gave_up.append("stop")
    member.process.post_turn(0, "failed", events.report_failure)
    return gave_up


def test_a_reported_failure_does_not_stop_the_broker(two) -> None:
    gave_up = fail_at(two, 1)
    two.pass_ms(2 * TIMEOUT_MS)
    assert not gave_up


def test_a_failure_that_is_not_reported_in_time_stops_the_broker(two, caplog) -> None:
    caplog.set_level(logging.ERROR, "ottla.cluster.log_dir_events")
    two.ensemble.lose_quorum(1000 * SECOND)
    gave_up = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS - 1000)
    assert not gave_up
    two.pass_ms(1001)
    assert gave_up == ["stop"]
    assert "could not report a failed log directory to the controller within 30000 ms" in caplog.messages


def test_a_failure_is_reported_when_the_store_comes_back_in_time(two) -> None:
    two.ensemble.lose_quorum(1000 * SECOND)
    gave_up = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS // 2)
    two.ensemble.heal_servers()
    two.pass_ms(2 * TIMEOUT_MS)
    assert not gave_up


def test_the_timeout_restarts_for_the_next_failure(two) -> None:
    gave_up = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS)
    two.ensemble.lose_quorum(1000 * SECOND)
    fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS - 1000)
    assert not gave_up
