"""Hand-written codec for Fetch, v0 to v18.

Zone: pure. The fixed fields of a request's partition are unpacked in one call; tagged high watermarks of a follower are
skipped. In a response, all bytes between two record sets are one part.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from ottla.seams import Part, Region
from ottla.wire.codec import decode
from ottla.wire.errors import MalformedMessage, fail, refuse_length
from ottla.wire.limits import ALLOWANCE, AMPLIFICATION
from ottla.wire.messages import FetchRequest as Declared
from ottla.wire.primitives import read_uvarint, skip_tags, uvarint

Wanted = tuple[str | bytes, int, int, int, int, int, int]
"""(topic name, or topic id from v13; partition; current leader epoch; fetch offset; last fetched epoch; log start
offset; most bytes). Fields that a version lacks are -1."""
Forgotten = tuple[str | bytes, int]
"""(topic name, or topic id from v13; partition)"""
Fetched = tuple[int, int, int, int, int, list[tuple[int, int]] | None, int, Part | None]
"""(partition, error, high watermark, last stable offset, log start offset, aborted transactions as (producer id, first
offset) or None, preferred replica or -1, record data)"""
Answers = Sequence[tuple[str, bytes, Collection[Fetched]]]
"""(topic name, topic id, answers): the version decides which of the two is encoded."""


class FetchRequest(NamedTuple):
    """A Fetch request; fields that a version lacks have Kafka's default."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[Wanted]
    forgotten: list[Forgotten]
    rack_id: str
    replica_epoch: int = -1
    """The broker epoch of the follower (v15, KIP-903)."""


class _Unusual(Exception):
    """The fast code does not handle this input, valid or not: the compiled codec decides."""


_FORGOTTEN_MEMORY: Final = 80
"""Bytes of memory per forgotten partition: a tuple of two and its place in the list. Wanted partitions need no such
limit: they take at least 16 bytes on the wire, and at most 169 in memory."""
_new = tuple.__new__


def decode_fetch(version: int) -> Callable[[memoryview, int], FetchRequest]:
    """A decoder of Fetch requests: (frame, position of the body) to FetchRequest. It raises MalformedMessage."""
    assert version in Declared.VERSIONS, version
    fast = _compact_request(version) if version >= 12 else _plain_request(version)

    def decode_one(view: memoryview, pos: int) -> FetchRequest:
        try:
            return fast(view, pos)
        except (IndexError, struct.error, UnicodeDecodeError, MalformedMessage, _Unusual):
            pass  # leaving the `except` frees the partial result before the second attempt
        return _decode_any(version, view, pos)

    return decode_one


def _decode_any(version: int, view: memoryview, pos: int) -> FetchRequest:
    r, _ = decode(Declared, version, view, pos)
    by_id = version >= 13
    wanted: list[Wanted] = []
    for topic in r.topics:
        name = topic.topic_id if by_id else topic.topic
        for p in topic.partitions:
            where = (name, p.partition, p.current_leader_epoch, p.fetch_offset)
            wanted.append((*where, p.last_fetched_epoch, p.log_start_offset, p.partition_max_bytes))
    dropped = [(f.topic_id if by_id else f.topic, f.partitions) for f in r.forgotten_topics_data]
    count = sum(len(partitions) for _, partitions in dropped)
    if count * _FORGOTTEN_MEMORY > len(view) * AMPLIFICATION + ALLOWANCE:
        fail("FetchRequest.forgotten_topics_data", "too many small elements")
    forgotten = [(name, partition) for name, partitions in dropped for partition in partitions]
    replica = r.replica_state.replica_id if version >= 15 else r.replica_id
    waits = (r.max_wait_ms, r.min_bytes, r.max_bytes, r.isolation_level, r.session_id, r.session_epoch)
    return FetchRequest(replica, *waits, wanted, forgotten, r.rack_id, r.replica_state.replica_epoch)


_read_short = struct.Struct(">h").unpack_from
_read_number = struct.Struct(">i").unpack_from


