"""The leaders after brokers die, return, restart unnoticed, shut down, or lose a log directory.

Zone: real.
"""

from __future__ import annotations

import weakref

import pytest

from ottla.cluster.controller.controller import ElectionType
from ottla.cluster.store.layout import LOG_DIR_EVENTS, StateNode, encode_config, encode_log_dir_event, topic_config_path
from ottla.config.broker import BrokerConfig
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op
from ottla.sim.mutants.ablation import without_safeguard
from ottla.types import TopicPartition
from ottla.wire.messages import LeaderAndIsrRequest, UpdateMetadataRequest

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def leaders(house, topic="t"):
    count = len(house.topic(topic).assignment)
    return [house.state(topic, partition).leader for partition in range(count)]


def grow_isr(house, controller, topic, partition, isr):
    """Have the leader propose all of these as in sync."""
    from tests.cluster.controller.proposals_test import alter, request

    leader = house.state(topic, partition).leader
    response = alter(controller, request(house, controller, leader, partition, isr, name=topic))
    assert response.topics[0].partitions[0].error_code == 0


def test_leaders_over_deaths_and_returns(house):
    """Brokers 1005, 1011, 1012, 1013: the published example, as far as Kafka's rules agree with it."""
    controller = house.cluster(1005, 1011, 1012, 1013)
    everybody = (1005, 1011, 1012, 1013)
    controller.create("t", {0: (1005, 1011, 1012, 1013), 1: (1011, 1012, 1013, 1005), 2: (1012, 1013, 1005, 1011)})

    def in_sync() -> None:
        live = [node for node in everybody if house.node(f"/brokers/ids/{node}") is not None]
        for partition in range(3):
            grow_isr(house, controller, "t", partition, live)

    assert leaders(house) == [1005, 1011, 1012]
    house.brokers[1011].down()
    assert leaders(house) == [1005, 1012, 1012]
    house.brokers[1011].up()
    house.settle()
    in_sync()
    assert leaders(house) == [1005, 1012, 1012], "a broker that returns changes nothing"
    assert controller.ask(lambda c, done: c.controlled_shutdown(1013, None, done)) == []
    house.brokers[1013].down()
    house.brokers[1013].up()
    house.settle()
    in_sync()
    assert leaders(house) == [1005, 1012, 1012], "only partitions that it leads move"
    house.brokers[1012].down()
    assert leaders(house) == [1005, 1011, 1013], "first in assignment order, alive, in the ISR"
    house.check_agreement(controller)


def test_a_dead_leader_is_replaced_within_milliseconds(house):
    """One children read, multis, LeaderAndIsr: counted from the end of the session."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", dict.fromkeys(range(50), (2, 3, 1)))
    for broker in house.brokers.values():
        broker.requests.clear()
    since, reads = len(house.submissions), len(house.reads)
    began = house.timeline.now_ns
    house.brokers[2].down(settle=False)
    tps = [TopicPartition("t", partition) for partition in range(50)]
    told = house.timeline.run_while(
        lambda: any(house.brokers[3].partitions[tp].leader != 3 for tp in tps), began + 1_000_000_000
    )
    assert told
    assert house.timeline.now_ns - began < 20_000_000, "milliseconds on a disk that needs some for a sync"
    assert house.reads[reads:][0] == "/brokers/ids"
    multis = [each for each in house.submissions[since:] if each.node == 1]
    assert len(multis) == 1
    assert len(multis[0].ops) == 51
    house.settle()
    assert len([each for each in house.brokers[3].requests if isinstance(each, LeaderAndIsrRequest)]) == 1
    house.check_agreement(controller)


def test_followers_that_die_leave_the_isr_at_once(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 2, 3)})
    house.brokers[3].down()
    assert house.state("t") == StateNode(1, 1, (1, 2), 1)
    assert house.brokers[1].partitions[TopicPartition("t", 0)].isr == [1, 2]
    assert house.brokers[1].known[TopicPartition("t", 0)].offline_replicas == [3]
    assert house.brokers[1].live == [1, 2]


def test_the_last_in_sync_replica_stays_in_the_isr(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    house.brokers[3].down()
    house.brokers[2].down()
    assert house.state("t") == StateNode(-1, 2, (2,), 1)
    house.brokers[3].up()
    house.settle()
    assert house.state("t").leader == -1, "out of sync: it must not lead"
    house.brokers[2].up()
    house.settle()
    assert house.state("t") == StateNode(2, 3, (2,), 1)
    house.check_agreement(controller)


def test_two_replicas_that_die_together_stay_in_the_isr(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    house.brokers[2].down(settle=False)
    house.brokers[3].down()
    assert house.state("t").leader == -1
    house.brokers[3].up()
    house.settle()
    assert house.state("t").leader in (3, -1)
    house.brokers[2].up()
    house.settle()
    assert house.state("t").leader != -1


@without_safeguard("controller.last_isr_kept")
def test_without_last_isr_kept_a_replica_out_of_sync_leads(house):
    """Ablation: the fault that the safeguard prevents, end to end."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    house.brokers[3].down()
    house.brokers[2].down()
    house.brokers[3].up()
    house.settle()
    assert house.state("t").leader == 3


