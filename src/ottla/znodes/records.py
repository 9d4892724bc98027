"""Encodes transactions and snapshots of the tree as record batches.

Zone: pure. Bytes only; `journal` manages the files.

A transaction is one v2 batch whose base offset is its zxid and whose records are its changes, so that zxids rise by
the number of changes. A record's key is the path, its value `verb i8 · owner i64 · data`, its timestamp wall time.

A snapshot is a sequence of batches with offsets from 0. The first record has no key and holds
`format i16 = 2 · next zxid i64 · nodes i64 · sessions i32` and per session `id i64 · length i8 · its grant` (format 1:
only the ids, without grants). Every other record is a node:
key path, value `version i32 · cversion i32 · czxid i64 · mzxid i64 · pzxid i64 · ctime i64 · mtime i64 · owner i64` and
its data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct, error
from typing import Final, NamedTuple

from ottla.record.batch import Record, batches_of, crc_ok, encode_batch, records_of
from ottla.record.errors import CorruptRecord
from ottla.znodes.tree import Change, Tree, Verb, Znode, split_path

SNAPSHOT_FORMAT: Final = 2
_CHANGE: Final = Struct(">bq")
_NODE: Final = Struct(">iiqqqqqq")
_HEAD: Final = Struct(">hqqi")
_SESSION: Final = Struct(">qb")
_SESSION_ID: Final = Struct(">q")
_BATCH_NODES: Final = 256
"""Nodes per batch of a snapshot."""
_BATCH_BYTES: Final = 2**30
"""Effectively no limit for the records of an uncompressed batch: its length is checked against the file."""


class CorruptStore(Exception):
    """A file of the metadata store is damaged. The message names it and the next step."""


class Transaction(NamedTuple):
    """One atomic step in the journal."""

    zxid: int
    wall_ms: int
    changes: Sequence[Change]


def encode_transaction(transaction: Transaction) -> bytearray:
    """Encode a transaction, which must have at least one change."""
    assert transaction.changes, "a transaction without changes is not journaled"
    return encode_batch(
        (
            Record(
                transaction.zxid + index,
                transaction.wall_ms,
                change.path.encode(),
                _CHANGE.pack(change.verb, change.owner) + change.data,
            )
            for index, change in enumerate(transaction.changes)
        ),
        base_offset=transaction.zxid,
    )


def transactions_in(view: memoryview, zxid: int) -> Iterator[tuple[Transaction, int]]:
    """Decode transactions with their end positions, as long as they are whole, intact and in sequence from `zxid`."""
    try:
        for pos, header in batches_of(view):
            end = pos + header.size
            # A batch out of sequence is not part of the journal, even if it is intact.
            if header.base_offset != zxid or not crc_ok(view, pos, end):
                return
            changes = [_change_of(record) for record in records_of(view, pos, max_bytes=_BATCH_BYTES)]
            yield Transaction(zxid, header.base_timestamp, changes), end
            zxid += len(changes)
    except (CorruptRecord, error, ValueError):
        return


def _change_of(record: Record) -> Change:
    value = record.value or b""
    verb, owner = _CHANGE.unpack_from(value)
    return Change(Verb(verb), (record.key or b"").decode(), value[_CHANGE.size :], owner)


def encode_snapshot(tree: Tree, next_zxid: int) -> bytes:
    """Encode the whole tree. `next_zxid`: the first transaction that it does not contain."""
    sessions = sorted(tree.grants.items())
    head = _HEAD.pack(SNAPSHOT_FORMAT, next_zxid, len(tree.nodes), len(sessions))
    head += b"".join(_SESSION.pack(session, len(grant)) + grant for session, grant in sessions)
    batches = [encode_batch([Record(0, 0, None, head)])]
    # A parent sorts before its children, which `_add_node` needs.
    paths = sorted(tree.nodes)
    for start in range(0, len(paths), _BATCH_NODES):
        chunk = paths[start : start + _BATCH_NODES]
        batches.append(encode_batch(_node_records(tree, chunk, start + 1), base_offset=start + 1))
    return b"".join(batches)


def _node_records(tree: Tree, paths: Iterable[str], offset: int) -> Iterator[Record]:
    for position, path in enumerate(paths):
        node = tree.nodes[path]
        fixed = _NODE.pack(
            node.version, node.cversion, node.czxid, node.mzxid, node.pzxid, node.ctime, node.mtime, node.owner
        )
        yield Record(offset + position, 0, path.encode(), fixed + node.data)


def decode_snapshot(view: memoryview) -> tuple[Tree, int]:
    """Decode the tree and its next zxid. Raises CorruptStore when anything is missing or damaged."""
    try:
        records = _intact_records(view)
        tree, next_zxid, nodes = _head_of(next(records))
        for record in records:
            _add_node(tree, record)
    except (CorruptRecord, error, ValueError, KeyError, StopIteration, RuntimeError) as reason:
        raise CorruptStore(f"the snapshot cannot be read: {reason!r}") from None
    if len(tree.nodes) != nodes:
        raise CorruptStore(f"the snapshot has {len(tree.nodes)} of {nodes} nodes")
    return tree, next_zxid


def _intact_records(view: memoryview) -> Iterator[Record]:
    end = 0
    for pos, header in batches_of(view):
        end = pos + header.size
        if not crc_ok(view, pos, end):
            raise CorruptRecord(f"the checksum of the batch at {pos} is wrong")
        yield from records_of(view, pos, max_bytes=_BATCH_BYTES)
    if end != len(view):
        raise CorruptRecord("the last batch is cut")


def _head_of(record: Record) -> tuple[Tree, int, int]:
    value = record.value or b""
    layout, next_zxid, nodes, sessions = _HEAD.unpack_from(value)
    if record.key is not None or layout not in (1, SNAPSHOT_FORMAT):
        raise CorruptRecord(f"unknown format {layout}")
    tree = Tree()
    pos = _HEAD.size
    for _ in range(sessions):
        session, grant, pos = _session_at(value, pos, has_grant=layout > 1)
        tree.ephemerals[session] = {}
        tree.grants[session] = grant
    return tree, next_zxid, nodes


def _session_at(value: bytes, pos: int, has_grant: bool) -> tuple[int, bytes, int]:
    if not has_grant:
        return *_SESSION_ID.unpack_from(value, pos), b"", pos + _SESSION_ID.size
    session, length = _SESSION.unpack_from(value, pos)
    pos += _SESSION.size
    if not 0 <= length <= len(value) - pos:
        raise CorruptRecord(f"the grant of session {session} has {length} bytes")
    return session, value[pos : pos + length], pos + length


def _add_node(tree: Tree, record: Record) -> None:
    """Add a node. Nodes are in the order of their paths, so a parent is before its children."""
    path, value = (record.key or b"").decode(), record.value or b""
    version, cversion, czxid, mzxid, pzxid, ctime, mtime, owner = _NODE.unpack_from(value)
    node = Znode(value[_NODE.size :], czxid, ctime, owner)
    node.version, node.cversion, node.mzxid, node.pzxid, node.mtime = version, cversion, mzxid, pzxid, mtime
    tree.nodes[path] = node
    if path != "/":
        parent, name = split_path(path)
        tree.nodes[parent].children[name] = None
    if owner:
        tree.ephemerals[owner][path] = None
