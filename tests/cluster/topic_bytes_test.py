"""Topics in Metadata responses are encoded once, and again only after a change.

Zone: real. The tests count encoded partitions, not time.
"""

from __future__ import annotations

import pytest

from ottla.cluster.image import BrokerImage, PartitionImage, TopicImage
from ottla.cluster.topic_bytes import MAX_KEPT, SLICE, KeptTopics, TopicSlices
from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.types import Endpoint
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.messages import MetadataResponse
from ottla.wire.slices import Joined

HERE = Endpoint("PLAINTEXT", "here", 9092, "PLAINTEXT")
BROKERS = {
    1: BrokerImage(1, (HERE,), None, 1),
    2: BrokerImage(2, (HERE,), None, 1),
    3: BrokerImage(3, (), None, 1),  # cannot be reached through PLAINTEXT
}
NOT_ASKED = -(2**31)


def topic(name: str, count: int, **changed) -> TopicImage:
    partitions = tuple(PartitionImage(number, 1, 7, (1, 2), (1, 2))._replace(**changed) for number in range(count))
    return TopicImage(name, name.encode().ljust(16, b"."), partitions, {}, TopicConfig())


def slices_of(kept: KeptTopics, topics, version: int = 12, operations: int = NOT_ASKED, brokers=BROKERS, shown=None):
    slices = TopicSlices(kept.form_for(version, "PLAINTEXT", operations, brokers), topics, shown or (lambda each: each))
    found = []
    while not slices.is_over:
        found.append(slices.take_slice())
    return found


def answer_of(kept: KeptTopics, topics, version: int = 12, brokers=BROKERS) -> MetadataResponse:
    """Decode a response as a client does."""
    joined = Joined(MetadataResponse, version, ("topics",))
    for piece in slices_of(kept, topics, version, brokers=brokers):
        joined.add_response(MetadataResponse(topics=piece))
    content = b"".join(joined.final_parts())
    answer, end = decode(MetadataResponse, version, memoryview(bytearray(content)))
    assert end == len(content)
    assert encode_bytes(answer, version) == content, "the compiled encoder writes the same"
    return answer


@pytest.mark.parametrize("version", range(14))
def test_partitions_are_encoded_correctly_in_every_version(version) -> None:
    odd = [
        topic("plain", 2),
        topic("none", 0),
        topic("__consumer_offsets", 1),
        topic("dead-leader", 1, leader=9, replicas=(9, 1), isr=(9,)),
        topic("hidden-leader", 1, leader=3, replicas=(3,), isr=(3,)),
        topic("failed-directory", 1, offline=(2,)),
        topic("wide", 200, replicas=tuple(range(1, 200)), isr=(1,)),
    ]
    found = {each.name: each for each in answer_of(KeptTopics(), odd, version).topics}
    assert [len(found[each.name].partitions) for each in odd] == [len(each.partitions) for each in odd]
    assert [(p.partition_index, p.leader_id, p.error_code) for p in found["plain"].partitions] == [(0, 1, 0), (1, 1, 0)]
    (dead,), (hidden,), (failed,) = (
        found[name].partitions for name in ("dead-leader", "hidden-leader", "failed-directory")
    )
    assert (dead.error_code, dead.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    expected = ErrorCode.LISTENER_NOT_FOUND if version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
    assert (hidden.error_code, hidden.leader_id) == (expected, -1)
    if version == 0:
        assert (dead.replica_nodes, dead.isr_nodes) == ([1], [])
        (wide, *_) = found["wide"].partitions
        assert (wide.error_code, wide.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1, 2, 3])
    else:
        assert (dead.replica_nodes, dead.isr_nodes) == ([9, 1], [9])
        assert found["__consumer_offsets"].is_internal
        assert not found["plain"].is_internal
    if version >= 5:
        assert (dead.offline_replicas, failed.offline_replicas) == ([9], [2])
    if version >= 7:
        assert failed.leader_epoch == 7


def test_a_topic_is_encoded_once_for_each_form(encoded) -> None:
    kept, topics = KeptTopics(), [topic(f"t{number}", 100) for number in range(30)]
    for _ in range(3):
        slices_of(kept, topics)
    assert encoded == [100] * 30
    slices_of(kept, topics, version=0)
    slices_of(kept, topics, operations=5)
    assert encoded == [100] * 90


def test_a_change_of_one_topic_encodes_that_topic_again(encoded) -> None:
    kept, topics = KeptTopics(), [topic(f"t{number}", 10) for number in range(100)]
    slices_of(kept, topics)
    encoded.clear()
    topics[7] = topic("t7", 11)
    kept.forget_topics(["t7"], {each.name: each for each in topics})
    before = kept.size
    assert [len(each.partitions) for each in answer_of(kept, topics).topics] == [*[10] * 7, 11, *[10] * 92]
    assert encoded == [11]
    assert kept.size > before


def test_a_change_of_settings_encodes_nothing_again(encoded) -> None:
    kept, one = KeptTopics(), topic("t", 10)
    slices_of(kept, [one])
    slices_of(kept, [one._replace(overrides={"retention.ms": "1"})])
    assert encoded == [10]


def test_a_deleted_topic_leaves_the_cache() -> None:
    kept, one = KeptTopics(), topic("t", 10)
    slices_of(kept, [one])
    assert kept.size > 0
    kept.forget_topics(["t"], {})
    assert kept.size == 0


def test_a_change_of_brokers_encodes_all_again(encoded) -> None:
    kept, one = KeptTopics(), topic("t", 1)
    slices_of(kept, [one])
    slices_of(kept, [one], brokers=dict(BROKERS))  # an equal update
    assert encoded == [1]
    left = {2: BROKERS[2]}
    old = TopicSlices(kept.form_for(12, "PLAINTEXT", NOT_ASKED, BROKERS), [topic("u", 1)], lambda each: each)
    assert answer_of(kept, [one], brokers=left).topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    size = kept.size
    old.take_slice()  # a response that was begun before
    assert kept.size == size, "what is not current is not kept"


def test_a_topic_that_clients_see_differently_is_not_cached(encoded) -> None:
    kept, one = KeptTopics(), topic("t", 1)
    slices_of(kept, [one], shown=lambda each: each._replace(partitions=(each.partitions[0]._replace(leader=-1),)))
    assert kept.size == 0


def test_a_slice_is_bounded_for_all_topics(encoded) -> None:
    most = SLICE // 6 + 1_000
    found = slices_of(KeptTopics(), [topic("huge", 20_000), *(topic(f"t{number}", 1) for number in range(3_000))])
    assert len(found) > 10
    assert max(map(len, found)) <= SLICE // 40 + 1
    assert max(encoded) <= most
    assert sum(map(len, found)) == 3_001
    again = KeptTopics()
    many = [topic(f"t{number}", 1) for number in range(20_000)]
    slices_of(again, many)
    assert len(slices_of(again, many)) > 2, "cached topics are also joined in slices"


def test_the_memory_of_the_cache_is_bounded(monkeypatch, encoded) -> None:
    monkeypatch.setattr("ottla.cluster.topic_bytes.MAX_KEPT", 100_000)
    kept, topics = KeptTopics(), [topic(f"t{number}", 10) for number in range(1_000)]
    slices_of(kept, topics)
    assert kept.size < 110_000 < MAX_KEPT
    encoded.clear()
    slices_of(kept, topics)
    assert 0 < len(encoded) < 1_000, "some are kept"
    slices_of(kept, topics, version=1)
    assert kept.size < 110_000
