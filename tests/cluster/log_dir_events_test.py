"""A failed log directory is told to the controller, or the broker stops (KIP-858).

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
    """A log directory of that broker fails; the list gets an entry when it is to stop."""
    member, gave_up = cluster[node_id], []
    events = member.broker._control.log_dir_events
    events.on_unheard = lambda: gave_up.append("stop")
    member.process.post(0, "failed", events.report_failure)
    return gave_up


def test_a_failure_that_the_controller_hears_of_ends_nothing(two) -> None:
    gave_up = fail_at(two, 1)
    two.pass_ms(2 * TIMEOUT_MS)
    assert not gave_up


def test_a_failure_that_nobody_hears_of_in_time_ends_the_broker(two, caplog) -> None:
    caplog.set_level(logging.ERROR, "ottla.cluster.log_dir_events")
    two.ensemble.lose_quorum(1000 * SECOND)
    gave_up = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS - 1000)
    assert not gave_up
    two.pass_ms(1001)
    assert gave_up == ["stop"]
    assert "could not report a failed log directory to the controller within 30000 ms" in caplog.messages


def test_a_store_that_comes_back_in_time_hears_of_it(two) -> None:
    two.ensemble.lose_quorum(1000 * SECOND)
    gave_up = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS // 2)
    two.ensemble.heal()
    two.pass_ms(2 * TIMEOUT_MS)
    assert not gave_up


def test_the_time_counts_anew_for_the_next_failure(two) -> None:
    gave_up = fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS)
    two.ensemble.lose_quorum(1000 * SECOND)
    fail_at(two, 1)
    two.pass_ms(TIMEOUT_MS - 1000)
    assert not gave_up
