"""Compaction in a whole broker: it dies in the midst of every rename, and topics say what compaction does with them."""

from __future__ import annotations

import pytest
from tests.handnode import Node, records

from ottla.record.batch import Record, encode_batch
from ottla.sim.machines.machine import Death
from ottla.wire.messages import ProduceRequest

SETTINGS = {"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "100"}
KEYS = 5
MOMENTS = 12
"""Events, from the first rename of an exchange on, after which the broker dies."""


def keyed(node: Node, number: int) -> None:
    """Write another value of every key."""
    rows = [Record(at, 1, b"k%d" % at, b"%d." % number * 20) for at in range(KEYS)]
    data = ProduceRequest.PartitionProduceData(index=0, records=memoryview(bytes(encode_batch(rows))))
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    answer = node.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def read(node: Node) -> list[tuple[bytes | None, bytes | None]]:
    """Every record of the topic, from its start on."""
    found, offset = [], 0
    while True:
        part = node.fetch("t", offset)
        assert part.error_code == 0
        new = records(part.records)
        found += [(each.key, each.value) for each in new if each.offset >= offset]
        if not new or new[-1].offset + 1 >= part.high_watermark:
            return found
        offset = new[-1].offset + 1


def filled() -> Node:
    node = Node(SETTINGS)
    node.create("t", cleanup_policy="compact", segment_bytes="1500", min_cleanable_dirty_ratio="1")
    for number in range(40):
        keyed(node, number)
    return node


def begin(node: Node) -> None:
    """Run until the first exchange of segments is under way."""
    (log,) = (each for each in node.broker.logs.online_logs() if each.tp.topic == "t")
    log.apply_config(node.broker.cluster.topic_config("t").with_overrides({"min.cleanable.dirty.ratio": "0.1"}))
    for _ in range(20_000):
        if log.cleaning.exchange is not None:
            return
        node.timeline.run_next_event()
    raise AssertionError("nothing is compacted")


@pytest.mark.slow
@pytest.mark.parametrize("death", [Death.KILL, Death.POWER_LOSS])
def test_a_broker_that_dies_in_the_midst_of_an_exchange_shows_every_last_value(death: Death) -> None:
    left = set()
    for moment in range(MOMENTS):
        node = filled()
        node.pass_ms(100)
        (log,) = (each for each in node.broker.logs.online_logs() if each.tp.topic == "t")
        log.flush(lambda _: None)
        node.pass_ms(100)
        begin(node)
        for _ in range(moment):
            node.timeline.run_next_event()
        left.add(tuple(sorted({name.rpartition(".")[2] for name in node.files() if "/t-0/" in f"/{name}"})))
        node.restart(death)
        found = read(node)
        assert dict(found) == {b"k%d" % key: b"39." * 20 for key in range(KEYS)}, moment
        values = [int((value or b"").partition(b".")[0]) for _, value in found]
        assert values == sorted(values), "in the order in which they were written"
        assert not [name for name in node.files() if name.endswith((".cleaned", ".swap"))]
    assert len(left) > 2, "names in more than one state"


def test_a_topic_that_is_compacted_later_begins_to_be() -> None:
    node = filled()
    before = len(read(node))
    (log,) = (each for each in node.broker.logs.online_logs() if each.tp.topic == "t")
    log.apply_config(node.broker.cluster.topic_config("t").with_overrides({"min.cleanable.dirty.ratio": "0.1"}))
    node.pass_ms(5000)
    assert len(read(node)) < before
    assert dict(read(node)) == {b"k%d" % key: b"39." * 20 for key in range(KEYS)}
    rows = {metric.name: metric for metric in node.broker.metrics}
    (percent,) = rows["kafka_log_logcleanermanager_max_dirty_percent"].samples()
    assert 0 <= percent.value < 20
