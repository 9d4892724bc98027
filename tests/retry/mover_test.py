"""The mover with a real broker and both schedulers: no record is lost, early or duplicated.

Zone: real. Readers read committed records only; when a record was handed over is the time that its producer gave it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from testbench.ottla_node import OttlaNode
from tests.retry.moving import STEPS, Readers, mover_of, now_ms, run_until_killed, turn_until, wait_here
from tests.retry.redis_server import RedisServer

from ottla.cli.commands.retry import _Report
from ottla.client import Admin, ClientConfig, Cluster, ConsumerRecord, NewTopic, Producer, TopicPartition, values_of
from ottla.client.admin.groups import GroupAdmin
from ottla.retry import RedisScheduler, RetryError, RetryPolicy
from ottla.retry.headers import Origin, Trail, read_trail, with_trail
from ottla.retry.routing import Route
from ottla.retry.transactional_forward import DueRecord, _blame_record, _RecordRefusedError

pytestmark = pytest.mark.slow


@pytest.fixture(params=["embedded", pytest.param("redis", marks=pytest.mark.interop)])
def redis(request: pytest.FixtureRequest) -> str | None:
    """The address of the scheduler's Redis; None: the embedded one."""
    if request.param == "embedded":
        return None
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


def none_early(records: Sequence[ConsumerRecord], dues: dict[bytes, int]) -> bool:
    return all(each.timestamp >= dues[each.value] for each in records)


def test_records_come_back_when_they_are_due_whatever_their_order_in_the_log(
    broker: str, topic: str, redis: str | None
) -> None:
    start = now_ms()
    dues = {b"%d" % n: start + 100 + (n * 7919 % 40) * 50 for n in range(200)}
    wait_here(broker, topic, dues)
    with mover_of(broker, topic, redis) as mover, Readers(broker, topic, f"{topic}.dead") as readers:
        turn_until(mover, lambda: len(readers.look()) >= len(dues))
        assert mover.waiting == 0
        assert sorted(readers.look(0.3)) == sorted(dues)
        assert none_early(readers.records, dues)
        assert mover.stats.counters_by_name() | {"read": 0} == {"read": 0, "returned": 200, "dead": 0, "rewritten": 0,
                                                      "expired": 0, "aborted": 0}  # fmt: skip
        back = readers.records[0]
        trail = read_trail(back.headers)
        assert (back.key, back.headers[0], trail.attempts, trail.passes) == (back.value, ("own", b"x"), 2, 1)


def test_killed_after_every_step_it_loses_nothing_and_forwards_nothing_early_or_twice(
    broker: str, topic: str, redis: str | None
) -> None:
    dues: dict[bytes, int] = {}
    for number, step in enumerate(STEPS):
        start = now_ms()
        new = {b"%s %d" % (step.encode(), n): start + 300 + (n * 3 % 10) * 400 for n in range(10)}
        wait_here(broker, topic, new)
        dues |= new
        run_until_killed(broker, topic, redis, step)
        assert number < len(STEPS)
    with mover_of(broker, topic, redis) as mover, Readers(broker, topic, f"{topic}.dead") as readers:
        turn_until(mover, lambda: len(readers.look()) >= len(dues))
        turn_until(mover, lambda: mover.waiting == 0)
        assert sorted(readers.look(0.5)) == sorted(dues)
        assert none_early(readers.records, dues)


def test_two_movers_share_the_partitions_and_hand_over_each_record_once(
    broker: str, topic: str, redis: str | None
) -> None:
    start = now_ms()
    dues = {b"%d" % n: start + n * 10 for n in range(200)}
    wait_here(broker, topic, dues)
    with Readers(broker, topic) as readers, mover_of(broker, topic, redis, instance="a") as first:
        turn_until(first, lambda: len(readers.look()) > 20)
        with mover_of(broker, topic, redis, instance="b") as second:
            until = time.monotonic() + 180
            while len(readers.look()) < len(dues) and time.monotonic() < until:
                first.turn(0.02)
                second.turn(0.02)
            assert sorted(readers.look(0.5)) == sorted(dues)
            assert none_early(readers.records, dues)