@pytest.mark.parametrize("where", ["topic", "broker", "later"])
def test_unclean_elections_only_if_allowed(house, where):
    properties = {"unclean.leader.election.enable": "true"} if where == "broker" else {}
    controller = house.cluster(1, 2, 3, properties=properties)
    settings = {"unclean_leader_election_enable": "true"} if where == "topic" else {}
    controller.create("t", {0: (2, 3)}, configs=settings)
    house.brokers[3].down()
    house.brokers[2].down()
    house.brokers[3].up()
    house.settle()
    if where == "later":
        assert house.state("t").leader == -1
        path = topic_config_path("t")
        house.write(Op("put", path, encode_config({"unclean.leader.election.enable": "true"})))
        controller.turn(lambda: controller.controller.on_settings_changed("t"))
        house.settle()
    assert house.state("t").leader == 3
    assert house.state("t").isr == (3,)
    assert controller.seat._counters.unclean_elections == 1
    house.check_agreement(controller)


def test_a_topic_can_forbid_unclean_elections(house):
    controller = house.cluster(1, 2, 3, properties={"unclean.leader.election.enable": "true"})
    controller.create("t", {0: (2, 3)}, configs={"unclean_leader_election_enable": "false"})
    house.brokers[3].down()
    house.brokers[2].down()
    house.brokers[3].up()
    house.settle()
    assert house.state("t").leader == -1


# -- bounced ---------------------------------------------------------------------------------------------------------


