"""LeaderAndIsr and StopReplica over a simulated network: fences, order, recreated topics, directories that fail."""

from __future__ import annotations

import pytest
from tests.replication.brokers import CONTROLLER, T0, TOPIC_ID, Brokers

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.replication.partition.replica_state import PartitionState
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.mutants.ablation import without_safeguard
from ottla.types import TopicPartition
from ottla.wire.messages import StopReplicaRequest

T1 = TopicPartition("t", 1)
OTHER_ID = bytes(reversed(TOPIC_ID))


def led(count: int = 1, **more) -> Brokers:
    """Broker 1 leads t-0 in epoch 3, partition epoch 7, and it has a record."""
    brokers = Brokers(count, **more)
    brokers.create(*range(1, count + 1))
    brokers.states[T0] = brokers.states[T0]._replace(leader_epoch=3, partition_epoch=7)
    for node_id in range(1, count + 1):
        assert brokers.send_state(node_id, T0) == [ErrorCode.NONE]
    brokers[1].produce(b"a")
    return brokers


# -- roles -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(8))
def test_every_version_is_understood(version: int) -> None:
    brokers = led()
    brokers.states[T0] = brokers.states[T0]._replace(leader_epoch=4, partition_epoch=8)
    assert brokers.send_state(1, T0, version=version) == [ErrorCode.NONE]
    partition = brokers[1].partition()
    assert (partition.leader_epoch, partition.partition_epoch, partition.is_leader) == (4, 8, True)
    assert partition.topic_id == TOPIC_ID, "older versions do not name it: it is what it was"
    assert brokers[1].leo() == 1


@pytest.mark.parametrize("version", range(5))
def test_every_version_stops(version: int) -> None:
    brokers = led()
    request = StopReplicaRequest(controller_id=CONTROLLER, controller_epoch=1)
    request.broker_epoch = brokers[1].core.fence.broker_epoch
    if version == 0:
        request.ungrouped_partitions = [StopReplicaRequest.StopReplicaPartitionV0(topic_name="t", partition_index=0)]
    elif version < 3:
        request.topics = [StopReplicaRequest.StopReplicaTopicV1(name="t", partition_indexes=[0])]
    else:
        state = StopReplicaRequest.StopReplicaPartitionState(partition_index=0, leader_epoch=3, delete_partition=True)
        request.topic_states = [StopReplicaRequest.StopReplicaTopicState(topic_name="t", partition_states=[state])]
    if version < 3:
        request.delete_partitions = True
    answer = brokers.order(1, request, version)
    assert answer.error_code == 0
    assert [(row.topic_name, row.partition_index, row.error_code) for row in answer.partition_errors] == [("t", 0, 0)]
    assert brokers[1].core.hosted.find_partition("t", 0) is None
    assert brokers[1].core.logs.get_log(T0) is None


def test_topic_settings_are_loaded_before_the_topic_is_created() -> None:
    brokers = Brokers(1)
    brokers.create(1, config=TopicConfig(segment_bytes=12_345))
    assert brokers[1].core.prepared == [["t"]]
    assert brokers[1].partition().log.config.segment_bytes == 12_345


