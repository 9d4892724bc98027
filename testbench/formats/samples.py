"""Writes and reads a sample of each stored format with the `ottla` that PYTHONPATH has, of this release or of 0.1.

Zone: real. A program of its own, because one process imports one release: `samples.py write` prints the bytes as JSON,
`samples.py read` prints the values in the bytes that it reads from standard input. It imports only what both releases
have; the names that differ are in `_first_of`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from importlib.util import find_spec
from typing import Any, Final

import ottla
from ottla.groups.records import GroupCodec, GroupSaved, OffsetCommitted, Position
from ottla.record.batch import Record, encode_batch, header_at, records_of
from ottla.record.control import Marker, marker_batch
from ottla.record.internal.groups import GroupMetadataValue
from ottla.storage import checkpoints
from ottla.transactions.codec import Entry, TransactionCodec
from ottla.transactions.state import Transaction
from ottla.types import Endpoint, TopicPartition
from ottla.wire.codec import encode_bytes
from ottla.znodes.records import Transaction as JournalStep
from ottla.znodes.records import decode_snapshot, encode_snapshot, encode_transaction, transactions_in
from ottla.znodes.tree import Change, Tree, Verb

Codec = tuple[bytes, bytes | None]
GATED: Final = " at "
"""In the names of samples that 0.1 does not write, between the format and the setting under which this release does."""


def _first_of(*places: str) -> Any:
    """The first of some modules, or `module:name`, that this release has."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            found = importlib.import_module(module)
            return getattr(found, name) if name else found
        except (ImportError, AttributeError):
            continue
    raise LookupError(places)


_layout: Any = _first_of("ottla.cluster.store.layout", "ottla.cluster.layout")
_checksum: Any = _first_of("ottla.storage.indexes.txn_index:IndexChecksum", "ottla.storage.txn_index:Sum")
_snapshot_entry: Any = _first_of(
    "ottla.storage.producers.producer_state:SnapshotEntry", "ottla.storage.producer_state:SnapshotEntry"
)
_loss: Any = _first_of("ottla.storage.log_loss:IncompleteLog", "ottla.storage.lack:Lack")
_format_loss: Any = _first_of("ottla.storage.log_loss:format_loss", "ottla.storage.lack:format_lack")
_parse_loss: Any = _first_of("ottla.storage.log_loss:parse_loss", "ottla.storage.lack:parse_lack")
_status: Any = _first_of("ottla.transactions.state:TransactionStatus", "ottla.transactions.state:Status")
_notification: Any = _first_of("ottla.cluster.config_changes:notification_op", "ottla.cluster.config_changes:note_op")

_WALL_MS: Final = 1_780_000_000_000
_UUID: Final = bytes(range(1, 17))
_TP: Final = TopicPartition("orders", 1)
_FIRST: Final = TopicPartition("orders", 0)


# -- values ------------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """A value without the classes of a release, as JSON has it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return sorted([_plain(key), _plain(each)] for key, each in value.items())
    if isinstance(value, (frozenset, set)):
        return sorted(_plain(each) for each in value)
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, GroupMetadataValue):
        return encode_bytes(value, 3).hex()
    return value


def _group() -> GroupMetadataValue:
    member = GroupMetadataValue.MemberMetadata(
        member_id="m-1",
        client_id="billing",
        client_host="/127.0.0.1",
        rebalance_timeout=300_000,
        session_timeout=45_000,
        subscription=b"subscribed",
        assignment=b"assigned",
    )
    return GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="m-1",
        current_state_timestamp=_WALL_MS,
        members=[member],
    )


def _offset(leader_epoch: int = 4) -> OffsetCommitted:
    return OffsetCommitted("billing", "orders", 1, Position(2**40, leader_epoch, "note", _WALL_MS))


def _transaction(status: int, **fields: Any) -> Entry:
    partitions = frozenset({_TP, _FIRST, TopicPartition("tea", 2)})
    return Entry("till-1", Transaction(4000, 3, 60_000, _status(status), partitions, 1000, 2000, **fields))


def _tree() -> Tree:
    tree = Tree()
    changes = [
        Change(Verb.OPEN, "", b"\0\0\x17\x70secret", 77),
        Change(Verb.CREATE, "/brokers"),
        Change(Verb.CREATE, "/brokers/1", b"{}", 77),
        Change(Verb.PUT, "/brokers", b"changed"),
    ]
    tree.apply(changes, 5, _WALL_MS)
    return tree