def test_a_bounced_broker_counts_as_dead(house):
    """It registered again before its death was noticed. Its log may be empty now, so it leaves the ISR."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1), 1: (1, 2, 3)})
    before = house.brokers[2].epoch
    house.brokers[2].bounce()
    house.settle()
    assert house.brokers[2].epoch > before
    assert house.state("t", 0) == StateNode(3, 1, (3, 1), 1)
    assert house.state("t", 1) == StateNode(1, 1, (1, 3), 1)
    assert house.brokers[2].partitions[TopicPartition("t", 0)].leader == 3, (
        "and it receives the partitions that it hosts"
    )
    assert house.brokers[2].live == [1, 2, 3]
    house.check_agreement(controller)


@without_safeguard("controller.bounced_brokers")
def test_without_the_safeguard_a_bounced_broker_stays_leader(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1)})
    house.brokers[2].bounce()
    house.settle()
    assert house.state("t") == StateNode(2, 0, (2, 3, 1), 1)


def test_requests_carry_the_epoch_of_the_registration(house):
    """A broker refuses requests that were meant for its earlier registration."""
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    broker = house.brokers[2]
    broker.silent = True
    controller.begin(lambda c, done: c.elect_leaders(PREFERRED, [TopicPartition("t", 0)], done))
    house.brokers[1].down()
    broker.silent = False
    broker.requests.clear()
    broker.bounce()
    house.settle(60)
    assert broker.requests
    assert {each.broker_epoch for each in broker.requests} <= {broker.epoch, broker.requests[0].broker_epoch}
    assert broker.requests[-1].broker_epoch == broker.epoch


def test_a_new_endpoint_of_a_broker_is_used(house):
    controller = house.cluster(1, 2)
    content = house.data("/brokers/ids/2").replace(b"host2", b"other")
    house.write(Op("put", "/brokers/ids/2", content))
    house.settle()
    assert controller.network.located[2] == ("other", 9092)
    update = [each for each in house.brokers[1].requests if isinstance(each, UpdateMetadataRequest)][-1]
    assert {each.id: each.endpoints[0].host for each in update.live_brokers} == {1: "host1", 2: "other"}


def test_an_invalid_registration_is_ignored(house, caplog):
    controller = house.cluster(1)
    house.write(Op("ephemeral", "/brokers/ids/7", b"{}"), Op("ephemeral", "/brokers/ids/x", b"{}"))
    house.settle()
    assert list(controller.controller.image.brokers) == [1]
    assert "ignoring the registration of broker 7" in caplog.text


# -- controlled shutdown ---------------------------------------------------------------------------------------------


def test_controlled_shutdown_moves_leaderships_if_possible(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1), 1: (1, 2, 3), 2: (2, 1, 3)})
    controller.create("alone", {0: (2,)})
    controller.create("pair", {0: (2, 3)})
    grow_isr(house, controller, "pair", 0, (2,))
    left = controller.ask(lambda c, done: c.controlled_shutdown(2, house.brokers[2].epoch, done))
    assert left == [TopicPartition("pair", 0)], "no other replica is in sync"
    assert leaders(house) == [3, 1, 1]
    assert house.state("t", 1).isr == (1, 3), "as a follower it leaves the in-sync replicas"
    assert house.state("alone").leader == 2
    assert house.brokers[2].stopped == [TopicPartition("t", 1)]
    assert house.brokers[3].partitions[TopicPartition("t", 0)].leader == 3
    house.brokers[2].down()
    assert house.state("pair") == StateNode(-1, 1, (2,), 1)
    house.brokers[2].up()
    house.settle()
    assert house.state("pair").leader == 2
    house.check_agreement(controller)


def test_controlled_shutdown_of_an_unknown_broker_is_refused(house):
    controller = house.cluster(1, 2)
    for broker, epoch, code in (
        (9, -1, ErrorCode.BROKER_NOT_AVAILABLE),
        (2, house.brokers[2].epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
    ):
        with pytest.raises(ApiError) as error:
            controller.ask(lambda c, done, broker=broker, epoch=epoch: c.controlled_shutdown(broker, epoch, done))
        assert error.value.code is code


def test_a_stopping_broker_neither_leads_nor_joins(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1)})
    controller.ask(lambda c, done: c.controlled_shutdown(3, None, done))
    house.brokers[2].down()
    assert house.state("t").leader == 1
    controller.ask(lambda c, done: c.controlled_shutdown(1, None, done))
    assert house.state("t").leader == 1, "the last one stays"


# -- log directories -------------------------------------------------------------------------------------------------


def test_replicas_in_a_failed_log_directory_are_offline(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3, 1), 1: (2, 1, 3)})
    tp = TopicPartition("t", 0)
    house.brokers[2].bad_replicas[tp] = ErrorCode.KAFKA_STORAGE_ERROR
    house.write(Op("sequential", f"{LOG_DIR_EVENTS}/log_dir_event_", encode_log_dir_event(2)))
    house.settle()
    assert house.state("t", 0) == StateNode(3, 1, (3, 1), 1)
    assert house.state("t", 1).leader == 2, "the other directory works"
    assert house.brokers[1].known[tp].offline_replicas == [2]
    assert house.engine.tree.get_children(LOG_DIR_EVENTS) == []
    del house.brokers[2].bad_replicas[tp]
    house.brokers[2].down()
    house.brokers[2].up()
    house.settle()
    assert house.brokers[1].known[tp].offline_replicas == []
    house.check_agreement(controller)


def test_a_new_replica_in_a_failed_log_directory(house):
    controller = house.cluster(1, 2)
    house.brokers[1].bad_replicas[TopicPartition("t", 0)] = ErrorCode.KAFKA_STORAGE_ERROR
    controller.create("t", {0: (1, 2)})
    house.settle()
    assert house.state("t") == StateNode(2, 1, (2,), 1)


# -- preferred leaders -----------------------------------------------------------------------------------------------


def stray(house, controller):
    """Partition 0 of t has the preferred leader 2 and is led by 3."""
    controller.create("t", {0: (2, 3), 1: (3, 1)})
    house.brokers[2].down()
    house.brokers[2].up()
    house.settle()
    grow_isr(house, controller, "t", 0, (3, 2))
    assert leaders(house) == [3, 3]


def test_preferred_election_by_request(house):
    controller = house.cluster(1, 2, 3)
    stray(house, controller)
    asked = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 9)]
    outcome = controller.ask(lambda c, done: c.elect_leaders(PREFERRED, asked, done))
    assert outcome[asked[0]] is None
    assert outcome[asked[1]].code is ErrorCode.ELECTION_NOT_NEEDED
    assert outcome[asked[2]].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert leaders(house) == [2, 3]
    assert controller.ask(lambda c, done: c.elect_leaders(PREFERRED, None, done)) == {}
    house.check_agreement(controller)


def test_outcomes_of_an_election_are_freed_with_the_answer(house):
    """There is one outcome per partition, while the longest wait for brokers is not over yet."""
    controller = house.cluster(1, 2)
    outcome = controller.ask(lambda c, done: c.elect_leaders(PREFERRED, [TopicPartition("t", n) for n in (7, 8)], done))
    first, second = outcome.values()
    assert first is second, "all partitions share one object"
    alive = weakref.ref(first)
    del outcome, first, second
    assert alive() is None


def test_impossible_preferred_elections_are_refused(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    house.brokers[2].down()
    outcome = controller.ask(lambda c, done: c.elect_leaders(PREFERRED, None, done))
    assert outcome[TopicPartition("t", 0)].code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_unclean_election_by_request(house):
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (2, 3)})
    house.brokers[3].down()
    house.brokers[2].down()
    tp = TopicPartition("t", 0)
    outcome = controller.ask(lambda c, done: c.elect_leaders(UNCLEAN, [tp], done))
    assert outcome[tp].code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    house.brokers[3].up()
    house.settle()
    assert controller.ask(lambda c, done: c.elect_leaders(UNCLEAN, [tp], done)) == {tp: None}
    assert house.state("t").leader == 3
    outcome = controller.ask(lambda c, done: c.elect_leaders(UNCLEAN, [tp], done))
    assert outcome[tp].code is ErrorCode.ELECTION_NOT_NEEDED


def test_a_preferred_election_that_an_operator_wrote(house):
    controller = house.cluster(1, 2, 3)
    stray(house, controller)
    path = "/admin/preferred_replica_election"
    wish = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"none","partition":3}]}'
    house.write(Op("create", path, wish))
    house.settle()
    assert leaders(house) == [2, 3]
    assert house.node(path) is None
    house.write(Op("create", path, b"nonsense"))
    house.settle()
    assert house.data(path) == b"nonsense", "left for the operator"
    house.write(Op("put", path, b'{"version":1,"partitions":[]}'))
    house.settle()
    assert house.node(path) is None


def test_automatic_rebalance_returns_leadership(house):
    properties = {"auto.leader.rebalance.enable": "true", "leader.imbalance.check.interval.seconds": "60"}
    controller = house.cluster(1, 2, 3, properties=properties)
    stray(house, controller)
    house.settle(65)
    assert leaders(house) == [2, 3]
    house.check_agreement(controller)


def test_automatic_rebalance_tolerates_a_little_imbalance(house):
    controller = house.cluster(1, 2, 3)
    controller.create("more", {0: (2, 1), 1: (2, 1), 2: (2, 1)})
    stray(house, controller)
    more = [TopicPartition("more", partition) for partition in range(3)]
    for tp in more:
        grow_isr(house, controller, tp.topic, tp.partition, (1, 2))
    controller.ask(lambda c, done: c.elect_leaders(PREFERRED, more, done))
    settings = {"auto.leader.rebalance.enable": "true", "leader.imbalance.per.broker.percentage": "25"}
    controller.config, _ = BrokerConfig.from_properties(settings)
    house.settle(305)
    assert leaders(house) == [3, 3], "one of four is not more than 25 %"
    settings["leader.imbalance.per.broker.percentage"] = "24"
    controller.config, _ = BrokerConfig.from_properties(settings)
    house.settle(305)
    assert leaders(house) == [2, 3]


# -- restarts that no controller noticed -----------------------------------------------------------------------------
