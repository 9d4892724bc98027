"""Retries that keep the order of each key.

Zone: real.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.retry.moving import mover_of, turn_until
from tests.retry.retrier_test import source

from ottla.client import Consumer, ConsumerRecord, Producer, TopicPartition
from ottla.retry import RetryPolicy
from ottla.retry.headers import Origin, Trail, read_trail
from ottla.retry.ordered import Identity, KeyOrder, OrderedRetrier, identify_record

WHERE = TopicPartition("t", 0)


@given(st.lists(st.tuples(st.sampled_from("wsb"), st.integers(0, 9), st.sampled_from([b"a", b"b"])), max_size=40))
def test_a_record_waits_for_all_earlier_waiting_ones_of_its_key(steps: list[tuple[str, int, bytes]]) -> None:
    order, model = KeyOrder(), dict[tuple[bytes, int], int]()
    for number, (step, offset, key) in enumerate(steps):
        who = Identity(WHERE, offset, key)
        if step == "w":
            order.add_waiting(who, number)
            model[key, offset] = number
        elif step == "s":
            order.on_settled(who)
            model.pop((key, offset), None)
        earlier = [due for (other, at), due in model.items() if other == key and at < offset]
        assert order.blocked_until_ms(who) == max(earlier, default=None)
        assert len(order) == len(model)


def test_a_record_without_a_key_or_a_known_origin_has_no_order() -> None:
    record = ConsumerRecord("t", 0, 5, 1, 0, b"k", b"v", (), 0)
    assert identify_record(record, Trail()) == Identity(WHERE, 5, b"k")
    assert identify_record(record, Trail(origin=Origin("o", 1, 7))) == Identity(TopicPartition("o", 1), 7, b"k")
    assert identify_record(record, Trail(origin=Origin("o"))) is None
    assert identify_record(record._replace(key=None), Trail()) is None


@pytest.mark.slow
def test_each_key_s_records_are_handled_in_order_also_by_a_consumer_that_starts_in_between(
    broker: str, topic: str
) -> None:
    """Every third attempt fails, and the consumer is a new one every now and then; 5 keys of 12 records."""
    policy = RetryPolicy.fixed(["100ms", "50ms"], attempts=50)
    draw = random.Random(7)
    with Producer({"bootstrap.servers": broker}) as producer:
        for number in range(60):
            producer.send(topic, b"%d" % number, key=b"key %d" % (number % 5))
    handled: dict[bytes, list[int]] = {}

    def work(record: ConsumerRecord) -> None:
        if draw.random() < 0.33:
            raise ValueError(record.value)
        handled.setdefault(record.key, []).append(int(record.value))

    with mover_of(broker, topic, policy=policy) as mover, Producer({"bootstrap.servers": broker}) as producer:
        for _ in range(40):
            if sum(map(len, handled.values())) >= 60:
                break
            with Consumer(source(broker, topic)) as consumer:
                retrier = OrderedRetrier(
                    producer, policy, {"bootstrap.servers": broker}, group=topic, mover_group=f"mover-{topic}"
                )
                consumer.subscribe([topic], on_assigned=retrier.restore, on_revoked=retrier.forget)
                before = sum(map(len, handled.values()))

                def some_more() -> bool:
                    for record in consumer.poll(0.02):
                        retrier.handle(record, work)  # noqa: B023
                    consumer.commit()
                    return sum(map(len, handled.values())) >= min(60, before + 15)  # noqa: B023

                turn_until(mover, some_more)
    assert {key: len(found) for key, found in handled.items()} == {b"key %d" % n: 12 for n in range(5)}
    assert all(found == sorted(found) for found in handled.values()), handled


@pytest.mark.slow
def test_a_new_consumer_knows_what_waits_in_retry_topics_and_what_was_brought_back(broker: str, topic: str) -> None:
    policy = RetryPolicy.fixed([0])
    tp = TopicPartition(topic, 0)

    def fails(record: ConsumerRecord) -> None:
        raise ValueError

    with (
        Producer({"bootstrap.servers": broker}) as producer,
        Consumer(source(broker, topic)) as consumer,
        mover_of(broker, topic, policy=RetryPolicy.fixed([0], attempts=9)) as mover,
    ):

        def another() -> OrderedRetrier:
            made = OrderedRetrier(
                producer, policy, {"bootstrap.servers": broker}, group=topic, mover_group=f"mover-{topic}"
            )
            made.restore([tp])
            return made

        def next_record() -> ConsumerRecord:
            while not (found := consumer.poll(0.02)):
                mover.turn(0.02)
            (record,) = found
            return record

        for value in (b"1", b"2"):
            producer.send(topic, value, key=b"k", partition=0).result(180)
        consumer.assign([tp])
        first, second = consumer.poll(180)
        assert another().handle(first, fails) is not None
        consumer.commit({tp: 1})
        assert another().waiting == 1, "it is in a retry topic"
        brought = next_record()
        assert brought.value == b"1"
        retrier = another()
        assert retrier.waiting == 1, "it was brought back, and is not handled yet"
        assert retrier.handle(second, fails) is not None
        assert retrier.handle(brought, lambda _record: None) is None
        last = next_record()
        assert (last.value, read_trail(last.headers).attempts, read_trail(last.headers).failure) == (b"2", 1, None)
        assert retrier.handle(last, lambda _record: None) is None
        assert retrier.waiting == 0