def _plain_request(version: int) -> Callable[[memoryview, int], FetchRequest]:
    """The decoder for v0 to v11: lengths are int16 (text) and int32 (arrays). Forgotten topics are _Unusual."""
    fields = "iii" + ("i" if version >= 3 else "") + ("b" if version >= 4 else "") + ("ii" if version >= 7 else "")
    head = struct.Struct(f">{fields}ih")  # … topics, length of the first one's name
    read_head, head_size = head.unpack_from, head.size
    absent = ((0x7FFFFFFF,) if version < 3 else ()) + ((0,) if version < 4 else ()) + ((0, -1) if version < 7 else ())
    read_partitions = _read_oldest if version < 5 else _read_older if version < 9 else _read_old

    def fast(view: memoryview, p: int) -> FetchRequest:
        rack = ""
        *values, topics, n = read_head(view, p)
        p += head_size
        wanted: list[Wanted] = []
        if topics <= 0:
            raise _Unusual
        while True:
            e = p + n
            name = view[p:e].tobytes().decode()
            if n < 0:
                raise _Unusual
            p = read_partitions(view, e, name, wanted)
            topics -= 1
            if not topics:
                break
            (n,) = _read_short(view, p)
            p += 2
        if version >= 7:
            if _read_number(view, p) != _NONE:
                raise _Unusual
            p += 4
        if version >= 11:
            (n,) = _read_short(view, p)
            p += 2 + n
            if n < 0:
                raise _Unusual
            if n:
                rack = view[p - n : p].tobytes().decode()
        if p > len(view):
            raise _Unusual
        return _new(FetchRequest, (*values, *absent, wanted, [], rack, -1))

    return fast


_NONE: Final = (0,)
_one_oldest = struct.Struct(">iqi").unpack_from
_one_older = struct.Struct(">iqqi").unpack_from
_one_old = struct.Struct(">iiqqi").unpack_from


def _read_oldest(view: memoryview, p: int, name: str, wanted: list[Wanted]) -> int:
    """Decode the partitions of one topic in v0 to v4. Returns the position after them."""
    count: int = _read_number(view, p)[0]
    if count < 0:
        raise _Unusual
    stop = p + 4 + count * 16
    for at in range(p + 4, stop, 16):
        partition, offset, most = _one_oldest(view, at)
        wanted.append((name, partition, -1, offset, -1, -1, most))
    return stop


def _read_older(view: memoryview, p: int, name: str, wanted: list[Wanted]) -> int:
    """Decode the partitions of one topic in v5 to v8. Returns the position after them."""
    count: int = _read_number(view, p)[0]
    if count < 0:
        raise _Unusual
    stop = p + 4 + count * 24
    for at in range(p + 4, stop, 24):
        partition, offset, start, most = _one_older(view, at)
        wanted.append((name, partition, -1, offset, -1, start, most))
    return stop


def _read_old(view: memoryview, p: int, name: str, wanted: list[Wanted]) -> int:
    """Decode the partitions of one topic in v9 to v11. Returns the position after them."""
    count: int = _read_number(view, p)[0]
    if count < 0:
        raise _Unusual
    stop = p + 4 + count * 28
    for at in range(p + 4, stop, 28):
        partition, epoch, offset, start, most = _one_old(view, at)
        wanted.append((name, partition, epoch, offset, -1, start, most))
    return stop


def _compact_request(version: int) -> Callable[[memoryview, int], FetchRequest]:
    """The decoder for v12 and later: compact lengths, tagged fields. Forgotten topics, long names, and tags at the end
    other than the replica's state are _Unusual."""
    by_id = version >= 13
    replica_first = version < 15
    skip = 4 if replica_first else 0

    def fast(view: memoryview, p: int) -> FetchRequest:
        replica, rack, replica_epoch = -1, "", -1
        if replica_first:
            (replica,) = _read_number(view, p)
        wait, least, most, isolation, session, epoch, topics = _read_head(view, p + skip)
        p += skip + 22
        wanted: list[Wanted] = []
        if topics > 127:
            topics, p = read_uvarint(view, p - 1)
        elif not topics:
            raise _Unusual
        for _ in range(topics - 1):
            if by_id:
                e = p + 16
                p = _read_new(view, e, (view[p:e].tobytes(),), wanted)
            else:
                n = view[p]
                e = p + n
                if not 0 < n < 128:
                    raise _Unusual
                p = _read_new(view, e, (view[p + 1 : e].tobytes().decode(),), wanted)
        forgotten, n, tags = _read_tail(view, p)
        # 1 is the compact form of an empty array or text: no forgotten topics, no rack.
        if forgotten != 1 or n != 1 or tags:
            rack, tagged, replica_epoch = _rare_tail(view, p)
            replica = replica if replica_first else tagged
        return _new(
            FetchRequest,
            (replica, wait, least, most, isolation, session, epoch, wanted, [], rack, replica_epoch),
        )

    return fast


