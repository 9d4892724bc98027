"""A broker that stood still past its session wakes up: it acknowledges nothing and changes nothing.

Requests lie in its sockets when it wakes: they are handled before any news of others reaches it. With acks=all it would
wait for followers in vain; with acks=1 its own word is enough, so it must know by itself that it was away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from testbench.clients import Confluent
from testbench.trio import ENGINES, Trio, Znode, trio

from ottla.client.connections.address import Address
from ottla.client.connections.connection import Call, Connection
from ottla.client.errors import ClientError
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig
from ottla.record.batch import Record as WrittenRecord
from ottla.record.batch import encode_batch
from ottla.wire.messages import CreateTopicsRequest, CreateTopicsResponse, ProduceRequest, ProduceResponse

pytestmark = [pytest.mark.slow, pytest.mark.interop]

TOPIC = "zombie"
PRODUCE_VERSION, CREATE_VERSION = 9, 5


@pytest.fixture(params=ENGINES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trio]:
    with trio(request.param, tmp_path) as made:
        made.admin.create_topics([NewTopic(TOPIC, 3, 3)], operation_timeout=30)[TOPIC].result(180)
        made.wait_whole(TOPIC)
        yield made
        assert not made.complaints()


def connected(cluster: Trio, broker: int) -> Connection:
    seen = cluster.metadata()
    assert seen is not None
    connection = Connection(Address(seen.brokers[broker].host, seen.brokers[broker].port), ClientConfig())
    connection.open_connection(Deadline.after_ms(10_000))
    return connection


def produce(connection: Connection, partition: int, number: int, acks: int = -1) -> Call[ProduceResponse]:
    batch = memoryview(bytes(encode_batch([WrittenRecord(0, 0, b"zombie", b"zombie %d" % number, ())])))
    data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
    message = ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[topic])
    return connection.send_request(message, PRODUCE_VERSION, ProduceResponse)


def create(connection: Connection, name: str) -> Call[CreateTopicsResponse]:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=3)
    return connection.send_request(
        CreateTopicsRequest(topics=[topic], timeout_ms=5_000), CREATE_VERSION, CreateTopicsResponse
    )


def acknowledged(connection: Connection, call: Call[ProduceResponse]) -> bool:
    """Whether the answer says that the record was taken; a closed connection says nothing."""
    try:
        answer = connection.wait_for_response(call, Deadline.after_ms(30_000))
    except ClientError:
        return False
    return answer.responses[0].partition_responses[0].error_code == 0


def led_by(cluster: Trio, broker: int) -> int:
    """A partition of the topic that a broker leads."""
    seen = cluster.wait_whole(TOPIC)
    return next(index for index, each in seen.topics[TOPIC].partitions.items() if each.leader == broker)


def await_takeover(cluster: Trio, zombie: int) -> None:
    """Until others have taken over everything; the zombie stands still. Its session is over when it is no broker."""
    cluster.wait_until(
        f"broker {zombie} is gone",
        lambda seen: (
            zombie not in seen.brokers
            and seen.controller_id != zombie
            and all(each.leader not in (zombie, -1) for each in seen.topics[TOPIC].partitions.values())
        ),
    )


def check_writes(before: dict[str, Znode], after: dict[str, Znode]) -> None:
    """All changes are those of the present controller.

    It may change states of partitions meanwhile: replicas leave and join the in-sync replicas, more of them on a busy
    machine. Such a state carries its epoch, and the leaders of the topic stay. Everything else stays as it was.
    """
    epoch = int(before["/controller_epoch"].data)
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if path.endswith("/state") and old is not None and new is not None:
            if old.data != new.data:
                assert json.loads(new.data)["controller_epoch"] == epoch, f"{path}: {old.data!r} became {new.data!r}"
            if path.startswith(f"/brokers/topics/{TOPIC}/"):
                assert leadership(old) == leadership(new), path
        elif path in ("/controller", "/controller_epoch") or path.startswith(("/brokers/topics", "/config", "/admin")):
            assert old is not None, f"{path} was made"
            assert new is not None, f"{path} was removed"
            assert (old.data, old.owner) == (new.data, new.owner), path


def leadership(state: Znode) -> tuple[int, int]:
    """Leader and leader epoch in the state of a partition."""
    fields = json.loads(state.data)
    return fields["leader"], fields["leader_epoch"]


def test_a_leader_acknowledges_nothing(cluster: Trio) -> None:
    seen = cluster.wait_whole(TOPIC)
    zombie = next(number for number in (1, 2, 3) if number != seen.controller_id)
    partition = led_by(cluster, zombie)
    old, hasty = connected(cluster, zombie), connected(cluster, zombie)
    cluster.brokers[zombie - 1].pause()
    calls = [produce(old, partition, number) for number in range(3)]
    hasty_calls = [produce(hasty, partition, number, acks=1) for number in range(3, 6)]
    await_takeover(cluster, zombie)
    before = cluster.znodes()
    cluster.brokers[zombie - 1].resume()
    assert not any(acknowledged(hasty, call) for call in hasty_calls), "its own word was enough"
    assert not any(acknowledged(old, call) for call in calls)
    cluster.wait_whole(TOPIC)
    check_writes(before, cluster.znodes())
    assert Confluent().read(cluster.bootstrap, TOPIC, partition) == [], "what it appended is cut away"
    old.close_connection()
    hasty.close_connection()


def test_a_controller_changes_no_node(cluster: Trio) -> None:
    seen = cluster.wait_whole(TOPIC)
    zombie = seen.controller_id
    partition = led_by(cluster, zombie)
    old = connected(cluster, zombie)
    victim = next(number for number in (1, 2, 3) if number != zombie)
    cluster.brokers[zombie - 1].pause()
    calls = [create(old, "made-by-a-zombie"), produce(old, partition, 0), produce(old, partition, 1)]
    await_takeover(cluster, zombie)
    # What it missed: a broker died and came back. As a controller it would want to write about that.
    cluster.brokers[victim - 1].kill()
    cluster.brokers[victim - 1].start()
    cluster.wait_until("the other two are in sync", lambda seen: set(seen.brokers) == {1, 2, 3} - {zombie})
    cluster.wait_until(
        "the other two are in sync",
        lambda seen: all(set(each.isrs) == {1, 2, 3} - {zombie} for each in seen.topics[TOPIC].partitions.values()),
    )
    before = cluster.znodes()
    cluster.brokers[zombie - 1].resume()
    try:
        made = old.wait_for_response(calls[0], Deadline.after_ms(30_000)).topics[0].error_code
    except ClientError:
        made = None
    assert made != 0, "a controller of the past created a topic"
    assert [acknowledged(old, call) for call in calls[1:]] == [False, False]
    old.close_connection()
    cluster.wait_whole(TOPIC)
    check_writes(before, cluster.znodes())


def nodes(epoch: int, leader: int, leader_epoch: int, isr: list[int]) -> dict[str, Znode]:
    """What the store holds: epoch 7 counts, and the state of a partition was written in `epoch`."""
    state = {"controller_epoch": epoch, "leader": leader, "leader_epoch": leader_epoch, "isr": isr}
    path = f"/brokers/topics/{TOPIC}/partitions/0/state"
    return {"/controller_epoch": Znode(b"7", 0, 0), path: Znode(json.dumps(state).encode(), 0, 0)}


@pytest.mark.parametrize(
    ("epoch", "leader", "leader_epoch", "isr", "is_right"),
    [
        (7, 1, 4, [1, 2, 3], True),
        (7, 1, 4, [1], True),
        (6, 1, 4, [1], False),
        (7, 2, 4, [1, 2], False),
        (7, 1, 5, [1, 2], False),
    ],
)
def test_the_check_knows_an_isr_change_of_the_present_controller_from_a_zombies_write(
    epoch: int, leader: int, leader_epoch: int, isr: list[int], is_right: bool
) -> None:
    before, after = nodes(7, 1, 4, [1, 2]), nodes(epoch, leader, leader_epoch, isr)
    if is_right:
        check_writes(before, after)
    else:
        with pytest.raises(AssertionError):
            check_writes(before, after)
