"""Hand-written codec for Produce, v0 to v13.

Zone: pure. Adjacent values are unpacked in one call, across struct borders: the head of a request with its first
topic's name length, the head of a topic's partitions with the first partition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from ottla.wire.codec import decode
from ottla.wire.errors import MalformedMessage
from ottla.wire.many_partitions import has_many_entries
from ottla.wire.messages import ProduceRequest
from ottla.wire.primitives import read_uvarint, uvarint

Entry = tuple[str | bytes, int, memoryview | None]
"""(topic name, or topic id from v13, partition, record data)"""
Produced = tuple[str | None, int, int, list[Entry]]
"""(transactional id, acks, timeout in ms, entries in order)"""
Answer = tuple[int, int, int, int, int]
"""(partition, error, base offset, append time in ms or -1, log start offset)"""
Answers = list[tuple[str, bytes, list[Answer]]]
"""(topic name, topic id, answers): the version decides which of the two is encoded."""

MANY: Final = 500
"""Most partitions of a request that is decoded and handled as a whole."""
_VERSIONS: Final = ProduceRequest.VERSIONS


class ManyPartitions(Exception):
    """A request has more than MANY partitions: decode it with `many_partitions.ProduceWalk`."""


class _Unusual(Exception):
    """The fast code does not handle this input, valid or not: the compiled codec decides."""


def decode_produce(version: int) -> Callable[[memoryview, int], Produced]:
    """A decoder of Produce requests: (frame, position of the body) to Produced.

    It raises MalformedMessage; ManyPartitions for a request of more than MANY partitions, to be decoded in slices.
    """
    assert version in _VERSIONS, version
    fast = _plain_request(with_id=version >= 3)
    if version >= 9:
        fast = _named_request() if version < 13 else _identified_request()

    def decode_one(view: memoryview, pos: int) -> Produced:
        try:
            return fast(view, pos)
        except (IndexError, struct.error, UnicodeDecodeError, MalformedMessage, _Unusual):
            pass  # leaving the `except` frees the partial result before the second attempt
        if has_many_entries(version, view, pos, MANY):
            raise ManyPartitions
        return _decode_any(version, view, pos)

    return decode_one


def _decode_any(version: int, view: memoryview, pos: int) -> Produced:
    request, _ = decode(ProduceRequest, version, view, pos)
    entries: list[Entry] = []
    for topic in request.topic_data:
        name = topic.topic_id if version >= 13 else topic.name
        for partition in topic.partition_data:
            records = partition.records
            assert records is None or isinstance(records, memoryview)
            entries.append((name, partition.index, records))
    return request.transactional_id, request.acks, request.timeout_ms, entries


def _plain_request(*, with_id: bool) -> Callable[[memoryview, int], Produced]:
    """The decoder for v0 to v8: lengths are int16 (text) and int32 (arrays, records). `with_id`: v3 and later."""
    whole_head = struct.Struct(">hhiih").unpack_from  # id's length, acks, timeout, topics, length of the first name
    head = struct.Struct(">hiih").unpack_from
    first = struct.Struct(">iii").unpack_from  # partitions, first partition, length of its records
    more = struct.Struct(">ii").unpack_from
    short = struct.Struct(">h").unpack_from

    def fast(view: memoryview, p: int) -> Produced:
        end, name_id, n = len(view), None, -1
        if with_id:
            n, acks, timeout_ms, topics, size = whole_head(view, p)
            p += 2
        if n != -1:
            name_id = view[p : p + n].tobytes().decode()
            p += n
        if n != -1 or not with_id:
            acks, timeout_ms, topics, size = head(view, p)
        p += 12
        room = MANY
        entries: list[Entry] = []
        while topics > 0:
            e = p + size
            name = view[p:e].tobytes().decode()
            partitions, partition, length = first(view, e)
            room -= partitions
            # Negative lengths (null), empty arrays and too many partitions: reads past the end are noticed below.
            if size < 0 or partitions < 1 or room < 0:
                raise _Unusual
            p = e + 12
            while True:
                if length < 0:
                    raise _Unusual
                e = p + length
                entries.append((name, partition, view[p:e]))
                p = e
                partitions -= 1
                if not partitions:
                    break
                partition, length = more(view, p)
                p += 8
            topics -= 1
            if topics:
                (size,) = short(view, p)
                p += 2
        # A slice past the end is silently short, but the position then lies beyond the end.
        if p > end or topics < 0 or n < -1:
            raise _Unusual
        return name_id, acks, timeout_ms, entries

    return fast


def _named_request() -> Callable[[memoryview, int], Produced]:
    """The decoder for v9 to v12: compact lengths, topics by name. Counts and name lengths have to be below 127."""
    head = struct.Struct(">BhiBB").unpack_from  # id's length, acks, timeout, topics, length of the first name
    tail = struct.Struct(">hiBB").unpack_from
    first = struct.Struct(">BiB").unpack_from  # partitions, first partition, first byte of its records' length

    def fast(view: memoryview, p: int) -> Produced:
        name_id = None
        n, acks, timeout_ms, topics, size = head(view, p)
        p += 1
        if n:
            e = p + n - 1
            name_id = view[p:e].tobytes().decode()
            acks, timeout_ms, topics, size = tail(view, e)
            p = e
        if topics < 2:
            raise _Unusual  # without a topic, the byte read as its name's length is another field
        p += 8
        room = MANY
        entries: list[Entry] = []
        while topics > 1:
            e = p + size - 1
            name = view[p:e].tobytes().decode()
            partitions, partition, length = first(view, e)
            room -= partitions
            if not 0 < size < 128 or partitions > 127 or room < 0:
                raise _Unusual
            p = _read_entries(view, e + 6, entries, name, partitions, partition, length)
            topics -= 1
            if topics > 1:
                size = view[p]
                p += 1
        if view[p] or n > 127 or topics != 1:
            raise _Unusual
        return name_id, acks, timeout_ms, entries

    return fast


def _identified_request() -> Callable[[memoryview, int], Produced]:
    """The decoder for v13: compact lengths, topics by id."""
    head = struct.Struct(">BhiB").unpack_from  # id's length, acks, timeout, topics
    tail = struct.Struct(">hiB").unpack_from
    first = struct.Struct(">16sBiB").unpack_from  # topic, partitions, first partition, its records' length

    def fast(view: memoryview, p: int) -> Produced:
        name_id = None
        n, acks, timeout_ms, topics = head(view, p)
        p += 1
        if n:
            e = p + n - 1
            name_id = view[p:e].tobytes().decode()
            acks, timeout_ms, topics = tail(view, e)
            p = e
        p += 7
        room = MANY
        entries: list[Entry] = []
        while topics > 1:
            topic_id, partitions, partition, length = first(view, p)
            room -= partitions
            if partitions > 127 or room < 0:
                raise _Unusual
            p = _read_entries(view, p + 22, entries, topic_id, partitions, partition, length)
            topics -= 1
        if view[p] or n > 127 or topics != 1:
            raise _Unusual
        return name_id, acks, timeout_ms, entries

    return fast


_next_entry = struct.Struct(">iB").unpack_from


def _read_entries(
    view: memoryview, p: int, entries: list[Entry], name: str | bytes, partitions: int, partition: int, length: int
) -> int:
    """Decode the partitions of one topic; the first one is decoded up to its records' length. Returns the position
    after them."""
    if partitions < 2:
        raise _Unusual
    while True:
        # Up to three bytes of a length, batches below 2 MiB, are read here instead of by a call.
        if length > 127:
            byte = view[p]
            length = length & 127 | (byte & 127) << 7
            p += 1
            if byte > 127:
                byte = view[p]
                length |= byte << 14
                p += 1
                if byte > 127:
                    length, p = read_uvarint(view, p - 3)
        if not length:  # null, also if its varint is longer than needed
            raise _Unusual
        e = p + length - 1
        entries.append((name, partition, view[p:e]))
        if view[e]:  # tags: 10,000 of them take longer than all else
            raise _Unusual
        partitions -= 1
        if partitions == 1:
            if view[e + 1]:
                raise _Unusual
            return e + 2
        partition, length = _next_entry(view, e + 1)
        p = e + 6


def encode_produce(version: int) -> Callable[[Answers, int], bytes]:
    """An encoder of Produce responses without record errors: (answers, throttle time in ms) to the body's bytes."""
    assert version in _VERSIONS, version
    return _compact_response(with_ids=version >= 13) if version >= 9 else _plain_response(version)


