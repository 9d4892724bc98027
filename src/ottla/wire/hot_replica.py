"""Hand-written codec for a follower's Fetch, from v15 on: the other side of `hot_fetch`.

Zone: pure. Encodes requests of one replica with the changes of its session; decodes responses to tuples whose records
are slices of the frame. Older versions, and rare contents (tagged fields, aborted transactions), are left to the
compiled codec.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from ottla.seams import Region
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.hot_fetch import Forgotten, Wanted
from ottla.wire.messages import FetchRequest, FetchResponse
from ottla.wire.primitives import read_uvarint, uvarint

FIRST_WITH_IDS: Final = 13
"""From this version on topics are identified by ids, before that by names."""
FIRST_BY_HAND: Final = 15

Row = tuple[str | bytes, int, int, int, int, tuple[int, int] | None, memoryview]
"""(topic name, or topic id from v13; partition; error; high watermark; log start offset; diverging (epoch, end offset)
or None; records, a slice of the frame)"""


class Answer(NamedTuple):
    """The fields of a Fetch response that a follower needs."""

    error: int
    session_id: int
    rows: list[Row]


class Limits(NamedTuple):
    """The fields that are the same in every request of one fetcher. Times in ms, sizes in bytes."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int


Encoder = Callable[[int, int, int, Sequence[Wanted], Sequence[Forgotten]], bytes]
"""(broker epoch of the replica, session id, session epoch, changed partitions, forgotten ones) to a request's body."""


def encode_replica_fetch(version: int, limits: Limits) -> Encoder:
    """An encoder of a follower's requests."""
    assert version in FetchRequest.VERSIONS, version
    return _by_hand(limits) if version >= FIRST_BY_HAND else _by_codec(version, limits)


_pack_head: Final = struct.Struct(">iiibii").pack
_pack_wanted: Final = struct.Struct(">iiqiqix").pack
_pack_index: Final = struct.Struct(">i").pack
_pack_replica: Final = struct.Struct(">BBBiqB").pack  # one tag, its number and size, id, epoch, no inner tags


def _by_hand(limits: Limits) -> Encoder:
    replica_id, *waits = limits

    def encode(
        broker_epoch: int, session_id: int, epoch: int, wanted: Sequence[Wanted], forgotten: Sequence[Forgotten]
    ) -> bytes:
        pieces = [_pack_head(*waits, 0, session_id, epoch)]
        topics = _by_topic(wanted)
        pieces.append(uvarint(len(topics) + 1))
        for topic, rows in topics.items():
            pieces += (topic, uvarint(len(rows) + 1))
            pieces += [_pack_wanted(*row[1:]) for row in rows]
            pieces.append(b"\0")
        gone = _by_topic(forgotten)
        pieces.append(uvarint(len(gone) + 1))
        for topic, rows in gone.items():
            pieces += (topic, uvarint(len(rows) + 1))
            pieces += [_pack_index(row[1]) for row in rows]
            pieces.append(b"\0")
        pieces.append(b"\1")  # no rack
        pieces.append(_pack_replica(1, 1, 13, replica_id, broker_epoch, 0))
        return b"".join(pieces)

    return encode