def test_a_service_without_partitions_yet_is_not_idle(broker: str, topic: str) -> None:
    """Records may wait in the partitions that the group is about to give it."""
    wait_here(broker, topic, {b"waits": now_ms() + 600_000})
    report = _Report("json", every_s=1_000, idle_s=0)
    with mover_of(broker, topic) as mover:
        report.on_turn(mover)
        assert not report.is_idle(mover)
        turn_until(mover, lambda: mover.is_caught_up and mover.waiting == 1)
        assert not report.is_idle(mover)


def test_the_second_of_one_instance_ends_the_first(broker: str, topic: str) -> None:
    dues = {b"%d" % n: now_ms() + n * 100 for n in range(20)}
    wait_here(broker, topic, dues)
    with Readers(broker, topic) as readers, mover_of(broker, topic) as first:
        turn_until(first, lambda: len(readers.look()) > 2)
        with mover_of(broker, topic) as second:
            with pytest.raises(Exception, match=r"instance|FENCED"):
                turn_until(first, lambda: False, 20)
            turn_until(second, lambda: len(readers.look()) >= len(dues))
            assert sorted(readers.look(0.3)) == sorted(dues)


def test_a_record_that_was_delivered_too_often_ends_with_the_dead_letters(broker: str, topic: str) -> None:
    with Producer({"bootstrap.servers": broker}) as producer:
        for attempts in (3, 4):
            headers = with_trail((), Trail(attempts=attempts, origin=Origin(topic)))
            producer.send(f"{topic}.retry.1", b"%d" % attempts, headers=headers)
    policy = RetryPolicy.fixed([0], attempts=3)
    with mover_of(broker, topic, policy=policy) as mover, Readers(broker, topic, f"{topic}.dead") as readers:
        turn_until(mover, lambda: len(readers.look()) == 2)
        assert {each.value: each.topic for each in readers.records} == {b"3": topic, b"4": f"{topic}.dead"}


def test_records_without_headers_wait_for_their_level_and_are_counted_by_the_mover(broker: str, topic: str) -> None:
    """Any program may write to a retry topic; one that keeps doing so gets its record back so often and no more."""
    policy = RetryPolicy.fixed(["300ms", "500ms"])
    with Producer({"bootstrap.servers": broker}) as producer:
        sent = producer.send(f"{topic}.retry.1", b"v", key=b"k").result(180)
        with mover_of(broker, topic, policy=policy) as mover, Readers(broker, topic, f"{topic}.dead") as readers:
            for deliveries in (1, 2):
                turn_until(mover, lambda: len(readers.look()) == deliveries)  # noqa: B023
                back = readers.records[-1]
                assert (back.topic, read_trail(back.headers).passes) == (topic, deliveries)
                assert deliveries > 1 or back.timestamp >= sent.timestamp + 300
                producer.send(f"{topic}.retry.1", b"v", key=b"k", headers=back.headers).result(180)
            turn_until(mover, lambda: len(readers.look()) == 3)
            dead = readers.records[-1]
            assert dead.topic == f"{topic}.dead"
            failure = read_trail(dead.headers).failure
            assert failure is not None
            assert failure.kind == "ottla.retry.TooManyAttempts"


@pytest.mark.parametrize(("back_to", "kind"), [("{}.retry.2", "RetryLoop"), ("{}-gone", "DestinationRefused")])
def test_a_record_that_has_nowhere_to_go_ends_with_the_dead_letters(
    broker: str, topic: str, back_to: str, kind: str
) -> None:
    with Producer({"bootstrap.servers": broker}) as producer:
        headers = with_trail((), Trail(attempts=2, origin=Origin(topic), back_to=back_to.format(topic)))
        producer.send(f"{topic}.retry.1", b"v", headers=headers)
        producer.send(f"{topic}.retry.1", b"good", headers=with_trail((), Trail(attempts=2, origin=Origin(topic))))
    with mover_of(broker, topic) as mover, Readers(broker, topic, f"{topic}.dead") as readers:
        turn_until(mover, lambda: len(readers.look()) == 2)
        failures = {each.value: read_trail(each.headers).failure for each in readers.records}
        assert failures[b"good"] is None
        assert str(failures[b"v"] and failures[b"v"].kind).endswith(kind)


