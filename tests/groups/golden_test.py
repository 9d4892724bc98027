"""The groups in a `__consumer_offsets` that Apache Kafka wrote are loaded as Kafka's own tool described them."""

from __future__ import annotations

from collections.abc import Callable

from tests.groups.hall import Hall

from ottla.coordinator.shard import EntryOrigin, TransactionEnd
from ottla.groups.records import GroupCodec, GroupSaved
from ottla.record.batch import batches_of, records_of
from ottla.record.control import parse_marker


def loaded(golden: Callable) -> Hall:
    hall = Hall()
    codec = GroupCodec()
    for path in sorted(golden("consumer-offsets").directory.glob("__*/*.log")):
        log = path.read_bytes()
        for pos, header in batches_of(log):
            for record in records_of(log, pos, max_bytes=1 << 20):
                origin = EntryOrigin(record.offset, header.producer_id, header.producer_epoch)
                if header.is_control:
                    marker = parse_marker(record.key, record.value)
                    assert marker is not None
                    hall.shard.apply(TransactionEnd(header.producer_id, 0, marker.commit), origin)
                else:
                    entry = codec.decode(record.key, record.value)
                    if entry is not None:
                        hall.shard.apply(entry, origin)
    return hall


def test_kafkas_groups_are_loaded(golden: Callable):
    hall = loaded(golden)
    assert hall.fetches(group="classic-group") == {("records", 0): 10, ("records", 1): 10, ("records", 2): 11}
    assert hall.fetches(group="coop-group") == {("records", 0): 14, ("records", 2): 14, ("records", 1): 15}
    assert hall.fetches(group="offsets-only") == {("records", 1): 7, ("segments", 0): 200}
    assert hall.fetches(group="tx-group") == {}
    assert hall.described("tx-group") is None
    group = hall.described("coop-group")
    assert group is not None
    assert group.protocol == "cooperative-sticky"
    assert {member.client_id for member in group.members.values()} == {"coop-0", "coop-1"}
    assert group.subscribed_topics() == {"records"}
    classic = hall.described("classic-group")
    assert classic is not None
    assert sorted(classic.statics) == ["static-0", "static-1"]
    assert (classic.state.value, classic.generation) == ("Stable", 2)
    assert next(iter(hall.shard.offsets.of_group("classic-group")))[1].metadata == "meta-0\0"


def test_kafkas_generations_are_encoded_as_they_were(golden: Callable):
    hall = loaded(golden)
    codec = GroupCodec()
    kept: dict[bytes, bytes | None] = {}
    for path in sorted(golden("consumer-offsets").directory.glob("__*/*.log")):
        log = path.read_bytes()
        for pos, header in batches_of(log):
            if not header.is_control:
                kept |= {record.key: record.value for record in records_of(log, pos, max_bytes=1 << 20)}
    compared = 0
    for group in hall.shard.groups.values():
        if group.generation:
            key, value = codec.encode(GroupSaved(group.group_id, group.to_value()))
            assert kept[key] == value
            compared += 1
    assert compared == 2
