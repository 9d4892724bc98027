"""kill -9 under load: the page cache survives, so everything acknowledged does; torn tails are cut; dedupe goes on."""

from __future__ import annotations

import pytest
from testbench.clients import Confluent, Record
from testbench.load import Load, check

pytestmark = [pytest.mark.slow, pytest.mark.interop]

LOG = "00000000000000000000.log"


def test_everything_acknowledged_survives_kill_after_kill(node) -> None:
    broker = node(settings={"log.segment.bytes": "4194304"})
    broker.start()
    loads = [Load(broker.bootstrap, f"load{number}") for number in range(3)]
    for _ in range(4):
        for load in loads:
            load.wait_for(2_000)
        broker.kill()
        broker.start()
    for load in loads:
        load.wait_for(500)
        load.stop()
    for load in loads:
        assert not load.failed
        found = check(broker.bootstrap, load, load.acknowledged)
        assert found == list(range(load.sent)), "an idempotent producer leaves no gap and no duplicate"
    broker.stop()
    broker.start()
    for load in loads:
        check(broker.bootstrap, load, load.acknowledged)


def test_a_torn_tail_is_cut_and_writing_goes_on(node) -> None:
    broker = node()
    broker.start()
    records = [Record(b"%d" % number, b"v" * 100) for number in range(100)]
    Confluent().write(broker.bootstrap, "torn", records, **{"batch.num.messages": 10})
    broker.kill()
    log = broker.data / "torn-0" / LOG
    whole = log.read_bytes()
    log.write_bytes(whole + whole[-200:-100] + b"\0" * 37)
    broker.start()
    assert "torn-0" in broker.said()
    assert log.stat().st_size == len(whole)
    Confluent().write(broker.bootstrap, "torn", records)
    assert [each.key for each in Confluent().read(broker.bootstrap, "torn")] == [each.key for each in records * 2]


def test_a_flipped_byte_behind_the_recovery_point_cuts_there(node) -> None:
    broker = node()
    broker.start()
    records = [Record(b"%d" % number, b"v" * 100) for number in range(100)]
    Confluent().write(broker.bootstrap, "flipped", records, **{"batch.num.messages": 10, "linger.ms": 200})
    broker.kill()
    log = broker.data / "flipped-0" / LOG
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    broker.start()
    found = Confluent().read(broker.bootstrap, "flipped")
    assert 0 < len(found) < 100
    assert [each.key for each in found] == [each.key for each in records[: len(found)]]


def test_restart_after_a_kill_with_much_to_scan(node, capsys: pytest.CaptureFixture[str]) -> None:
    """The bound is 2 s per GiB on a quiet machine; here it is 5 times that, for machines that are not."""
    broker = node()
    broker.start()
    _write(broker.bootstrap, "much", 512)
    broker.kill()
    log = broker.data / "much-0" / LOG
    gib = sum(each.stat().st_size for each in log.parent.glob("*.log")) / 2**30
    empty = _start_of_an_empty_broker(node)
    broker.start()
    per_gib = (broker.started_s - empty) / gib
    with capsys.disabled():
        print(f"\nrecovery: {gib:.2f} GiB in {broker.started_s - empty:.2f} s = {per_gib:.2f} s per GiB")
    assert gib > 0.45
    assert per_gib < 10
    assert len(Confluent().read(broker.bootstrap, "much", 0, int(512 * 64 * 15.5))) > 0


def _write(bootstrap: str, topic: str, mib: int) -> None:
    """16 KiB batches of 1 KiB records."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": bootstrap, "batch.size": 16_384, "linger.ms": 50, "acks": "1", "log_level": 3,
         "queue.buffering.max.messages": 20_000}
    )  # fmt: skip
    value = bytes(range(256)) * 4
    for _ in range(mib * 1024):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(180) == 0


def _start_of_an_empty_broker(node) -> float:
    other = node()
    other.start()
    other.stop()
    return float(other.started_s)