def test_a_record_that_its_topic_refuses_takes_no_other_to_the_dead_letters(broker: str, topic: str) -> None:
    with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic(f"{topic}-small", 2, 1, {"max.message.bytes": "500"})]))
    with Producer({"bootstrap.servers": broker}) as producer:
        headers = with_trail((), Trail(attempts=2, origin=Origin(f"{topic}-small")))
        producer.send(f"{topic}.retry.1", bytes(1_000), headers=headers)
        for number in range(200):
            good = with_trail((), Trail(attempts=2, origin=Origin(topic)))
            producer.send(f"{topic}.retry.1", b"%d" % number, headers=good)
    with mover_of(broker, topic) as mover, Readers(broker, topic, f"{topic}-small.dead") as readers:
        with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
            values_of(Admin(cluster).create_topics([NewTopic(f"{topic}-small.dead", 2)]))
        turn_until(mover, lambda: len(readers.look()) == 201)
        assert [each.value for each in readers.records if each.topic != topic] == [bytes(1_000)]


def test_headers_whose_keys_are_not_utf8_come_back_as_they_were(broker: str, topic: str) -> None:
    odd = "caf\udce9"
    with Producer({"bootstrap.servers": broker}) as producer:
        headers = with_trail([(odd, b"1")], Trail(attempts=2, origin=Origin(topic)))
        producer.send(f"{topic}.retry.1", b"v", headers=headers)
    with mover_of(broker, topic) as mover, Readers(broker, topic) as readers:
        turn_until(mover, lambda: readers.look() == [b"v"])
        assert (odd, b"1") in readers.records[0].headers


def test_a_transaction_that_failed_meanwhile_is_not_the_fault_of_the_next_record(broker: str, topic: str) -> None:
    with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic(f"{topic}-small", 2, 1, {"max.message.bytes": "500"})]))
    record = ConsumerRecord(f"{topic}.retry.1", 0, 0, 0, 0, None, b"v", (), 0)
    items = [DueRecord(0, TopicPartition(f"{topic}.retry.1", 0), at, record) for at in range(2)]
    route = Route(topic, (), is_dead=False)
    with mover_of(broker, topic) as mover:
        handover = mover._handover
        handover._producer.begin_transaction()
        refused = handover._producer.send(f"{topic}-small", bytes(1_000))
        assert refused.exception(60) is not None
        with pytest.raises(_RecordRefusedError) as blamed, _blame_record([(items[0], route, refused)]):
            handover._send_record(items[1], route)
        assert blamed.value.item is items[0]
        handover._producer.abort_transaction()


def test_where_dead_letters_cannot_be_written_nothing_is_committed(broker: str, topic: str) -> None:
    with Cluster(ClientConfig(bootstrap_servers=broker)) as cluster:
        admin = Admin(cluster)
        admin.delete_topics([f"{topic}.dead"])
        with Producer({"bootstrap.servers": broker}) as producer:
            headers = with_trail((), Trail(attempts=200, origin=Origin(topic)))
            producer.send(f"{topic}.retry.1", b"v", headers=headers, partition=0)
        with (
            mover_of(broker, topic) as mover,
            pytest.raises(RetryError, match=r"dead-letter topic .* refused a record"),
        ):
            turn_until(mover, lambda: False, 60)
        tp = TopicPartition(f"{topic}.retry.1", 0)
        committed = GroupAdmin(cluster).group_offsets(f"mover-{topic}")
        assert tp not in committed
        values_of(admin.create_topics([NewTopic(f"{topic}.dead", 2)]))
    with mover_of(broker, topic) as mover, Readers(broker, f"{topic}.dead") as readers:
        turn_until(mover, lambda: readers.look() == [b"v"])


