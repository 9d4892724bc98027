"""Channels: requests are batched, in order, repeated until answered, and bounded while a broker hangs.

Zone: real.
"""

from __future__ import annotations

from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.messages import LeaderAndIsrRequest, LeaderAndIsrResponse, StopReplicaRequest, UpdateMetadataRequest


def kinds(broker) -> list[str]:
    names = {LeaderAndIsrRequest: "leaders", UpdateMetadataRequest: "metadata", StopReplicaRequest: "stops"}
    return [names[type(each)] for each in broker.requests]


def tps(count: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def test_a_new_broker_receives_the_list_of_brokers_first(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    house.broker(3)
    house.brokers[2].down()
    house.brokers[2].requests.clear()
    house.brokers[2].up()
    house.settle()
    first = house.brokers[2].requests[0]
    assert isinstance(first, UpdateMetadataRequest)
    assert [each.id for each in first.live_brokers] == [1, 2, 3]
    assert first.topic_states == []
    assert kinds(house.brokers[2]) == ["metadata", "leaders", "metadata"]


def test_leaders_come_before_metadata_and_in_batches(house):
    controller = house.cluster(1, 2)
    house.brokers[2].requests.clear()
    controller.create("t", dict.fromkeys(range(600), (2, 1)))
    house.settle()
    assert house.brokers[2].requests
    sizes = [
        sum(len(topic.partition_states) for topic in each.topic_states)
        for each in house.brokers[2].requests
        if isinstance(each, LeaderAndIsrRequest)
    ]
    assert sum(sizes) == 600
    assert max(sizes) == 250
    assert kinds(house.brokers[2])[0] == "leaders"
    assert house.brokers[2].requests[0].live_leaders[0].host_name == "host2"


def test_a_channel_sends_one_request_at_a_time(house):
    controller = house.cluster(1, 2)
    house.brokers[2].silent = True
    house.brokers[2].requests.clear()
    for index in range(5):
        spec_name = f"t{index}"
        controller.begin(lambda c, done, name=spec_name: c.create_topic(_spec(name), False, 1, done))
    house.settle()
    assert len(house.brokers[2].requests) == 1


def _spec(name):
    from ottla.cluster.topics import TopicSpec

    return TopicSpec(name, assignments={0: (2, 1)})


def test_a_broker_that_hung_receives_only_the_newest_state(house):
    """Any number of changes keeps one entry per partition."""
    controller = house.cluster(1, 2, 3)
    controller.create("t", {0: (1, 3, 2)})
    broker = house.brokers[2]
    broker.silent = True
    for _ in range(3):
        house.brokers[3].down()
        house.brokers[3].up()
        house.settle()
    broker.silent = False
    broker.requests.clear()
    house.settle(60)
    state = house.state("t")
    assert state.leader_epoch == 1, "3 left the ISR once; it never joined again"
    assert len([each for each in broker.requests if isinstance(each, LeaderAndIsrRequest)]) <= 2
    house.check_agreement(controller)


def test_a_request_that_failed_is_sent_again(house):
    controller = house.cluster(1, 2)
    broker = house.brokers[2]
    tries = []
    obey = broker.obey

    def refuse(request, key):
        tries.append(request)
        if len(tries) <= 3:
            return LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        return obey(request, key)

    broker.obey = refuse
    controller.create("t", {0: (2, 1)})
    assert len(tries) >= 4
    assert [type(each) for each in tries[:4]] == [LeaderAndIsrRequest] * 4
    assert broker.partitions[TopicPartition("t", 0)].is_new, "still new: the broker never received it"
    house.check_agreement(controller)


def test_a_response_to_an_earlier_registration_is_ignored(house):
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    broker = house.brokers[2]
    broker.silent = True
    controller.begin(lambda c, done: c.create_topic(_spec("u"), False, 60_000, done))
    house.settle()
    broker.down()
    broker.silent = False
    broker.up()
    house.settle(60)
    house.check_agreement(controller)
    assert {each.broker_epoch for each in broker.requests[-2:]} == {broker.epoch}


def test_a_deletion_is_sent_before_a_later_replica(house):
    """A replica is removed and added again before its broker received the removal: both are sent, in that order."""
    controller = house.cluster(1, 2)
    controller.create("t", {0: (1, 2)})
    broker = house.brokers[2]
    broker.silent = True
    controller.begin(lambda c, done: c.create_topic(_spec("u"), False, 1, done))  # a request is in flight
    house.settle()
    controller.begin(lambda c, done: c.alter_reassignments({TopicPartition("t", 0): (1,)}, True, done))
    house.settle()
    controller.begin(lambda c, done: c.alter_reassignments({TopicPartition("t", 0): (1, 2)}, True, done))
    house.settle()
    broker.silent = False
    broker.requests.clear()
    house.settle(60)
    order = [
        type(each)
        for each in broker.requests
        if isinstance(each, (StopReplicaRequest, LeaderAndIsrRequest))
        and any(topic.topic_name == "t" for topic in each.topic_states)
    ]
    assert order == [StopReplicaRequest, LeaderAndIsrRequest]
    assert broker.partitions[TopicPartition("t", 0)].is_new


def test_unknown_codes_are_errors(house):
    controller = house.cluster(1, 2)
    house.brokers[2].bad_replicas[TopicPartition("t", 0)] = 31_000
    controller.create("t", {0: (1, 2)})
    assert house.state("t").isr == (1, 2), "only KAFKA_STORAGE_ERROR means that a replica is offline"