_read_head = struct.Struct(">iiibiiB").unpack_from
# A partition from v12 on: partition | current leader epoch | fetch offset | last fetched epoch | log start offset |
# most bytes: 32 bytes, then its tag section.
_read_wanted = struct.Struct(">iiqiqi").unpack_from
_read_tail = struct.Struct(">BBB").unpack_from  # forgotten topics, length of the rack's name, tags
_read_replica = struct.Struct(">BBBiqB").unpack_from


_MARK_TAG: Final = b"\1\1\x08"
"""A tag section with the high watermark that a follower knows (v18), 8 bytes. It is skipped."""


def _read_new(view: memoryview, p: int, name: tuple[str | bytes], wanted: list[Wanted]) -> int:
    """Decode the partitions of one topic from v12 on. Returns the position after the topic."""
    count = view[p]
    p += 1
    if count > 127:
        count, p = read_uvarint(view, p - 1)
    elif not count:
        raise _Unusual
    for _ in range(count - 1):
        wanted.append(name + _read_wanted(view, p))
        if view[p + 32]:
            if view[p + 32 : p + 35].tobytes() != _MARK_TAG:
                raise _Unusual  # a directory id, or an unknown tag
            p += 10
        p += 33
    return p + 1 if not view[p] else skip_tags(view, p, len(view))


def _rare_tail(view: memoryview, p: int) -> tuple[str, int, int]:
    """Decode the end of a request with a rack or tags: (rack, replica id, replica epoch)."""
    forgotten, n, e = view[p], view[p + 1], p + 1 + view[p + 1]
    if forgotten != 1 or not 0 < n < 128:
        raise _Unusual
    rack = view[p + 2 : e].tobytes().decode()
    return (rack, *_replica_state(view, e)) if view[e] else (rack, -1, -1)


def _replica_state(view: memoryview, p: int) -> tuple[int, int]:
    """Decode a tag section with the replica's state only: (id, epoch)."""
    count, tag, size, replica, epoch, inner = _read_replica(view, p)
    # One tag, number 1, of 13 bytes: replica id i32 | replica epoch i64 | an inner tag section, empty.
    if (count, tag, size, inner) != (1, 1, 13, 0):
        raise _Unusual
    return replica, epoch


def encode_fetch(version: int) -> Callable[[Answers, int, int, int], list[Part]]:
    """An encoder of Fetch responses: (answers, throttle time in ms, error, session id) to the body's parts.

    Diverging epochs, current leaders and their addresses need the compiled codec (`FetchResponse`).
    """
    assert version in Declared.VERSIONS, version
    return _compact_response(by_id=version >= 13) if version >= 12 else _plain_response(version)


def _plain_response(version: int) -> Callable[[Answers, int, int, int], list[Part]]:
    """v0 to v11."""
    int32, int16 = struct.Struct(">i").pack, struct.Struct(">h").pack
    top = struct.Struct(">ihii").pack

    def encode(topics: Answers, throttle_ms: int, error: int, session_id: int) -> list[Part]:
        head = top(throttle_ms, error, session_id, len(topics))
        if version < 7:
            head = (int32(throttle_ms) if version >= 1 else b"") + int32(len(topics))
        parts: list[Part] = []
        pieces = [head]
        for name, _, answers in topics:
            text = name.encode("utf-8", "surrogateescape")
            pieces += (int16(len(text)), text, int32(len(answers)))
            for answer in answers:
                partition, code, high, stable, start, aborted, preferred, records = answer
                size = -1 if records is None else records.size if isinstance(records, Region) else len(records)
                if aborted is not None or version < 4:
                    pieces.append(_before_records(version, answer, size))
                elif version == 11:
                    pieces.append(_pack_v11(partition, code, high, stable, start, -1, preferred, size))
                elif version > 4:
                    pieces.append(_pack_v5(partition, code, high, stable, start, -1, size))
                else:
                    pieces.append(_pack_v4(partition, code, high, stable, -1, size))
                if size > 0:
                    parts += (b"".join(pieces), records)  # type: ignore[arg-type]  # None has no size
                    pieces = []
                elif size and records is not None:
                    refuse_length(size)
        if pieces:
            parts.append(b"".join(pieces))
        return parts

    return encode