def test_a_replica_that_is_not_meant_is_not_made() -> None:
    brokers = Brokers(2)
    brokers.create(1)
    assert brokers.send_state(2, T0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert brokers[2].core.logs.get_log(T0) is None


def test_without_a_leader_a_replica_waits() -> None:
    brokers = led(count=2)
    brokers.until(lambda: brokers.same(1, 2))
    brokers.elect(-1)
    assert not brokers[1].partition().is_leader
    brokers.elect(2)
    brokers[2].produce(b"b")
    brokers.until(lambda: brokers.settled(1, 2))


def test_many_partitions_take_several_turns_and_keep_their_order() -> None:
    brokers = Brokers(1)
    tps = [TopicPartition("t", index) for index in range(120)]
    brokers.ids["t"] = TOPIC_ID
    brokers.states = dict.fromkeys(tps, PartitionState(1, 0, (1,), 0, (1,), is_new=True))
    answers: list = []
    brokers.send(1, brokers.leader_and_isr(1, *tps), 7, answers.append)
    stop = StopReplicaRequest(controller_id=CONTROLLER, controller_epoch=1)
    stop.broker_epoch = brokers[1].core.fence.broker_epoch
    state = StopReplicaRequest.StopReplicaPartitionState(partition_index=119, leader_epoch=-2, delete_partition=True)
    stop.topic_states = [StopReplicaRequest.StopReplicaTopicState(topic_name="t", partition_states=[state])]
    brokers.send(1, stop, 4, answers.append, "another connection")
    brokers.until(lambda: len(answers) == 2)
    assert [type(each).__name__ for each in answers] == ["LeaderAndIsrResponse", "StopReplicaResponse"]
    rows = [row.error_code for topic in answers[0].topics for row in topic.partition_errors]
    assert rows == [0] * 120
    assert len(list(brokers[1].core.hosted)) == 119, "what came second was done second"


# -- fences (KIP-380, KIP-497, KIP-570) --------------------------------------------------------------------------------


def test_a_request_for_an_earlier_life_is_refused() -> None:
    brokers = led(count=2)
    late = brokers.leader_and_isr(2, T0)
    brokers[2].die()
    brokers[2].boot()
    assert brokers.order(2, late, 7).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert brokers[2].core.hosted.find_partition("t", 0) is None
    assert brokers.stop(2, T0, delete=True, broker_epoch=late.broker_epoch) == [ErrorCode.STALE_BROKER_EPOCH]
    assert brokers[2].core.logs.get_log(T0) is not None


@without_safeguard("replication.broker_epoch_fencing")
def test_without_broker_epochs_a_late_deletion_deletes_a_recovered_log() -> None:
    brokers = led(count=2)
    earlier = brokers[2].core.fence.broker_epoch
    brokers[2].die()
    brokers[2].boot()
    assert brokers.stop(2, T0, delete=True, broker_epoch=earlier) == [ErrorCode.NONE]
    assert brokers[2].core.logs.get_log(T0) is None


def deposed() -> Brokers:
    """The controller of epoch 1 still sends, after that of epoch 2 did."""
    brokers = led()
    brokers.controller_epoch = 2
    assert brokers.send_state(1, T0) == [ErrorCode.NONE]
    brokers.controller_epoch = 1
    return brokers


def test_a_deposed_controller_is_refused() -> None:
    brokers = deposed()
    assert brokers.send_state(1, T0) == [ErrorCode.STALE_CONTROLLER_EPOCH]
    assert brokers.stop(1, T0, delete=True) == [ErrorCode.STALE_CONTROLLER_EPOCH]
    assert brokers[1].leo() == 1


@without_safeguard("replication.controller_epoch_fencing")
def test_without_controller_epochs_it_would_delete() -> None:
    brokers = deposed()
    assert brokers.stop(1, T0, delete=True) == [ErrorCode.NONE]


def test_an_order_that_waited_while_another_controller_spoke_is_refused() -> None:
    brokers = led()
    answers: list = []
    brokers.elect(1, inform=False)
    brokers[1].core.control._prepare = lambda topics, then: brokers[1].core.purgatory.continue_after(50, then)
    brokers.send(1, brokers.leader_and_isr(1, T0), 7, answers.append)
    brokers.run(20)
    brokers[1].turn(lambda: brokers[1].core.fence.check_request(CONTROLLER, 2, None))
    brokers.until(lambda: bool(answers))
    assert answers[0].error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert brokers[1].partition().leader_epoch == 3


def test_an_older_leader_epoch_is_refused_an_older_partition_epoch_changes_nothing() -> None:
    brokers = led()
    newest = brokers.states[T0]
    brokers.states[T0] = newest._replace(leader_epoch=2, partition_epoch=6)
    assert brokers.send_state(1, T0) == [ErrorCode.STALE_CONTROLLER_EPOCH]
    brokers.states[T0] = newest._replace(partition_epoch=6, replicas=(1, 2))
    assert brokers.send_state(1, T0) == [ErrorCode.NONE]
    partition = brokers[1].partition()
    assert (partition.leader_epoch, partition.partition_epoch, partition.replicas) == (3, 7, (1,))


@without_safeguard("replication.leader_epoch_check")
def test_without_leader_epochs_a_late_order_takes_the_leader_back() -> None:
    brokers = led(count=2)
    brokers.states[T0] = brokers.states[T0]._replace(leader=2, leader_epoch=2, partition_epoch=8)
    assert brokers.send_state(1, T0) == [ErrorCode.NONE]
    assert brokers[1].partition().leader_epoch == 2


@pytest.mark.parametrize(("epoch", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (3, 0), (4, 0), (-1, 0), (-2, 0)])
def test_a_replica_is_stopped_in_its_epoch(epoch: int, code: int) -> None:
    brokers = led(count=2)
    brokers.until(lambda: brokers.same(1, 2))
    assert brokers.stop(2, T0, delete=False, leader_epoch=epoch) == [code]
    brokers.run(600)
    brokers[1].produce(b"b")
    brokers.run(1000)
    assert brokers[2].leo() == (2 if code else 1), "a stopped replica does not follow"
    assert brokers[2].core.logs.get_log(T0) is not None


@without_safeguard("replication.leader_epoch_check")
def test_without_leader_epochs_a_late_stop_would_stop() -> None:
    brokers = led(count=2)
    assert brokers.stop(2, T0, delete=True, leader_epoch=2) == [ErrorCode.NONE]
    assert brokers[2].core.logs.get_log(T0) is None


def test_a_stopped_replica_follows_again_after_leader_and_isr() -> None:
    brokers = led(count=2)
    brokers.stop(2, T0, delete=False, leader_epoch=3)
    brokers[1].produce(b"b")
    assert brokers.send_state(2, T0) == [ErrorCode.NONE]
    brokers.until(lambda: brokers.settled(1, 2))


# -- recreated topics (KIP-516) ----------------------------------------------------------------------------------------


def test_another_topic_of_the_same_name_is_refused_while_the_first_is_here() -> None:
    brokers = led()
    brokers.ids["t"] = OTHER_ID
    brokers.states[T0] = brokers.states[T0]._replace(leader_epoch=9, partition_epoch=20)
    assert brokers.send_state(1, T0) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert brokers[1].partition().topic_id == TOPIC_ID
    brokers.states[T1] = brokers.states[T0]
    assert brokers.send_state(1, T1) == [ErrorCode.INCONSISTENT_TOPIC_ID], "also for its other partitions"


@without_safeguard("replication.topic_id_check")
def test_without_topic_ids_old_data_would_be_new_data() -> None:
    brokers = led()
    brokers.ids["t"] = OTHER_ID
    brokers.states[T0] = brokers.states[T0]._replace(leader_epoch=9, partition_epoch=20)
    assert brokers.send_state(1, T0) == [ErrorCode.NONE]
    assert brokers[1].values() == [b"a"]


def test_a_topic_recreated_while_the_broker_was_offline() -> None:
    brokers = led(count=2)
    brokers.until(lambda: brokers.settled(1, 2))
    brokers[2].turn(lambda: brokers[2].partition().log.flush(lambda _: None))
    brokers.run(500)
    brokers[2].die()
    brokers.stop(1, T0, delete=True)
    brokers[2].boot()
    assert brokers[2].core.logs.get_log(T0) is not None, "the old log is found"
    brokers.create(1, 2, topic_id=OTHER_ID)
    brokers[1].produce(b"new", b"new")
    brokers.until(lambda: brokers.settled(1, 2))
    assert brokers[2].values() == [b"new", b"new"]
    assert brokers[2].partition().topic_id == OTHER_ID


def test_a_topic_recreated_while_the_registration_was_lost() -> None:
    brokers = led()
    member = brokers[1]
    old = member.partition()
    member.core.fence.broker_epoch = brokers.next_zxid()
    brokers.create(1, topic_id=OTHER_ID)
    assert member.partition().topic_id == OTHER_ID
    assert member.leo() == 0
    assert old.offline == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    brokers.ids["t"] = TOPIC_ID
    assert brokers.send_state(1, T0) == [ErrorCode.INCONSISTENT_TOPIC_ID], "it has been confirmed since"


def late_deletion() -> int:
    """A deletion is sent, its connection lost, it is sent again, and the topic recreated; then the first one arrives.

    Returns the end of the new topic's log, in which there is a record.
    """
    brokers = led()
    request = StopReplicaRequest(controller_id=CONTROLLER, controller_epoch=1)
    request.broker_epoch = brokers[1].core.fence.broker_epoch
    state = StopReplicaRequest.StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
    request.topic_states = [StopReplicaRequest.StopReplicaTopicState(topic_name="t", partition_states=[state])]
    path = brokers.network.path_between(f"node{CONTROLLER}", 1)
    answers: list = []
    path.inward_cut_ns = brokers.timeline.now_ns + 3_000_000_000
    brokers.send(1, request, 4, answers.append)
    brokers.run(10)
    path.inward_cut_ns = 0
    brokers.send(1, request, 4, answers.append, "another connection")
    brokers.until(lambda: len(answers) == 1)
    brokers.ids["t"] = OTHER_ID
    brokers.send(1, brokers.leader_and_isr(1, T0), 7, answers.append, "another connection")
    brokers.until(lambda: len(answers) == 2)
    brokers[1].produce(b"new")
    brokers.until(lambda: len(answers) == 3)
    partition = brokers[1].core.hosted.find_partition("t", 0)
    return -1 if partition is None else partition.log.end_offset


def test_a_deletion_that_comes_late_does_not_hit_the_topic_made_since() -> None:
    assert late_deletion() == 1


@without_safeguard("replication.control_order")
def test_without_order_it_would() -> None:
    assert late_deletion() == -1


# -- directories that fail ---------------------------------------------------------------------------------------------


def test_a_failed_directory_takes_its_replicas_and_no_others() -> None:
    brokers = Brokers(1, properties={"log.dirs": "one,two"})
    for tp in (T0, T1):
        brokers.create(1, tp=tp)
    disks = {tp: brokers[1].partition(tp).log.disk.name for tp in (T0, T1)}
    assert sorted(disks.values()) == ["one", "two"]
    bad = next(tp for tp in disks if disks[tp] == "one")
    good = T1 if bad == T0 else T0
    brokers[1].faults[0].arm_error(DiskOperation.APPEND)
    with pytest.raises(Exception, match="KAFKA_STORAGE_ERROR"):
        brokers[1].produce(b"a", tp=bad)
    assert brokers[1].core.failed_dirs == 1
    assert brokers[1].partition(bad).offline == ErrorCode.KAFKA_STORAGE_ERROR
    assert brokers.send_state(1, bad, good) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert brokers.stop(1, bad, delete=True) == [ErrorCode.KAFKA_STORAGE_ERROR]
    brokers[1].produce(b"a", tp=good)
    missed = TopicPartition("t", 5)
    brokers.states[missed] = brokers.states[good]
    assert brokers.send_state(1, missed) == [ErrorCode.KAFKA_STORAGE_ERROR], "it may be in the directory that failed"
    brokers.states[missed] = brokers.states[good]._replace(is_new=True)
    assert brokers.send_state(1, missed) == [ErrorCode.NONE]


def test_a_follower_on_a_failed_directory_fetches_no_more() -> None:
    brokers = led(count=2)
    brokers.until(lambda: brokers.settled(1, 2))
    brokers[2].faults[0].arm_error(DiskOperation.APPEND)
    brokers[1].produce(b"b")
    brokers.until(lambda: brokers[2].partition().offline is not None)
    assert not brokers[2].core.replicas.fetchers.is_following(brokers[2].partition())
    brokers.run(2000)
    assert brokers[1].leo() == 2


# -- the ISR, all the way ----------------------------------------------------------------------------------------------


def test_a_follower_out_of_touch_leaves_the_isr_and_comes_back() -> None:
    brokers = Brokers(3, properties={"replica.lag.time.max.ms": "2000"})
    brokers.create(1, 2, 3)
    brokers[1].produce(b"a")
    brokers.until(lambda: brokers.settled(1, 2, 3))
    brokers[3].die()
    brokers[1].produce(b"b")
    assert brokers[1].hw() == 1
    before = brokers.timeline.now_ns
    brokers.until(lambda: brokers[1].hw() == 2)
    assert 1_500_000_000 < brokers.timeline.now_ns - before < 3_600_000_000
    assert brokers.states[T0].isr == (1, 2)
    (asked,) = brokers.office.asked
    assert [each.broker_id for each in asked.topics[0].partitions[0].new_isr_with_epochs] == [1, 2]
    brokers[3].boot()
    brokers.send_state(3, T0)
    brokers.until(lambda: brokers.states[T0].isr == (1, 2, 3))
    members = brokers.office.asked[-1].topics[0].partitions[0].new_isr_with_epochs
    assert [each.broker_epoch for each in members] == [brokers[node].core.fence.broker_epoch for node in (1, 2, 3)]


def test_no_partition_is_followed_after_the_stop() -> None:
    brokers = led(count=2)
    brokers[2].turn(brokers[2].core.replicas.shut_down)
    brokers[1].produce(b"b")
    brokers.run(40_000)
    assert brokers[2].leo() <= 1