def test_a_broker_that_dies_and_comes_back_costs_nothing_but_time(tmp_path: Path) -> None:
    quick = {"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "false"}
    with OttlaNode(tmp_path / "broker", quick) as node:
        topic = "dies"
        with Cluster(ClientConfig(bootstrap_servers=node.bootstrap)) as cluster:
            names = [topic, f"{topic}.retry.1", f"{topic}.retry.2"]
            values_of(Admin(cluster).create_topics([NewTopic(name, 2) for name in names]))
        start = now_ms()
        dues = {b"%d" % n: start + 500 + n * 20 for n in range(150)}
        wait_here(node.bootstrap, topic, dues)
        with mover_of(node.bootstrap, topic) as mover:
            turn_until(mover, lambda: mover.stats.returned > 50)
            node.kill()
            back = threading.Timer(1.0, node.start)
            back.start()
            turn_until(mover, lambda: mover.stats.returned >= len(dues), 90)
            back.join()
        with Readers(node.bootstrap, topic) as readers:
            assert sorted(readers.look(1.0)) == sorted(dues)
            assert none_early(readers.records, dues)


@pytest.mark.parametrize("ahead_ms", [1_000, 700_000], ids=["unclaimed", "claimed"])
def test_records_that_wait_between_others_are_written_again_when_positions_grow_too_long(
    broker: str, topic: str, redis: str | None, ahead_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with long and short delays mixed in one topic; a position may hold few runs here, so that few records do."""
    monkeypatch.setattr("ottla.retry.window._MANY", 16)
    monkeypatch.setattr("ottla.retry.window._FEW", 8)
    monkeypatch.setattr("ottla.retry.mover.AHEAD_MS", ahead_ms)
    start = now_ms()
    dues = {b"%d" % n: start + (500, 500, 1_500, 600_000)[n % 4] + n * 5 for n in range(200)}
    wait_here(broker, topic, dues)
    soon = sorted(value for value, due in dues.items() if due < start + 100_000)
    with Readers(broker, topic) as readers:
        with mover_of(broker, topic, redis) as mover:
            turn_until(mover, lambda: len(readers.look()) >= len(soon))
            assert mover.stats.rewritten > 10
            turn_until(mover, lambda: mover.waiting == 50)
            monkeypatch.setattr("ottla.retry.mover.AHEAD_MS", 700_000)
            turn_until(mover, lambda: mover.claimed >= 50)
            assert [mover.turn(0.02) for _ in range(20)] == [0] * 20
            assert mover.claimed == 50, "each from its new place only"
        with mover_of(broker, topic, redis) as mover:  # rewritten records are recognized after a restart
            turn_until(mover, lambda: mover.waiting == 50)
            assert mover.stats.returned == 0
        assert sorted(readers.look(0.5)) == soon
        assert none_early(readers.records, dues)


@pytest.mark.interop
def test_a_lease_that_ends_while_the_record_waits_here_does_not_hand_it_over_twice(
    broker: str, topic: str, redis_server: RedisServer
) -> None:
    dues = {b"%d" % n: now_ms() + 1_500 + n for n in range(20)}
    wait_here(broker, topic, dues)
    scheduler = RedisScheduler(redis_server.url, topic, lease_ms=100)
    with mover_of(broker, topic, scheduler=scheduler) as mover, Readers(broker, topic) as readers:
        turn_until(mover, lambda: len(readers.look()) >= len(dues))
        turn_until(mover, lambda: mover.waiting == 0)
        assert sorted(readers.look(0.5)) == sorted(dues)
        assert none_early(readers.records, dues)


def test_after_a_restart_nothing_is_handed_over_before_all_is_known_that_was(broker: str, topic: str) -> None:
    """More records than a poll returns were forwarded after one that waits."""
    start = now_ms()
    with Producer({"bootstrap.servers": broker}) as producer:
        for number in range(2_400):
            trail = Trail(2, start + 4_000 if number == 0 else start, origin=Origin(topic))
            producer.send(f"{topic}.retry.1", b"%d" % number, headers=with_trail((), trail), partition=0)
    with mover_of(broker, topic) as mover:
        turn_until(mover, lambda: mover.stats.returned >= 2_399)
    while now_ms() < start + 4_000:
        time.sleep(0.05)
    with mover_of(broker, topic) as mover, Readers(broker, topic) as readers:
        turn_until(mover, lambda: mover.stats.returned > 0 and mover.waiting == 0)
        assert mover.stats.returned == 1
        assert len(set(readers.look(0.5))) == len(readers.records) == 2_400