_pack_v11 = struct.Struct(">ihqqqiii").pack  # the first i: no aborted transactions
_pack_v5 = struct.Struct(">ihqqqii").pack
_pack_v4 = struct.Struct(">ihqqii").pack


def _before_records(version: int, answer: Fetched, size: int) -> bytes:
    """Encode a partition of v0 to v3, or of v4 to v11 with aborted transactions, up to the length of its records."""
    partition, code, high, stable, start, aborted, preferred, _ = answer
    out = struct.pack(">ihq", partition, code, high)
    if version >= 4:
        out += struct.pack(">q", stable)
    if version >= 5:
        out += struct.pack(">q", start)
    if version >= 4:
        numbers = [number for pair in aborted or () for number in pair]
        out += struct.pack(f">i{len(numbers)}q", -1 if aborted is None else len(aborted), *numbers)
    if version >= 11:
        out += struct.pack(">i", preferred)
    return out + struct.pack(">i", size)


def _compact_response(*, by_id: bool) -> Callable[[Answers, int, int, int], list[Part]]:
    """v12 and later."""
    top = struct.Struct(">ihi").pack
    usual = struct.Struct(">ihqqqBi").pack  # the B: no aborted transactions, null or empty
    sized = struct.Struct(">ihqqqBiBB").pack  # then the size of its records; or an empty size and no tags
    fixed, int32 = struct.Struct(">ihqqq").pack, struct.Struct(">i").pack

    def encode(topics: Answers, throttle_ms: int, error: int, session_id: int) -> list[Part]:
        parts: list[Part] = []
        before = top(throttle_ms, error, session_id) + uvarint(len(topics) + 1)
        for name, topic_id, answers in topics:
            before += (topic_id if by_id else _compact_text(name)) + uvarint(len(answers) + 1)
            pieces = [before]
            for partition, code, high, stable, start, aborted, preferred, records in answers:
                size = 0 if records is None else records.size if type(records) is Region else len(records)
                if not aborted:
                    none = 0 if aborted is None else 1
                    if 126 < size < 16383:
                        low, up = size + 1 & 127 | 128, size + 1 >> 7
                        pieces.append(sized(partition, code, high, stable, start, none, preferred, low, up))
                    elif not size:
                        empty = 0 if records is None else 1
                        pieces.append(sized(partition, code, high, stable, start, none, preferred, empty, 0))
                        continue
                    else:
                        count = uvarint(size + 1) if size > 0 else refuse_length(size)
                        pieces.append(usual(partition, code, high, stable, start, none, preferred) + count)
                else:
                    head = fixed(partition, code, high, stable, start)
                    count = b"\0" if records is None else uvarint(size + 1) if size >= 0 else refuse_length(size)
                    pieces += (head, _aborted_compact(aborted), int32(preferred), count)
                if size:
                    parts += (b"".join(pieces), records)  # type: ignore[arg-type]  # a size, so there are records
                    pieces = [b"\0"]
                else:
                    pieces.append(b"\0")
            pieces.append(b"\0")
            before = b"".join(pieces)
        parts.append(before + b"\0")
        return parts

    return encode


def _compact_text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogateescape")
    return uvarint(len(encoded) + 1) + encoded


def _aborted_compact(transactions: list[tuple[int, int]]) -> bytes:
    pairs = [struct.pack(">qqB", *pair, 0) for pair in transactions]
    return uvarint(len(transactions) + 1) + b"".join(pairs)