def _tree_values(data: bytes) -> object:
    tree, next_zxid = decode_snapshot(memoryview(data))
    kept = ("data", "version", "cversion", "czxid", "mzxid", "pzxid", "ctime", "mtime", "owner")
    nodes = {path: [getattr(node, name) for name in kept] for path, node in tree.nodes.items()}
    return next_zxid, nodes, tree.grants


def _records(data: bytes) -> object:
    view = memoryview(data)
    header = header_at(view, 0)
    return (
        header.base_offset,
        header.producer_id,
        header.producer_epoch,
        header.attributes,
        list(records_of(view, 0, max_bytes=1000)),
    )


# -- samples -----------------------------------------------------------------------------------------------------------


def _pack(record: Codec) -> bytes:
    key, value = record
    return len(key).to_bytes(4) + key + (value or b"")


def _unpack(codec: Any) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        end = 4 + int.from_bytes(data[:4])
        return codec.decode(data[4:end], data[end:])

    return read


def _broker(**fields: Any) -> bytes:
    endpoints = (Endpoint("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"), Endpoint("TLS", "::1", 9093, "SSL"))
    node = _layout.BrokerNode(endpoints, "rack-1", "host-1", True, (_TP,), **fields)
    encoded: bytes = _layout.encode_broker(node, _WALL_MS)
    return encoded


def _writers() -> dict[str, Callable[[], bytes | bytearray]]:
    group, transactions = GroupCodec(), TransactionCodec()
    node = _layout.TopicNode(_UUID, {0: (1, 2), 1: (2, 3)}, {1: (3,)}, {1: (2,)})
    entries = [_snapshot_entry(4000, 3, 9, 2**33, 2, _WALL_MS, 6, 70), _snapshot_entry(4001, 0, 0, 1, 0, 5, -1, -1)]
    meta = checkpoints.MetaProperties(1, "cluster-a", _UUID)
    batch = [Record(10, _WALL_MS, b"key", b"value"), Record(11, _WALL_MS + 1, None, None)]
    step = JournalStep(5, _WALL_MS, [Change(Verb.CREATE, "/a", b"data", 77), Change(Verb.DELETE, "/b")])
    return {
        "offset-checkpoint": lambda: checkpoints.format_offsets({_FIRST: 7, _TP: 2**40}),
        "leader-epoch-checkpoint": lambda: checkpoints.format_epochs([(0, 0), (4, 2**40)]),  # type: ignore[list-item]
        "meta.properties": lambda: checkpoints.format_meta_properties(meta, _WALL_MS),
        "kafka_cleanshutdown": lambda: checkpoints.format_clean_shutdown(-1),
        "partition.metadata": lambda: checkpoints.format_partition_metadata(_UUID),
        "producer-snapshot": lambda: checkpoints.format_snapshot(entries),
        "txnindex-checksums": lambda: checkpoints.format_checksums({f"{0:020d}.txnindex": _checksum(34, 12345)}),
        "incomplete": lambda: _format_loss(_loss.END),
        "record-batch": lambda: encode_batch(batch, base_offset=10, producer_id=4000, producer_epoch=3),
        "transaction-marker": lambda: marker_batch(4000, 3, Marker(True, 6), _WALL_MS),
        "journal-transaction": lambda: encode_transaction(step),
        "journal-snapshot": lambda: encode_snapshot(_tree(), 9),
        "znode-topic": lambda: _layout.encode_topic(node),
        "znode-state": lambda: _layout.encode_state(_layout.StateNode(2, 5, (2, 3), 8)),
        "znode-broker": _broker,
        "znode-config": lambda: _layout.encode_config({"retention.ms": "5"}),
        "znode-cluster-id": lambda: _layout.encode_cluster_id("cluster-a"),
        "znode-controller": lambda: _layout.encode_controller(2, _WALL_MS),
        "znode-feature": _layout.encode_feature,
        "znode-reassignment": lambda: _layout.encode_reassignment({_TP: (3, 1)}),
        "znode-log-dir-event": lambda: _layout.encode_log_dir_event(3),
        "znode-producer-id-block": lambda: _layout.encode_block(_layout.BlockNode(2, 4000, 4999)),
        "znode-config-change": lambda: _notification("topics/orders").data,
        "offset": lambda: _pack(group.encode(_offset())),
        "group": lambda: _pack(group.encode(GroupSaved("billing", _group()))),
        "transaction-ongoing": lambda: _pack(transactions.encode(_transaction(1))),
        "transaction-complete": lambda: _pack(
            transactions.encode(_transaction(4, previous_producer_id=4000, last_epoch=2, version=2))
        ),
    }


