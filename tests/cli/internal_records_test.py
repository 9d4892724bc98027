"""Records of internal topics as lines, Kafka's own among them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest

from ottla.cli.views.internal_records import make_formatter
from ottla.cli.views.record_text import Placed
from ottla.record.batch import Record, batches_of, records_of

OLD_CLASS = "kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter"


@pytest.mark.parametrize("name", ["offsets-1.0", OLD_CLASS])
def test_offsets_line(name: str):
    """As the formatter of Kafka 1.0 printed it."""
    group, topic = b"console-consumer-46965", b"test"
    key = struct.pack(">hh", 1, len(group)) + group + struct.pack(">h", len(topic)) + topic + struct.pack(">i", 0)
    value = struct.pack(">hqhqq", 1, 20, 0, 1598188355048, 1598274755048)
    line = make_formatter(name)(Placed("__consumer_offsets", 0, Record(0, 0, key, value, ())))
    assert line == (
        b"[console-consumer-46965,test,0]::[OffsetMetadata[20,NO_METADATA],"
        b"CommitTime 1598188355048,ExpirationTime 1598274755048]\n"
    )
    gone = make_formatter(name)(Placed("__consumer_offsets", 0, Record(0, 0, key, None, ())))
    assert gone == b"[console-consumer-46965,test,0]::NULL\n"


@pytest.mark.parametrize("name", ["offsets", "offsets-1.0"])
def test_a_group_whose_name_is_not_utf8_is_shown(name):
    key = struct.pack(">hh", 1, 2) + b"g\xff" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 0)
    line = make_formatter(name)(Placed("__consumer_offsets", 0, Record(0, 0, key, None, ())))
    assert "g\ufffd" in line.decode()


def lines(golden: Callable, case: str, name: str) -> list[bytes]:
    render, found = make_formatter(name), []
    for path in sorted(golden(case).directory.glob("__*/*.log")):
        log = path.read_bytes()
        for pos, header in batches_of(log):
            if not header.is_control:
                found += [render(Placed("t", 0, record)) for record in records_of(log, pos, max_bytes=1 << 20)]
    return [line for line in found if line]


def test_kafkas_offsets(golden: Callable):
    shown = [json.loads(line) for line in lines(golden, "consumer-offsets", "offsets")]
    first = {"type": 1, "data": {"group": "tx-group", "topic": "records", "partition": 2}}
    assert shown[0]["key"] == first
    assert shown[0]["value"]["data"]["offset"] == 20
    assert {"key": first, "value": None} in shown
    assert {each["key"]["type"] for each in shown} == {1}
    old = lines(golden, "consumer-offsets", "offsets-1.0")
    assert len(old) == len(shown)
    assert (
        b"[classic-group,records,2]::[OffsetMetadata[11,meta-1\0],CommitTime 1795210738483,ExpirationTime _]\n" in old
    )


@pytest.mark.parametrize("name", ["groups", "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter"])
def test_kafkas_groups(golden: Callable, name: str):
    shown = [json.loads(line) for line in lines(golden, "consumer-offsets", name)]
    assert {each["key"]["data"]["group"] for each in shown} >= {"classic-group", "coop-group"}
    assert {each["key"]["type"] for each in shown} == {2}


def test_kafkas_transactions(golden: Callable):
    name = "kafka.coordinator.transaction.TransactionLog$TransactionLogMessageFormatter"
    shown = [json.loads(line) for line in lines(golden, "transaction-state", name)]
    assert all("transactionalId" in each["key"]["data"] for each in shown)


def test_unreadable_records_are_skipped():
    assert make_formatter("offsets")(Placed("t", 0, Record(0, 0, b"\0\x63", b"", ()))) == b""
    assert make_formatter("offsets")(Placed("t", 0, Record(0, 0, None, None, ()))) == b""
    with pytest.raises(ValueError, match="is not a formatter"):
        make_formatter("nonsense")