def _by_topic(rows: Iterable[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    """Rows by their topic, in order of first appearance."""
    topics: dict[Any, list[Any]] = {}
    for row in rows:
        topics.setdefault(row[0], []).append(row)
    return topics


def _by_codec(version: int, limits: Limits) -> Encoder:
    by_id = version >= FIRST_WITH_IDS

    def encode(
        broker_epoch: int, session_id: int, epoch: int, wanted: Sequence[Wanted], forgotten: Sequence[Forgotten]
    ) -> bytes:
        del broker_epoch  # not in the request before v15
        request = FetchRequest(max_wait_ms=limits.max_wait_ms, min_bytes=limits.min_bytes, max_bytes=limits.max_bytes)
        request.replica_id = limits.replica_id
        request.session_id, request.session_epoch = session_id, epoch
        for name, rows in _by_topic(wanted).items():
            topic = FetchRequest.FetchTopic(**{"topic_id" if by_id else "topic": name})
            topic.partitions = [_declared_partition(version, row) for row in rows]
            request.topics.append(topic)
        for name, rows in _by_topic(forgotten).items():
            gone = FetchRequest.ForgottenTopic(**{"topic_id" if by_id else "topic": name})
            gone.partitions = [row[1] for row in rows]
            request.forgotten_topics_data.append(gone)
        return encode_bytes(request, version)

    return encode


def _declared_partition(version: int, row: Wanted) -> FetchRequest.FetchPartition:
    _, index, leader_epoch, offset, last_epoch, start, most = row
    one = FetchRequest.FetchPartition(partition=index, current_leader_epoch=leader_epoch, fetch_offset=offset)
    one.log_start_offset, one.partition_max_bytes = start, most
    if version >= 12:
        one.last_fetched_epoch = last_epoch
    return one


# Responses.


class _Unusual(Exception):
    """The fast code does not handle this input, valid or not: the compiled codec decides."""


def decode_replica_fetch(version: int) -> Callable[[memoryview, int], Answer]:
    """A decoder of responses: (frame, position of the body) to Answer. It raises MalformedMessage."""
    assert version in FetchResponse.VERSIONS, version

    def decode_one(view: memoryview, pos: int) -> Answer:
        if version >= FIRST_BY_HAND:
            try:
                return _decode_fast(view, pos)
            except (IndexError, struct.error, MalformedMessage, _Unusual):
                pass
        return _decode_any(version, view, pos)

    return decode_one


_read_top: Final = struct.Struct(">ihiB").unpack_from  # throttle time, error, session, topics
_read_row: Final = struct.Struct(">ihqqqBi").unpack_from
_ROW_SIZE: Final = 35
_NO_RECORDS: Final = memoryview(b"")


def _decode_fast(view: memoryview, p: int) -> Answer:
    _, error, session_id, topics = _read_top(view, p)
    p += 11
    if topics > 127:
        topics, p = read_uvarint(view, p - 1)
    rows: list[Row] = []
    for _ in range(topics - 1):
        topic = view[p : p + 16].tobytes()
        p = _read_rows(view, p + 16, topic, rows)
    if p >= len(view) or view[p]:
        raise _Unusual
    return Answer(error, session_id, rows)


def _read_rows(view: memoryview, p: int, topic: bytes, rows: list[Row]) -> int:
    """Decode the partitions of one topic. Returns the position after it."""
    count, p = read_uvarint(view, p)
    end = len(view)
    for _ in range(count - 1):
        partition, error, high, _, start, aborted, _ = _read_row(view, p)
        size, p = read_uvarint(view, p + _ROW_SIZE)
        records = view[p : p + size - 1] if size > 1 else _NO_RECORDS
        p += max(0, size - 1)
        # 0 and 1 are null and empty: replicas get no aborted transactions. A tag may be a diverging epoch.
        if aborted > 1 or p >= end or view[p]:
            raise _Unusual
        p += 1
        rows.append((topic, partition, error, high, start, None, records))
    if view[p]:
        raise _Unusual
    return p + 1


def _decode_any(version: int, view: memoryview, pos: int) -> Answer:
    response, _ = decode(FetchResponse, version, view, pos)
    rows: list[Row] = []
    for topic in response.responses:
        name: str | bytes = topic.topic_id if version >= FIRST_WITH_IDS else topic.topic
        for one in topic.partitions:
            parting = one.diverging_epoch
            diverging = (parting.epoch, parting.end_offset) if parting.end_offset >= 0 or parting.epoch >= 0 else None
            records = one.records
            assert not isinstance(records, Region), "a decoder gives bytes"
            content = _NO_RECORDS if records is None else memoryview(records)
            where = (name, one.partition_index, one.error_code, one.high_watermark)
            rows.append((*where, one.log_start_offset, diverging, content))
    return Answer(response.error_code, response.session_id, rows)