def _codec_of(age: str) -> GroupCodec:
    from ottla.groups.record_versions import group_record_versions

    return GroupCodec(group_record_versions(age))


def _group_of(age: str) -> Callable[[], bytes]:
    return lambda: _pack(_codec_of(age).encode(GroupSaved("billing", _group())))


def _offset_of(age: str) -> Callable[[], bytes]:
    return lambda: _pack(_codec_of(age).encode(_offset(-1)))


def _gated_writers() -> dict[str, Callable[[], bytes | bytearray]]:
    """The samples that only this release writes."""
    from ottla.cluster.features.feature_levels import registered_features
    from ottla.transactions.state import TransactionVersion

    level = TransactionVersion()
    level.level = 0
    return {
        "znode-broker at features": lambda: _broker(features=registered_features()),
        **{f"offset at inter.broker.protocol.version {age}": _offset_of(age) for age in ("2.0", "2.1-IV0")},
        **{f"group at inter.broker.protocol.version {age}": _group_of(age) for age in ("0.10.0", "2.0", "2.2")},
        "transaction-ongoing at transaction.version 0": lambda: _pack(TransactionCodec(level).encode(_transaction(1))),
    }


def _readers() -> dict[str, Callable[[bytes], object]]:
    group, transactions = _unpack(GroupCodec()), _unpack(TransactionCodec())

    def node(name: str) -> Callable[[bytes], object]:
        return lambda data: getattr(_layout, f"decode_{name}")("/node", data)

    return {
        "offset-checkpoint": checkpoints.parse_offsets,
        "leader-epoch-checkpoint": checkpoints.parse_epochs,
        "meta.properties": checkpoints.parse_meta_properties,
        "kafka_cleanshutdown": checkpoints.parse_clean_shutdown,
        "partition.metadata": checkpoints.parse_partition_metadata,
        "producer-snapshot": checkpoints.parse_snapshot,
        "txnindex-checksums": checkpoints.parse_checksums,
        "incomplete": _parse_loss,
        "record-batch": _records,
        "transaction-marker": _records,
        "journal-transaction": lambda data: list(transactions_in(memoryview(data), 5)),
        "journal-snapshot": _tree_values,
        "znode-topic": node("topic"),
        "znode-state": node("state"),
        # Without the features, which are only written.
        "znode-broker": lambda data: node("broker")(data)[:5],  # type: ignore[index]
        "znode-config": node("config"),
        "znode-cluster-id": node("cluster_id"),
        "znode-controller": node("controller"),
        "znode-feature": json.loads,
        "znode-reassignment": node("reassignment"),
        "znode-log-dir-event": node("log_dir_event"),
        "znode-producer-id-block": node("block"),
        "znode-config-change": json.loads,
        "offset": group,
        "group": group,
        "transaction-ongoing": transactions,
        "transaction-complete": transactions,
    }


def write_samples() -> dict[str, bytes]:
    """The bytes of each sample that this release writes."""
    has_gates = find_spec("ottla.cluster.features") is not None
    writers = {**_writers(), **(_gated_writers() if has_gates else {})}
    return {name: bytes(write()) for name, write in writers.items()}


def read_samples(samples: Mapping[str, bytes]) -> dict[str, Any]:
    """The values in the bytes of samples."""
    readers = _readers()
    return {name: _plain(readers[name.split(GATED)[0]](data)) for name, data in samples.items()}


def main(verb: str) -> None:
    """Write or read all samples; the output also has the path of the package that did it."""
    if verb == "write":
        answer: Mapping[str, Any] = {name: data.hex() for name, data in write_samples().items()}
    else:
        answer = read_samples({name: bytes.fromhex(text) for name, text in json.load(sys.stdin).items()})
    print(json.dumps({"package": ottla.__file__, "samples": answer}))


if __name__ == "__main__":
    main(sys.argv[1])
