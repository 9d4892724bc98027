"""The producer's core with a model of brokers that counts records: each once, in order, or an error."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.producer.model import LOST, NODES, PARTITIONS, World, view

from ottla.client import ConnectionLostError, RefusedError, TopicPartition
from ottla.client.producer.core import BatchResponse
from ottla.client.producer.partition_queue import ProducerId
from ottla.errors import ErrorCode

FAULTS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.INVALID_TIMESTAMP,
)


def disturbed(world: World, steps: int) -> None:
    chance = world.chance
    for _ in range(steps):
        kind = chance.randrange(12)
        node = chance.randrange(NODES)
        if kind < 5:
            world.send(chance.choice([None, *range(PARTITIONS)]), chance.choice([1, 40, 400]))
        elif kind < 8 and world.wires[node]:
            world.arrive(node)
        elif kind == 8 and world.wires[node]:
            world.arrive(node, chance.choice(FAULTS))
        elif kind == 9:
            world.cut(node)
        elif kind == 10:
            world.leaders[chance.randrange(PARTITIONS)] = node
        world.now += chance.choice([0.0, 0.01, 0.2])
        world.work()


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5))
def test_each_record_once_and_in_order_whatever_the_network_does(seed: int, in_flight: int) -> None:
    world = World(random.Random(seed), **{"max.in.flight.requests.per.connection": in_flight})
    disturbed(world, 150)
    world.settle()
    world.check()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_exactly_once_when_records_time_out(seed: int) -> None:
    keys = {"delivery.timeout.ms": 1_100, "request.timeout.ms": 1_000}
    world = World(random.Random(seed), **keys)
    disturbed(world, 200)
    world.settle()
    world.check()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_exactly_once_when_batches_are_too_large_for_the_broker(seed: int) -> None:
    world = World(random.Random(seed))
    world.too_large = 200
    disturbed(world, 150)
    world.settle()
    world.check()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_without_idempotence_nothing_acknowledged_is_missing(seed: int) -> None:
    world = World(random.Random(seed), acks="1")
    disturbed(world, 150)
    world.settle()
    world.check(ordered=False, once=False)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_without_idempotence_one_in_flight_keeps_the_order(seed: int) -> None:
    world = World(random.Random(seed), **{"acks": "1", "max.in.flight.requests.per.connection": 1})
    for _ in range(100):
        world.send(0)
        world.work()
        if world.wires[0] and world.chance.randrange(3):
            world.arrive(0, world.chance.choice([ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS]))
        world.now += 0.01
    world.settle()
    world.check(once=False)


def first_fails(**keys: object) -> list[bytes]:
    """Batches a and b are in flight, and a fails first; returns the values in the log at the end."""
    world = World(random.Random(1), **{"batch.size": 1, **keys})
    world.send(0)
    world.work()
    world.send(0)
    world.work()
    world.arrive(0, ErrorCode.NOT_ENOUGH_REPLICAS)
    world.settle()
    return [value[:1] for value in world.logs[TopicPartition("t", 0)].records]


def test_retry_reorders() -> None:
    assert first_fails(acks="1") == [b"1", b"0"]
    assert first_fails() == [b"0", b"1"]
    assert first_fails(**{"acks": "1", "max.in.flight.requests.per.connection": 1}) == [b"0", b"1"]


def test_the_first_batch_of_a_producer_goes_alone() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    for _ in range(3):
        world.send(0)
        world.work()
    assert len(world.wires[0]) == 1
    world.arrive(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.work()
    assert not world.wires[0]
    world.now += 1
    world.work()
    world.arrive(0)
    world.work()
    assert len(world.wires[0]) == 2
    world.settle()
    world.check()


def test_sequences_wrap() -> None:
    world = World(random.Random(1))
    world.send(0)
    world.settle()
    lane = world.core.accumulator.lanes[TopicPartition("t", 0)]
    lane._next, lane._acked = 2**31 - 2, 2**31 - 3  # two billion records later
    log = world.logs[TopicPartition("t", 0)]
    log.writers[1][1].append((2**31 - 3, 2**31 - 3, 0))
    for _ in range(4):
        world.send(0)
    world.work()
    assert world.wires[0][0][0].batches[0].last_sequence == 1
    for _ in range(3):
        world.send(0)
        world.settle()
    world.check()
    assert len(log.records) == 9


def test_only_the_first_unanswered_batch_is_repeated() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    for _ in range(4):
        world.send(0)
        world.work()
    while world.wires[0]:
        world.arrive(0, carried=False)
    world.now += 5
    for left in (4, 3, 2, 1):
        world.work()
        assert len(world.wires[0]) == 1
        assert len(world.core.accumulator.lanes[TopicPartition("t", 0)].in_flight) == left
        world.arrive(0)
    world.check()


def test_a_new_producer_id_follows_the_last_epoch() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    world.core.identity = ProducerId(world.ids, 32_767)
    world.send(0)
    world.settle()
    world.send(0)
    world.work()
    world.arrive(0, ErrorCode.INVALID_TIMESTAMP)
    world.send(0)
    world.settle()
    assert world.core.identity == ProducerId(2, 0)
    assert len(world.logs[TopicPartition("t", 0)].records) == 3


def test_batches_that_may_be_in_the_log_are_not_repeated_in_a_new_epoch() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    for _ in range(2):
        world.send(0)
        world.work()
    world.arrive(0, answered=False)
    world.arrive(0, answered=False)
    log = world.logs[TopicPartition("t", 0)]
    log.writers.clear()  # the broker forgets the producer, as after an unclean election with a truncated log
    world.now += 1
    world.work()
    world.arrive(0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    world.settle()
    world.check()
    errors = [batch.error for batch, _, _ in list(world.sent.values())[1:3]]
    assert all(isinstance(error, ConnectionLostError) for error in errors)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
def test_batches_refused_after_the_append_are_not_repeated_in_a_new_epoch(code: ErrorCode) -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    log = world.logs[TopicPartition("t", 0)]
    calls = world.hold(20.0, 0.0)
    for _, data in calls:
        log.append(data[0])
    for call, _ in calls:  # the leader lost its leadership, or its disk, before the followers had the batch
        world.core.on_produced(world.now, call, [BatchResponse(code)])
    world.tell_leader(-1)
    world.now += 101  # the first one has expired, the second one has not
    world.work()
    world.tell_leader(1)
    world.settle()
    world.check()


def test_a_lost_attempt_may_arrive_after_a_later_batch_was_refused_as_early() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    calls = world.hold(20.0, 0.0)
    world.tell_leader(-1)
    for call, _ in calls:  # the broker hangs, after it received both requests
        world.core.on_lost(world.now, call, LOST)
    world.now += 101  # the first one has expired, the second one has not
    world.work()
    world.tell_leader(1)
    world.work()
    world.arrive(1)  # refused: the first one is missing
    for _, data in calls:
        world.logs[TopicPartition("t", 0)].append(data[0])
    world.settle()
    world.check()


def test_batches_not_in_the_log_do_not_wait_for_a_given_up_batch() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    for wait in (20.0, 0.0):
        world.send(0)
        world.work()
        world.now += wait
    world.arrive(0, carried=False)  # the first one has no answer; it did not arrive
    world.arrive(0, ErrorCode.NOT_ENOUGH_REPLICAS)
    world.tell_leader(-1)
    world.now += 101
    world.work()
    world.tell_leader(1)
    world.settle()
    world.check()
    assert [batch.error is None for batch, _, _ in world.sent.values()][:3] == [True, False, True]


def test_the_halves_of_a_batch_are_given_up_when_the_time_of_the_whole_is_over() -> None:
    world = World(random.Random(1), **{"delivery.timeout.ms": 1_000, "request.timeout.ms": 900})
    world.send(0)
    world.send(0)
    world.work()
    world.now += 0.5
    world.send(1)
    world.too_large = 80
    world.arrive(0)
    assert world.core.counts.batches_split == 1
    world.leaders[:] = [-1, -1, -1]
    world.core.on_metadata(world.now, view(world.leaders))
    assert world.core.next_work(world.now, {0, 1}).wake_at <= 1.0
    world.now = 1.0
    world.work()
    younger = [batch.leaf_of(at)[0].done for batch, at, _ in world.sent.values()]
    assert younger == [True, True, False]


def test_an_error_that_has_passed_is_not_quoted_in_a_later_one() -> None:
    world = World(random.Random(1), **{"batch.size": 1, "acks": "1", "max.in.flight.requests.per.connection": 1})
    first, second = (world.send(0), world.send(0))
    assert first
    assert second
    world.core.last_error = LOST
    world.work()
    world.arrive(0)
    world.now = world.core.config.client.delivery_timeout_ms / 1000
    world.work()
    (error,) = [batch.error for batch, _, _ in world.sent.values() if batch.error is not None]
    assert "after delivery.timeout.ms (it was never sent)" in str(error)
    assert "the last error" not in str(error)


def test_a_slow_connection_to_a_former_leader_holds_back_what_comes_after() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    world.send(0)
    world.work()
    world.leaders[0] = 1  # the request with the first batch is still on its way to the former leader
    world.core.on_metadata(0.0, view(world.leaders))
    call, data = world.wires[0].popleft()
    world.logs[TopicPartition("t", 0)].append(data[0])
    for _ in range(20):
        world.send(0)
        world.work()
        while world.wires[1]:
            world.arrive(1)
    assert len(world.logs[TopicPartition("t", 0)].records) == 6  # more, and the broker would forget the first
    world.core.on_lost(world.now, call, LOST)
    world.settle()
    world.check()
    assert all(batch.error is None for batch, _, _ in world.sent.values())


def test_memory_is_bounded_and_comes_back() -> None:
    world = World(random.Random(1), **{"buffer.memory": 3_000, "batch.size": 1_000})
    sent = 0
    while world.send(0, 400):
        sent += 1
    assert world.core.accumulator.used <= 3_000
    assert sent == 6
    world.work()
    assert world.core.accumulator.used < 3_000  # a sealed batch frees the memory that it does not need
    world.settle()
    assert world.core.accumulator.used == 0


def test_requests_keep_to_their_size_and_a_large_record_goes_alone() -> None:
    world = World(random.Random(1), **{"max.request.size": 700, "batch.size": 300})
    world.send(0)
    world.send(2)
    world.settle()
    for partition in (0, 2):  # both led by node 0
        world.send(partition, 250)
        world.send(partition, 600)
    world.work()
    sizes = [sum(map(len, data)) for _, data in world.wires[0]]
    assert [len(data) for _, data in world.wires[0]] == [2, 1, 1]
    assert all(size <= 700 + 61 for size in sizes)
    world.settle()
    world.check()


def test_linger_waits_and_flush_does_not() -> None:
    world = World(random.Random(1), **{"linger.ms": 100})
    world.send(0)
    world.work()
    assert not world.wires[0]
    assert world.core.next_work(world.now, {0, 1}).wake_at == pytest.approx(0.1)
    world.core.accumulator.flushes = 1
    world.work()
    assert len(world.wires[0]) == 1


def test_a_refused_record_fails_alone() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    for _ in range(3):
        world.send(0)
        world.work()
    world.arrive(0, ErrorCode.INVALID_TIMESTAMP)
    world.settle()
    world.check()
    outcomes = [batch.error for batch, _, _ in world.sent.values()]
    assert isinstance(outcomes[1], RefusedError)
    assert not any(outcomes[2:])
    assert world.core.counts.epochs_begun == 1


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_batches_after_a_refused_one_show_whether_it_was_written(written: int) -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    calls = world.hold(0.0, 0.0, 0.0)
    for _, data in calls[:written]:
        world.logs[TopicPartition("t", 0)].append(data[0])
    for call, _ in calls:  # another broker leads now, with the same log
        world.core.on_produced(world.now, call, [BatchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
    world.tell_leader(1)
    world.now += 1
    world.work()
    world.arrive(1, ErrorCode.INVALID_TIMESTAMP)
    world.settle()
    world.check()
    outcomes = [batch.error for batch, _, _ in world.sent.values()]
    assert isinstance(outcomes[1], RefusedError)
    assert not any(outcomes[2:])


def test_batches_after_a_refused_one_that_may_arrive_show_nothing() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    world.send(0)
    world.settle()
    calls = world.hold(0.0, 0.0)
    for call, _ in calls:  # the broker hangs, after it received both requests
        world.core.on_lost(world.now, call, LOST)
    world.tell_leader(1)
    world.now += 1
    world.work()
    world.arrive(1, ErrorCode.INVALID_TIMESTAMP)  # it has expired meanwhile
    world.now += 1
    world.work()
    if world.wires[1]:
        world.arrive(1)  # refused: the first one is missing
    for _, data in calls:
        world.logs[TopicPartition("t", 0)].append(data[0])
    world.settle()
    world.check()


def test_a_given_up_batch_may_arrive_after_a_refused_one() -> None:
    world = World(random.Random(1), **{"batch.size": 1})
    log = world.logs[TopicPartition("t", 0)]
    world.send(0)
    world.settle()
    calls = world.hold(0.0, 20.0, 0.0)
    log.append(calls[0][1][0])
    world.core.on_produced(world.now, calls[0][0], [BatchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
    for call, _ in calls[1:]:  # the broker hangs, after it received these
        world.core.on_lost(world.now, call, LOST)
    world.tell_leader(1)
    world.now += 1
    world.work()
    world.arrive(1, ErrorCode.INVALID_TIMESTAMP)  # it is in the log, but has expired
    world.now += 100  # the second one has expired, the third one has not
    world.work()
    world.arrive(1)  # refused: the second one is missing
    for _, data in calls[1:]:
        log.append(data[0])
    world.settle()
    world.check()


def test_a_batch_that_fills_is_not_sent_right_after_a_full_one() -> None:
    world = World(random.Random(1), **{"batch.size": 200, "linger.ms": 1_000})
    for _ in range(20):
        world.send(0)
    world.work()
    world.arrive(0)
    world.work()
    lane = world.core.accumulator.lanes[TopicPartition("t", 0)]
    assert len(lane.queue) == 1
    assert not lane.queue[0].sealed
    assert sum(len(one.batches) for calls in world.core.in_flight.values() for one in calls) == 1


def test_hello_world_batches() -> None:
    world = World(random.Random(1), **{"batch.size": 16_384})
    topic = world.core.metadata.known_topic("t")
    assert topic is not None
    for at in range(8_190):
        world.core.place_record(topic, 0, 1_000, None, b"hello world ", (), 0.0)
        assert at >= 0
    batches = list(world.core.accumulator.lanes[TopicPartition("t", 0)].queue)
    assert [batch.count for batch in batches] == [819] * 10
    for batch in batches:
        batch.seal_batch(0, None)
        assert len(batch.encode_batch()) == 16_377
