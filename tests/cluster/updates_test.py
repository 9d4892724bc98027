"""UpdateMetadata as values: image and request in, next image out.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.cluster.image import BrokerImage, ClusterImage, TopicImage
from ottla.cluster.updates import MAX_PARTITIONS, apply_request, check_partitions, new_topics
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.types import Endpoint
from ottla.wire.messages import UpdateMetadataRequest

ME = BrokerImage(1, (Endpoint("PLAINTEXT", "here", 9092),), None, 77)
ID, OTHER = b"\1" * 16, b"\2" * 16
State = UpdateMetadataRequest.UpdateMetadataPartitionState
Topic = UpdateMetadataRequest.UpdateMetadataTopicState


def state(index, leader, epoch=0, isr=(1, 2), offline=()):
    return State(
        partition_index=index,
        leader=leader,
        leader_epoch=epoch,
        isr=list(isr),
        zk_version=epoch + 10,
        replicas=[1, 2],
        offline_replicas=list(offline),
    )


def request(*topics, brokers=(1, 2)):
    endpoint = UpdateMetadataRequest.UpdateMetadataEndpoint(port=9, host="h", listener="SECURE", security_protocol=1)
    return UpdateMetadataRequest(
        controller_id=2,
        topic_states=[
            Topic(topic_name=name, topic_id=topic_id, partition_states=states) for name, topic_id, states in topics
        ],
        live_brokers=[
            UpdateMetadataRequest.UpdateMetadataBroker(id=broker, endpoints=[endpoint], rack="r") for broker in brokers
        ],
    )


def make(name, topic_id, partitions):
    return TopicImage(name, topic_id, partitions, {}, TopicConfig())


def after(image, *topics, **options):
    return apply_request(image, request(*topics, **options), ME, make)


def test_the_image_has_the_brokers_of_the_request_with_their_listeners():
    image, delta = after(ClusterImage(brokers={9: BrokerImage(9, (), None, 1)}))
    assert sorted(image.brokers) == [1, 2]
    assert image.brokers[2] == BrokerImage(2, (Endpoint("SECURE", "h", 9, "SSL"),), "r", 0)
    assert image.brokers[1].epoch == 77, "its own epoch this broker knows itself"
    assert (image.controller_id, image.epoch) == (2, 1)
    assert delta.changed == delta.deleted == ()


def test_partitions_that_the_request_lacks_stay_unchanged():
    first, _ = after(ClusterImage(), ("t", ID, [state(0, 1), state(1, 2)]))
    image, delta = after(first, ("t", ID, [state(1, 1, epoch=5, isr=(1,), offline=(2,))]))
    unchanged, changed = image.topics["t"].partitions
    assert unchanged == first.topics["t"].partitions[0]
    assert (changed.leader, changed.leader_epoch, changed.isr, changed.state_version) == (1, 5, (1,), 15)
    assert changed.offline == (2,)
    assert delta.changed == ("t",)
    assert first.topics["t"].partitions[1].leader == 2, "readers of the old image keep it"


def test_unknown_partitions_below_a_known_one_have_no_leader():
    image, _ = after(ClusterImage(), ("t", ID, [state(2, 1)]))
    assert [(each.partition, each.leader) for each in image.topics["t"].partitions] == [(0, -1), (1, -1), (2, 1)]


def test_a_leader_of_minus_two_removes_the_topic():
    first, _ = after(ClusterImage(), ("t", ID, [state(0, 1), state(1, 2)]))
    image, delta = after(first, ("t", ID, [state(0, -2), state(1, -2)]))
    assert image.topics == image.names_by_id == {}
    assert delta.deleted == ("t",)
    again, delta = after(image, ("t", ID, [state(0, -2)]))
    assert delta.deleted == ()
    assert again.topics == {}


def test_the_deletion_of_a_topic_spares_a_later_one_of_its_name():
    first, _ = after(ClusterImage(), ("t", OTHER, [state(0, 1)]))
    image, delta = after(first, ("t", ID, [state(0, -2)]))
    assert image.topics["t"].topic_id == OTHER
    assert delta.deleted == ()


def test_a_topic_created_again_replaces_the_old_one():
    first, _ = after(ClusterImage(), ("t", ID, [state(0, 1), state(1, 2)]))
    assert new_topics(first, request(("t", ID, [state(0, 1)]))) == []
    assert new_topics(first, request(("t", OTHER, [state(0, 1)]), ("u", ID, [state(0, -2)]))) == ["t"]
    image, _ = after(first, ("t", OTHER, [state(0, 2)]))
    assert len(image.topics["t"].partitions) == 1
    assert image.names_by_id == {OTHER: "t"}


@pytest.mark.parametrize("index", [-1, MAX_PARTITIONS, 2**31 - 1])
def test_an_impossible_partition_number_is_refused(index: int):
    with pytest.raises(ApiError) as refused:
        check_partitions(request(("a", ID, [state(0, 1), state(index, 1)])))
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    check_partitions(request(("a", ID, [state(0, 1), state(MAX_PARTITIONS - 1, 1)])))