def _plain_response(version: int) -> Callable[[Answers, int], bytes]:
    """v0 to v8."""
    int32 = struct.Struct(">i").pack
    int16 = struct.Struct(">h").pack
    head = struct.Struct(">ih").pack
    layout = "ihq" + ("q" if version >= 2 else "") + ("q" if version >= 5 else "") + ("ih" if version >= 8 else "")
    pack = struct.Struct(f">{layout}").pack
    single = struct.Struct(f">i{layout}i").pack  # number of partitions, the only one, throttle time
    constants = (0, -1) if version >= 8 else ()  # no record errors, no error text
    stop = 5 if version >= 5 else 4 if version >= 2 else 3

    def encode(topics: Answers, throttle_ms: int) -> bytes:
        if len(topics) == 1 and version >= 5:
            name, _, answers = topics[0]
            if len(answers) == 1:
                text = name.encode("utf-8", "surrogateescape")
                return head(1, len(text)) + text + single(1, *answers[0], *constants, throttle_ms)
        out = [int32(len(topics))]
        for name, _, answers in topics:
            text = name.encode("utf-8", "surrogateescape")
            out += (int16(len(text)), text, int32(len(answers)))
            for answer in answers:
                out.append(pack(*answer[:stop], *constants))
        if version >= 1:
            out.append(int32(throttle_ms))
        return b"".join(out)

    return encode


