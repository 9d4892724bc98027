"""A broker and its session with a metadata store outside: joining, losing the session, and what cannot be.

Zone: real.
"""

from __future__ import annotations

import json

import pytest
from tests.handcluster import SESSION_NS, HandCluster, Member

from ottla.cluster.membership import GRACE_MS
from ottla.sim.world import MS, SECOND

SESSION_MS = SESSION_NS // MS


@pytest.fixture
def one():
    return HandCluster({"zookeeper.session.timeout.ms": str(SESSION_MS)}, brokers=1)


@pytest.fixture
def two():
    return HandCluster(brokers=2)


class Twin(Member):
    """A broker with the number of another one, somewhere else."""

    def wire(self):
        return {}


def node(cluster, path):
    return cluster.ensemble.tree.get_node(path)


def test_a_session_that_expires_is_followed_by_another_registration(two) -> None:
    other = next(member for member in two if not member.is_controller)
    first = other.broker._fence.broker_epoch
    two.create("t", (other.node_id,))
    other.produce("t", b"a")
    two.ensemble.end_session(other.store.session_id)
    two.until(lambda: other.broker._fence.broker_epoch > first, "the broker registers anew")
    assert node(two, f"/brokers/ids/{other.node_id}").czxid == other.broker._fence.broker_epoch
    leader = two.leader("t")
    assert leader is other
    two.until(lambda: other.partition("t").leader_epoch >= 2, "it was without a leader, and leads again")
    assert other.values("t") == [b"a"]


def test_a_controller_that_loses_its_session_is_none_any_more_and_the_other_one_is(two) -> None:
    before = two.controller
    epoch = int(node(two, "/controller_epoch").data)
    two.ensemble.end_session(before.store.session_id)
    two.until(lambda: two.controller is not before, "the other one is the controller")
    two.until(lambda: int(node(two, "/controller_epoch").data) > epoch, "in another epoch")
    two.until(lambda: len(two.controller.broker.cluster.image.brokers) == 2, "both are there again")
    assert json.loads(node(two, "/controller").data)["brokerid"] == two.controller.node_id


def test_a_broker_paused_longer_than_its_session_catches_up(two) -> None:
    two.create("gone", (1, 2), (2, 1))
    two.create("stays", (1, 2))
    still = next(member for member in two if not member.is_controller)
    still.process.pause_until(two.timeline.now_ns + 8 * SECOND)
    two.until(lambda: len(two.controller.broker.cluster.image.brokers) == 1, "the session is over")
    two.delete("gone")
    two.until(lambda: len(two.controller.broker.cluster.image.brokers) == 2, "it is back")
    two.until(lambda: "gone" not in still.broker.cluster.image.topics, "it knows that the topic is gone")
    assert "stays" in still.broker.cluster.image.topics
    two.until(lambda: node(two, "/brokers/topics/gone") is None, "the deletion is through")
    assert still.partition("gone") is None


def test_a_topic_that_went_while_a_broker_was_not_registered_is_forgotten(two) -> None:
    """Not one replica of it was there, so that the controller has nothing to say to this broker."""
    still = next(member for member in two if not member.is_controller)
    two.create("gone", (two.controller.node_id,))
    two.until(lambda: "gone" in still.broker.cluster.image.topics, "both know the topic")
    still.process.pause_until(two.timeline.now_ns + 8 * SECOND)
    two.until(lambda: len(two.controller.broker.cluster.image.brokers) == 1, "the session is over")
    two.delete("gone")
    two.until(lambda: len(two.controller.broker.cluster.image.brokers) == 2, "it is back")
    two.until(lambda: "gone" not in still.broker.cluster.image.topics, "it knows that the topic is gone")


def test_a_broker_takes_its_number_from_its_own_last_session(two) -> None:
    """Its watchdog thinks that the session is over, the store does not, and might not for long."""
    other = next(member for member in two if not member.is_controller)
    first, old = other.broker._fence.broker_epoch, other.store.session_id
    other.store._drop_connection()
    other.store._expire_session()
    two.until(lambda: other.broker._fence.broker_epoch > first, "the broker registers anew", SESSION_MS // 2)
    assert old in two.ensemble.sessions, "the old session is still open"
    found = node(two, f"/brokers/ids/{other.node_id}")
    assert (found.owner, found.czxid) == (other.store.session_id, other.broker._fence.broker_epoch)


def test_a_broker_that_was_killed_waits_for_the_end_of_its_own_session(one) -> None:
    first = one[1].broker._fence.broker_epoch
    one[1].kill()
    one[1].start()
    one.pass_ms(500)
    assert not one[1].up
    one.until(lambda: one[1].up, "the old session is over")
    assert one[1].broker._fence.broker_epoch > first


def test_a_second_broker_with_the_same_number_is_refused_by_name(one, caplog) -> None:
    twin = Twin(one, 1, {"zookeeper.session.timeout.ms": str(SESSION_MS)})
    twin.start()
    one.until(lambda: twin.broker.failed is not None, "the second one gives up", SESSION_MS + GRACE_MS + 2000)
    assert "DUPLICATE_BROKER_REGISTRATION: another broker runs with node.id 1" in twin.broker.failed.message
    assert "/brokers/ids/1 is registered by another session" in caplog.text
    assert not twin.broker.ready
    assert one[1].up


def test_directories_of_another_cluster_are_refused_before_anything_is_written(one) -> None:
    own = one[1].broker.cluster.image.cluster_id
    meta = one[1].read("meta.properties").decode()
    told = one[1].begin_stop()
    one.until(lambda: bool(told), "the broker stops")
    one[1].disk.replace_now("meta.properties", meta.replace(own, "somebody-elses-cluster").encode())
    one[1].end()
    one[1].start()
    one.until(lambda: one[1].broker.failed is not None, "the broker gives up")
    assert "INCONSISTENT_CLUSTER_ID" in one[1].broker.failed.message
    assert "somebody-elses-cluster" in one[1].broker.failed.message
    assert own in one[1].broker.failed.message
    assert node(one, "/brokers/ids/1") is None


def test_a_store_that_knows_no_cluster_is_not_that_of_a_broker_that_has_been_in_one(one) -> None:
    """A wrong address or chroot would begin a second cluster, without the records here."""
    one[1].stop()
    empty = HandCluster(brokers=0)
    lost = Member(empty, 1, {})
    lost.drive = one[1].drive
    lost.machine.drives = [lost.drive]
    lost.start()
    empty.until(lambda: lost.broker.failed is not None, "the broker gives up")
    assert "INCONSISTENT_CLUSTER_ID" in lost.broker.failed.message
    assert node(empty, "/cluster") is None
    assert node(empty, "/brokers") is None


def test_a_store_without_quorum_at_the_start_is_waited_for() -> None:
    cluster = HandCluster(brokers=0)
    cluster.ensemble.lose_quorum(20 * SECOND)
    late = Member(cluster, 1, {})
    late.start()
    cluster.pass_ms(10_000)
    assert late.broker.failed is None
    assert not late.broker.listening
    cluster.until(lambda: late.up, "the store is back, and so is the broker")


def test_brokers_that_start_together_on_an_empty_store_agree_on_one_cluster() -> None:
    cluster = HandCluster(brokers=5)
    assert len({member.broker.cluster.image.cluster_id for member in cluster}) == 1
    assert sum(member.is_controller for member in cluster) == 1
