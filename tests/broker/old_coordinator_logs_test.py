"""Committed positions that Kafka wrote before 0.11: `__consumer_offsets` with messages of formats v0 and v1."""

from __future__ import annotations

import pytest
from tests.broker.corrupt_shard_test import House
from tests.messagesets import GZIP, kept_set

from ottla.cluster.coordinators import partition_for
from ottla.record.log_entries import entries_of, records_at


@pytest.mark.slow
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, GZIP])
def test_positions_in_old_messages_are_loaded(magic: int, codec: int) -> None:
    house = House()
    log = house.node.broker.hosted.find_partition("__consumer_offsets", partition_for("a", 4)).log
    path = f"{log.metadata.directory}/{0:020d}.log"
    content = house.node.read(path)
    stored = [record for at, _ in entries_of(content) for record in records_at(content, at, max_bytes=1 << 20)]
    changed = [
        record._replace(value=record.value[:2] + (42).to_bytes(8, "big") + record.value[10:]) for record in stored
    ]

    def replace() -> None:
        log.restart_at(0)
        log.append_replica(memoryview(kept_set(magic, codec, [*stored, *changed_at(changed, len(stored))])))
        log.high_watermark = log.end_offset

    house.node.process.post_turn(0, "replace", replace)
    house.node.pass_ms(100)
    house.begin_again()
    assert house.committed("a") == (0, 42)
    assert house.commit("a") == 0
    house.begin_again()
    assert house.committed("a") == (0, 7), "a batch after old messages"


def changed_at(records, offset: int):
    return [record._replace(offset=offset + at) for at, record in enumerate(records)]