def _compact_response(*, with_ids: bool) -> Callable[[Answers, int], bytes]:
    """v9 and later."""
    pack = struct.Struct(">ihqqqBBB").pack  # … no record errors, no error text, no tags
    head = struct.Struct(">BB").pack
    single = struct.Struct(">BihqqqBBBBiB").pack  # number of partitions, the only one, tags, throttle time, tags
    end = struct.Struct(">iB").pack

    def encode(topics: Answers, throttle_ms: int) -> bytes:
        if len(topics) == 1 and len(topics[0][2]) == 1:
            name, topic_id, ((partition, error, base, append_ms, start),) = topics[0]
            body = single(2, partition, error, base, append_ms, start, 1, 0, 0, 0, throttle_ms, 0)
            if with_ids:
                return b"\2" + topic_id + body
            text = name.encode("utf-8", "surrogateescape")
            if len(text) < 127:
                return head(2, len(text) + 1) + text + body
        out = [uvarint(len(topics) + 1)]
        for name, topic_id, answers in topics:
            if with_ids:
                out.append(topic_id)
            else:
                text = name.encode("utf-8", "surrogateescape")
                out += (uvarint(len(text) + 1), text)
            out.append(uvarint(len(answers) + 1))
            for partition, error, base, append_ms, start in answers:
                out.append(pack(partition, error, base, append_ms, start, 1, 0, 0))
            out.append(b"\0")
        out.append(end(throttle_ms, 0))
        return b"".join(out)

    return encode


class OneAnswer:
    """The usual response, one partition without error, in two pieces: one that depends on the topic only, and the rest.

    `head_bytes(name, topic id)` is followed by `pack(partition, 0, base offset, append time, log start offset,
    *constants)`.
    """

    __slots__ = ("_version", "constants", "pack")

    def __init__(self, version: int) -> None:
        """For versions from 5 on."""
        assert 5 <= version <= _VERSIONS[-1], version
        self._version = version
        self.constants: tuple[int, ...] = ()
        if version >= 9:  # no record errors, no error text, no tags; tags; throttle time; tags
            layout, self.constants = "B8x", (1,)
        elif version == 8:  # no record errors, no error text; throttle time
            layout, self.constants = "4xh4x", (-1,)
        else:
            layout = "4x"
        self.pack = struct.Struct(f">ihqqq{layout}").pack

    def head_bytes(self, name: str, topic_id: bytes) -> bytes:
        """The bytes before the number of the partition."""
        text = name.encode("utf-8", "surrogateescape")
        if self._version >= 13:
            return b"\2" + topic_id + b"\2"
        if self._version >= 9:
            return b"\2" + uvarint(len(text) + 1) + text + b"\2"
        return struct.pack(">ih", 1, len(text)) + text + struct.pack(">i", 1)
